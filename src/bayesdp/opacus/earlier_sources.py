"""What the steps of a ledger came from, for a run that goes on: random numbers, audit records, number of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesdp.ledger import OPACUS, StepSource
from bayesdp.opacus.ranks import Ranks
from bayesdp.opacus.same_people import rows_digest
from bayesdp.run_ledger import Ledger
from bayesdp.validation import refuse


@dataclass(frozen=True)
class EarlierSources:
    """What the steps of a ledger came from; all of it empty for a new ledger, and on ranks that have none."""

    noise: frozenset[int] = frozenset()
    "Digests of the states that noise came from."
    draws: frozenset[int] = frozenset()
    "Digests of the states that batches were drawn from."
    audit: frozenset[int] = frozenset()
    "Digests of the rows of audit records."
    ranks: int | None = None
    "How many processes trained together at the last step that was watched."

    @staticmethod
    def of(ledger: Any) -> EarlierSources:
        """Return those of a ledger, which is read once. Raises LedgerError if it is closed."""
        if not isinstance(ledger, Ledger) or not ledger.steps:
            return EarlierSources()
        noise, draws, audit = set[int](), set[int](), set[int]()
        ranks: int | None = None
        for stored in ledger.stored_steps():
            source = StepSource.read(stored.step.source)
            if source.program == OPACUS and "earlier-steps" not in stored.step.caveats:
                ranks = source.ranks
            noise.update(source.noise)
            draws.update(source.draws)
            audit.update(source.audit)
        return EarlierSources(frozenset(noise), frozenset(draws), frozenset(audit), ranks)

    def check_same_people(self, audit: Any) -> None:
        """Raise InvalidInputError if ``audit`` is known to be other people than the steps had."""
        digest = rows_digest(audit)
        if digest and self.audit and self.audit != frozenset(digest):
            way_out = "split_audit(data, seed=0) gives them again"
            raise refuse("audit", "other rows", f"the audit records of its earlier steps, in their order: {way_out}")

    def check_world_size(self, ranks: Ranks, *, may_change: bool) -> None:
        """Raise InvalidInputError if the last step was taken by another number of processes, unless it may change.

        Accounting does not depend on it, as the sampling rate of each step is that of all processes together. But a job
        that was started again with fewer of them by mistake trains with another batch or learning rate than it did.
        """
        if self.ranks not in (None, ranks.size) and not may_change:
            expected = (
                f"{self.ranks}, as at the last step of the ledger; if another number is meant, new_world_size=True"
            )
            raise refuse("world_size", ranks.size, expected)
