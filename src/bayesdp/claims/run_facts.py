"""The public facts of a run that its statement names beside its claims."""

from __future__ import annotations

from dataclasses import dataclass

from bayesdp.ledger import OPACUS, StoredLedger


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
            training_records=_training_records(ledger),
            unit=ledger.unit,
            audit_records=ledger.audit_records,
            audit_used_for=ledger.audit_used_for,
            seeded="seeded" in ledger.history.caveats,
            notes=tuple(ledger.notes),
        )


def _training_records(ledger: StoredLedger) -> int | None:
    """Return the declared number of training records; None if the adapter for Opacus has seen another at some step.

    A run may go on with more records, or fewer. Expected size over sampling rate is the number it drew from.
    """
    declared = ledger.training_records
    for stretch in ledger.history.stretches:
        known = stretch.source == OPACUS and stretch.planned_batch is not None and stretch.sample_rate < 1
        if declared and known and abs((stretch.planned_batch or 0.0) / stretch.sample_rate - declared) > 0.5:
            return None
    return declared
