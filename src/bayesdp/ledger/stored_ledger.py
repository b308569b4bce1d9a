"""A ledger as it is stored: records steps safely, and reads back steps, counts and costs. It claims nothing."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesdp import validation
from bayesdp.ledger import chain
from bayesdp.ledger.batches import PrivateBatch, pack_norms, unpack_norms
from bayesdp.ledger.caveats import joined, split
from bayesdp.ledger.chain import Step, StoredStep
from bayesdp.ledger.costs import Rounding, audit_costs
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.folding import Folding
from bayesdp.ledger.histograms import AuditHistograms, Entry
from bayesdp.ledger.history import History
from bayesdp.ledger.loading import load
from bayesdp.ledger.locking import locked
from bayesdp.ledger.norms import CheckedNorms, checked_norms
from bayesdp.ledger.settings import RunDescription, checked_path, checked_text
from bayesdp.ledger.step_counts import StepCounts, exposure_totals
from bayesdp.validation import FloatArray, refuse


class StoredLedger(RunDescription):
    """The steps of a run and what they did to each audit record.

    Formal guarantees: a step is on disk when ``step`` returns; a call that raises records nothing; what is read was
    checked from the first step to the last; costs are never below those at the exact exposures. All methods may be
    called from several threads. ``bayesdp.Ledger``, which users hold, adds claims and the report.
    """

    def __init__(self, file: LedgerFile) -> None:
        """Read the ledger in a file that is open already; if that fails the file is given up."""
        self.lock = threading.RLock()
        self._file = file
        try:
            self._load()
        except BaseException:
            file.abandon()
            raise

    @classmethod
    def open(cls, path: str | Path, *, write: bool = True) -> Self:
        """Open the ledger at ``path``, checked from the first step to the last; to continue it, or only to read it."""
        return cls.from_file(LedgerFile(checked_path(path), write=write))

    @classmethod
    def from_file(cls, file: LedgerFile) -> Self:
        """Return the ledger in a file that is open already."""
        ledger = cls.__new__(cls)
        StoredLedger.__init__(ledger, file)
        return ledger

    def _load(self) -> None:
        """Read everything from the file: at first, and after a write that did not end well."""
        state = load(self._file)
        self._settings, self._history, self._audit = state.settings, state.history, state.audit
        self._folding = Folding(self._file, self._history, self._audit)
        self._stale = False

    # What the run is

    @property
    def path(self) -> str:
        """Where the ledger is; ``:memory:`` for one in memory."""
        return str(self._file.path)

    @property
    @locked
    def steps(self) -> int:
        """How many steps were recorded."""
        return self._now().steps

    @property
    @locked
    def audit_records(self) -> int:
        """How many audit records there are; 0 before the first step with their norms, if no ids were given."""
        self._now()
        return self._audit.records or 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called: it can be read on, and no step can be recorded."""
        return not self._file.is_open

    @property
    @locked
    def seal(self) -> str:
        """One hash over all steps and counts: note it elsewhere, and nothing can be changed unseen."""
        return self._file.seal_after(self._now().hash).hex()

    @property
    @locked
    def history(self) -> History:
        """Stretches of equal settings, and totals."""
        return self._now()

    @property
    @locked
    def audit(self) -> AuditHistograms:
        """Counts of every audit record."""
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
        """Record one step; it is on disk when this returns its number. A refused or failed call records nothing.

        ``noise_std``: standard deviation of the noise on the sum of clipped gradients. ``clip``: their bound; None if
        there is none, and then there is no worst case. ``audit``: norms of the audit records before clipping, [m].
        ``batch``: norms of the records that were drawn, [b], b may be 0. ``planned_batch``: the expected size.
        ``caveats``: names of what the step rests on, which every claim will then say (``caveats.CAVEATS``).

        Raises InvalidInputError for bad input, LedgerError for a ledger that cannot be written, and StorageError where
        the disk is full or fails.
        """
        noise = validation.noise_std(noise_std)
        rate = validation.sample_rate(sample_rate)
        bound = None if clip is None else validation.positive("clip", clip)
        if bound is not None:
            validation.noise_multiplier(noise / bound)
        planned = None if planned_batch is None else validation.positive("planned_batch", planned_batch)
        step = Step(
            number=0,
            noise_std=noise,
            sample_rate=rate,
            clip=bound,
            planned_batch=planned,
            time=time.time(),
            source=checked_text("source", source),
            caveats=joined(caveats),
            audited=0,
            audit_clipped=0,
            audit_digest=chain.NOTHING,
            batch_digest=chain.NOTHING,
            norms_digest=chain.NOTHING,
        )
        audited = None if audit is None else self._audit_norms(audit)
        drawn = None if batch is None else checked_norms("batch", batch)
        self._begin()
        try:
            return self._record(replace(step, number=self._history.steps + 1), audited, drawn)
        except BaseException:
            self._stale = True  # what is in the file counts, not what we think
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
        """Return a step and what it did to records, as they are kept."""
        place = self._history.bins.place(step.noise_std, step.sample_rate, step.clip)
        keys = None if audit is None else place.keys(audit.values)
        journal = None if keys is None else keys.astype("<u2", copy=False).tobytes()
        drawn = None if batch is None else PrivateBatch.of(batch, step.clip, place).pack(place.rate)
        norms = pack_norms(audit, batch) if self._settings["keep_norms"] == "true" else None
        step = replace(
            step,
            audited=0 if audit is None else len(audit),
            audit_clipped=0 if audit is None else audit.above(step.clip),
            audit_digest=chain.digest(journal),
            batch_digest=chain.digest(drawn),
            norms_digest=chain.digest(norms),
        )
        stored = StoredStep(step, step.hash(previous), journal, drawn, norms)
        return stored, Entry(place.rate, place.clip_key if keys is None else keys)

    @locked
    def amend(self, step: int, *, audit: Any = None, batch: Any = None, caveats: Iterable[str] = ()) -> None:
        """Record the last step again, with norms that were not known before; on disk when this returns.

        Until then audit records are charged at the clip bound: a step may be recorded before its result is used, and
        its norms given afterwards. Norms that are not given are left out; caveats are added to those it has.
        """
        number, added = self._number(step), split(joined(caveats))
        audited = None if audit is None else self._audit_norms(audit)
        drawn = None if batch is None else checked_norms("batch", batch)
        last = self._now().last
        if last is None or last.number != number or any(part.through >= number for part in self._audit.slices):
            raise LedgerError(self.path, f"step {number} is not its last, or it was closed: its norms are final")
        self._begin()
        try:
            if audited is not None and self._audit.records is None:
                self._audit.set_records(len(audited))
            previous = self._history.hash_at(number - 1)
            again = replace(last, caveats=joined([*split(last.caveats), *added]))
            stored, entry = self._with_norms(again, previous, audited, drawn)
            self._file.replace_last(stored, previous)
            self._history.amend(stored.step, stored.hash)
            self._audit.amend(entry)
        except BaseException:
            self._stale = True
            raise

    @locked
    def close(self) -> None:
        """Fold what is left and leave one plain file. A ledger that is not closed loses nothing, it is only larger."""
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
        """Return the history, read again if the last write did not end well."""
        if self._stale:
            self._file.roll_back()
            self._load()
        return self._history

    def _audit_norms(self, values: Any) -> CheckedNorms:
        norms = checked_norms("audit", values)
        expected = self.audit_records
        if len(norms) == 0 or (expected and len(norms) != expected):
            number = f"one norm for each of the {expected} audit records" if expected else "at least one norm"
            raise refuse("len(audit)", len(norms), number)
        return norms

    # Reading

    @locked
    def costs(self, lambdas: ArrayLike | range) -> FloatArray:
        """Return K_x(lambda) = sum over steps of kappa_lambda(e_t(x)) for all audit records, [m, L].

        Formal guarantee: never below the cost at the exact exposures; both directions of add/remove.
        """
        return self.rounded_costs(lambdas, "up")

    @locked
    def rounded_costs(self, lambdas: ArrayLike | range, rounding: Rounding) -> FloatArray:
        """Return the costs [m, L] with exposures and rates rounded up, or rounded down for comparison."""
        bins = self._now().bins
        whole = any(rate < 1 for rate in bins.rates)
        return audit_costs(self._audit, bins, validation.lambdas(lambdas, whole=whole), rounding)

    @locked
    def snapshots(self) -> tuple[list[int], FloatArray]:
        """Return steps [P] at which costs were kept, and costs [P, m, 8] of audit records at ``snapshots.LAMBDAS``."""
        self._now()
        return self._folding.snapshots()

    @locked
    def step_counts(self) -> StepCounts:
        """Return how often each audit record went through each kind of step."""
        return StepCounts.of(self._audit, self._now().bins)

    @locked
    def exposure_counts(self) -> tuple[FloatArray, NDArray[np.int64]]:
        """Return exposures in ascending order [K], rounded up, and how often audit records had them [K]."""
        return exposure_totals(self._audit, self._now().bins)

    @locked
    def stored_steps(self) -> list[StoredStep]:
        """Return all steps as they are kept, without the journal; what they did to their batch is private."""
        steps = self._now().steps
        with self._file.reading():
            stored = self._file.steps(chain.first_hash(self._settings))
            return [replace(step, journal=None) for step in itertools.islice(stored, steps)]

    @locked
    def private_batch(self, step: int) -> PrivateBatch | None:
        """Private: return what a step did to the batch it drew; None if that was not given."""
        content = self._file.content("private_batches", self._number(step))
        return None if content is None else PrivateBatch.unpack(content)

    @locked
    def private_norms(self, step: int) -> tuple[FloatArray | None, FloatArray | None]:
        """Private: return the norms of audit records and of the batch as they were given, if they were to be kept."""
        content = self._file.content("private_norms", self._number(step))
        return (None, None) if content is None else unpack_norms(content)

    def _number(self, step: int) -> int:
        number = validation.count("step", step, minimum=1)
        if number > self.steps:
            raise refuse("step", step, f"a step from 1 to {self.steps}")
        return number
