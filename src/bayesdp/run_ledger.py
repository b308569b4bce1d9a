"""The ledger that users hold: it records steps, and gives the claims and the report about the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bayesdp import validation
from bayesdp.claims import ClaimRequest, RunClaims, compute_claims
from bayesdp.claims.budget import Budget, declared_budget
from bayesdp.claims.everyone import guaranteed_worst_case, ledger_worst_case
from bayesdp.claims.ex_post import Form
from bayesdp.claims.gate import Gate, declared_gate
from bayesdp.claims.order_layout import plan_settings
from bayesdp.claims.plan import Plan, declared_plan
from bayesdp.claims.request import DEFAULT_SHARES
from bayesdp.claims.rounding import rounding_added
from bayesdp.claims.selected import declared_selection
from bayesdp.claims.tables import html_table
from bayesdp.guarantees.selection import Selection
from bayesdp.guarantees.worst_case import WorstCase
from bayesdp.ledger import (
    MEMORY,
    LedgerError,
    LedgerFile,
    StoredLedger,
    checked_path,
    composed_file,
    locked,
    new_settings,
    with_caveat,
    write_again,
)
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.validation import refuse


class Ledger(StoredLedger):
    """The account of a training run: every noisy step, how exposed people were to it, and what that allows to claim.

        with Ledger.create("run.ledger") as ledger:
            for ...:
                ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0, audit=norms_of_audit_records)
                ...  # only now use the noisy gradient
            print(ledger.claims().statement())
            ledger.report("report.html")

    ``Ledger.create`` begins a new file, ``Ledger.open`` continues or reads one, and ``Ledger()`` stays in memory.

    Audit records are people from the same population who are never trained on. ``step`` takes the gradient norms that
    they would have had; without norms, a step charges each of them at the clip bound. Norms of the batch come from
    training members: what is kept of them is private, and only methods with "private" in their names show it.

    Formal guarantees:

    - A step is on disk when ``step`` returns. If its result, the noisy gradient, is used only after that, the ledger
      contains every step that anybody can have seen, whatever interrupts the run. Steps that are repeated from an older
      checkpoint after a crash count again, because both were released.
    - A ledger that opens is complete: a file that was damaged, cut off or changed raises LedgerError.
    - Exposures are rounded up, never down, so costs and the claims from them err on the private side. ``rounding`` says
      by how much.

    All methods may be called from several threads; one process at a time may write, and others may read.
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
        plan: Plan | Sequence[Plan] | None = None,
        budget: Budget | None = None,
        selection: Selection | None = None,
        audit_used_for: str | None = None,
        training_records: int | None = None,
        unit: str = "row",
    ) -> None:
        """Create a ledger in memory, with the arguments of ``create``; it is gone when the process ends."""
        settings = new_settings(
            audit_ids=audit_ids,
            audit_groups=audit_groups,
            data=data,
            metadata=metadata,
            keep_norms=keep_norms,
            gate=_declared_text("gate", gate, Gate),
            **plan_settings(plan),
            budget=_declared_text("budget", budget, Budget),
            selection=_declared_text("selection", selection, Selection),
            audit_used_for=audit_used_for,
            training_records=training_records,
            unit=unit,
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
        plan: Plan | Sequence[Plan] | None = None,
        budget: Budget | None = None,
        selection: Selection | None = None,
        audit_used_for: str | None = None,
        training_records: int | None = None,
        unit: str = "row",
    ) -> Self:
        """Create a new ledger at ``path``, where there must be no file yet, and open it for writing.

        Args:
            path: The new file. While it is being written, up to three more files lie beside it.
            audit_ids: An id for each audit record, different texts or whole numbers, in the order of their norms. Runs
                on the same people can be composed only if their audit records have ids.
            audit_groups: The name of a group for each audit record, for claims by group.
            data: The name of the training data. Runs on data of different names are not composed.
            metadata: Notes about the run: any values that JSON can hold.
            keep_norms: Whether to keep all norms as they were given too, as private content. The file then grows with
                every step.
            gate: A promise that is declared before the run; ``claims`` says whether it was met.
            plan: The steps that the run may take, and their settings, in one ``Plan`` or a list of stages. The claim
                for everyone is then that of the plan, proved whenever the run ends and however that was decided.
            budget: The epsilon for everyone that the run may spend, at a delta. It is then the claim for everyone,
                proved however steps and settings were chosen, as long as the steps keep it; see ``StopWhen``.
            selection: States that the run is to be the best of a random number of runs, chosen by their scores. Claims
                then cover the choice: see ``Selection`` for what that takes. It needs a plan, and nothing is
                claimed until ``mark_chosen`` says that this run was chosen.
            audit_used_for: What the audit records were used for besides the audit, in words: "learning rate and number
                of steps". Whatever rests on them being a fresh sample is then an estimate, everywhere, and says why.
            training_records: How many records are trained on, if that may be known to everyone; the statement names it.
            unit: What one record is: "row", of which a person may have several, or "person" if nobody has more than
                one. What is claimed is claimed for one record, and the statement says which it is.

        Raises:
            InvalidInputError: For bad input, and if ids, groups and gate name different numbers of audit records.
            LedgerError: If a file is there already, or files that an earlier ledger of this name left beside it.
            StorageError: If the folder does not exist or cannot be written.
        """
        settings = new_settings(
            audit_ids=audit_ids,
            audit_groups=audit_groups,
            data=data,
            metadata=metadata,
            keep_norms=keep_norms,
            gate=_declared_text("gate", gate, Gate),
            **plan_settings(plan),
            budget=_declared_text("budget", budget, Budget),
            selection=_declared_text("selection", selection, Selection),
            audit_used_for=audit_used_for,
            training_records=training_records,
            unit=unit,
        )
        return cls.from_file(LedgerFile.create(checked_path(path), settings))

    @property
    def plan(self) -> tuple[Plan, ...] | None:
        """The stages of the plan that was declared before the run, if any."""
        plan = declared_plan(self)
        return None if plan is None else plan.stages

    @property
    def budget(self) -> Budget | None:
        """The budget that was declared before the run; None if there is none."""
        return declared_budget(self)

    @property
    def selection(self) -> Selection | None:
        """The selection that the run may come from, as it was declared before the run; None if there was none."""
        return declared_selection(self)

    @locked
    def mark_chosen(self) -> None:
        """Note that all trials have ended and this run, the best of them, was chosen; on disk when this returns.

        A ledger that declares a selection claims nothing before that: of a choice that was never finished, or of a
        trial that lost, nothing is known. Call it once, after the last trial, on the ledger of the best one, before or
        after that was closed; a step that follows takes the mark away. Calling it again does nothing.

        Raises LedgerError if the ledger declares no selection, has no steps, or cannot be written, and StorageError if
        the disk is full or fails.
        """
        if self.declared_selection is None or not self.steps:
            raise LedgerError(self.path, "cannot be marked as chosen: it declares no selection, or has no steps")
        self.note_caveat("chosen")

    @locked
    def note_caveat(self, name: str) -> None:
        """Add a caveat to the last step, of those in ``bayesdp.ledger.CAVEATS``; on disk when this returns.

        Norms stay as they are; the seal changes, unless the step has the caveat. Raises InvalidInputError for another
        name, LedgerError without a step or if the ledger cannot be written, StorageError if the disk is full or fails.
        """
        marked = with_caveat(self._now().last, name, self.path)
        if marked == self._history.last:
            return
        self._begin()
        try:
            write_again(self._file, self._history, self._audit.slices, marked)
        except BaseException:
            self._stale = True  # the caveat may or may not be in the file, and the file decides
            raise

    @property
    def chosen(self) -> bool:
        """Whether the run is marked as the one that was chosen among others (``mark_chosen``)."""
        return self.history.chosen

    @property
    def gate(self) -> Gate | None:
        """The gate that was declared before the run; None if there is none."""
        return declared_gate(self)

    @locked
    def worst_case(self, delta: float = 1e-5, *, more: RepeatedStep | None = None) -> WorstCase:
        """Return classic differential privacy for everyone: the worst case of the plan, the budget, or all steps.

        With a plan that the run has kept to, it is that of the whole plan; with a declared budget that it has kept, the
        budget; with both, the smaller, if both were kept. Otherwise it is that of the steps taken, proved if their
        number and settings did not depend on earlier results.

        Formal guarantee: an upper bound under add/remove of one record, as ``bayesdp.epsilon`` computes it. If there
        are many different settings they are merged, noise rounded down and rates rounded up. Norms play no part. Its
        epsilon is infinite, with a reason, if a step had no clip bound.

        ``more``, (noise multiplier, sampling rate, steps), asks what it would be after further steps; nothing is
        recorded. Raises InvalidInputError for a delta that is not strictly between 0 and 1, and for ``more`` steps of a
        run that may be chosen among others: what choosing costs is known for its plan.
        """
        delta = validation.probability("delta", delta)
        if more is not None and self.declared_selection is not None:
            raise refuse("more", more, "None: the run may be chosen among others, and these have the same plan")
        return guaranteed_worst_case(self, delta) if more is None else ledger_worst_case(self, delta, more)

    @locked
    def claims(
        self,
        delta: float = 1e-5,
        gamma: float = 0.01,
        shares: Iterable[float] = DEFAULT_SHARES,
        *,
        joint: bool = False,
        estimator: str = "betting",
        fixed_exposures: bool = False,
        private: bool = False,
        rows: int = 1,
        form: Form = "hockey-stick",
        looks: int = 1,
    ) -> RunClaims:
        """Return everything that may be said about the run: each claim with whom it covers, how surely, and why.

        The result is a sequence of claims that also have names: ``.everyone``, ``.share(0.5).ex_post`` and
        ``.estimate``, ``.groups``, ``.average``, ``.bayesian`` (the paper's), ``.gate``. ``print`` shows its
        ``.statement()``. A claim that cannot be made has an infinite epsilon and a ``reason``.

        Args:
            delta: The delta of all claims.
            gamma: Failure probability of each share and of the average: 0.01 stands for 99 % confidence.
            shares: Shares of the population to claim something about, each strictly between 0 and 1.
            joint: Whether all shares must hold together with failure probability ``gamma``, instead of each alone.
            estimator: For the average: "betting", "kullback-leibler" or "empirical-bernstein".
            fixed_exposures: States that norms did not depend on earlier releases. Only then is the average proved.
            private: Whether to add a claim from the batches. It comes from training members: do not publish it.
            rows: Adds the worst case of a person with this many rows of data, if above 1.
            form: Of ex-post claims: "hockey-stick", the form of differential privacy, or "markov", which bounds the
                loss itself and gives larger figures. Choose before you look.
            looks: How often figures from these audit records are read and used: at several times of a run, or for
                several runs. ``gamma`` then holds for all looks together.

        Raises InvalidInputError for arguments out of range.
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
            form=form,
            looks=looks,
        )
        return compute_claims(self, request)

    @locked
    def rounding(self, delta: float = 1e-5) -> float:
        """Return the most that rounding up in the ledger can have added to epsilon of an audit record: 0.01 means 1 %.

        An upper bound, over all audit records, of the relative excess at ``delta``. Infinite if an exposure lies beyond
        the grid, or if an exact epsilon might be 0.
        """
        return rounding_added(self, validation.probability("delta", delta))

    def then(self, *others: Ledger, path: str | Path | None = None) -> Ledger:
        """Return one ledger of this run and others that followed it on the same people; see ``compose``."""
        return compose([self, *others], path)

    def report(self, path: str | Path, **options: Any) -> None:
        """Write the report about the run to ``path``: one HTML file, for the person who decides.

        Options are those of ``bayesdp.report.write_report``: ``delta``, ``gamma``, ``title``, ``claims``, ``model``.
        Nothing in it comes from training members. Raises MissingLibraryError if plotly or jinja2 is missing, OSError if
        the file cannot be written.
        """
        from bayesdp.report import write_report  # takes time to import, and is needed only at the end of a run

        write_report(self, path, **options)

    def _repr_html_(self) -> str:
        """Return what ``bayesdp show`` prints as a table for a notebook; nothing in it comes from training members."""
        from bayesdp.report.summary import summary, table

        return html_table(table(summary(self)))


def compose(ledgers: Sequence[Ledger], path: str | Path | None = None) -> Ledger:
    """Return one ledger of several runs that took place one after the other on the same people.

    Steps follow one another, and the costs of each audit record add up; the ledgers themselves are not changed. The
    result is a new file at ``path``, or in memory, to which no further step can be added. Audit records are matched by
    their ids, in any order. Without ids, or if the ids differ, only the worst case remains, and ``notes`` says so.
    Norms that were kept as given stay in the ledgers of the runs. Ex-post figures use the orders that were declared
    with the run that was begun first, because they must be fixed before the first step of all; runs that were begun in
    the same second should be given in the order in which they took place.

    Raises:
        InvalidInputError: For fewer than two ledgers, and for runs on data of different names: these may be different
            people, and runs on disjoint data cannot be composed in this version.
        LedgerError: If a run is given twice or was chosen among others (``selection``), if steps of two runs had the
            same random numbers (``watch`` notes states of generators), if a ledger was closed, or if there is a file
            at ``path`` already.
        StorageError: If the new file cannot be written.
    """
    return Ledger.from_file(composed_file(ledgers, path))


def _declared_text(name: str, declared: Any, kind: type[Gate] | type[Budget] | type[Selection]) -> str | None:
    """Return a gate, budget or selection as text, None for none; raise InvalidInputError for anything else."""
    if declared is not None and not isinstance(declared, kind):
        raise refuse(name, declared, f"a {kind.__name__}")
    return None if declared is None else declared.to_json()
