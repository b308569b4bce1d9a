"""The filter behind a budget: which further steps keep a run within it, however settings and steps are chosen.

PLD of the steps taken is no filter: whoever chooses the next settings by looking at outputs can have a delta twice as
large as the one claimed after only two steps. What may be chosen by looking is limited here by quantities that are
fixed before the first output (docs/theory.md, "Budgets", has the proofs):

- Without sampling: the sum of squared exposures stays below mu^2, the squared exposure of the one Gaussian release that
  spends the budget exactly. A sampled step counts as if it were not sampled.
- With sampling, at least one of several. *As at the first step*: no step is louder than the first, and there are no
  more of them than PLD allows at 4/5 of delta. *Changing*: at one of two orders, the costs K stay below B with
  c e^{B - lambda epsilon} = p delta. The orders are those that allow most steps like the first, and like the first with
  3/4 of its noise, since a high order does not bear loud steps; their parts p add up to 1/5. A run may leave the one
  for the other. (``Budget.for_changes`` sets the 1/5.)
- Beside a plan: its own steps, as many as PLD allows at all of delta, and no others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from bayesdp.claims.budget import Budget
from bayesdp.claims.plan import DeclaredPlan, Plan
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS, ClipBound
from bayesdp.ledger import Stretch
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from bayesdp.profiles.conversion import (
    best_order,
    costs_for,
    epsilon_from_costs,
    record_deltas,
    record_epsilons,
)
from bayesdp.validation import FloatArray

WHOLE = 1 << 62
"""The limit of a filter, in the parts in which costs are added up exactly."""
_FURTHEST = 1 << 24  # the most steps to look ahead
_ROUND_UP = 1 + 2.0**-50
_LEAST_NOISE, _MOST_NOISE = 1e-6, 1e12  # the noise multipliers that are accounted
_LOUDER = {1.0: 2 / 3, 0.75: 1 / 3}  # of the first noise: orders are chosen for it, with this part of delta
_HIGHER_LAMBDAS = np.round(np.geomspace(2048, 131072, 13))  # for budgets far below 1


@dataclass(frozen=True)
class Filter:
    """The most, ``limit``, that costs at ``order`` may add up to; without an order, that squared exposures may."""

    order: float | None
    limit: float
    part: float
    "The part of delta for runs that keep to it."

    def parts(self, rates: FloatArray, exposures: FloatArray) -> list[int]:
        """Return what a step of each kind takes of the limit, in parts of 2^62, rounded up."""
        with np.errstate(over="ignore"):
            costs = exposures**2 if self.order is None else log_moments(rates, exposures, [self.order])[:, 0]
            return [math.ceil(min(share, 2.0) * WHOLE) for share in (costs / self.limit * _ROUND_UP).tolist()]

    def epsilon(self, delta: float) -> float:
        """Return epsilon at the part of ``delta`` that is for this filter."""
        if self.order is None:
            return float(gaussian_epsilon(math.sqrt(self.limit) * _ROUND_UP, self.part * delta))
        return float(record_epsilons(np.array([[self.limit]]), np.array([self.order]), self.part * delta)[0])

    def deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return delta at ``epsilons`` [G], [G], of runs that keep to this filter."""
        if self.order is None:
            return gaussian_delta(math.sqrt(self.limit) * _ROUND_UP, epsilons)
        return record_deltas(np.array([[self.limit]]), np.array([self.order]), epsilons)[0]


@dataclass(frozen=True)
class Limits:
    """What keeps a budget, fixed before the first output: by the budget, and by the plan or the first settings.

    Attributes:
        reference: Steps that are known beforehand: the plan, or the first settings over and over.
        reference_delta: The part of delta for runs that keep to it; 0 if the filter covers those as well.
        filters: Of these one at least must be kept by runs that do not keep to the reference.
    """

    budget: Budget
    reference: DeclaredPlan
    reference_delta: float
    filters: tuple[Filter, ...]

    @property
    def reach(self) -> int:
        """How many steps of the reference fit, by the profile of a record at the clip bound, never too many."""
        if self.reference_delta == 0:
            return 0
        return _reach(self.reference, self.budget.epsilon, self.reference_delta, profile=True)

    def reaches(self, step: int) -> bool:
        """Whether the reference fits up to this step; Rényi divergences, which are quick to compute, often know it."""
        if self.reference_delta == 0:
            return False
        by_renyi = _reach(self.reference, self.budget.epsilon, self.reference_delta, profile=False)
        return step <= by_renyi or step <= self.reach

    def within_reference(self, noise_multiplier: float, rate: float, first: int, steps: int) -> bool:
        """Whether ``steps`` steps with these settings, from step ``first`` on, keep to the reference."""
        asked = Stretch(noise_multiplier, rate, 1.0, None, "", "", first, steps)
        return self.reference_delta > 0 and self.reference.departure([asked]) is None

    def parts(self, settings: Sequence[tuple[float, float]]) -> list[tuple[int, ...]]:
        """Return what a step with each (noise multiplier, rate) takes of each filter, in parts of 2^62, rounded up."""
        noise, rates = np.array(settings, np.float64).reshape(-1, 2).T
        with np.errstate(divide="ignore"):
            exposures = np.where(noise >= _LEAST_NOISE, _ROUND_UP / noise, np.inf)
        if not self.filters:
            return [()] * len(settings)
        return list(zip(*(each.parts(rates, exposures) for each in self.filters), strict=True))

    def reference_steps(self) -> list[RepeatedStep]:
        """Return the steps of the reference that fit."""
        return _prefix(self.reference, self.reach)


@lru_cache(maxsize=256)
def limits_of(budget: Budget, plan: DeclaredPlan | None, noise_multiplier: float, rate: float) -> Limits:
    """Return what keeps ``budget``, for a run with this plan, or with these settings in its first step.

    Beside a plan, only its own steps keep the budget, as many as fit, at all of delta. Were there a filter too, whoever
    looks could choose between two claims that need delta each.
    """
    epsilon, delta, changing = budget.epsilon, budget.delta, budget.for_changes
    if plan is not None:
        return Limits(budget, plan, delta, ())
    loudest = min(max(noise_multiplier, _LEAST_NOISE), _MOST_NOISE)
    reference = DeclaredPlan((Plan(steps=_FURTHEST, noise_std=loudest, sample_rate=rate, clip=1.0),))
    if rate == 1:
        return Limits(budget, reference, 0.0, (Filter(None, _gaussian_limit(epsilon, delta), 1.0),))
    if changing == 0:
        return Limits(budget, reference, delta, ())
    return Limits(budget, reference, (1 - changing) * delta, _filters((loudest, rate, 1), epsilon, delta, changing))


def _gaussian_limit(epsilon: float, delta: float) -> float:
    """Return mu^2 of the largest exposure whose exact profile is within (epsilon, delta), rounded down."""
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low * low / _ROUND_UP


def _filters(step: RepeatedStep, epsilon: float, delta: float, changing: float) -> tuple[Filter, ...]:
    """Return the Rényi filters for a run that is expected to repeat ``step``, or a louder one; () if none allows any.

    ``changing`` is the part of delta for all of them together.
    """
    noise, rate, count = step
    parts: dict[float, float] = {}
    for less, part in _LOUDER.items():
        order = _best_order((noise * less, rate, count), epsilon, part * changing * delta)
        if order is not None:
            parts[order] = parts.get(order, 0.0) + part
    filters: list[Filter] = []
    for order, part in parts.items():
        own = changing * part / sum(parts.values())
        limit = float(costs_for(np.array([order]), epsilon, own * delta)[0])
        filters.append(Filter(order, limit, own))
    return tuple(filters)


def _best_order(step: RepeatedStep, epsilon: float, delta: float) -> float | None:
    """Return the order at which ``step`` fits (epsilon, delta) most often; None if it does not fit once."""
    bound = ClipBound.of([step])
    lambdas, costs = CLIP_BOUND_LAMBDAS, bound.costs
    if epsilon > 0 and best_order(epsilon, delta)[0] > lambdas[-1] / 2:
        settings = bound.settings
        higher = settings.counts[0] @ log_moments(settings.rates, settings.exposures, _HIGHER_LAMBDAS)
        lambdas, costs = np.append(lambdas, _HIGHER_LAMBDAS), np.append(costs, higher)
    limits = costs_for(lambdas, epsilon, delta)
    best = int(np.argmax(limits / costs))
    return float(lambdas[best]) if limits[best] >= costs[best] else None


@lru_cache(maxsize=256)
def _reach(reference: DeclaredPlan, epsilon: float, delta: float, *, profile: bool) -> int:
    """Return the most steps of the reference that fit, by the profile or by Rényi divergences.

    Beyond 8192 only numbers of 13 significant bits are tried: one in 4096 steps is given away for a shorter search.
    """

    def fits(steps: int) -> bool:
        bound = ClipBound.of(_prefix(reference, steps))
        if epsilon_from_costs(bound.costs, CLIP_BOUND_LAMBDAS, delta, "improved")[0] <= epsilon:
            return True
        return profile and bound.epsilon(delta) <= epsilon

    last = reference.steps
    if last < _FURTHEST and fits(last):
        return last
    return _coarse(most(lambda number: _coarse(number) <= last and fits(_coarse(number)), last))


def _coarse(number: int) -> int:
    """Return the number at this place among those of at most 13 significant bits."""
    return number if number < 8192 else (4096 + number % 4096) << (number // 4096 - 1)


def _prefix(plan: DeclaredPlan, steps: int) -> list[RepeatedStep]:
    """Return the first ``steps`` steps of a plan."""
    ends = [min(end, steps) for end in plan.ends]
    counted = zip(plan.repeated_steps(), pairwise([0, *ends]), strict=True)
    return [(noise, rate, end - begin) for (noise, rate, _), (begin, end) in counted if end > begin]


def most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number of steps up to ``limit`` that fits, 0 if none does.

    Assumes that fewer steps always fit if more do.
    """
    if not fits(1):
        return 0
    low, high = 1, 2
    while high <= limit and fits(high):
        low, high = high, 2 * high
    high = min(high, limit + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
