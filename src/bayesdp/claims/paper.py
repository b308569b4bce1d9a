"""The paper's claim from a ledger: Student-t over audit records, or over the batches that were drawn."""

from __future__ import annotations

import math

import numpy as np

from bayesdp.claim import Claim
from bayesdp.claims.figures import Figures
from bayesdp.claims.shares import NO_AUDIT
from bayesdp.conversion import epsilon_from_costs
from bayesdp.estimators import StudentT
from bayesdp.ledger import Ledger, clip_bound, grid
from bayesdp.logspace import log_expm1
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.validation import FloatArray, InvalidInputError

LAMBDAS = np.arange(1.0, 65.0)
GAMMA = 1e-15
_MODEL = "exponentials of costs follow the model behind Student-t"
_FIXED = "the norms would have been the same, whatever was released before"


def from_audit(figures: Figures, *, delta: float, worst_case: Claim) -> Claim:
    """From the costs K_x of audit records.

    With the costs of whole runs at hand no Hölder inequality is needed: E_x[e^{K_x}] is estimated once for each order.
    """
    columns = np.searchsorted(clip_bound.LAMBDAS, LAMBDAS)
    costs = figures.costs[:, columns]
    bound = None if figures.clip_bound is None else figures.clip_bound.costs[columns]
    gamma = GAMMA * len(LAMBDAS)
    claim = _claim(delta, gamma, worst_case, "Student-t over whole runs of audit records", len(costs), private=False)
    if not len(costs):
        return claim.without(NO_AUDIT)
    try:
        averages = StudentT(gamma=GAMMA).log_upper(costs, bound)
    except InvalidInputError as error:
        return claim.without(str(error))
    return _with_costs(claim, averages, delta - gamma)


def from_batches(ledger: Ledger, *, delta: float, worst_case: Claim) -> Claim:
    """Private: Hölder over the batches that were drawn, as in the paper.

    Exposures are known between two nodes of the grid. The mean is taken at the upper ones, the standard deviation from
    the mean square at the upper and the mean at the lower ones: never less than of the exact norms.
    """
    steps = ledger.steps
    gamma = GAMMA * len(LAMBDAS) * max(steps, 1)
    claim = _claim(delta, gamma, worst_case, "Hölder, Student-t over drawn batches", None, private=True)
    if delta <= gamma:
        return claim.without(f"delta={delta:g} is not above {gamma:.3g}, which the estimates may fail with")
    total = np.zeros(len(LAMBDAS))
    tables: dict[int, FloatArray] = {}
    for stretch in ledger.history.stretches:
        bound = _bound(stretch.noise_std, stretch.sample_rate, stretch.clip)
        for number in range(stretch.first, stretch.first + stretch.steps):
            total += _batch_cost(ledger, number, steps, bound, tables)
    return _with_costs(claim, total, delta - gamma)


def _claim(delta: float, gamma: float, worst_case: Claim, method: str, samples: int | None, *, private: bool) -> Claim:
    return Claim(
        epsilon=math.inf,
        delta=delta,
        audience="average",
        direction="both",
        kind="model-based",
        method=f"Bayesian accountant: {method}",
        samples=samples,
        gamma=gamma,
        gamma_in_delta=True,
        assumptions=(_MODEL, _FIXED),
        private=private,
        worst_case=worst_case,
    )


def _with_costs(claim: Claim, costs: FloatArray, delta: float) -> Claim:
    if delta <= 0:
        return claim.without(f"delta={claim.delta:g} is not above {claim.gamma:.3g}, which the estimates may fail with")
    epsilon, best = epsilon_from_costs(costs, LAMBDAS, delta, "improved")
    last = (f"The best order is the last one tried, {LAMBDAS[-1]:g}.",) if best == len(LAMBDAS) - 1 else ()
    return claim.with_figure(epsilon, order=float(LAMBDAS[best]), notes=last)


def _bound(noise: float, rate: float, clip: float | None) -> FloatArray:
    """The cost of one step at the clip bound, [L]."""
    if clip is None:
        return np.full(len(LAMBDAS), np.inf)
    return SubsampledGaussian(sample_rate=rate).log_moment([clip / noise], LAMBDAS)[0]


def _batch_cost(
    ledger: Ledger, number: int, steps: int, bound: FloatArray, tables: dict[int, FloatArray]
) -> FloatArray:
    """c_t [L] of one step; the clip bound where too few were drawn to say anything."""
    batch = ledger.private_batch(number)
    if batch is None or batch.drawn < 3:
        return bound
    moments = np.stack([_moments(ledger, one, tables) for one in batch.bins.tolist()])  # [K, 2, L]: up, down
    weights = np.log(batch.counts / batch.drawn)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        up, down = steps * moments[:, 0], steps * moments[:, 1]
        mean, square = np.logaddexp.reduce(weights + up), np.logaddexp.reduce(weights + 2 * up)
        lowest = np.logaddexp.reduce(weights + down)
        deviation = lowest + 0.5 * log_expm1(np.maximum(square - 2 * lowest, 1e-300))
        spread = np.sqrt(np.expm1(np.minimum(np.maximum(square - 2 * mean, 0.0), 700.0)))
    estimator = StudentT(gamma=GAMMA)
    cap = None if np.isinf(bound).any() else steps * bound
    if np.isinf(up).any() or (cap is None and spread.min() < 1e-6):
        return bound
    return np.minimum(estimator.combine(mean, deviation, spread, batch.drawn, cap) / steps, bound)


def _moments(ledger: Ledger, one: int, tables: dict[int, FloatArray]) -> FloatArray:
    """Log-moments of a bin at its exposure and at the least that is rounded up to it, [2, L]."""
    if one not in tables:
        bins = ledger.history.bins
        key = one & 0xFFFF
        top = bins.exposures(np.array([key]))
        lower = grid.round_up(top) - 1 if key >= grid.FIRST_OWN else np.array([max(key - 1, 0)])
        if np.isinf(top[0]):
            tables[one] = np.full((2, len(LAMBDAS)), np.inf)
        else:
            both = np.concatenate([top, grid.VALUES[lower]])
            tables[one] = SubsampledGaussian(sample_rate=bins.rates[one >> 16]).log_moment(both, LAMBDAS)
    return tables[one]
