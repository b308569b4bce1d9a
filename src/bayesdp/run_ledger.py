"""The ledger that users hold: steps are recorded in it, and what may be said about the run is read from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bayesdp import validation
from bayesdp.claims import ClaimRequest, RunClaims, run_claims
from bayesdp.claims.everyone import ledger_worst_case
from bayesdp.claims.gate import Gate, declared_gate
from bayesdp.claims.rounding import rounding_added
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import MEMORY, LedgerFile, StoredLedger, checked_path, composed_file, new_settings
from bayesdp.ledger.locking import locked
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.validation import refuse


class Ledger(StoredLedger):
    """What a run did to each record of data.

        with Ledger.create("run.ledger") as ledger:
            ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0, audit=norms_of_audit_records)
        print(ledger.claims().statement())

    ``Ledger()`` is kept in memory only. A step is on disk when ``step`` returns: use its result, the noisy gradient,
    after that and not before. Whatever interrupts a run, ``Ledger.open`` then finds all steps that were released; those
    that are repeated after a crash are counted again, as both were released.

    Audit records are people from the same population who are not trained on. ``step`` takes the gradient norms they
    would have had; a step without them charges each at the clip bound. Norms of the batch come from training members:
    what is kept of them is private, and no method whose name does not say so shows it.
    """

    def __init__(
        self,
        *,
        audit_ids: Sequence[str | int] | None = None,
        audit_groups: Sequence[str] | None = None,
        data: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep_norms: bool = False,
        gate: Gate | None = None,
    ) -> None:
        """Create a ledger in memory; see ``create`` for the arguments."""
        settings = new_settings(
            audit_ids=audit_ids,
            audit_groups=audit_groups,
            data=data,
            metadata=metadata,
            keep_norms=keep_norms,
            gate=_gate_text(gate),
        )
        super().__init__(LedgerFile.create(MEMORY, settings))

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        audit_ids: Sequence[str | int] | None = None,
        audit_groups: Sequence[str] | None = None,
        data: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        keep_norms: bool = False,
        gate: Gate | None = None,
    ) -> Self:
        """Create a new ledger at ``path``, where there must be no file yet.

        ``audit_ids`` name the audit records, so that runs on the same people can be composed; ``audit_groups`` names
        the group of each, for claims by group; ``data`` names the data that is trained on; ``metadata`` is any JSON
        object. ``keep_norms`` also keeps the norms as they were given. ``gate`` is declared before the run.

        Raises InvalidInputError for bad input, LedgerError if something is there already, StorageError if the folder
        cannot be written.
        """
        settings = new_settings(
            audit_ids=audit_ids,
            audit_groups=audit_groups,
            data=data,
            metadata=metadata,
            keep_norms=keep_norms,
            gate=_gate_text(gate),
        )
        return cls.from_file(LedgerFile.create(checked_path(path), settings))

    @property
    def gate(self) -> Gate | None:
        """The gate that was declared before the run, if any."""
        return declared_gate(self)

    @locked
    def worst_case(self, delta: float = 1e-5, *, more: RepeatedStep | None = None) -> WorstCase:
        """Return classic differential privacy of all steps, for everyone.

        ``more``, (noise multiplier, sampling rate, steps), asks what it would be after further steps.
        """
        return ledger_worst_case(self, validation.probability("delta", delta), more)

    @locked
    def claims(
        self,
        delta: float = 1e-5,
        gamma: float = 0.01,
        shares: Iterable[float] = (0.5, 0.9, 0.99),
        *,
        joint: bool = False,
        estimator: str = "betting",
        fixed_exposures: bool = False,
        private: bool = False,
        rows: int = 1,
    ) -> RunClaims:
        """Return everything that may be said about the run, each claim with whom it covers, how surely and why.

        The result is a sequence of claims with names: ``.everyone``, ``.share(0.5).ex_post`` and ``.estimate``,
        ``.groups``, ``.average``, ``.bayesian`` (the paper's), ``.gate`` if one was declared, ``.statement()``.
        ``gamma`` is the failure probability of each share and of the average; with ``joint`` all shares hold together
        with it. ``estimator`` of the average: betting, kullback-leibler or empirical-bernstein. ``fixed_exposures``
        says that the norms did not depend on what was released before: only then is the average proved. ``private``
        adds what comes from training members. ``rows`` adds the worst case of a person with so many rows.
        """
        request = ClaimRequest(
            delta=delta,
            gamma=gamma,
            shares=shares,
            joint=joint,
            estimator=estimator,
            fixed_exposures=fixed_exposures,
            private=private,
            rows=rows,
        )
        return run_claims(self, request)

    @locked
    def rounding(self, delta: float = 1e-5) -> float:
        """Return how much rounding exposures up can have added to epsilon at most: 0.01 stands for 1 %.

        Infinite if an exposure is beyond the grid, or if epsilon might be 0.
        """
        return rounding_added(self, validation.probability("delta", delta))

    def then(self, *others: Ledger, path: str | Path | None = None) -> Ledger:
        """Return this run and then others on the same people, as one ledger; see ``compose``."""
        return compose([self, *others], path)

    def report(self, path: str | Path, **options: Any) -> None:
        """Write the page for whoever decides; see ``bayesdp.report.write_report``."""
        from bayesdp.report import write_report  # heavy, and needed at the end only

        write_report(self, path, **options)


def compose(ledgers: Sequence[Ledger], path: str | Path | None = None) -> Ledger:
    """Return one ledger of several runs that took place one after the other on the same people.

    It is a new file at ``path``, or in memory. Audit records are matched by their ids. Without ids, or if they are not
    the same in all ledgers, only the worst case remains; the new ledger's notes say so. Refused: a run given twice, and
    runs on data of different names, which may be of different people (runs on disjoint data cannot be composed in this
    version). Norms that were kept as given stay in the ledgers of the runs.
    """
    return Ledger.from_file(composed_file(ledgers, path))


def _gate_text(gate: Any) -> str | None:
    if gate is not None and not isinstance(gate, Gate):
        raise refuse("gate", gate, "a Gate")
    return None if gate is None else gate.to_json()
