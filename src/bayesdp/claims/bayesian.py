"""The paper's claim from a ledger: Student's t over audit records, or over the batches that were drawn.

The claim named ``bayesian`` is always the one over audit records, in ``Ledger.claims``, ``account`` and ``train``
alike. (The paper's own composition, step by step with Hölder's inequality, is ``BayesianAccountant``.)
"""

from __future__ import annotations

import math

import numpy as np

from bayesdp.claims.claim import Claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import FIXED_NORMS, NO_AUDIT, SAMPLED
from bayesdp.estimators import StudentT
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS
from bayesdp.ledger import BinArray, StoredLedger
from bayesdp.logspace import log_expm1
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles.conversion import epsilon_from_costs
from bayesdp.validation import FloatArray, InvalidInputError

PAPER_LAMBDAS = np.arange(1.0, 65.0)
_MODEL = "the exponentials of costs follow the model behind Student-t"


def from_audit(figures: RecordFigures, *, delta: float, gamma: float, worst_case: Claim) -> Claim:
    """Return the claim from the costs K_x of audit records; ``gamma`` is the failure probability at each order.

    The costs of whole runs are known, so Hölder's inequality is not needed: E_x[e^{K_x}] is estimated once for each
    order. All orders together may fail with probability 64 gamma, which is taken out of ``delta``.
    """
    columns = np.searchsorted(CLIP_BOUND_LAMBDAS, PAPER_LAMBDAS)
    costs = figures.costs[:, columns]
    bound = None if figures.clip_bound is None else figures.clip_bound.costs[columns]
    total = gamma * len(PAPER_LAMBDAS)
    claim = _claim(delta, total, worst_case, "Student-t over whole runs of audit records", len(costs), private=False)
    if not len(costs):
        return claim.without(NO_AUDIT)
    try:
        averages = StudentT(gamma=gamma).log_upper(costs, bound)
    except InvalidInputError as error:
        return claim.without(str(error))
    return _with_costs(claim, averages, delta - total)


def from_batches(ledger: StoredLedger, *, delta: float, gamma: float, worst_case: Claim) -> Claim:
    """Return the private claim from the batches that were drawn, composed with Hölder's inequality as in the paper.

    The ledger knows every exposure as lying between two nodes of its grid. The mean is taken at the upper nodes; the
    standard deviation uses the mean square at the upper nodes and the mean at the lower ones. Both are therefore at
    least those of the exact norms. ``gamma`` is the failure probability of each step at each order.
    """
    steps = ledger.steps
    total = gamma * len(PAPER_LAMBDAS) * max(steps, 1)
    claim = _claim(delta, total, worst_case, "Hölder, Student-t over drawn batches", None, private=True)
    if delta <= total:
        return claim.without(_too_small(delta, total))
    costs, batches = np.zeros(len(PAPER_LAMBDAS)), _BatchCosts(ledger, StudentT(gamma=gamma))
    for stretch in ledger.history.stretches:
        bound = _bound(stretch.noise_std, stretch.sample_rate, stretch.clip)
        for number in range(stretch.first, stretch.first + stretch.steps):
            costs += batches.of_step(number, bound)
    return _with_costs(claim, costs, delta - total)


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
        assumptions=(_MODEL, FIXED_NORMS) if private else (SAMPLED, _MODEL, FIXED_NORMS),
        private=private,
        worst_case=worst_case,
    )


def _with_costs(claim: Claim, costs: FloatArray, delta: float) -> Claim:
    if delta <= 0:
        return claim.without(_too_small(claim.delta, claim.gamma))
    epsilon, best = epsilon_from_costs(costs, PAPER_LAMBDAS, delta, "improved")
    last = (f"The best order is the last one tried, {PAPER_LAMBDAS[-1]:g}.",) if best == len(PAPER_LAMBDAS) - 1 else ()
    return claim.with_figure(epsilon, order=float(PAPER_LAMBDAS[best]), notes=last)


def _too_small(delta: float, gamma: float) -> str:
    return f"delta={delta:g} is not above the total gamma={gamma:.3g}, the probability that the estimates fail"


def _bound(noise: float, rate: float, clip: float | None) -> FloatArray:
    """Return the cost of one step at the clip bound, [L]."""
    if clip is None:
        return np.full(len(PAPER_LAMBDAS), np.inf)
    return log_moments(rate, [clip / noise], PAPER_LAMBDAS)[0]


class _BatchCosts:
    """The costs c_t [L] of steps from the private counts of their batches; a bin's log-moments are computed once."""

    def __init__(self, ledger: StoredLedger, estimator: StudentT) -> None:
        self._ledger, self._estimator, self._steps = ledger, estimator, ledger.steps
        self._moments: dict[int, FloatArray] = {}

    def of_step(self, number: int, bound: FloatArray) -> FloatArray:
        """Return the cost [L] of one step: the cost at the clip bound if fewer than three records were drawn."""
        batch, steps = self._ledger.private_batch(number), self._steps
        if batch is None or batch.drawn < 3:
            return bound
        moments = self._moments_of(batch.bins)
        weights = np.log(batch.counts / batch.drawn)[:, None]
        with np.errstate(invalid="ignore", over="ignore"):
            up, down = steps * moments[:, 0], steps * moments[:, 1]
            mean, square = np.logaddexp.reduce(weights + up), np.logaddexp.reduce(weights + 2 * up)
            lowest = np.logaddexp.reduce(weights + down)
            deviation = lowest + 0.5 * log_expm1(np.maximum(square - 2 * lowest, 1e-300))
            spread = np.sqrt(np.expm1(np.minimum(np.maximum(square - 2 * mean, 0.0), 700.0)))
        cap = None if np.isinf(bound).any() else steps * bound
        if np.isinf(up).any() or (cap is None and spread.min() < 1e-6):
            return bound
        estimate = self._estimator.combine(mean, deviation, spread, batch.drawn, cap)
        return np.minimum(estimate / steps, bound)

    def _moments_of(self, bins: BinArray) -> FloatArray:
        """Return log-moments [K, 2, L] at each bin's exposure and at the smallest exposure that is rounded up to it."""
        known = self._ledger.history.bins
        new = np.array([number for number in bins.tolist() if number not in self._moments], np.uint32)
        rates = known.rates_of(new)
        for number, upper, lower in zip(
            new.tolist(),
            log_moments(rates, known.exposures_of(new), PAPER_LAMBDAS),
            log_moments(rates, known.exposures_below(new), PAPER_LAMBDAS),
            strict=True,
        ):
            self._moments[number] = np.stack([upper, lower])
        return np.stack([self._moments[number] for number in bins.tolist()])
