"""From histograms to costs K_x(lambda): one product of counts with a table of log-moments.

For many orders the table is computed only at the ends of the grid's chords (``exposure_grid.chords``) and at clip
bounds. Kappa is convex in the squared exposure, so the product is never below the cost at the rounded-up exposures, and
these are never below the exact ones. (The record-out direction may not be convex: it is computed at every key.)

scipy.sparse is imported inside functions: importing it takes time, and ledgers that only record steps never need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger.bins import BinArray, Bins, keys_of, rate_numbers_of
from bayesdp.ledger.histograms import AuditHistograms, CountArray, Histogram
from bayesdp.mechanisms.log_moments import Direction, log_moments
from bayesdp.validation import FloatArray

_ROUND_UP = 1.0 + 2.0**-38  # covers the rounding in sums of up to 2^14 products and in the chords' weights
_CHORDS_FROM = 16  # orders; for fewer, the table is cheap at every key

Rounding = Literal["up", "down"]


def audit_costs(
    histograms: AuditHistograms,
    bins: Bins,
    lambdas: FloatArray,
    rounding: Rounding = "up",
    direction: Direction = "both",
) -> FloatArray:
    """Return K_x(lambda) of all audit records, [m, L].

    Rounding "up" gives upper bounds of the exact costs, infinite for records with an exposure beyond the grid. Rounding
    "down" gives lower bounds, which show how much rounding up can have added.
    """
    table = BinCosts(bins, histograms.bins(), lambdas, rounding, direction)
    result = np.empty((histograms.records or 0, len(lambdas)))
    for number, part in enumerate(histograms.slices):
        result[part.range] = table.costs(histograms.histogram(number))
    return result


@dataclass(frozen=True)
class _RateTable:
    """The bins [K] of one rate, weights [K, N] from bins to nodes (sparse), and log-moments [N, L] at the nodes."""

    present: BinArray
    weights: Any
    moments: FloatArray


class BinCosts:
    """Log-moments of bins of a run at orders [L], from which the costs of histograms over these bins follow."""

    def __init__(
        self,
        bins: Bins,
        present: BinArray,
        lambdas: FloatArray,
        rounding: Rounding = "up",
        direction: Direction = "both",
    ) -> None:
        """Tabulate the bins ``present`` [K], in ascending order."""
        self._lambdas = lambdas
        self._infinite = rounding == "up"  # the cost of what lies beyond the grid
        build = _rate_table if rounding == "up" else _rate_table_below
        numbers = rate_numbers_of(present)
        self._tables = {
            number: build(bins, present[numbers == number], lambdas, direction)
            for number in np.unique(numbers).tolist()
        }

    def costs(self, histogram: Histogram) -> FloatArray:
        """Return K_x(lambda), [n, L], of the n records of a histogram, whose bins must all be among ``present``."""
        total = np.zeros((histogram.counts.shape[1], len(self._lambdas)))
        numbers, starts = np.unique(rate_numbers_of(histogram.bins), return_index=True)  # bins are ascending
        ends = [*starts[1:].tolist(), len(histogram.bins)][: len(starts)]
        for number, first, last in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            total += self._of_one_rate(self._tables[number], histogram.bins[first:last], histogram.counts[first:last])
        return total * _ROUND_UP

    def _of_one_rate(self, table: _RateTable, bins: BinArray, counts: CountArray) -> FloatArray:
        place = np.searchsorted(table.present, bins)
        assert np.array_equal(table.present[place], bins)
        to_nodes = table.weights[place].T.tocsr()
        used = np.flatnonzero(np.diff(to_nodes.indptr))
        costs = (to_nodes[used] @ counts.astype(np.float64)).T @ table.moments[used]
        beyond = keys_of(bins) == grid.BEYOND
        if self._infinite and beyond.any():
            costs[counts[beyond].any(axis=0)] = np.inf
        return costs


def _rate_table(bins: Bins, present: BinArray, lambdas: FloatArray, direction: Direction) -> _RateTable:
    """Tabulate bins of one rate by chords. The bin beyond the grid has no node: its cost is infinite."""
    from scipy import sparse

    keys = keys_of(present)
    on_grid, own = keys[keys < grid.BEYOND], keys[keys >= grid.FIRST_OWN]
    nodes, weights = on_grid, sparse.eye_array(len(on_grid))
    if len(lambdas) >= _CHORDS_FROM and direction != "record out":  # that direction may not be convex
        nodes, weights = grid.chords(on_grid)
    beyond = sparse.csr_array((int(np.count_nonzero(keys == grid.BEYOND)), 0))
    exposures = np.concatenate([grid.VALUES[nodes], bins.exposures(own)])
    all_weights = sparse.csr_array(sparse.block_diag([weights, beyond, sparse.eye_array(len(own))]))
    return _RateTable(present, all_weights, log_moments(bins.rates_of(present[:1])[0], exposures, lambdas, direction))


def _rate_table_below(bins: Bins, present: BinArray, lambdas: FloatArray, direction: Direction) -> _RateTable:
    """Tabulate bins of one rate at an exposure and a rate below all that were rounded up to them."""
    from scipy import sparse

    moments = log_moments(bins.rates_of(present[:1], least=True)[0], bins.exposures_below(present), lambdas, direction)
    return _RateTable(present, sparse.csr_array(sparse.eye_array(len(present))), moments)
