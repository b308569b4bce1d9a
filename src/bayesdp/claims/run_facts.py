"""The public facts of a run that its statement names beside its claims."""

from __future__ import annotations

from dataclasses import dataclass

from bayesdp.ledger import StoredLedger


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a statement needs to know of a run besides its claims; all of it public."""

    steps: int
    training_records: int | None
    unit: str
    audit_records: int
    audit_used_for: str | None
    seeded: bool
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(ledger: StoredLedger) -> RunFacts:
        """Read the facts from the ledger of the run."""
        return RunFacts(
            steps=ledger.steps,
            training_records=ledger.training_records,
            unit=ledger.unit,
            audit_records=ledger.audit_records,
            audit_used_for=ledger.audit_used_for,
            seeded="seeded" in ledger.history.caveats,
            notes=tuple(ledger.notes),
        )
