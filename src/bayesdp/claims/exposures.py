"""From the bins of a ledger to fewer kinds of steps, each rounded up, so that profiles are computed quickly.

Which exposures are kept is decided so that rounding the others up to them adds least, relative to what each record
paid: cells are short where there is much to pay. (For a density f of costs v the best lengths are proportional to
f^{-1/2}, hence cells of equal integrals of f^{1/2}.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.histograms import AuditHistograms
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.profiles import ExposureCounts
from bayesdp.validation import FloatArray

KINDS = 512


def exposure_counts(
    audit: AuditHistograms, bins: Bins, costs: FloatArray, order: float, kinds: int = KINDS
) -> ExposureCounts:
    """Counts of all audit records over about so many kinds of steps; ``costs`` [m] are theirs at ``order``."""
    present = audit.bins()
    present = present[(present & 0xFFFF) != 0]  # an exposure of 0 costs nothing
    rates = np.array(bins.rates)[present >> 16]
    exposures = bins.exposures((present & 0xFFFF).astype(np.int64))
    with np.errstate(divide="ignore"):
        weights = np.where(costs > 0, 1 / costs, 0.0)
    frequency = np.zeros(len(present))
    for number, one in enumerate(audit.slices):
        histogram = audit.histogram(number)
        place = np.searchsorted(present, histogram.bins)
        known = (histogram.bins & 0xFFFF) != 0
        frequency[place[known]] += histogram.counts[known] @ weights[one.range]
    kind = _kinds(rates, exposures, frequency, order, kinds)
    number_of_kinds = int(kind.max(initial=-1)) + 1
    top_rate, top_exposure = np.zeros(number_of_kinds), np.zeros(number_of_kinds)
    np.maximum.at(top_rate, kind, rates)
    np.maximum.at(top_exposure, kind, exposures)
    counts = np.zeros((audit.records or 0, number_of_kinds))
    for number, one in enumerate(audit.slices):
        histogram = audit.histogram(number)
        known = np.flatnonzero((histogram.bins & 0xFFFF) != 0)
        here = kind[np.searchsorted(present, histogram.bins[known])]
        by_kind = np.argsort(here, kind="stable")
        found, first = np.unique(here[by_kind], return_index=True)
        if len(found):
            sums = np.add.reduceat(histogram.counts[known[by_kind]], first, axis=0, dtype=np.int64)
            counts[one.range, found] = sums.T
    return ExposureCounts(top_rate, top_exposure, counts)


def _kinds(
    rates: FloatArray, exposures: FloatArray, frequency: FloatArray, order: float, kinds: int
) -> NDArray[np.int64]:
    """The kind of each bin, [K]: neighbours in exposure, of one rate; what is beyond the grid stands alone."""
    by_exposure = np.lexsort((exposures, rates))
    kind = np.empty(len(rates), np.int64)
    finite = np.isfinite(exposures)
    cost = np.zeros(len(rates))
    for rate in np.unique(rates[finite]).tolist():
        here = finite & (rates == rate)
        cost[here] = SubsampledGaussian(sample_rate=rate).log_moment(exposures[here], [order])[:, 0]
    sorted_rates, sorted_cost = rates[by_exposure], cost[by_exposure]
    begins = np.append(True, sorted_rates[1:] != sorted_rates[:-1])
    gaps = np.where(begins, sorted_cost, np.diff(sorted_cost, prepend=0.0))
    lengths = np.sqrt(np.maximum(gaps, 0.0) * frequency[by_exposure])
    total = lengths.sum()
    position = np.cumsum(lengths) / total if total > 0 else np.zeros(len(lengths))
    cell = np.ceil(np.minimum(position, 1.0) * max(kinds - len(set(rates.tolist())), 1))
    if len(rates) <= kinds:
        cell = np.arange(len(rates))
    new = np.append(True, cell[1:] != cell[:-1]) | begins | ~finite[by_exposure]
    kind[by_exposure] = np.cumsum(new) - 1
    return kind
