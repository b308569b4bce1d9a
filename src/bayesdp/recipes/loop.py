"""The steps of a run, with a progress bar and checkpoints; a run that was interrupted goes on where its ledger ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from bayesdp.progress import Progress
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse

SECONDS = 10.0
"""How often a checkpoint is kept."""


class Resumable(Protocol):
    """What changes from step to step."""

    def state(self) -> Arrays:
        """For a checkpoint."""
        ...

    def restore(self, state: Arrays) -> None:
        """From a checkpoint."""
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
    """Call ``step(number)`` for as many of ``steps`` as the ledger does not have, ``after`` others that it has first.

    Formal guarantee: ``after + steps`` steps are in the ledger at the end, interrupted or not, and what each of them
    released was used once or not at all: steps that a crash took from the learner are not repeated.
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
        for number in track(range(ledger.steps, after + steps)):
            step(number)
            if time.monotonic() - saved > SECONDS:
                keep()
                saved = time.monotonic()
    except BaseException:  # what interrupted it is what is to be heard of
        with contextlib.suppress(Exception):
            keep()
        raise
    keep()


def _kept(ledger: Ledger, checkpoint: Checkpoint | None) -> Arrays:
    arrays = None if checkpoint is None else checkpoint.load(ledger)
    if arrays is None:
        raise refuse("ledger.steps", ledger.steps, "a new ledger, or the checkpoint of the run that it belongs to")
    return arrays
