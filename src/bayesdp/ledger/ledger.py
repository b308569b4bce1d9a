"""The ledger of a run: what every step did, kept safely, and the costs that follow from it."""

from __future__ import annotations

import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayesdp import validation
from bayesdp.conversion import record_epsilons
from bayesdp.ledger import chain, grid, snapshots
from bayesdp.ledger.batches import PrivateBatch, pack_norms, unpack_norms
from bayesdp.ledger.bins import Bins, Place
from bayesdp.ledger.caveats import CAVEATS, joined, split
from bayesdp.ledger.chain import Step
from bayesdp.ledger.costs import audit_costs
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile, StoredStep
from bayesdp.ledger.histograms import AuditHistograms, Entry, Slice, add_entries
from bayesdp.ledger.history import History
from bayesdp.ledger.settings import audit_size, checked_path, checked_text, new_settings
from bayesdp.ledger.snapshots import SnapshotCosts, Track
from bayesdp.validation import FloatArray, refuse
from bayesdp.worst_case import Run, WorstCase

if TYPE_CHECKING:
    from bayesdp.claim import Claim
    from bayesdp.gate import Gate

_POINTS_OF_A_FOLD = 8

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _locked(
    method: Callable[Concatenate[Ledger, _Arguments], _Result],
) -> Callable[Concatenate[Ledger, _Arguments], _Result]:
    """One thread at a time: what is read belongs together, and a step is whole before the next."""

    @functools.wraps(method)
    def locked(self: Ledger, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self._lock:  # pyright: ignore[reportPrivateUsage]
            return method(self, *args, **kwargs)

    return locked


class Ledger:
    """What a run did to each record of data.

        with Ledger.create("run.ledger") as ledger:
            ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0, audit=norms_of_audit_records)

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
        """A ledger in memory; see ``create`` for the arguments."""
        settings = new_settings(audit_ids, data, metadata, keep_norms, audit_groups, gate)
        self._start(LedgerFile.create(MEMORY, settings))

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
        """A new ledger at ``path``, where there must be no file yet.

        ``audit_ids`` name the audit records, so that runs on the same people can be composed; ``audit_groups`` names
        the group of each, for claims by group; ``data`` names the data that is trained on; ``metadata`` is any JSON
        object. ``keep_norms`` also keeps the norms as they were given. ``gate`` is declared before the run.
        """
        settings = new_settings(audit_ids, data, metadata, keep_norms, audit_groups, gate)
        return cls.from_file(LedgerFile.create(checked_path(path), settings))

    @classmethod
    def open(cls, path: str | Path, *, write: bool = True) -> Self:
        """The ledger at ``path``, checked from the first step to the last; to continue it, or only to read it."""
        return cls.from_file(LedgerFile(checked_path(path), write=write))

    @classmethod
    def from_file(cls, file: LedgerFile) -> Self:
        """The ledger in a file that is open already."""
        ledger = cls.__new__(cls)
        try:
            ledger._start(file)
        except BaseException:
            file.abandon()
            raise
        return ledger

    def _start(self, file: LedgerFile) -> None:
        self._file = file
        self._lock = threading.RLock()
        self._load()

    def _load(self) -> None:
        """Everything from the file: at first, and after a write that did not end well."""
        with self._file.reading():
            self._settings = self._file.settings()
            if self._settings.get("grid") != str(grid.VERSION):
                raise LedgerError(
                    self.path, f"uses exposure grid {self._settings.get('grid')}, unknown to this version"
                )
            first_hash = chain.first_hash(self._settings)
            bins = Bins(*json.loads(self._settings.get("bins", "[[], []]")))
            history, audit = History(first_hash, bins), AuditHistograms()
            if (records := audit_size(self._settings)) is not None:
                audit.set_records(records)
            for stored in self._file.steps(first_hash):
                step = stored.step
                history.add(step, stored.hash)
                if step.audited and audit.records is None:
                    audit.set_records(step.audited)
                audit.append(_entry(history.bins.place(step.noise_std, step.sample_rate, step.clip), stored))
            for number, one in self._file.slices(history.hash_at, history.steps).items():
                expected = audit.slices[number] if number < len(audit.slices) else None
                if expected is None or (one.first, one.records) != (expected.first, expected.records):
                    raise LedgerError(self.path, f"the counts of audit records (row {number}) are of no record")
                audit.slices[number] = one.loosened()
        for name in history.caveats:
            if name not in CAVEATS:
                raise LedgerError(self.path, f"rests on {name!r}, unknown to this version")
        audit.forget_folded()
        for number, entry in enumerate(audit.journal, start=audit.steps - len(audit.journal) + 1):
            if entry.keys is None:
                raise LedgerError(self.path, f"step {number}: what it did to audit records is missing")
        self._history, self._audit = history, audit
        self._snapshot_costs = SnapshotCosts(history.bins)
        self._tracks: dict[int, Track] = {}
        self._stale = False

    # What the run is

    @property
    def path(self) -> str:
        """Where the ledger is; ``:memory:`` for one in memory."""
        return str(self._file.path)

    @property
    def run(self) -> str:
        """A name that no other run has."""
        return self._settings["run"]

    @property
    def created(self) -> str:
        """When the ledger was created, UTC."""
        return self._settings["created"]

    @property
    def data(self) -> str | None:
        """The name of the data that is trained on, if it was given."""
        return self._settings.get("data")

    @property
    def metadata(self) -> dict[str, Any]:
        """What was noted about the run."""
        return json.loads(self._settings["metadata"])

    @property
    def audit_ids(self) -> list[str | int] | None:
        """The ids of audit records, if they were given."""
        ids = self._settings.get("audit_ids")
        return None if ids is None else json.loads(ids)

    @property
    def audit_groups(self) -> list[str] | None:
        """The group of each audit record, if groups were given."""
        groups = self._settings.get("audit_groups")
        return None if groups is None else json.loads(groups)

    @property
    def gate(self) -> Gate | None:
        """The gate that was declared before the run, if any."""
        from bayesdp.gate import Gate

        return Gate.from_json(self._settings["gate"]) if "gate" in self._settings else None

    @property
    def composed_of(self) -> list[dict[str, Any]]:
        """The runs of which this ledger was composed; empty for the ledger of one run."""
        return json.loads(self._settings.get("composed_of", "[]"))

    @property
    def notes(self) -> list[str]:
        """What a reader of the claims should know."""
        return json.loads(self._settings.get("notes", "[]"))

    @property
    @_locked
    def steps(self) -> int:
        """How many steps were recorded."""
        return self._now().steps

    @property
    @_locked
    def audit_records(self) -> int:
        """How many audit records there are; 0 before the first step with their norms, if no ids were given."""
        self._now()
        return self._audit.records or 0

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called: it can be read on, and no step can be recorded."""
        return not self._file.is_open

    @property
    @_locked
    def seal(self) -> str:
        """One hash over all steps and counts: note it elsewhere, and nothing can be changed unseen."""
        return self._file.seal_after(self._now().hash).hex()

    @property
    @_locked
    def history(self) -> History:
        """Stretches of equal settings, and totals."""
        return self._now()

    @property
    @_locked
    def audit(self) -> AuditHistograms:
        """Counts of every audit record."""
        self._now()
        return self._audit

    @_locked
    def stored_steps(self) -> list[StoredStep]:
        """All steps as they are kept, without the journal; what they did to their batch is private."""
        steps = self._now().steps
        with self._file.reading():
            stored = self._file.steps(chain.first_hash(self._settings))
            return [replace(one, journal=None) for one in itertools.islice(stored, steps)]

    # Writing

    @_locked
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
        """
        noise = validation.noise_std(noise_std)
        rate = validation.sample_rate(sample_rate)
        bound = None if clip is None else validation.positive("clip", clip)
        if bound is not None:
            validation.noise_multiplier(noise / bound)
        planned = None if planned_batch is None else validation.positive("planned_batch", planned_batch)
        audited = None if audit is None else self._audit_norms(audit)
        drawn = None if batch is None else _norms("batch", batch)
        source = checked_text("source", source)
        rests_on = joined(caveats)
        self._begin()
        try:
            return self._record(noise, rate, bound, planned, source, rests_on, audited, drawn)
        except BaseException:
            self._stale = True  # what is in the file counts, not what we think
            raise

    def _record(
        self,
        noise: float,
        rate: float,
        clip: float | None,
        planned: float | None,
        source: str,
        caveats: str,
        audit: FloatArray | None,
        batch: FloatArray | None,
    ) -> int:
        for number in self._audit.due():  # none before the step that says how many records there are
            self._fold(number, self._audit.boundary)
        if audit is not None and self._audit.records is None:
            self._audit.set_records(len(audit))
        step = Step(
            number=self._history.steps + 1,
            noise_std=noise,
            sample_rate=rate,
            clip=clip,
            planned_batch=planned,
            time=time.time(),
            source=source,
            caveats=caveats,
            audited=0,
            audit_clipped=0,
            audit_digest=chain.NOTHING,
            batch_digest=chain.NOTHING,
            norms_digest=chain.NOTHING,
        )
        stored, entry = self._with_norms(step, self._history.hash, audit, batch)
        self._file.append(stored)
        self._history.add(stored.step, stored.hash)
        self._audit.append(entry)
        return step.number

    def _with_norms(
        self, step: Step, previous: bytes, audit: FloatArray | None, batch: FloatArray | None
    ) -> tuple[StoredStep, Entry]:
        """A step and what it did to records, as they are kept."""
        place = self._history.bins.place(step.noise_std, step.sample_rate, step.clip)
        keys = None if audit is None else place.keys(audit)
        journal = None if keys is None else keys.astype("<u2", copy=False).tobytes()
        drawn = None if batch is None else PrivateBatch.of(batch, _above(batch, step.clip), place).pack(place.rate)
        norms = pack_norms(audit, batch) if self._settings["keep_norms"] == "true" else None
        step = replace(
            step,
            audited=0 if audit is None else len(audit),
            audit_clipped=0 if audit is None else _above(audit, step.clip),
            audit_digest=chain.digest(journal),
            batch_digest=chain.digest(drawn),
            norms_digest=chain.digest(norms),
        )
        stored = StoredStep(step, step.hash(previous), journal, drawn, norms)
        return stored, Entry(place.rate, place.clip_key if keys is None else keys)

    @_locked
    def amend(self, step: int, *, audit: Any = None, batch: Any = None, caveats: Iterable[str] = ()) -> None:
        """Record the last step again, with norms that were not known before; on disk when this returns.

        Until then audit records are charged at the clip bound: a step may be recorded before its result is used, and
        its norms given afterwards. Norms that are not given are left out; caveats are added to those it has.
        """
        number, added = self._number(step), split(joined(caveats))
        audited = None if audit is None else self._audit_norms(audit)
        drawn = None if batch is None else _norms("batch", batch)
        last = self._now().last
        if last is None or last.number != number or any(one.through >= number for one in self._audit.slices):
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

    @_locked
    def close(self) -> None:
        """Fold what is left and leave one plain file. A ledger that is not closed loses nothing, it is only larger."""
        try:
            if self._file.unfinished:
                self._begin()
                for number in range(len(self._audit.slices)):
                    self._fold(number, self._audit.steps, tight=True)
                self._file.seal(self._history.steps, self._history.hash)
        except BaseException:
            self._file.abandon()
            raise
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def then(self, *others: Ledger, path: str | Path | None = None) -> Ledger:
        """This run and then others on the same people, as one ledger; see ``compose``."""
        from bayesdp.ledger.composition import compose

        return compose([self, *others], path)

    def report(self, path: str | Path, **options: Any) -> None:
        """Write the page for whoever decides; see ``bayesdp.report.write_report``."""
        from bayesdp.report import write_report

        write_report(self, path, **options)

    def _begin(self) -> None:
        if "composed_of" in self._settings:
            raise LedgerError(self.path, "is composed of other runs and is finished; compose it with the next run")
        history = self._now()
        self._file.begin(history.steps, history.hash)

    def _now(self) -> History:
        """The history, read again if the last write did not end well."""
        if self._stale:
            self._file.roll_back()
            self._load()
        return self._history

    def _fold(self, number: int, through: int, *, tight: bool = False) -> None:
        before = self._audit.slices[number]
        entries = self._audit.entries(before.through, through)
        histogram = before.histogram()
        track = self._tracks.get(number) or Track(before, histogram, self._snapshot_costs)
        # Most points of a young run would soon be dropped again; on closing, all that are wanted are made.
        points, kept = track.snapshots(before, entries, at_most=snapshots.POINTS if tight else _POINTS_OF_A_FOLD)
        packed = add_entries(histogram, before.range, entries).pack(tight=tight)
        after = replace(before, through=through, packed=packed, points=points, snapshots=kept)
        others = [one.through for other, one in enumerate(self._audit.slices) if other != number]
        self._file.put_slice(number, after, self._history.hash_at(through), forget=min([*others, through]))
        self._audit.slices[number] = after
        self._tracks[number] = track
        self._audit.forget_folded()

    def _audit_norms(self, values: Any) -> FloatArray:
        norms = _norms("audit", values)
        expected = self.audit_records
        if len(norms) == 0 or (expected and len(norms) != expected):
            number = f"one norm for each of the {expected} audit records" if expected else "at least one norm"
            raise refuse("len(audit)", len(norms), number)
        return norms

    # Reading

    @_locked
    def worst_case(self, delta: float = 1e-5, *, more: Run | None = None) -> WorstCase:
        """Classic differential privacy of all steps, for everyone.

        ``more``, (noise multiplier, sampling rate, steps), asks what it would be after further steps.
        """
        history = self._now()
        found = history.worst_case(validation.probability("delta", delta), more)
        return replace(found, assumptions=tuple(CAVEATS[name].text for name in history.caveats))

    @_locked
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
    ) -> list[Claim]:
        """Everything that may be said about the run, each claim with whom it covers, how surely and why.

        First the worst case, then for each share what is sure and what is estimated, the average, the paper's, the gate
        if one was declared. ``gamma`` is the failure probability of each share and of the average; with ``joint`` all
        shares hold together with it. ``fixed_exposures`` says that the norms did not depend on what was released
        before: only then is the average proved. ``private`` adds what comes from training members. ``rows`` adds
        the worst case of a person with so many rows.
        """
        from bayesdp.claims import Asked, ledger_claims

        asked = Asked(
            delta=delta,
            gamma=gamma,
            shares=shares,
            joint=joint,
            estimator=estimator,
            fixed_exposures=fixed_exposures,
            private=private,
            rows=rows,
        )
        return ledger_claims(self, asked).all()

    @_locked
    def costs(self, lambdas: ArrayLike | range) -> FloatArray:
        """K_x(lambda) = sum over steps of kappa_lambda(e_t(x)) for all audit records, [m, L].

        Formal guarantee: never below the cost at the exact exposures; both directions of add/remove.
        """
        history = self._now()
        whole = any(rate < 1 for rate in history.bins.rates)
        return audit_costs(self._audit, history.bins, validation.lambdas(lambdas, whole=whole))

    @_locked
    def rounding(self, delta: float = 1e-5) -> float:
        """How much rounding exposures up can have added to epsilon at most: 0.01 stands for 1 %.

        The largest excess among audit records against exposures (and rates) rounded down, with the best of many orders;
        infinite if an exposure is beyond the grid, or if epsilon might be 0.
        """
        delta = validation.probability("delta", delta)
        lambdas = np.unique(np.geomspace(1, 512, 96).round())
        history = self._now()
        up = record_epsilons(audit_costs(self._audit, history.bins, lambdas), lambdas, delta)
        down = record_epsilons(audit_costs(self._audit, history.bins, lambdas, "down"), lambdas, delta)
        comparable = up > down
        with np.errstate(divide="ignore"):
            return float((up[comparable] / down[comparable] - 1).max(initial=0.0))

    @_locked
    def snapshots(self) -> tuple[list[int], FloatArray]:
        """Steps [P] at which costs were kept, and the costs [P, m, 8] of audit records at ``snapshots.LAMBDAS``."""
        self._now()
        slices: list[Slice] = []
        for one in self._audit.slices:
            entries = self._audit.entries(one.through, self._audit.steps)
            if not entries:
                slices.append(one)
                continue
            points, kept = Track(one, one.histogram(), self._snapshot_costs).snapshots(one, entries)
            slices.append(replace(one, points=points, snapshots=kept))
        return snapshots.of_all(slices)

    @_locked
    def exposure_counts(self) -> tuple[FloatArray, NDArray[np.int64]]:
        """Exposures in ascending order [K], rounded up, and how often audit records had them [K]."""
        history = self._now()
        totals: dict[int, int] = {}
        for number in range(len(self._audit.slices)):
            histogram = self._audit.histogram(number)
            for one, count in zip(histogram.bins.tolist(), histogram.counts.sum(axis=1).tolist(), strict=True):
                totals[one & 0xFFFF] = totals.get(one & 0xFFFF, 0) + count
        keys = np.array(list(totals), np.int64)
        exposures = history.bins.exposures(keys)
        order = np.argsort(exposures, kind="stable")
        return exposures[order], np.array(list(totals.values()), np.int64)[order]

    @_locked
    def private_batch(self, step: int) -> PrivateBatch | None:
        """Private: what a step did to the batch it drew; None if that was not given."""
        content = self._file.content("private_batches", self._number(step))
        return None if content is None else PrivateBatch.unpack(content)

    @_locked
    def private_norms(self, step: int) -> tuple[FloatArray | None, FloatArray | None]:
        """Private: the norms of audit records and of the batch as they were given, if they were to be kept."""
        content = self._file.content("private_norms", self._number(step))
        return (None, None) if content is None else unpack_norms(content)

    def _number(self, step: int) -> int:
        number = validation.count("step", step, minimum=1)
        if number > self.steps:
            raise refuse("step", step, f"a step from 1 to {self.steps}")
        return number


def _entry(place: Place, stored: StoredStep) -> Entry:
    if not stored.step.audited:
        return Entry(place.rate, place.clip_key)
    return Entry(place.rate, None if stored.journal is None else np.frombuffer(stored.journal, "<u2"))


def _norms(name: str, values: Any) -> FloatArray:
    norms = validation.non_negative_array(name, values)
    if norms.ndim != 1:
        raise refuse(f"{name}.shape", norms.shape, "one norm per record, [n]")
    return norms


def _above(norms: FloatArray, clip: float | None) -> int:
    return 0 if clip is None else int(np.count_nonzero(norms > clip))
