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
from bayesdp.ledger.chain import StoredStep
from bayesdp.ledger.database import MEMORY
from bayesdp.ledger.errors import LedgerError
from bayesdp.ledger.file import LedgerFile
from bayesdp.ledger.histograms import SLICE, Histogram, Slice, total
from bayesdp.ledger.history import History
from bayesdp.ledger.settings import checked_path, new_settings
from bayesdp.ledger.snapshots import LAMBDAS, POINTS, SnapshotCosts
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.validation import InvalidInputError, refuse


def composed_file(ledgers: Sequence[StoredLedger], path: str | Path | None) -> LedgerFile:
    """Write a new ledger of runs that took place one after the other on the same people; in memory without a path.

    Raises InvalidInputError for fewer than two ledgers, for a run that is given twice and for runs on data of different
    names. ``bayesdp.compose`` says what is composed and how.
    """
    _check(ledgers)
    ids, note = _common_ids(ledgers)
    runs = [run for ledger in ledgers for run in (ledger.composed_of or [_as_run(ledger)])]
    data = next((ledger.data for ledger in ledgers if ledger.data is not None), None)
    settings = new_settings(audit_ids=ids, data=data, audit_groups=_groups(ledgers, ids))
    bins = Bins.union([ledger.history.bins for ledger in ledgers])
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
            for number, part in enumerate(_slices(ledgers, ids, history) if ids is not None else ()):
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
                f"data={ledger.data!r} in {ledger.path!r}, data={named[0].data!r} in {named[0].path!r}: "
                "expected runs on the same data; runs on disjoint data cannot be composed in this version."
            )


def _common_ids(ledgers: Sequence[StoredLedger]) -> tuple[list[str | int] | None, str | None]:
    """The ids that all ledgers share, in the order of the first; or None, and why."""
    first = ledgers[0].audit_ids
    for ledger in ledgers:
        ids = ledger.audit_ids
        if ids is None or first is None:
            return None, f"Worst case only: the audit records of {ledger.path!r} have no ids."
        if set(ids) != set(first):
            return None, f"Worst case only: the audit records of {ledger.path!r} are not those of {ledgers[0].path!r}."
    return first, None


def _groups(ledgers: Sequence[StoredLedger], ids: list[str | int] | None) -> list[str] | None:
    """The groups of the audit records with these ids, if all ledgers agree on them."""
    if ids is None:
        return None
    found: list[list[str]] = []
    for ledger in ledgers:
        groups = ledger.audit_groups
        if groups is not None:
            found.append([groups[place] for place in _places(ledger, ids).tolist()])
    return found[0] if len(found) == len(ledgers) and all(groups == found[0] for groups in found) else None


def _as_run(ledger: StoredLedger) -> dict[str, object]:
    return {
        "run": ledger.run,
        "created": ledger.created,
        "steps": ledger.steps,
        "seal": ledger.seal,
        "metadata": ledger.metadata,
    }


def _steps(ledgers: Sequence[StoredLedger], history: History, *, audited: bool) -> Iterator[StoredStep]:
    """All steps, numbered and chained anew; the history is filled on the way."""
    for ledger in ledgers:
        for stored in ledger.stored_steps():
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


def _slices(ledgers: Sequence[StoredLedger], ids: list[str | int], history: History) -> Iterator[Slice]:
    """Counts of all runs together, record by record, and costs along all of them."""
    costs = SnapshotCosts(history.bins)
    places = [_places(ledger, ids) for ledger in ledgers]
    tracks = [ledger.snapshots() for ledger in ledgers]
    for first in range(0, len(ids), SLICE):
        records = min(SLICE, len(ids) - first)
        points: list[int] = []
        parts: list[Histogram] = []
        packed: list[NDArray[np.uint16]] = []
        before, steps = np.zeros((records, len(LAMBDAS))), 0
        for ledger, place, (at, track) in zip(ledgers, places, tracks, strict=True):
            ours = place[first : first + records]
            points += [steps + point for point in at]
            packed.append(packing.pack_costs(before + track[:, ours]))
            parts.append(_counts(ledger, ours, history))
            before, steps = before + costs.of_histogram(parts[-1]), steps + ledger.steps
        kept = _thinned(len(points))
        yield Slice(
            first,
            records,
            steps,
            total(parts).pack(tight=True),
            tuple(np.array(points, np.int64)[kept].tolist()),
            np.concatenate(packed)[kept].tobytes(),
        )


def _places(ledger: StoredLedger, ids: list[str | int]) -> NDArray[np.int64]:
    """Where the records with these ids stand in a ledger, [m]."""
    place = {name: number for number, name in enumerate(ledger.audit_ids or [])}
    return np.array([place[name] for name in ids], np.int64)


def _counts(ledger: StoredLedger, records: NDArray[np.int64], history: History) -> Histogram:
    """What some records of a ledger went through, over the bins of the new history."""
    parts: list[Histogram] = []
    for number in np.unique(records // SLICE).tolist():
        histogram = ledger.audit.histogram(number)
        counts = np.zeros((len(histogram.bins), len(records)), histogram.counts.dtype)
        here = records // SLICE == number
        counts[:, here] = histogram.counts[:, records[here] % SLICE]
        parts.append(Histogram(histogram.bins, counts))
    gathered = total(parts)
    return gathered.moved(ledger.history.bins.moved_to(history.bins, gathered.bins))


def _thinned(points: int) -> NDArray[np.int64]:
    """Numbers of the points to keep: about as many as one run has."""
    if points <= POINTS:
        return np.arange(points)
    return np.unique(np.linspace(0, points - 1, POINTS).round().astype(np.int64))
