"""The batch that one step drew, as counts: private, because it comes from training members."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import packing
from bayesdp.ledger.bins import BinArray, Place, bins_of, keys_of
from bayesdp.ledger.exposure_grid import FIRST_OWN
from bayesdp.ledger.norms import CheckedNorms
from bayesdp.validation import FloatArray

_HEADER = struct.Struct("<QQH")  # drawn, clipped, number of the rate
_LENGTHS = struct.Struct("<qq")  # norms of audit records, of the batch; -1 for None


@dataclass(frozen=True, eq=False)
class PrivateBatch:
    """Counts of the norms of a batch. They come from training members: private, not to be published."""

    drawn: int
    "How many records were drawn."
    clipped: int
    "How many of them had norms above the clip bound."
    bins: BinArray
    "The bins of their exposures, [K], ascending."
    counts: NDArray[np.int64]
    "How many of them are in each bin, [K]."

    @staticmethod
    def of(norms: CheckedNorms, clip: float | None, place: Place) -> PrivateBatch:
        """Count the norms of a batch over the bins of its step."""
        counts = np.bincount(place.keys(norms.values))
        keys = np.flatnonzero(counts > 0)
        return PrivateBatch(len(norms), norms.above(clip), bins_of(place.rate_number, keys), counts[keys])

    def moved(self, place: Place) -> PrivateBatch:
        """Return this batch as another ledger counts it, where its step has another place."""
        keys = keys_of(self.bins)
        keys[keys >= FIRST_OWN] = place.clip_key
        counts = np.bincount(keys, self.counts).astype(np.int64)
        present = np.flatnonzero(counts)
        return PrivateBatch(self.drawn, self.clipped, bins_of(place.rate_number, present), counts[present])

    def pack(self, rate_number: int) -> bytes:
        """Return the bytes that the file keeps. All bins must be of the one rate with this number."""
        keys = keys_of(self.bins)
        numbers = np.stack([keys, self.counts])
        numbers[0, 1:] -= keys[:-1]
        return _HEADER.pack(self.drawn, self.clipped, rate_number) + packing.pack_small(numbers)

    @staticmethod
    def unpack(data: bytes) -> PrivateBatch:
        """Return the batch from the bytes that ``pack`` gave."""
        drawn, clipped, rate = _HEADER.unpack_from(data)
        gaps, counts = packing.unpack_small(data[_HEADER.size :])
        return PrivateBatch(drawn, clipped, bins_of(rate, np.cumsum(gaps)), counts)


def pack_norms(audit: CheckedNorms | None, batch: CheckedNorms | None) -> bytes:
    """Return norms as they were given, as bytes for the file; None and an empty batch differ."""
    parts = [b"" if norms is None else norms.values.astype("<f8").tobytes() for norms in (audit, batch)]
    return _LENGTHS.pack(*(-1 if norms is None else len(norms) for norms in (audit, batch))) + b"".join(parts)


def unpack_norms(content: bytes) -> tuple[FloatArray | None, FloatArray | None]:
    """Return the norms of audit records [m] and of the batch [b] from the bytes that ``pack_norms`` gave."""
    audit, batch = _LENGTHS.unpack_from(content)
    norms = np.frombuffer(content, "<f8", offset=_LENGTHS.size)
    split = max(audit, 0)
    return None if audit < 0 else norms[:split], None if batch < 0 else norms[split:]
