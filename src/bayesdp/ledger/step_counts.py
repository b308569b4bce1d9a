"""What audit records went through, as rates, exposures and counts: for readers who need not know about bins."""

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
    """K kinds of steps that some audit record went through, each a sampling rate [K] and an exposure above 0 [K].

    Exposures are rounded up; infinite ones lie beyond the grid. Steps at exposure 0 cost nothing and are left out.
    """

    rates: FloatArray
    exposures: FloatArray
    _present: BinArray
    _audit: AuditHistograms

    @staticmethod
    def of(audit: AuditHistograms, bins: Bins) -> StepCounts:
        """Collect the kinds of steps of all audit records."""
        present = _above_zero(audit.bins())
        return StepCounts(bins.rates_of(present), bins.exposures_of(present), present, audit)

    @property
    def records(self) -> int:
        """How many audit records there are."""
        return self._audit.records or 0

    def slices(self) -> Iterator[tuple[slice, NDArray[np.int64], CountArray]]:
        """Yield, for one slice of records after the other, its records, kinds [k] and counts [k, n] of these kinds."""
        for number, part in enumerate(self._audit.slices):
            histogram = self._audit.histogram(number)
            known = np.flatnonzero(keys_of(histogram.bins) != 0)
            yield part.range, np.searchsorted(self._present, histogram.bins[known]), histogram.counts[known]


def _above_zero(bins: BinArray) -> BinArray:
    return bins[keys_of(bins) != 0]


def exposure_totals(audit: AuditHistograms, bins: Bins) -> tuple[FloatArray, NDArray[np.int64]]:
    """Return exposures in ascending order [K], rounded up, and how often audit records had them [K]."""
    totals: dict[int, int] = {}
    for number in range(len(audit.slices)):
        histogram = audit.histogram(number)
        keys, counts = keys_of(histogram.bins), histogram.counts.sum(axis=1)
        for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
            totals[key] = totals.get(key, 0) + count
    exposures = bins.exposures(np.array(list(totals), np.int64))
    order = np.argsort(exposures, kind="stable")
    return exposures[order], np.array(list(totals.values()), np.int64)[order]
