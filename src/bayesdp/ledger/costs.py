"""From histograms to costs K_x(lambda): one product of counts with a table of log-moments.

For many lambdas the table is computed at the nodes of the grid's chords (grid.py) and at clip bounds only. Kappa is
convex in the squared exposure, so the product is never below the cost at the exposures that were rounded up, let alone
at the exact ones.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bayesdp.ledger import grid
from bayesdp.ledger.bins import BinArray, Bins
from bayesdp.ledger.histograms import AuditHistograms, Histogram
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.validation import FloatArray

_ROUND_UP = 1.0 + 2.0**-38  # covers the rounding in sums of up to 2^14 products and in the chords' weights
_AT_ONCE = 8  # slices that are held unpacked
_CHORDS_FROM = 16  # lambdas; for fewer, the table is cheap at every key

Rounding = Literal["up", "down"]


def audit_costs(histograms: AuditHistograms, bins: Bins, lambdas: FloatArray, rounding: Rounding = "up") -> FloatArray:
    """K_x(lambda) of all audit records, [m, L]; rounded down only to see what rounding up may have added."""
    table = CostTable(bins, histograms.bins(), lambdas, rounding)
    result = np.empty((histograms.records or 0, len(lambdas)))

    def spread(number: int) -> Spread:
        return table.spread(histograms.histogram(number))

    with ThreadPoolExecutor(2) as pool:
        pool.submit(lambda: table.moments)  # while the first histograms are unpacked
        for first in range(0, len(histograms.slices), _AT_ONCE):
            slices = histograms.slices[first : first + _AT_ONCE]
            for one, counts in zip(slices, pool.map(spread, range(first, first + len(slices))), strict=True):
                result[one.range] = table.product(counts)
    return result


@dataclass(frozen=True)
class Spread:
    """Counts moved to the nodes of chords, [N, n], the numbers of these nodes, and who has a count beyond the grid."""

    counts: FloatArray
    nodes: NDArray[np.integer]
    beyond: NDArray[np.bool_]


class CostTable:
    """Log-moments for the given bins of a run."""

    def __init__(self, bins: Bins, present: BinArray, lambdas: FloatArray, rounding: Rounding = "up") -> None:
        self._present = present
        self._beyond = (present & 0xFFFF) == grid.BEYOND
        self._lambdas = lambdas
        self._nodes: list[tuple[float, FloatArray]] = []  # sampling rate, exposures
        weights: list[Any] = [sparse.csr_array((0, 0))]
        rates: list[int] = np.unique(present >> 16).tolist()
        for rate in rates:
            keys = (present[present >> 16 == rate] & 0xFFFF).astype(np.int64)
            on_grid, own = keys[keys < grid.BEYOND], keys[keys >= grid.FIRST_OWN]
            if rounding == "up" and len(lambdas) >= _CHORDS_FROM:
                nodes, weight = grid.chords(on_grid)
            else:
                nodes = on_grid if rounding == "up" else np.maximum(on_grid - 1, 0)
                weight = sparse.eye_array(len(on_grid))
            self._nodes.append((bins.rates[rate], bins.exposures(np.concatenate([nodes, own]))))
            beyond = sparse.csr_array((np.count_nonzero(keys == grid.BEYOND), 0))
            weights += [weight, beyond, sparse.eye_array(len(own))]
        self._weights: Any = sparse.csr_array(sparse.block_diag(weights))
        "From bins to nodes, [K, N]."

    @functools.cached_property
    def moments(self) -> FloatArray:
        """Log-moments at the nodes, [N, L]."""
        parts = [SubsampledGaussian(sample_rate=q).log_moment(e, self._lambdas) for q, e in self._nodes]
        return np.concatenate([np.zeros((0, len(self._lambdas))), *parts])

    def spread(self, histogram: Histogram) -> Spread:
        """The counts of a histogram, whose bins are among those given, moved to the nodes."""
        place = np.searchsorted(self._present, histogram.bins)
        to_nodes: Any = self._weights[place].T.tocsr()
        used = np.flatnonzero(np.diff(to_nodes.indptr))
        counts = to_nodes[used] @ histogram.counts.astype(np.float64)
        return Spread(counts, used, np.any(histogram.counts[self._beyond[place]], axis=0))

    def product(self, spread: Spread) -> FloatArray:
        """K_x(lambda), [n, L]."""
        total = (spread.counts.T @ self.moments[spread.nodes]) * _ROUND_UP
        total[spread.beyond] = np.inf
        return total
