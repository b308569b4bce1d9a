"""Where a ledger stands, for checkpoints: a run may go on only with a ledger that has all steps before it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.validation import InvalidInputError


def position(ledger: StoredLedger) -> dict[str, Any]:
    """Where a ledger stood, for a checkpoint; the hash is of the step before the last, which may still be amended."""
    steps = ledger.steps
    return {"run": ledger.run, "steps": steps, "hash": ledger.history.hash_at(max(steps - 1, 0)).hex()}


def check_continues(ledger: StoredLedger, state: Mapping[str, Any]) -> None:
    """That a ledger contains the steps of a checkpoint; those it has beyond were released as well, and stay."""
    try:
        run, steps, link = str(state["run"]), int(state["steps"]), str(state["hash"])
    except (KeyError, TypeError, ValueError):
        raise InvalidInputError(f"state={dict(state)!r}: expected what state_dict gave.") from None
    if ledger.run != run:
        raise LedgerError(ledger.path, f"is of run {ledger.run}, the checkpoint of run {run}")
    if ledger.steps < steps or ledger.history.hash_at(max(steps - 1, 0)).hex() != link:
        raise LedgerError(ledger.path, f"does not contain the {steps} steps before the checkpoint")
