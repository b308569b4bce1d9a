"""One line about a run while it is training: epsilon so far, for everyone and for most people."""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
import weakref
from collections.abc import Callable

from bayesdp import validation
from bayesdp.claims.clip_advice import clip_sentence
from bayesdp.claims.everyone import guaranteed_clip_bound, ledger_caveats
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import percent, round_up
from bayesdp.ledger import StoredLedger

_PART = 0.02  # the largest part of the time that may be spent on figures
_SECONDS = 0.5  # the shortest time between two computations
_STEPS = 10  # with norms of audit records, after which there may be advice


class LiveView:
    """A line of figures about a ledger that is being written, cheap enough to ask for at every step.

    Figures are computed again after half a second at the earliest, and take at most 2 % of the time. They are of the
    same kind as those of ``Ledger.claims``: the bound for everyone, and the ex-post epsilon for ``share`` of the people
    with confidence 1 - ``gamma``, if there are enough audit records. Without a plan or budget that was kept they name
    their condition. Above the line there is once, after a few steps, what the audit set shows about the clip bound.
    Raises InvalidInputError for values out of range.
    """

    def __init__(
        self,
        ledger: StoredLedger,
        *,
        delta: float = 1e-5,
        share: float = 0.99,
        gamma: float = 0.01,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger, self._clock = ledger, clock
        self._delta = validation.probability("delta", delta)
        self._share, self._gamma = validation.probability("share", share), validation.probability("gamma", gamma)
        self._due = -math.inf
        self._line = ""
        self._advice: str | None = None
        self._ended_at: int | None = None
        "The number of steps in the last line that was ended."

    def line(self, *, last: bool = False) -> str:
        """Return the figures in words: new ones if it is time for them or for the last line, else the previous ones."""
        started = self._clock()
        if last or started >= self._due:
            self._line = self._words()
            taken = self._clock() - started
            self._due = started + max(_SECONDS, taken / _PART)
        return self._line

    def advice(self) -> str:
        """Return what the audit set showed about the clip bound after a few steps; empty if there is no advice."""
        return f"Advice: {self._advice}" if self._advice else ""

    def show(self) -> None:
        """Write the line over the previous one if stderr is a terminal; otherwise do nothing."""
        if not sys.stderr.isatty():
            return
        _shown.add(self)
        before, advised = self._line, self.advice()
        if self.line() != before:
            columns = _columns()
            if self.advice() != advised:
                sys.stderr.write(f"\r\x1b[K{self.advice()}\n")
            fitting = self._line if len(self._line) < columns else self._line[: columns - 2] + "…"
            sys.stderr.write(f"\r\x1b[K{fitting}")  # a line that wraps could not be written over
            sys.stderr.flush()

    def end(self) -> None:
        """Leave a line with the figures of the last step on the terminal, if any line was shown; else do nothing.

        Steps after that begin a new line. What is shown and never ended is ended when the program exits.
        """
        if self in _shown and self._ended_at != self._ledger.steps and sys.stderr.isatty():
            self._ended_at = self._ledger.steps
            sys.stderr.write(f"\r\x1b[K{self.line(last=True)}\n")
            sys.stderr.flush()

    def _words(self) -> str:
        steps = self._ledger.steps
        if not steps:
            return "Training"
        figures = RecordFigures(self._ledger, self._delta, math.inf)
        guaranteed = guaranteed_clip_bound(self._ledger, figures.clip_bound)
        everyone = math.inf if guaranteed is None else float(guaranteed.epsilons([self._delta])[0])
        if self._advice is None and self._ledger.history.audited_steps >= _STEPS:  # it is computed once
            compared = RecordFigures(self._ledger, self._delta, everyone)
            self._advice = clip_sentence(self._ledger, compared, self._gamma, quick=True)
        weakened = {caveat.weakens for caveat in ledger_caveats(self._ledger)}
        of_all = ", an estimate," if "everything" in weakened and math.isfinite(everyone) else ""
        words = f"Step {steps}: epsilon {_figure(everyone)}{of_all} for everyone"
        sure = share_epsilon(figures.ex_post, self._share, self._gamma)
        if sure is not None:
            left_out = math.inf if guaranteed is None else float(guaranteed.epsilons_out([self._delta])[0])
            about = ", an estimate," if weakened - {"nothing"} else ""
            words += f", {_figure(min(sure, left_out))}{about} for {percent(self._share)} of people"
        unplanned = guaranteed is figures.clip_bound and math.isfinite(everyone)
        on_condition = ", if steps did not depend on results" if unplanned else ""
        seeded = " NOT FOR RELEASE" if "seeded" in self._ledger.history.caveats else ""
        return f"{words} (delta {self._delta:g}{on_condition}){seeded}"


_shown: weakref.WeakSet[LiveView] = weakref.WeakSet()
"""The views that have written to the terminal."""


@atexit.register
def _end_all() -> None:
    for view in list(_shown):
        with contextlib.suppress(Exception):  # the program is ending, perhaps because of an error that was reported
            view.end()


def _columns() -> int:
    """Return the width of the terminal on stderr; 80 if it does not tell."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _figure(epsilon: float) -> str:
    return "without bound" if math.isinf(epsilon) else round_up(epsilon)
