"""The ledger without claims: it records steps safely, and gives back steps, counts and costs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesdp import validation
from bayesdp.ledger import chain
from bayesdp.ledger.batches import PrivateBatch, unpack_norms
from bayesdp.ledger.caveats import caveat_names, caveat_text
from bayesdp.ledger.chain import Step, StoredStep
from bayesdp.ledger.costs import Rounding, audit_costs
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.folding import Folding
from bayesdp.ledger.histograms import AuditHistograms, Entry
from bayesdp.ledger.history import History
from bayesdp.ledger.loading import load
from bayesdp.ledger.locking import locked
from bayesdp.ledger.new_step import checked_step, with_norms
from bayesdp.ledger.norms import CheckedNorms, checked_audit_norms, checked_norms
from bayesdp.ledger.settings import RunDescription, checked_path
from bayesdp.ledger.step_counts import StepCounts, exposure_totals
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.validation import FloatArray, refuse


class StoredLedger(RunDescription):
    """The steps of a run, and how exposed each audit record was to them: storage and counts, no claims.

    Formal guarantees: a step is on disk when ``step`` returns. Bad input records nothing; after any other error, Ctrl-C
    or a kill the step was recorded as a whole or not at all, so at worst a step counts that was never released. A
    ledger that opens was checked from its first step to its last. Costs are never below those at the exact exposures.

    All methods may be called from several threads; only the process that opened the ledger may write to it.
    ``bayesdp.Ledger``, which users hold, adds claims and the report.
    """

    def __init__(self, file: LedgerFile) -> None:
        """Read the ledger in a file that is open already; give the file up if that fails."""
        self.lock = threading.RLock()
        self._file = file
        try:
            self._load()
        except BaseException:
            file.abandon()
            raise

    @classmethod
    def open(cls, path: str | Path, *, write: bool = True) -> Self:
        """Open the ledger at ``path`` to continue it, or with ``write=False`` only to read it.

        Everything is checked, from the first step to the last. A ledger that a crash left open is opened with all steps
        that were recorded; its ``-wal`` and ``-head`` files must still lie beside it. ``write=True`` locks it against
        other writers; others may read it meanwhile, and see whole steps.

        Raises InvalidInputError for an impossible path, LedgerError if there is no ledger, if it is damaged, was
        changed, has another format or is held by another process, and StorageError if the file cannot be opened.
        """
        return cls.from_file(LedgerFile(checked_path(path), write=write))

    @classmethod
    def from_file(cls, file: LedgerFile) -> Self:
        """Return the ledger in a file that is open already."""
        ledger = cls.__new__(cls)
        StoredLedger.__init__(ledger, file)
        return ledger

    def _load(self) -> None:
        """Read everything from the file: at the beginning, and after a write that failed or was interrupted."""
        state = load(self._file)
        self._settings, self._history, self._audit = state.settings, state.history, state.audit
        self._folding = Folding(self._file, self._history, self._audit, self.mixture)
        self._stale = False

    # What the run is

    @property
    def path(self) -> str:
        """The path of the ledger as it was given; ``:memory:`` for a ledger in memory."""
        return str(self._file.path)

    @property
    @locked
    def steps(self) -> int:
        """How many steps were recorded."""
        return self._now().steps

    @property
    @locked
    def audit_records(self) -> int:
        """How many audit records there are; 0 until ids, groups, a gate or the first step with their norms say it."""
        self._now()
        return self._audit.records or 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called. Counts and costs can still be read; steps can no longer be recorded."""
        return not self._file.is_open

    @property
    @locked
    def seal(self) -> str:
        """One hash over all steps and folded counts, in 64 hexadecimal digits; closing the ledger changes it.

        Note the seal of a closed ledger elsewhere: then no later change of the file goes unnoticed.
        """
        return self._file.seal_after(self._now().hash).hex()

    @property
    @locked
    def storage(self) -> LedgerFile:
        """The file: whether it was closed or is being written, and its earlier seals (for ``seals.py``)."""
        self._now()
        return self._file

    @property
    @locked
    def history(self) -> History:
        """The settings of the run by stretches, totals, and the bins of its histograms."""
        return self._now()

    @property
    @locked
    def audit(self) -> AuditHistograms:
        """The counts of every audit record."""
        self._now()
        return self._audit

    # Writing

    @locked
    def step(
        self,
        *,
        noise_std: float,
        sample_rate: float,
        clip: float | None,
        audit: Any = None,
        batch: Any = None,
        planned_batch: float | None = None,
        source: str = "arrays",
        caveats: Iterable[str] = (),
    ) -> int:
        """Record one step, one noisy release, and return its number; the first is 1.

        The step is on disk when this returns: use the noisy gradient only then, and never if this raises.

        Args:
            noise_std: Standard deviation of the noise on the sum (not the mean) of clipped gradients.
            sample_rate: Probability with which each record was in the batch (Poisson sampling), in (0, 1].
            clip: Bound on the norm of each gradient; None if there is none, and then there is no worst case.
            audit: Gradient norms of the audit records before clipping, [m], always in the same order. Without them
                every audit record is charged at the clip bound; ``amend`` can give them afterwards.
            batch: Gradient norms of the drawn records before clipping, [b]; b may be 0. What is kept is private.
            planned_batch: Expected size of the batch, noted beside the step.
            source: Name of the program that recorded the step, noted beside it.
            caveats: Names of what the step rests on (``bayesdp.ledger.caveats.CAVEATS``); every claim states them.

        Raises:
            InvalidInputError: For bad input, such as a norm that is not finite or a wrong number of audit records.
            LedgerError: If the ledger is closed, composed, open for reading only, or was opened by another process.
            StorageError: If the disk is full or fails. The ledger stays usable: retry when there is room.
        """
        step = checked_step(
            noise_std=noise_std,
            sample_rate=sample_rate,
            clip=clip,
            planned_batch=planned_batch,
            source=source,
            caveats=caveats,
            time=self.step_time,
        )
        audited = None if audit is None else checked_audit_norms(audit, self.audit_records)
        drawn = None if batch is None else checked_norms("batch", batch)
        self._begin()
        try:
            return self._record(replace(step, number=self._history.steps + 1), audited, drawn)
        except BaseException:
            self._stale = True  # the step may or may not be in the file, and the file decides
            raise

    def _record(self, step: Step, audit: CheckedNorms | None, batch: CheckedNorms | None) -> int:
        self._folding.fold_due()
        if audit is not None and self._audit.records is None:
            self._audit.set_records(len(audit))
        stored, entry = self._with_norms(step, self._history.hash, audit, batch)
        self._file.append(stored)
        self._history.add(stored.step, stored.hash)
        self._audit.append(entry)
        return step.number

    def _with_norms(
        self, step: Step, previous: bytes, audit: CheckedNorms | None, batch: CheckedNorms | None
    ) -> tuple[StoredStep, Entry]:
        """Return a step with its norms, as the file and the journal keep it. It is placed here, and only here."""
        place = self._history.bins.place(step.noise_std, step.sample_rate, step.clip)
        return with_norms(step, previous, place, audit=audit, batch=batch, keep_norms=self.keep_norms)

    @locked
    def amend(self, step: int, *, audit: Any = None, batch: Any = None, caveats: Iterable[str] = ()) -> None:
        """Record the last step again, with norms that were not known before; they are on disk when this returns.

        So a step can be recorded before its result is used, and its norms given afterwards: until then audit records
        are charged at the clip bound. ``step`` is the number that ``step`` returned. ``audit`` [m] and ``batch`` [b]
        replace those of the step: what is not given is forgotten, and audit records are then charged at the clip bound.
        ``caveats`` are added to those that the step has. Whenever the process is killed, the ledger has the old step or
        the new one.

        Raises InvalidInputError for bad input, LedgerError if the step is not the last one or was closed, StorageError
        if the disk is full or fails; the step then stays as it was.
        """
        number, added = self._number(step), caveat_names(caveat_text(caveats))
        audited = None if audit is None else checked_audit_norms(audit, self.audit_records)
        drawn = None if batch is None else checked_norms("batch", batch)
        last = self._now().last
        if last is None or last.number != number or any(part.through >= number for part in self._audit.slices):
            raise LedgerError(self.path, f"step {number} is not its last, or it was closed: its norms are final")
        self._begin()
        try:
            if audited is not None and self._audit.records is None:
                self._audit.set_records(len(audited))
            previous = self._history.hash_at(number - 1)
            amended = replace(last, caveats=caveat_text([*caveat_names(last.caveats), *added]))
            stored, entry = self._with_norms(amended, previous, audited, drawn)
            self._file.replace_last(stored, previous)
            self._history.amend(stored.step, stored.hash)
            self._audit.amend(entry)
        except BaseException:
            self._stale = True
            raise

    @locked
    def close(self) -> None:
        """Fold the journal, seal the ledger and leave one plain file; calling it again does nothing.

        A ledger that is never closed loses nothing: it is only larger, in several files. If closing raises StorageError
        because the disk is full, all steps are still there, and the ledger can be opened again.
        """
        try:
            if self._file.unfinished:
                self._begin()
                self._folding.fold_all()
                self._file.seal(self._history.steps, self._history.hash)
        except BaseException:
            self._file.abandon()
            raise
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        if "composed_of" in self._settings:
            raise LedgerError(self.path, "is composed of other runs and is finished; compose it with the next run")
        history = self._now()
        self._file.begin(history.steps, history.hash)

    def _now(self) -> History:
        """Return the history, read again from the file if the last write failed or was interrupted."""
        if self._stale:
            self._file.roll_back()
            self._load()
        return self._history

    # Reading

    @locked
    def costs(self, lambdas: ArrayLike | range) -> FloatArray:
        """Return the costs K_x(lambda) = sum over steps t of kappa_lambda(e_t(x)) of all audit records, [m, L].

        kappa_lambda is the log-moment of a step (``SubsampledGaussian``) at exposure e_t(x) = min(norm, clip) / noise.
        ``lambdas`` are orders [L] above 0, at most 1e6; whole numbers if any step was sampled at a rate below 1.

        Formal guarantee: never below the cost at the exact exposures and rates, in both directions of add/remove.
        Infinite beyond the grid (above 8: in practice only without a clip bound). Refuses impossible orders.
        """
        return self.rounded_costs(lambdas, "up")

    @locked
    def rounded_costs(self, lambdas: ArrayLike | range, rounding: Rounding) -> FloatArray:
        """Return the costs [m, L] as ``costs`` does, or with rounding "down" lower bounds of the exact costs."""
        bins = self._now().bins
        whole = any(rate < 1 for rate in bins.rates)
        return audit_costs(self._audit, bins, validation.lambdas(lambdas, whole=whole), rounding)

    @locked
    def mixture_costs(self, mixture: OrderMixture) -> FloatArray:
        """Return the costs [m, L] at the orders and in the direction of a mixture, rounded up as ``costs`` does."""
        return audit_costs(self._audit, self._now().bins, mixture.lambdas, "up", mixture.direction)

    @locked
    def snapshots(self) -> tuple[list[int], FloatArray]:
        """Return costs along the run: at most 32 steps [P], and the costs of audit records after each, [P, m, L].

        Orders and direction are those of ``mixture``. Costs are rounded up to 8 bits of precision, so they are never
        below the exact ones, and never fall along the run. The last of these steps may precede the run's last.
        """
        self._now()
        return self._folding.snapshots()

    @locked
    def step_counts(self) -> StepCounts:
        """Return how often each audit record went through each kind of step, for privacy loss distributions."""
        return StepCounts.of(self.audit, self._history.bins)

    @locked
    def exposure_counts(self) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return exposures [K], ascending, rounded up, infinite beyond the grid, and how often records had them [K]."""
        return exposure_totals(self.audit, self._history.bins)

    @locked
    def stored_steps(self) -> list[StoredStep]:
        """Return all steps, checked once more, without the journal; ``.batch`` and ``.norms`` are private."""
        steps = self._now().steps
        with self._file.reading():
            stored = self._file.steps(chain.first_hash(self._settings))
            return [replace(step, journal=None) for step in itertools.islice(stored, steps)]

    @locked
    def private_batch(self, step: int) -> PrivateBatch | None:
        """Private: return the counts of the batch that a step drew; None if it has none. Refuses an unknown step."""
        content = self._file.content("private_batches", self._number(step))
        return None if content is None else PrivateBatch.unpack(content)

    @locked
    def private_norms(self, step: int) -> tuple[FloatArray | None, FloatArray | None]:
        """Private: return the norms of audit records [m] and of the batch [b] of a step, as they were given.

        None for norms that were not given or not kept. Raises InvalidInputError if there is no such step.
        """
        content = self._file.content("private_norms", self._number(step))
        return (None, None) if content is None else unpack_norms(content)

    def _number(self, step: int) -> int:
        number = validation.count("step", step, minimum=1)
        if number > self.steps:
            raise refuse("step", step, f"a step from 1 to {self.steps}")
        return number
