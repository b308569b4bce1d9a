"""Fewer kinds of steps than the ledger counts, each rounded up, so that profiles are computed quickly.

The exposures that are kept are chosen so that rounding the others up to them adds as little as possible, relative to
what each record cost: cells are short where the costs are. (For a density f of costs v the best lengths are
proportional to f^{-1/2}, hence cells with equal integrals of f^{1/2}.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles import ExposureCounts
from bayesdp.validation import FloatArray

KINDS = 512


class CountedSteps(Protocol):
    """How often m records went through each of K kinds of steps: ``ledger.StepCounts``."""

    @property
    def rates(self) -> FloatArray: ...
    @property
    def exposures(self) -> FloatArray: ...
    @property
    def records(self) -> int: ...
    def slices(self) -> Iterator[tuple[slice, NDArray[np.int64], NDArray[Any]]]: ...


def exposure_counts(steps: CountedSteps, costs: FloatArray, order: float, kinds: int = KINDS) -> ExposureCounts:
    """Return the counts of all audit records over about ``kinds`` kinds of steps.

    ``costs`` [m] are the records' costs at ``order``; they decide which exposures are kept. Formal guarantee: every
    step is counted at a rate and an exposure not below its own. Steps with exposure 0 are left out.
    """
    with np.errstate(divide="ignore"):
        weights = np.where(costs > 0, 1 / costs, 0.0)
    frequency = np.zeros(len(steps.rates))
    for records, present, counts in steps.slices():
        frequency[present] += counts @ weights[records]
    kind = _kinds(steps.rates, steps.exposures, frequency, order, kinds)
    number_of_kinds = int(kind.max(initial=-1)) + 1
    top_rate, top_exposure = np.zeros(number_of_kinds), np.zeros(number_of_kinds)
    np.maximum.at(top_rate, kind, steps.rates)
    np.maximum.at(top_exposure, kind, steps.exposures)
    totals = np.zeros((steps.records, number_of_kinds))
    for records, present, counts in steps.slices():
        by_kind = np.argsort(kind[present], kind="stable")
        present_kinds, first = np.unique(kind[present][by_kind], return_index=True)
        if len(present_kinds):
            totals[records, present_kinds] = np.add.reduceat(counts[by_kind], first, axis=0, dtype=np.int64).T
    return ExposureCounts(top_rate, top_exposure, totals)


def _kinds(
    rates: FloatArray, exposures: FloatArray, frequency: FloatArray, order: float, kinds: int
) -> NDArray[np.int64]:
    """Return the kind of each rate and exposure, [K].

    A kind holds exposures that are neighbours at one rate; every infinite exposure is a kind of its own.
    """
    by_exposure = np.lexsort((exposures, rates))
    kind = np.empty(len(rates), np.int64)
    finite = np.isfinite(exposures)
    cost = np.zeros(len(rates))
    cost[finite] = log_moments(rates[finite], exposures[finite], [order])[:, 0]
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
