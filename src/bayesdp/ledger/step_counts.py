"""Counts of audit records by sampling rate and exposure, for readers who need not know about bins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger.bins import BinArray, Bins, keys_of
from bayesdp.ledger.histograms import AuditHistograms, CountArray
from bayesdp.validation import FloatArray


@dataclass(frozen=True)
class StepCounts:
    """How often each audit record went through each kind of step: a sampling rate and an exposure above 0.

    Rates and exposures are rounded up, never down, so costs from these counts are upper bounds. Steps at exposure 0
    cost nothing and are left out.
    """

    rates: FloatArray
    "The sampling rate of each kind, [K]."
    exposures: FloatArray
    "The exposure of each kind, [K]; infinite beyond the grid."
    _present: BinArray
    _audit: AuditHistograms

    @staticmethod
    def of(audit: AuditHistograms, bins: Bins) -> StepCounts:
        """Return the counts of all audit records; ``bins`` are those of their run."""
        present = _above_zero(audit.bins())
        return StepCounts(bins.rates_of(present), bins.exposures_of(present), present, audit)

    @property
    def records(self) -> int:
        """How many audit records there are."""
        return self._audit.records or 0

    def slices(self) -> Iterator[tuple[slice, NDArray[np.int64], CountArray]]:
        """Yield (records, kinds, counts) for one slice of n records after the other.

        ``records`` are their positions among all audit records, ``kinds`` [k] the numbers of the kinds that occur in
        the slice, and ``counts`` [k, n] how often each record went through each of them.
        """
        for number, part in enumerate(self._audit.slices):
            histogram = self._audit.histogram(number)
            known = np.flatnonzero(keys_of(histogram.bins) != 0)
            yield part.range, np.searchsorted(self._present, histogram.bins[known]), histogram.counts[known]


def _above_zero(bins: BinArray) -> BinArray:
    return bins[keys_of(bins) != 0]


def exposure_totals(audit: AuditHistograms, bins: Bins) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return exposures [K], ascending and rounded up, and how often audit records had each of them in all steps [K]."""
    totals: dict[int, int] = {}
    for number in range(len(audit.slices)):
        histogram = audit.histogram(number)
        keys, counts = keys_of(histogram.bins), histogram.counts.sum(axis=1)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            totals[key] = totals.get(key, 0) + count
    exposures = bins.exposures(np.array(list(totals), np.int64))
    order = np.argsort(exposures, kind="stable")
    return exposures[order], np.array(list(totals.values()), np.int64)[order]
