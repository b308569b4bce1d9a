"""From histograms to costs K_x(lambda): one product of counts with a table of log-moments.

For many lambdas the table is computed at the nodes of the grid's chords (grid.py) and at clip bounds only. Kappa is
convex in the squared exposure, so the product is never below the cost at the exposures that were rounded up, let alone
at the exact ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import sparse

from bayesdp.ledger import grid
from bayesdp.ledger.bins import BinArray, Bins
from bayesdp.ledger.histograms import AuditHistograms, CountArray, Histogram
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.validation import FloatArray

_ROUND_UP = 1.0 + 2.0**-38  # covers the rounding in sums of up to 2^14 products and in the chords' weights
_CHORDS_FROM = 16  # lambdas; for fewer, the table is cheap at every key

Rounding = Literal["up", "down"]


def audit_costs(histograms: AuditHistograms, bins: Bins, lambdas: FloatArray, rounding: Rounding = "up") -> FloatArray:
    """K_x(lambda) of all audit records, [m, L]; rounded down only to see what rounding up may have added."""
    table = CostTable(bins, histograms.bins(), lambdas, rounding)
    result = np.empty((histograms.records or 0, len(lambdas)))
    for number, one in enumerate(histograms.slices):
        result[one.range] = table.costs(histograms.histogram(number))
    return result


@dataclass(frozen=True)
class _RateTable:
    """For the bins of one rate: weights [K, N] from bins to nodes, and log-moments [N, L] at the nodes."""

    present: BinArray
    weights: Any
    moments: FloatArray


class CostTable:
    """Log-moments for the given bins of a run."""

    def __init__(self, bins: Bins, present: BinArray, lambdas: FloatArray, rounding: Rounding = "up") -> None:
        self._lambdas = lambdas
        self._infinite = rounding == "up"  # what is beyond the grid
        rates: list[int] = np.unique(present >> 16).tolist()
        self._tables = {
            rate: _rate_table(bins, rate, present[present >> 16 == rate], lambdas, rounding) for rate in rates
        }

    def costs(self, histogram: Histogram) -> FloatArray:
        """K_x(lambda), [n, L], for histograms whose bins are among those given."""
        total = np.zeros((histogram.counts.shape[1], len(self._lambdas)))
        rates, starts = np.unique(histogram.bins >> 16, return_index=True)  # bins are in ascending order
        ends = [*starts[1:].tolist(), len(histogram.bins)][: len(starts)]
        for rate, first, last in zip(rates.tolist(), starts.tolist(), ends, strict=True):
            total += self._one_rate(self._tables[rate], histogram.bins[first:last], histogram.counts[first:last])
        return total * _ROUND_UP

    def _one_rate(self, table: _RateTable, bins: BinArray, counts: CountArray) -> FloatArray:
        place = np.searchsorted(table.present, bins)
        assert np.array_equal(table.present[place], bins)
        to_nodes = table.weights[place].T.tocsr()
        used = np.flatnonzero(np.diff(to_nodes.indptr))
        costs = (to_nodes[used] @ counts.astype(np.float64)).T @ table.moments[used]
        beyond = (bins & 0xFFFF) == grid.BEYOND
        if self._infinite and beyond.any():
            costs[counts[beyond].any(axis=0)] = np.inf
        return costs


def _rate_table(bins: Bins, rate: int, present: BinArray, lambdas: FloatArray, rounding: Rounding) -> _RateTable:
    keys = (present & 0xFFFF).astype(np.int64)
    on_grid, own = keys[keys < grid.BEYOND], keys[keys >= grid.FIRST_OWN]
    exposures = bins.exposures(own)
    if rounding == "up" and len(lambdas) >= _CHORDS_FROM:
        nodes, weights = grid.chords(on_grid)
    else:
        nodes, weights = on_grid, sparse.eye_array(len(on_grid))
    if rounding == "down":
        nodes = np.maximum(nodes - 1, 0)
        lowest = np.minimum(grid.round_up(exposures) - 1, grid.LAST)  # of what is rounded up to a clip bound
        exposures = grid.VALUES[lowest]
    beyond = int(np.count_nonzero(keys == grid.BEYOND))
    on_top = sparse.eye_array(beyond) if rounding == "down" else sparse.csr_array((beyond, 0))
    nodes = np.concatenate([nodes, np.full(on_top.shape[1], grid.LAST)])
    mechanism = SubsampledGaussian(sample_rate=bins.rates[rate] if rounding == "up" else bins.least_rate(rate))
    moments = mechanism.log_moment(np.concatenate([grid.VALUES[nodes], exposures]), lambdas)
    all_weights = sparse.csr_array(sparse.block_diag([weights, on_top, sparse.eye_array(len(own))]))
    return _RateTable(present, all_weights, moments)
