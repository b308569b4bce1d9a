"""Runs after one another on the same people: their steps follow each other, costs of the same audit record add up."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import chain, packing
from bayesdp.ledger.batches import PrivateBatch
from bayesdp.ledger.bins import Bins
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile, StoredStep
from bayesdp.ledger.histograms import SLICE, Histogram, Slice, total
from bayesdp.ledger.history import History
from bayesdp.ledger.ledger import Ledger
from bayesdp.ledger.settings import checked_path, new_settings
from bayesdp.ledger.snapshots import LAMBDAS, POINTS, SnapshotCosts
from bayesdp.validation import InvalidInputError, refuse


def compose(ledgers: Sequence[Ledger], path: str | Path | None = None) -> Ledger:
    """One ledger of several runs that took place one after the other on the same people; in memory without a path.

    Audit records are matched by their ids. Without ids, or if they are not the same in all ledgers, only the worst case
    remains; the new ledger's notes say so. Refused: a run given twice, and runs on data of different names, which may
    be of different people (runs on disjoint data cannot be composed in this version). Norms that were kept as given
    stay in the ledgers of the runs.
    """
    _check(ledgers)
    ids, note = _common_ids(ledgers)
    runs = [run for one in ledgers for run in (one.composed_of or [_as_run(one)])]
    data = next((one.data for one in ledgers if one.data is not None), None)
    settings = new_settings(ids, data, metadata=None, keep_norms=False, audit_groups=_groups(ledgers, ids))
    bins = Bins.union([one.history.bins for one in ledgers])
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
            for number, one in enumerate(_slices(ledgers, ids, history) if ids is not None else ()):
                file.put(number, one, history.hash)
        file.seal(history.steps, history.hash)
        return Ledger.from_file(file)
    except BaseException:
        file.discard()
        raise


def _check(ledgers: Sequence[Ledger]) -> None:
    if not all(isinstance(one, Ledger) for one in ledgers):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse("ledgers", list(ledgers), "ledgers")
    if len(ledgers) < 2:
        raise refuse("ledgers", len(ledgers), "at least two to compose")
    seen: dict[str, str] = {}
    for one in ledgers:
        for run in [run["run"] for run in one.composed_of] or [one.run]:
            if run in seen:
                raise LedgerError(
                    one.path, f"contains a run that is also in {seen[run]!r}: its steps would count twice"
                )
            seen[run] = one.path
    named = [one for one in ledgers if one.data is not None]
    for one in named[1:]:
        if one.data != named[0].data:
            raise InvalidInputError(
                f"data={one.data!r} in {one.path!r}, data={named[0].data!r} in {named[0].path!r}: expected runs on the "
                "same data; runs on disjoint data cannot be composed in this version."
            )


def _common_ids(ledgers: Sequence[Ledger]) -> tuple[list[str | int] | None, str | None]:
    """The ids that all ledgers share, in the order of the first; or None, and why."""
    first = ledgers[0].audit_ids
    for one in ledgers:
        ids = one.audit_ids
        if ids is None or first is None:
            return None, f"Worst case only: the audit records of {one.path!r} have no ids."
        if set(ids) != set(first):
            return None, f"Worst case only: the audit records of {one.path!r} are not those of {ledgers[0].path!r}."
    return first, None


def _groups(ledgers: Sequence[Ledger], ids: list[str | int] | None) -> list[str] | None:
    """The groups of the audit records with these ids, if all ledgers agree on them."""
    if ids is None:
        return None
    found: list[list[str]] = []
    for one in ledgers:
        groups = one.audit_groups
        if groups is not None:
            found.append([groups[place] for place in _places(one, ids).tolist()])
    return found[0] if len(found) == len(ledgers) and all(one == found[0] for one in found) else None


def _as_run(one: Ledger) -> dict[str, object]:
    return {
        "run": one.run,
        "created": one.created,
        "steps": one.steps,
        "seal": one.seal,
        "metadata": one.metadata,
    }


def _steps(ledgers: Sequence[Ledger], history: History, *, audited: bool) -> Iterator[StoredStep]:
    """All steps, numbered and chained anew; the history is filled on the way."""
    for one in ledgers:
        for stored in one.stored_steps():
            place = history.bins.place(stored.step.noise_std, stored.step.sample_rate, stored.step.clip)
            batch = None if stored.batch is None else PrivateBatch.unpack(stored.batch).moved(place).pack(place.rate)
            step = replace(
                stored.step,
                number=history.steps + 1,
                audited=stored.step.audited if audited else 0,
                audit_clipped=stored.step.audit_clipped if audited else 0,
                audit_digest=chain.NOTHING,
                batch_digest=chain.digest(batch),
                norms_digest=chain.NOTHING,
            )
            step_hash = step.hash(history.hash)
            history.add(step, step_hash)
            yield StoredStep(step, step_hash, None, batch, None)


def _slices(ledgers: Sequence[Ledger], ids: list[str | int], history: History) -> Iterator[Slice]:
    """Counts of all runs together, record by record, and costs along all of them."""
    costs = SnapshotCosts(history.bins)
    places = [_places(one, ids) for one in ledgers]
    tracks = [one.snapshots() for one in ledgers]
    for first in range(0, len(ids), SLICE):
        records = min(SLICE, len(ids) - first)
        points: list[int] = []
        parts: list[Histogram] = []
        packed: list[NDArray[np.uint16]] = []
        before, steps = np.zeros((records, len(LAMBDAS))), 0
        for one, place, (at, track) in zip(ledgers, places, tracks, strict=True):
            ours = place[first : first + records]
            points += [steps + point for point in at]
            packed.append(packing.pack_costs(before + track[:, ours]))
            parts.append(_counts(one, ours, history))
            before, steps = before + costs.of_histogram(parts[-1]), steps + one.steps
        kept = _thinned(len(points))
        yield Slice(
            first,
            records,
            steps,
            total(parts).pack(tight=True),
            tuple(np.array(points, np.int64)[kept].tolist()),
            np.concatenate(packed)[kept].tobytes(),
        )


def _places(one: Ledger, ids: list[str | int]) -> NDArray[np.int64]:
    """Where the records with these ids stand in a ledger, [m]."""
    place = {name: number for number, name in enumerate(one.audit_ids or [])}
    return np.array([place[name] for name in ids], np.int64)


def _counts(one: Ledger, records: NDArray[np.int64], history: History) -> Histogram:
    """What some records of a ledger went through, over the bins of the new history."""
    parts: list[Histogram] = []
    for number in np.unique(records // SLICE).tolist():
        histogram = one.audit.histogram(number)
        counts = np.zeros((len(histogram.bins), len(records)), histogram.counts.dtype)
        here = records // SLICE == number
        counts[:, here] = histogram.counts[:, records[here] % SLICE]
        parts.append(Histogram(histogram.bins, counts))
    gathered = total(parts)
    return gathered.moved(one.history.bins.moved_to(history.bins, gathered.bins))


def _thinned(points: int) -> NDArray[np.int64]:
    """Numbers of the points to keep: about as many as one run has."""
    if points <= POINTS:
        return np.arange(points)
    return np.unique(np.linspace(0, points - 1, POINTS).round().astype(np.int64))
