"""What each audit record went through: one histogram of exposures per record, for every step one count.

Steps are first kept as they came (the journal: one key per record and step). After every ``interval`` steps the journal
is folded into the histograms, a slice of records at a time, so that no single step waits long. A slice knows through
which step it has been folded; what it went through later is still in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import packing
from bayesdp.ledger.bins import BinArray, bins_of, keys_of, rate_numbers_of
from bayesdp.ledger.exposure_grid import KEYS, Keys, distinct

SLICE = 512
"""Records in a slice."""
_JOURNAL_KEYS = 12_800_000  # the journal of one interval holds about so many keys
_SHORTEST, _LONGEST = 32, 1280

CountArray = NDArray[Any]


@dataclass(frozen=True)
class Histogram:
    """Counts [K, n] of n records over K bins; bins are in ascending order and differ."""

    bins: BinArray
    counts: CountArray

    @staticmethod
    def empty(records: int) -> Histogram:
        """Records before their first step."""
        return Histogram(np.zeros(0, np.uint32), np.zeros((0, records), np.uint16))

    def over(self, bins: BinArray, dtype: Any) -> CountArray:
        """A copy of the counts over more bins, [K, n]."""
        if len(bins) == len(self.bins):
            return self.counts.astype(dtype)
        counts = np.zeros((len(bins), self.counts.shape[1]), dtype)
        counts[np.searchsorted(bins, self.bins)] = self.counts
        return counts

    def moved(self, bins: BinArray) -> Histogram:
        """The same counts with bins renamed, [K] in any order; equal ones are added."""
        names, place = np.unique(bins, return_inverse=True)
        counts = np.zeros((len(names), self.counts.shape[1]), np.uint32)
        np.add.at(counts, place, self.counts.astype(np.uint32))
        return Histogram(names, counts)

    def pack(self, *, tight: bool = False) -> bytes:
        """Bytes for the file; ``tight`` takes longer and gives fewer."""
        gaps = np.diff(self.bins.astype(np.int64), prepend=0)
        return packing.pack(gaps[None, :], tight=tight) + packing.pack(self.counts, tight=tight)

    @staticmethod
    def unpack(data: bytes) -> Histogram:
        """From the bytes that ``pack`` gave."""
        bins, rest = _unpack_bins(data)
        return Histogram(bins, packing.unpack(rest)[0])


def _unpack_bins(data: bytes) -> tuple[BinArray, bytes]:
    gaps, rest = packing.unpack(data)
    return np.cumsum(gaps[0], dtype=np.int64).astype(np.uint32), rest


def total(parts: Sequence[Histogram]) -> Histogram:
    """The sum of histograms of the same records; exact, whatever their order."""
    bins = np.unique(np.concatenate([part.bins for part in parts]))
    counts = parts[0].over(bins, np.uint32)
    for part in parts[1:]:
        counts[np.searchsorted(bins, part.bins)] += part.counts.astype(np.uint32, copy=False)
    return Histogram(bins, counts)


@dataclass(frozen=True)
class Slice:
    """Records ``first`` .. ``first + records - 1`` and what they went through in steps 1 .. ``through``.

    ``snapshots`` holds, for each step in ``points``, the costs of its records up to there (snapshots.py).
    """

    first: int
    records: int
    through: int = 0
    packed: bytes = b""
    points: tuple[int, ...] = ()
    snapshots: bytes = b""

    @property
    def range(self) -> slice:
        """Where its records stand among all."""
        return slice(self.first, self.first + self.records)

    def histogram(self) -> Histogram:
        """Counts of steps 1 .. ``through``."""
        return Histogram.unpack(self.packed) if self.packed else Histogram.empty(self.records)

    def loosened(self) -> Slice:
        """The same, faster to unpack."""
        return replace(self, packed=packing.loosen(self.packed))

    def bins(self) -> BinArray:
        """The bins of its histogram, [K]."""
        return _unpack_bins(self.packed)[0] if self.packed else np.zeros(0, np.uint32)


@dataclass(frozen=True)
class Entry:
    """One step of the journal: the key of each audit record [m], or one for all; None once all slices contain it."""

    rate: int
    keys: Keys | int | None


class AuditHistograms:
    """Slices and journal of all audit records; ``records`` is None until the first step that names them."""

    def __init__(self) -> None:
        self.records: int | None = None
        self.slices: list[Slice] = []
        self.journal: list[Entry] = []
        self.steps = 0
        "Steps so far; the journal holds the last of them."

    def set_records(self, records: int) -> None:
        """Decide how many records there are; called once."""
        self.records = records
        self.slices = [Slice(first, min(SLICE, records - first)) for first in range(0, records, SLICE)]

    def append(self, entry: Entry) -> None:
        """One more step."""
        self.journal.append(entry)
        self.steps += 1

    def amend(self, entry: Entry) -> None:
        """Another record of the last step, which no slice contains yet."""
        self.journal[-1] = entry

    @property
    def interval(self) -> int:
        """Steps between two rounds of folding."""
        return max(_SHORTEST, min(_LONGEST, _JOURNAL_KEYS // max(self.records or 1, 1)))

    @property
    def boundary(self) -> int:
        """The step through which slices are folded in the present round."""
        return self.steps - self.steps % self.interval

    def due(self) -> list[int]:
        """Numbers of the slices to be folded before the next step; a round takes an eighth of the interval."""
        boundary, room = self.boundary, self.interval // 8
        elapsed = min(self.steps - boundary + 1, room)
        expected = -(-len(self.slices) * elapsed // room)
        return [number for number in range(expected) if self.slices[number].through < boundary]

    def entries(self, after: int, through: int) -> list[Entry]:
        """The journal of steps after+1 .. through."""
        start = self.steps - len(self.journal)
        assert start <= after <= through <= self.steps
        return self.journal[after - start : through - start]

    def histogram(self, number: int) -> Histogram:
        """Counts of the records of a slice in all steps."""
        before = self.slices[number]
        return add_entries(before.histogram(), before.range, self.entries(before.through, self.steps))

    def bins(self) -> BinArray:
        """All bins in which some record may have a count, [K] in ascending order."""
        found = [one.bins() for one in self.slices]
        found += [bins_of(rate, distinct(keys)) for rate, keys in stacked(self.journal, slice(None))]
        return np.unique(np.concatenate([np.zeros(0, np.uint32), *found]))

    def forget_folded(self) -> None:
        """Drop the journal of steps that all slices contain."""
        through = min((one.through for one in self.slices), default=0)
        start = self.steps - len(self.journal)
        if through > start:
            del self.journal[: through - start]


def add_entries(before: Histogram, records: slice, entries: Sequence[Entry]) -> Histogram:
    """The histogram with steps of the journal added, for some of the records."""
    rows = list(stacked(entries, records))
    bins = np.unique(np.concatenate([before.bins, *(bins_of(rate, distinct(keys)) for rate, keys in rows)]))
    most = int(before.counts.max(initial=0)) + len(entries)
    counts = before.over(bins, np.uint16 if most < 1 << 16 else np.uint32)
    width = int(counts.shape[1])
    for rate, keys in rows:
        place = np.zeros(KEYS, np.int64)
        here = np.flatnonzero(rate_numbers_of(bins) == rate)
        place[keys_of(bins[here])] = here * width
        flat = np.add(place[keys], np.arange(width)).ravel()
        np.add.at(counts.reshape(-1), flat, counts.dtype.type(1))
    return Histogram(bins, counts)


def stacked(entries: Sequence[Entry], records: slice) -> Iterator[tuple[int, Keys]]:
    """Rates, and keys [steps, records] (or [steps, 1] where a step has one key for all)."""
    for rate in sorted({one.rate for one in entries}):
        here = [one.keys for one in entries if one.rate == rate]
        given = [keys[records] for keys in here if isinstance(keys, np.ndarray)]
        if given:
            yield rate, np.stack(given)
        uniform = [keys for keys in here if isinstance(keys, int)]
        if uniform:
            yield rate, np.array(uniform, np.uint16)[:, None]
