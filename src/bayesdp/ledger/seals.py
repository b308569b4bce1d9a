"""Seals that are noted elsewhere, on a report for example: which one to note, and what it says about a ledger later.

A closed ledger has one seal over all steps and all counts of audit records. While it is open, its counts are still
being folded and its last step may still be amended, so the seal to note is then the hash of the step before the last:
it stays in the chain however the run goes on, and covers all steps up to it. A ledger that is closed and then continued
keeps what is needed to recognise the seal of its closing, which covers the steps up to there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.validation import refuse

_DIGITS = 64


def lasting_seal(ledger: StoredLedger) -> str:
    """Return the seal to note: ``verify`` finds it in this ledger, closed or grown, and in no other."""
    history = ledger.history
    return ledger.seal if ledger.storage.sealed else history.hash_at(max(history.steps - 1, 0)).hex()


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What ``verify`` found: the ledger is complete, every step and count is as its hashes say."""

    path: str
    steps: int
    seal: str
    "The seal to note now (``lasting_seal``)."
    closed: bool
    "Whether the file was closed."
    being_written: bool
    "Whether a process holds it to write it."
    covered: int | None
    "How many steps the given seal covers, if it is an earlier one; None without a seal, and if it covers everything."

    def statement(self) -> str:
        """Return the result in words."""
        steps = _count(self.steps)
        if self.being_written:
            lines = [f"{self.path}: complete and unchanged so far, {steps}; a process is still writing it."]
        elif not self.closed:
            lines = [f"{self.path}: complete and unchanged, {steps}. It was not closed: the run broke off or goes on."]
        else:
            lines = [f"{self.path}: complete and unchanged, {steps}."]
        if self.covered is not None:
            more = self.steps - self.covered
            since = f"{_count(more)} behind {'it' if self.covered == 1 else 'them'}" if more else "no step behind them"
            lines.append(
                f"The seal given is that of its first {_count(self.covered)}, made while it was open or before it was "
                f"continued: they are unchanged; {since} and the counts of audit records are not covered by it."
            )
        return "\n".join([*lines, f"Seal: {self.seal}"])

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        return {
            "ledger": self.path,
            "complete": True,
            "steps": self.steps,
            "closed": self.closed,
            "being_written": self.being_written,
            "seal": self.seal,
            "steps_covered_by_seal": self.covered,
        }


def verify(ledger: StoredLedger, seal: str | None = None) -> Verification:
    """Return what is known about a ledger that has been opened, and so checked from its first step to its last.

    Formal guarantee: with a ``seal`` that was noted, all steps that it covers are in the ledger, in their order and
    with the settings that they had, unless SHA-256 is broken. The seal of a closed ledger also covers the counts.

    Raises InvalidInputError for a seal that is none, and LedgerError if it belongs to no state of this ledger.
    """
    covered = None if seal is None else _covered(ledger, seal)
    return Verification(
        path=ledger.path,
        steps=ledger.steps,
        seal=lasting_seal(ledger),
        closed=ledger.storage.sealed,
        being_written=ledger.storage.being_written,
        covered=covered,
    )


def _covered(ledger: StoredLedger, given: str) -> int | None:
    """Return the number of steps that an earlier seal covers; None for the seal of everything in the ledger."""
    try:
        seal = bytes.fromhex(given.strip())
    except ValueError:
        seal = b""
    if 2 * len(seal) != _DIGITS:
        raise refuse("seal", given, f"{_DIGITS} hexadecimal digits, as a report and bayesdp verify print them")
    storage, history = ledger.storage, ledger.history
    if storage.sealed and seal.hex() == ledger.seal:
        return None
    if (steps := storage.earlier_seals.get(seal)) is not None:
        return steps
    for step in range(history.steps, -1, -1):
        if history.hash_at(step) == seal:
            return step
    what = "is not the ledger of the seal given: it was changed or shortened since the seal was made, or is another run"
    raise LedgerError(ledger.path, f"{what} (run {ledger.run}, {_count(ledger.steps)})")


def _count(steps: int) -> str:
    return f"{steps} step" if steps == 1 else f"{steps} steps"
