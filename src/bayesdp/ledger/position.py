"""The position of a ledger, for checkpoints: a run may go on only with a ledger that has all steps before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.validation import refuse


def position_of(ledger: StoredLedger) -> dict[str, Any]:
    """Return the position of a ledger, as plain values for a checkpoint: run, number of steps and a hash.

    The hash is that of the step before the last, because the last one may still be amended.
    """
    steps = ledger.steps
    return {"run": ledger.run, "steps": steps, "hash": ledger.history.hash_at(max(steps - 1, 0)).hex()}


def check_continues(ledger: StoredLedger, state: Mapping[str, Any]) -> None:
    """Check that a ledger contains all steps before a checkpoint, whose position is ``state``.

    Steps after the checkpoint were released too: they stay and count. Raises InvalidInputError if ``state`` is not a
    position, LedgerError if the ledger is of another run or lacks steps.
    """
    try:
        run, steps, link = str(state["run"]), int(state["steps"]), str(state["hash"])
    except (KeyError, TypeError, ValueError):
        raise refuse("state", dict(state), "what state_dict gave") from None
    if ledger.run != run:
        raise LedgerError(ledger.path, f"is of run {ledger.run}, the checkpoint of run {run}")
    if ledger.steps < steps or ledger.history.hash_at(max(steps - 1, 0)).hex() != link:
        raise LedgerError(ledger.path, f"does not contain the {steps} steps before the checkpoint")
