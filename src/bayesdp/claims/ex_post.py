"""What a finished run has cost each record, without assuming anything about how its steps depended on each other.

For a record x that was left out, let L = log p(w | without x) / p(w | with x) for the released outputs w, and let
K(lambda) be its costs, which accumulate along the run. Then e^{lambda L - K(lambda)} has mean at most 1: step by step
it is a supermartingale, however later steps depend on earlier outputs. The same holds for a mixture over orders with
weights w_j declared beforehand, so that by Markov's inequality

    Pr[L > epsilon] <= delta   for the root epsilon of   sum_j w_j e^{lambda_j epsilon - K(lambda_j)} = 1 / delta.
"""

from __future__ import annotations

import math

import numpy as np

from bayesdp.ledger import SNAPSHOT_LAMBDAS
from bayesdp.validation import FloatArray

ORDERS = np.array([*SNAPSHOT_LAMBDAS, 512, 1024], np.float64)
WEIGHTS = np.array([0.12] * len(SNAPSHOT_LAMBDAS) + [0.02, 0.02])
"""Fixed once and for all: most weight on the orders that suit ordinary runs, little on those of very quiet runs."""
_MOST_ITERATIONS = 60  # usually five are enough; stopping early leaves epsilon too large, never too small


def ex_post_epsilons(costs: FloatArray, delta: float) -> FloatArray:
    """Return each record's ex-post epsilon, [m], from its costs [m, L] at ``ORDERS``.

    The result is never below the exact root; it is 0 for a record that cost nothing, and infinite if all its costs
    are. The search starts at the bound of the best single order, which lies above the root. The logarithm of the
    mixture is convex and increasing in epsilon, so Newton's method descends towards the root and never passes it.
    """
    target = -math.log(delta) * (1 + 2.0**-50) + 2.0**-50
    exponents = np.log(WEIGHTS) - costs
    with np.errstate(invalid="ignore"):
        epsilons: FloatArray = np.min((target - exponents) / ORDERS, axis=1)
    going = np.flatnonzero(np.isfinite(epsilons))
    for _ in range(_MOST_ITERATIONS):
        value, slope = _log_mixture(exponents[going], epsilons[going])
        step = np.maximum(value - target, 0.0) / slope
        epsilons[going] -= step
        going = going[step > 2.0**-52 * epsilons[going]]
        if not len(going):
            break
    return np.where((costs == 0).all(axis=1), 0.0, epsilons * (1 + 2.0**-48))


def hockey_stick_epsilons(costs: FloatArray, delta: float) -> FloatArray:
    """Return each record's epsilon in the form of differential privacy, [m], from costs [m, L] at ``ORDERS``.

    Formal guarantee: with epsilon(w) the result after the outputs w, P(S) <= E_Q[e^{epsilon(w)} 1_S] + delta for every
    set S of outputs, however steps, settings and their number depended on earlier outputs; with a constant epsilon that
    *is* (epsilon, delta)-DP. It suffices that (1 - e^{epsilon - L})_+ <= delta M(L) for all L, where M is the mixture
    above, whose mean is at most 1. So epsilon = max_L [L + log(1 - delta M(L))], which is concave in L: its derivative
    vanishes where delta (M + M') = 1, and that is found by bisection. Errs upwards; 0 for a record that cost nothing.
    """
    exponents: FloatArray = np.log(WEIGHTS) + math.log(delta) - costs
    with np.errstate(invalid="ignore"):
        high: FloatArray = np.min(-exponents / ORDERS, axis=1)  # delta M(L) >= 1 there
    finite = np.isfinite(high)
    high = np.where(finite, high, 0.0)
    low: FloatArray = high - (2.0 + math.log(2.0 * len(ORDERS) * ORDERS[-1])) / ORDERS[0]  # delta (M + M') < 1 there
    usable = np.where(finite[:, None], exponents, -np.inf)
    for _ in range(100):
        middle = (low + high) / 2
        terms = np.exp(usable + ORDERS * middle[:, None])
        beyond = terms @ (1 + ORDERS) >= 1
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    mixture = np.exp(usable + ORDERS * low[:, None]).sum(axis=1)
    # At the upper end of the bracket L is larger and the mixture at its lower end smaller: above the maximum.
    largest = np.maximum(high + np.log1p(-mixture), 0.0) * (1 + 2.0**-40) + 2.0**-50
    return np.where((costs == 0).all(axis=1), 0.0, np.where(finite, largest, np.inf))


def _log_mixture(exponents: FloatArray, epsilons: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the logarithm of the mixture at each record's epsilon, [m], and its derivative, the mean order, [m]."""
    logs = exponents + ORDERS * epsilons[:, None]
    largest = logs.max(axis=1)
    with np.errstate(under="ignore"):
        terms = np.exp(logs - largest[:, None])
    total = terms.sum(axis=1)
    return largest + np.log(total), terms @ ORDERS / total
