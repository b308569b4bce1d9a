"""A line about a run while it goes on: what it has cost everyone so far, and what is sure for most people."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable

from bayesdp import validation
from bayesdp.claims.everyone import ledger_clip_bound
from bayesdp.claims.ex_post import ORDERS, ex_post_epsilons
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import percent, round_up
from bayesdp.ledger import StoredLedger

_PART = 0.02  # of the time that passes, at most, is spent on figures
_SECONDS = 0.5  # between one figure and the next, at least


class LiveView:
    """Figures of a ledger that is being written, computed again only when that costs next to nothing."""

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

    def line(self) -> str:
        """The figures in words: the last ones, or new ones if it is time."""
        started = self._clock()
        if started >= self._due:
            self._line = self._words()
            taken = self._clock() - started
            self._due = started + max(_SECONDS, taken / _PART)
        return self._line

    def show(self) -> None:
        """Write the line over the one before, on a terminal."""
        before = self._line
        if sys.stderr.isatty() and self.line() != before:
            sys.stderr.write(f"\r\x1b[K{self._line}")
            sys.stderr.flush()

    def end(self) -> None:
        """Leave the last line."""
        if sys.stderr.isatty() and self._line:
            sys.stderr.write("\n")

    def _words(self) -> str:
        steps = self._ledger.steps
        if not steps:
            return "Training"
        bound = ledger_clip_bound(self._ledger)
        everyone = math.inf if bound is None else float(bound.epsilons([self._delta])[0])
        words = f"Step {steps}: epsilon {_figure(everyone)} for everyone"
        sure = self._sure()
        if sure is not None:
            words += f", {_figure(min(sure, everyone))} for {percent(self._share)}"
        seeded = " NOT FOR RELEASE" if "seeded" in self._ledger.history.caveats else ""
        return f"{words} (delta {self._delta:g}){seeded}"

    def _sure(self) -> float | None:
        """Ex-post for the share; None if there are too few audit records."""
        if not self._ledger.audit_records:
            return None
        return share_epsilon(ex_post_epsilons(self._ledger.costs(ORDERS), self._delta), self._share, self._gamma)


def _figure(epsilon: float) -> str:
    return "without bound" if math.isinf(epsilon) else round_up(epsilon)
