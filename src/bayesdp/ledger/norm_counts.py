"""What audit records would have been exposed to at another clip bound, had their gradients been the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger import norm_ratios
from bayesdp.ledger.bins import BinArray, Bins, keys_of
from bayesdp.ledger.histograms import AuditHistograms, CountArray
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.validation import FloatArray


@dataclass(frozen=True)
class NormCounts:
    """How often each audit record had each norm, as far above the clip bound as below it.

    A kind of step is a sampling rate and a norm over the noise. Norms are rounded up: by less than 1/256 below the clip
    bound, by at most 1/16 above it. Steps without norms stay at the clip bound, whatever that would have been.
    """

    rates: FloatArray
    "The sampling rate of each kind, [K]."
    _exposures: FloatArray
    "Exposure at the clip bound that was used, [K]."
    _ratios: FloatArray
    "Norm over clip bound for norms that reached it, [K]; NaN for others."
    _fixed: NDArray[np.bool_]
    "Whether a kind stays at the clip bound, [K], because no norm was given."
    _largest: float
    "The largest exposure that clipping allowed in any step."
    _present: BinArray
    _audit: AuditHistograms

    @staticmethod
    def of(audit: AuditHistograms, bins: Bins) -> NormCounts:
        """Return the counts of all audit records; ``bins`` are those of their run, and must keep ratios."""
        present = audit.bins_with_ratios()
        keys, exposures = keys_of(present), bins.exposures_of(present)
        fixed = (keys >= grid.FIRST_OWN) & (keys < grid.FIRST_ABOVE)
        largest = max(bins.own, default=np.inf)
        return NormCounts(
            bins.rates_of(present), exposures, norm_ratios.ratios_of(keys), fixed, largest, present, audit
        )

    @property
    def records(self) -> int:
        """How many audit records there are."""
        return self._audit.records or 0

    @property
    def with_norms(self) -> NDArray[np.bool_]:
        """Whether each kind has norms, [K], and is not only charged at the clip bound."""
        return ~self._fixed

    def exposures_at(self, factor: float) -> FloatArray:
        """Return the exposure of each kind, [K], with ``factor`` times the clip bound and ``factor`` times the noise.

        With clip bound C and noise s it is min(norm, factor C) / (factor s). At factor 1 these are the exposures that
        claims are computed from. Below 1, and with several ratios of clip bound to noise in a run, it is an upper
        bound.
        """
        unclipped = self._exposures * np.where(np.isnan(self._ratios), 1.0, self._ratios)
        bound = np.where(np.isnan(self._ratios), self._largest, self._exposures)
        return np.where(self._fixed, self._exposures, np.minimum(unclipped / factor, bound))

    def clipped_at(self, factor: float) -> NDArray[np.bool_]:
        """Return whether norms of each kind would be above ``factor`` times the clip bound, [K]; False without norms.

        A ratio that was rounded up to ``factor`` is not above it, so that at factor 1 none is but those clipped.
        """
        ratios = np.where(np.isnan(self._ratios), self._exposures / self._largest, self._ratios)
        return ~self._fixed & (ratios > factor)

    def slices(self) -> Iterator[tuple[slice, NDArray[np.int64], CountArray]]:
        """Yield (records, kinds, counts) for one slice of n records after the other.

        ``records`` are their positions among all audit records, ``kinds`` [k] the numbers of the kinds that occur in
        the slice, and ``counts`` [k, n] how often each record went through each of them.
        """
        for number, part in enumerate(self._audit.slices):
            histogram = self._audit.with_ratios(number)
            yield part.range, np.searchsorted(self._present, histogram.bins), histogram.counts


def norm_counts(ledger: StoredLedger) -> NormCounts | str:
    """Return how often audit records had each norm, above the clip bound too; or in words why that is not known."""
    with ledger.lock:
        history, audit = ledger.history, ledger.audit
        if not history.audited_steps:
            return "there are no norms of audit records"
        if not history.clipped:
            return "a step had no clip bound"
        if not history.bins.ratios:
            return "the ledger was begun by a version that kept no norms above the clip bound"
        if len(history.bins.own) > norm_ratios.CLIPS:
            return f"noise over clip bound took more than {norm_ratios.CLIPS} different values"
        return NormCounts.of(audit, history.bins)
