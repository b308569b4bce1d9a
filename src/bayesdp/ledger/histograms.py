"""Histograms: how often each audit record had each exposure, with one count for every step.

The last steps are first kept as they came, in the journal: one key per record and step. Every ``interval`` steps the
journal is folded into the histograms, one slice of records at a time, so that no single step waits long. Each slice
knows the last step that was folded into it; later steps are still in the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import packing
from bayesdp.ledger.bins import BinArray, bins_of, keys_of, rate_numbers_of, without_ratios
from bayesdp.ledger.exposure_grid import KEYS, Keys, distinct

SLICE = 512
"""How many audit records a slice has; the last one may have fewer."""
_JOURNAL_KEYS = 12_800_000  # about how many keys the journal of one interval holds
_SHORTEST, _LONGEST = 32, 1280  # steps in an interval

CountArray = NDArray[Any]
"""Counts in any unsigned integer type."""


@dataclass(frozen=True)
class Histogram:
    """Counts [K, n] of n records over K different bins in ascending order."""

    bins: BinArray
    counts: CountArray

    @staticmethod
    def empty(records: int) -> Histogram:
        """Return the histogram of records before their first step."""
        return Histogram(np.zeros(0, np.uint32), np.zeros((0, records), np.uint16))

    def over(self, bins: BinArray, dtype: Any) -> CountArray:
        """Return a copy of the counts over ``bins``, which include those of this histogram, [len(bins), n]."""
        if len(bins) == len(self.bins):
            return self.counts.astype(dtype)
        counts = np.zeros((len(bins), self.counts.shape[1]), dtype)
        counts[np.searchsorted(bins, self.bins)] = self.counts
        return counts

    def moved(self, bins: BinArray) -> Histogram:
        """Return the histogram with its bins replaced by ``bins`` [K], in any order; counts of equal bins are added."""
        distinct_bins, row = np.unique(bins, return_inverse=True)
        counts = np.zeros((len(distinct_bins), self.counts.shape[1]), np.uint32)
        np.add.at(counts, row, self.counts.astype(np.uint32))
        return Histogram(distinct_bins, counts)

    def without_ratios(self) -> Histogram:
        """Return the histogram that costs are read from: all norms above a clip bound are counted at it."""
        bins = without_ratios(self.bins)
        if np.array_equal(bins, self.bins):
            return self
        order = np.argsort(bins, kind="stable")
        distinct_bins, first = np.unique(bins[order], return_index=True)
        return Histogram(distinct_bins, np.add.reduceat(self.counts[order], first, axis=0, dtype=np.uint32))

    def pack(self, *, tight: bool = False) -> bytes:
        """Return the bytes that the file keeps; ``tight`` takes longer and gives fewer."""
        gaps = np.diff(self.bins.astype(np.int64), prepend=0)
        return packing.pack(gaps[None, :], tight=tight) + packing.pack(self.counts, tight=tight)

    @staticmethod
    def unpack(data: bytes) -> Histogram:
        """Return the histogram from the bytes that ``pack`` gave."""
        bins, rest = _unpack_bins(data)
        return Histogram(bins, packing.unpack(rest)[0])


def _unpack_bins(data: bytes) -> tuple[BinArray, bytes]:
    gaps, rest = packing.unpack(data)
    return np.cumsum(gaps[0], dtype=np.int64).astype(np.uint32), rest


def total(parts: Sequence[Histogram]) -> Histogram:
    """Return the sum of histograms of the same records, exact in any order."""
    bins = np.unique(np.concatenate([part.bins for part in parts]))
    counts = parts[0].over(bins, np.uint32)
    for part in parts[1:]:
        counts[np.searchsorted(bins, part.bins)] += part.counts.astype(np.uint32, copy=False)
    return Histogram(bins, counts)


@dataclass(frozen=True)
class Slice:
    """Consecutive audit records that are folded together, with their counts in steps 1 to ``through``."""

    first: int
    "The position of its first record among all audit records."
    records: int
    through: int = 0
    "The last step that was folded into it."
    packed: bytes = b""
    "The packed histogram; empty before the first fold."
    points: tuple[int, ...] = ()
    "The steps of the snapshots."
    snapshots: bytes = b""
    "The packed costs of its records at these steps (snapshots.py)."

    @property
    def range(self) -> slice:
        """The positions of its records among all audit records."""
        return slice(self.first, self.first + self.records)

    def histogram(self) -> Histogram:
        """Return the counts of its records in steps 1 to ``through``."""
        return Histogram.unpack(self.packed) if self.packed else Histogram.empty(self.records)

    def loosened(self) -> Slice:
        """Return this slice in a form that is larger and faster to unpack."""
        return replace(self, packed=packing.loosen(self.packed))

    def bins(self) -> BinArray:
        """Return the bins of its histogram, [K], without unpacking the counts."""
        return _unpack_bins(self.packed)[0] if self.packed else np.zeros(0, np.uint32)


@dataclass(frozen=True)
class Entry:
    """One step of the journal, as it will be counted: the keys of its exposures, and at which rate."""

    rate_number: int
    "The number of its sampling rate."
    keys: Keys | int | None
    "The key of each audit record [m], or one key for all; None if it was folded into all slices."


class AuditHistograms:
    """The slices of all audit records, and the journal of the last steps."""

    def __init__(self) -> None:
        self.records: int | None = None
        "How many audit records there are; None until it is known."
        self.slices: list[Slice] = []
        self.journal: list[Entry] = []
        self.steps = 0
        "How many steps there are; the journal holds the last of them."

    def set_records(self, records: int) -> None:
        """Fix the number of audit records; call it once."""
        self.records = records
        self.slices = [Slice(first, min(SLICE, records - first)) for first in range(0, records, SLICE)]

    def append(self, entry: Entry) -> None:
        """Add a step to the end of the journal; ``folding.py`` counts it into the slices later."""
        self.journal.append(entry)
        self.steps += 1

    def amend(self, entry: Entry) -> None:
        """Replace the last step, which must not have been folded into any slice."""
        self.journal[-1] = entry

    @property
    def interval(self) -> int:
        """How many steps lie between two rounds of folding: fewer for more audit records."""
        return max(_SHORTEST, min(_LONGEST, _JOURNAL_KEYS // max(self.records or 1, 1)))

    @property
    def boundary(self) -> int:
        """The last step that the present round of folding includes."""
        return self.steps - self.steps % self.interval

    def due(self) -> list[int]:
        """Return the numbers of the slices to fold before the next step; a round takes an eighth of the interval."""
        boundary, room = self.boundary, self.interval // 8
        elapsed = min(self.steps - boundary + 1, room)
        expected = -(-len(self.slices) * elapsed // room)
        return [number for number in range(expected) if self.slices[number].through < boundary]

    def entries(self, after: int, through: int) -> list[Entry]:
        """Return the journal of steps ``after`` + 1 to ``through``, all of which it must still hold."""
        start = self.steps - len(self.journal)
        assert start <= after <= through <= self.steps
        return self.journal[after - start : through - start]

    def histogram(self, number: int) -> Histogram:
        """Return the counts of the records of a slice in all steps: its own and those of the journal."""
        return self.with_ratios(number).without_ratios()

    def with_ratios(self, number: int) -> Histogram:
        """Return the same counts, over bins that also say how far above the clip bound norms were."""
        before = self.slices[number]
        return add_entries(before.histogram(), before.range, self.entries(before.through, self.steps))

    def bins(self) -> BinArray:
        """Return all bins of ``histogram`` in which some record may have a count, [K] in ascending order."""
        return np.unique(without_ratios(self.bins_with_ratios()))

    def bins_with_ratios(self) -> BinArray:
        """Return all bins of ``with_ratios`` in which some record may have a count, [K] in ascending order."""
        folded = [part.bins() for part in self.slices]
        recent = [bins_of(number, distinct(keys)) for number, keys in stacked(self.journal, slice(None))]
        return np.unique(np.concatenate([np.zeros(0, np.uint32), *folded, *recent]))

    def forget_folded(self) -> None:
        """Drop the steps of the journal that were folded into all slices."""
        through = min((part.through for part in self.slices), default=0)
        start = self.steps - len(self.journal)
        if through > start:
            del self.journal[: through - start]


def add_entries(before: Histogram, records: slice, entries: Sequence[Entry]) -> Histogram:
    """Return the histogram of the given records with steps of the journal added."""
    by_rate = list(stacked(entries, records))
    bins = np.unique(np.concatenate([before.bins, *(bins_of(number, distinct(keys)) for number, keys in by_rate)]))
    most = int(before.counts.max(initial=0)) + len(entries)
    counts = before.over(bins, np.uint16 if most < 1 << 16 else np.uint32)
    width = int(counts.shape[1])
    for rate, keys in by_rate:
        row_start = np.zeros(KEYS, np.int64)  # by key: where the row of its bin starts in the flattened counts
        of_rate = np.flatnonzero(rate_numbers_of(bins) == rate)
        row_start[keys_of(bins[of_rate])] = of_rate * width
        flat = np.add(row_start[keys], np.arange(width)).ravel()
        np.add.at(counts.reshape(-1), flat, counts.dtype.type(1))
    return Histogram(bins, counts)


def stacked(entries: Sequence[Entry], records: slice) -> Iterator[tuple[int, Keys]]:
    """Yield the steps of the journal by sampling rate, as the number of the rate and keys [steps, records].

    Steps with one key for all records follow separately, as keys [steps, 1].
    """
    for rate in sorted({entry.rate_number for entry in entries}):
        of_rate = [entry.keys for entry in entries if entry.rate_number == rate]
        by_record = [keys[records] for keys in of_rate if isinstance(keys, np.ndarray)]
        if by_record:
            yield rate, np.stack(by_record)
        uniform = [keys for keys in of_rate if isinstance(keys, int)]
        if uniform:
            yield rate, np.array(uniform, np.uint16)[:, None]
