"""The steps of a run, with a progress bar and checkpoints: an interrupted run goes on where its ledger ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from bayesdp.progress import Progress, showing
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

SECONDS_BETWEEN_CHECKPOINTS = 10.0
"""The time between checkpoints."""


class Resumable(Protocol):
    """What changes from step to step and is kept in checkpoints."""

    def state(self) -> Arrays:
        """Return everything that ``restore`` needs."""
        ...

    def restore(self, state: Arrays) -> None:
        """Go back to a state; raise InvalidInputError if it belongs to another model."""
        ...


def run_steps(
    step: Callable[[int], None],
    learner: Resumable,
    *,
    steps: int,
    ledger: Ledger,
    checkpoint: Checkpoint | None = None,
    after: int = 0,
    track: Progress = iter,
) -> None:
    """Call ``step(number)`` until the ledger has ``after + steps`` steps.

    ``step`` must record step ``number`` in the ledger and update ``learner``. ``after`` is the number of steps that
    belong to something before this loop, such as whitening. A ledger that has more than these is continued: the learner
    is restored from ``checkpoint``. Checkpoints are kept at the start, every ten seconds, when the loop is interrupted
    and at the end.

    Formal guarantee: the ledger ends with ``after + steps`` steps, interrupted or not, and what each of them released
    was used at most once: steps that the learner lost in a crash are not repeated.

    Raises InvalidInputError if a ledger is to be continued without its checkpoint.
    """

    def keep() -> None:
        if checkpoint is not None:
            checkpoint.save(learner.state(), ledger)

    if ledger.steps > after:
        learner.restore(_kept(ledger, checkpoint))
    else:
        keep()
    saved = time.monotonic()
    try:
        with showing(track, range(ledger.steps, after + steps)) as numbers:
            for number in numbers:
                step(number)
                if time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    keep()
                    saved = time.monotonic()
    except BaseException:
        with contextlib.suppress(Exception):  # the interruption is raised, not an error from keeping the checkpoint
            keep()
        raise
    keep()


def _kept(ledger: Ledger, checkpoint: Checkpoint | None) -> Arrays:
    arrays = None if checkpoint is None else checkpoint.load(ledger)
    if arrays is None:
        raise refuse("ledger.steps", ledger.steps, "a new ledger, or the checkpoint of the run that it belongs to")
    return arrays
