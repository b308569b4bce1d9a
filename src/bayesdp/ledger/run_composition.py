"""Composition: runs that followed one another on the same people become one ledger, and costs of a record add up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import chain, packing
from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.batches import PrivateBatch
from bayesdp.ledger.bins import Bins
from bayesdp.ledger.caveats import caveat_names, caveat_text
from bayesdp.ledger.chain import StoredStep
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.histograms import SLICE, Histogram, Slice, total
from bayesdp.ledger.history import History
from bayesdp.ledger.seals import lasting_seal
from bayesdp.ledger.settings import checked_path, new_settings
from bayesdp.ledger.snapshots import POINTS, SnapshotCosts
from bayesdp.ledger.step_sources import SharedStates, StepSource
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.validation import FloatArray, InvalidInputError, brief, refuse

Value = TypeVar("Value")

_SAME_NUMBERS = (
    "contains a step with the random numbers ({what}) of a step in {other}: results with the same noise differ by "
    "gradients alone, and equal draws are no sampling, so no epsilon is known for both runs together; set no seed, or "
    "another one in each run, or use SecureNoise and SecureSampler"
)


def composed_file(ledgers: Sequence[StoredLedger], path: str | Path | None) -> LedgerFile:
    """Write one ledger of runs that followed one another on the same people: at ``path``, or in memory if it is None.

    ``bayesdp.compose`` says what is composed and how. Costs are weighed at the orders of the run that was begun first:
    no others were fixed before the first step of all, which the proof of ex-post figures needs. The file is written in
    one transaction and sealed; if anything fails, it is removed. Raises InvalidInputError for fewer than two ledgers
    and for runs on data of different names, LedgerError for a run that is given twice or was chosen among others, for
    two runs that began a step with a generator in the same state, and if there is a file at ``path``, StorageError if
    it cannot be written.
    """
    _check(ledgers)
    ids, note = _common_ids(ledgers)
    runs = [run for ledger in ledgers for run in (ledger.composed_of or [_as_run(ledger)])]
    data = next((ledger.data for ledger in ledgers if ledger.data is not None), None)
    begun_first = min(ledgers, key=_begun)
    mixture = begun_first.mixture
    bins = Bins.union([ledger.history.bins for ledger in ledgers])
    settings = new_settings(
        audit_ids=ids,
        data=data,
        audit_groups=_groups(ledgers, ids),
        mixture=mixture,
        mixture_in=begun_first.mixture_in,
        audit_used_for=_audit_uses(ledgers),
        training_records=_common([ledger.training_records for ledger in ledgers], None),
        unit=_common([ledger.unit for ledger in ledgers], "row"),
        grid_version=grid.VERSION if bins.ratios else 1,
    )
    settings |= {
        "composed_of": json.dumps(runs),
        "notes": json.dumps([note] if note else []),
        "bins": json.dumps([bins.rates, bins.own]),
    }
    file = LedgerFile.create(MEMORY if path is None else checked_path(path), settings)
    try:
        history = History(chain.first_hash(settings), bins)
        file.begin(0, history.hash)
        with file.transaction():
            for stored in _steps(ledgers, history, audited=ids is not None):
                file.insert(stored)
            for number, part in enumerate(_slices(ledgers, ids, history, mixture) if ids is not None else ()):
                file.put(number, part, history.hash)
        file.seal(history.steps, history.hash)
        return file
    except BaseException:
        file.discard()
        raise


def _check(ledgers: Sequence[StoredLedger]) -> None:
    if not all(isinstance(ledger, StoredLedger) for ledger in ledgers):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse("ledgers", list(ledgers), "ledgers")
    if len(ledgers) < 2:
        raise refuse("ledgers", len(ledgers), "at least two to compose")
    seen: dict[str, str] = {}
    for ledger in ledgers:
        if ledger.declared_selection is not None:
            raise LedgerError(ledger.path, "is of a run that was chosen among others, which cannot be composed")
        for run in [run["run"] for run in ledger.composed_of] or [ledger.run]:
            if run in seen:
                raise LedgerError(
                    ledger.path, f"contains a run that is also in {seen[run]!r}: its steps would count twice"
                )
            seen[run] = ledger.path
    named = [ledger for ledger in ledgers if ledger.data is not None]
    for ledger in named[1:]:
        if ledger.data != named[0].data:
            raise InvalidInputError(
                f"data={brief(ledger.data)} in {ledger.path!r}, data={brief(named[0].data)} in {named[0].path!r}: "
                "expected runs on the same data; runs on disjoint data cannot be composed in this version."
            )


def _begun(ledger: StoredLedger) -> str:
    """Return when the first run of a ledger was begun; between runs of the same second, the order given decides."""
    return min((str(run["created"]) for run in ledger.composed_of), default=ledger.created)


def _common_ids(ledgers: Sequence[StoredLedger]) -> tuple[list[str | int] | None, str | None]:
    """Return the ids that all ledgers share, in the order of the first, or None and the reason."""
    first = ledgers[0].audit_ids
    for ledger in ledgers:
        ids = ledger.audit_ids
        if ids is None or first is None:
            return None, f"Worst case only: the audit records of {ledger.path!r} have no ids."
        if set(ids) != set(first):
            return None, f"Worst case only: the audit records of {ledger.path!r} are not those of {ledgers[0].path!r}."
    if first == list(range(len(first or []))) and _different_rows(ledgers):  # such ids say nothing but the place
        return None, "Worst case only: the audit records of these runs are different rows of the data."
    return first, None


def _different_rows(ledgers: Sequence[StoredLedger]) -> bool:
    """Return whether the audit records of some steps are known to be other rows of the data than those of others."""
    steps = (stored.step for ledger in ledgers for stored in ledger.stored_steps())
    return len({digest for step in steps for digest in StepSource.read(step.source).audit}) > 1


def _groups(ledgers: Sequence[StoredLedger], ids: list[str | int] | None) -> list[str] | None:
    """Return the groups of the audit records with these ids, if all ledgers agree on them."""
    if ids is None:
        return None
    by_ledger: list[list[str]] = []
    for ledger in ledgers:
        groups = ledger.audit_groups
        if groups is None:
            return None
        by_ledger.append([groups[position] for position in _positions(ledger, ids).tolist()])
    return by_ledger[0] if all(groups == by_ledger[0] for groups in by_ledger) else None


def _common(declared: Sequence[Value], otherwise: Value) -> Value:
    """Return what all runs declared, or if they differ what holds for all of them."""
    return declared[0] if len(set(declared)) == 1 else otherwise


def _audit_uses(ledgers: Sequence[StoredLedger]) -> str | None:
    """Return what the audit records were used for in any of the runs."""
    return "; ".join(dict.fromkeys(ledger.audit_used_for for ledger in ledgers if ledger.audit_used_for)) or None


def _as_run(ledger: StoredLedger) -> dict[str, object]:
    return {
        "run": ledger.run,
        "created": ledger.created,
        "steps": ledger.steps,
        "seal": lasting_seal(ledger),
        "metadata": ledger.metadata,
    }


def _steps(ledgers: Sequence[StoredLedger], history: History, *, audited: bool) -> Iterator[StoredStep]:
    """Yield all steps, numbered and chained anew, and add each to the history.

    If the numbers of training records differ the new ledger has none. That they are public then stands with the steps.
    """
    kept = _common([ledger.training_records for ledger in ledgers], None)
    states = SharedStates()
    for number, ledger in enumerate(ledgers):
        public = ["records-public"] if kept is None and ledger.training_records is not None else []
        for stored in ledger.stored_steps():
            shared = states.shared(number, stored.step.source)
            if shared is not None:
                what, other = shared
                raise LedgerError(ledger.path, _SAME_NUMBERS.format(what=what, other=repr(ledgers[other].path)))
            place = history.bins.place(stored.step.noise_std, stored.step.sample_rate, stored.step.clip)
            batch = None
            if stored.batch is not None:
                batch = PrivateBatch.unpack(stored.batch).moved(place).pack(place.rate_number)
            step = replace(
                stored.step,
                number=history.steps + 1,
                audited=stored.step.audited if audited else 0,
                audit_clipped=stored.step.audit_clipped if audited else 0,
                audit_digest=chain.NOTHING,
                batch_digest=chain.digest(batch),
                norms_digest=chain.NOTHING,
                caveats=caveat_text([*caveat_names(stored.step.caveats), *public]),
            )
            step_hash = step.hash(history.hash)
            history.add(step, step_hash)
            yield StoredStep(step, step_hash, None, batch, None)


def _slices(
    ledgers: Sequence[StoredLedger], ids: list[str | int], history: History, mixture: OrderMixture
) -> Iterator[Slice]:
    """Yield slices with the counts of all runs together, and snapshots of the costs along all runs.

    The costs along a run that kept them at other orders are known at its end only.
    """
    costs = SnapshotCosts(history.bins, mixture)
    positions = [_positions(ledger, ids) for ledger in ledgers]
    unknown: tuple[list[int], FloatArray] = ([], np.zeros((0, len(ids), costs.orders)))
    trails = [ledger.snapshots() if ledger.mixture == mixture else unknown for ledger in ledgers]
    for first in range(0, len(ids), SLICE):
        records = min(SLICE, len(ids) - first)
        points: list[int] = []
        parts: list[Histogram] = []
        packed: list[NDArray[np.uint16]] = []
        before, steps = np.zeros((records, costs.orders)), 0
        for ledger, position, (points_of_run, trail) in zip(ledgers, positions, trails, strict=True):
            of_slice = position[first : first + records]
            points += [steps + point for point in points_of_run]
            packed.append(packing.pack_costs(before + trail[:, of_slice]))
            parts.append(_counts(ledger, of_slice, history))
            before, steps = before + costs.of_histogram(parts[-1]), steps + ledger.steps
            if ledger.mixture != mixture:
                points.append(steps)
                packed.append(packing.pack_costs(before)[None])
        kept = _thinned(len(points))
        yield Slice(
            first,
            records,
            steps,
            total(parts).pack(tight=True),
            tuple(np.array(points, np.int64)[kept].tolist()),
            np.concatenate(packed)[kept].tobytes(),
        )


def _positions(ledger: StoredLedger, ids: list[str | int]) -> NDArray[np.int64]:
    """Return the positions of the audit records with these ids in a ledger, [m]."""
    position = {name: number for number, name in enumerate(ledger.audit_ids or [])}
    return np.array([position[name] for name in ids], np.int64)


def _counts(ledger: StoredLedger, records: NDArray[np.int64], history: History) -> Histogram:
    """Return the histogram of some records of a ledger, over the bins of the new history."""
    parts: list[Histogram] = []
    for number in np.unique(records // SLICE).tolist():
        histogram = ledger.audit.with_ratios(number)
        counts = np.zeros((len(histogram.bins), len(records)), histogram.counts.dtype)
        in_slice = records // SLICE == number
        counts[:, in_slice] = histogram.counts[:, records[in_slice] % SLICE]
        parts.append(Histogram(histogram.bins, counts))
    gathered = total(parts)
    return gathered.moved(ledger.history.bins.moved_to(history.bins, gathered.bins))


def _thinned(points: int) -> NDArray[np.int64]:
    """Return the numbers of the points to keep: about as many as the ledger of one run has."""
    if points <= POINTS:
        return np.arange(points)
    return np.unique(np.linspace(0, points - 1, POINTS).round().astype(np.int64))
