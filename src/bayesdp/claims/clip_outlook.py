"""What typical people would lose at another clip bound, with the same worst case: advice, and no claim.

The worst case depends on noise over clip bound, so with both multiplied by a factor it stays as it is. A person whose
gradient has norm g at a step with clip bound C and noise s has exposure min(g, factor C) / (factor s) instead of
min(g, C) / s: less, once factor C exceeds g. The figures suppose that gradients stay as they were. They would not:
another clip bound trains another model. So they say "about", and nothing that is claimed depends on them.

Figures are of the kind of the estimates for shares (``RecordFigures.estimates``): the profile of the audit record at
the rank that belongs to the share. Ranks are those of costs at one order, and the median of a few profiles around the
rank is taken, because the order by costs is not quite that by epsilons. Compared with the estimate of a ledger that
recorded the same gradients at the other clip bound, a figure is at most 8 % higher and 2 % lower: norms above the clip
bound were rounded up by as much as 1/16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.claims.step_kinds import exposure_counts
from bayesdp.ledger import NormCounts
from bayesdp.mechanisms.float_grid import node_values, nodes_above
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles import Precision, gaussian_epsilon, profiles
from bayesdp.validation import FloatArray

_ORDER = 8.0  # at which records are compared
_AROUND = 4  # neighbours on each side of a rank
_BITS = 6  # of exposures, where records are only compared: 64 nodes per octave
_KINDS, _PRECISION = 128, Precision(grid=1e-3)


class ClipOutlook:
    """Epsilons that audit records would have had at multiples of the clip bound and of the noise."""

    def __init__(self, counts: NormCounts, delta: float) -> None:
        self._counts, self._delta = counts, delta
        self._unsampled = bool((counts.rates == 1).all())

    def clipped(self, factors: Sequence[float]) -> FloatArray:
        """Return the share of all audit norms that would be above each multiple of the clip bound, [F]."""
        totals = np.zeros(len(self._counts.rates))
        for _, kinds, counts in self._counts.slices():
            totals[kinds] += counts.sum(axis=1)
        above = [totals[self._counts.clipped_at(factor)].sum() for factor in factors]
        return np.array(above) / max(totals[self._counts.with_norms].sum(), 1.0)

    def epsilons(self, factors: Sequence[float], ranks: Sequence[int]) -> FloatArray:
        """Return about the epsilons [F, R] of the audit records at R ranks, from 1 for the smallest, for F factors."""
        costs = self._costs(factors)
        if self._unsampled:
            ranked = np.sort(costs, axis=1)[:, np.array(ranks) - 1]
            return gaussian_epsilon(np.sqrt(ranked.ravel()), self._delta).reshape(ranked.shape)
        around = [range(max(rank - 1 - _AROUND, 0), rank + _AROUND) for rank in ranks]
        chosen = [[order[near.start : near.stop] for near in around] for order in np.argsort(costs, axis=1)]
        columns = self._columns(np.unique(np.concatenate([records for of_factor in chosen for records in of_factor])))
        result = np.empty((len(factors), len(ranks)))
        for number, (factor, of_factor) in enumerate(zip(factors, chosen, strict=True)):
            together = np.unique(np.concatenate(of_factor))
            epsilons = self._profiles(factor, np.stack([columns[record] for record in together.tolist()], axis=1))
            for rank, records in enumerate(of_factor):
                result[number, rank] = np.median(epsilons[np.searchsorted(together, records)])
        return result

    def _costs(self, factors: Sequence[float]) -> FloatArray:
        """Return what records are compared by, [F, m]: costs at one order, or without sampling squared exposures."""
        at = np.stack([self._counts.exposures_at(factor) for factor in factors])
        if self._unsampled:
            table = np.square(at)
        else:
            nodes = node_values(_BITS, nodes_above(_BITS, at))
            table = np.empty(at.shape)
            for rate in np.unique(self._counts.rates).tolist():
                here = self._counts.rates == rate
                exposures, place = np.unique(nodes[:, here], return_inverse=True)
                table[:, here] = log_moments(rate, exposures, [_ORDER])[:, 0][place].reshape(len(at), -1)
        costs = np.empty((len(factors), self._counts.records))
        for records, kinds, counts in self._counts.slices():
            costs[:, records] = table[:, kinds] @ counts.astype(np.float64)
        return costs

    def _columns(self, records: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
        """Return how often each of a few records, given by their numbers, went through each kind of step, [K]."""
        columns: dict[int, NDArray[np.int64]] = {}
        for part, kinds, counts in self._counts.slices():
            for record in records[(records >= part.start) & (records < part.stop)].tolist():
                columns[record] = np.zeros(len(self._counts.rates), np.int64)
                columns[record][kinds] = counts[:, record - part.start]
        return columns

    def _profiles(self, factor: float, counts: NDArray[np.int64]) -> FloatArray:
        """Return the epsilons [r] of records with ``counts`` [K, r] at a multiple of the clip bound."""
        exposures = self._counts.exposures_at(factor)
        used = np.flatnonzero(counts.any(axis=1) & (exposures > 0))
        if not len(used):
            return np.zeros(len(counts.T))
        steps = _FewRecords(self._counts.rates[used], exposures[used], counts[used])
        costs = steps.counts.T @ log_moments(steps.rates, steps.exposures, [_ORDER])[:, 0]
        few = exposure_counts(steps, costs, _ORDER, _KINDS)
        return profiles(few, self._delta, precision=_PRECISION).epsilon


@dataclass(frozen=True)
class _FewRecords:
    """The steps of a few records as ``exposure_counts`` reads them: ``counts`` [K, r]."""

    rates: FloatArray
    exposures: FloatArray
    counts: NDArray[np.int64]

    @property
    def records(self) -> int:
        return self.counts.shape[1]

    def slices(self) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[Any]]]:
        yield slice(0, self.records), np.arange(len(self.rates)), self.counts
