"""What a realised run has cost each record, with no assumption on how its steps depended on each other.

For a record x that was left out, let L = log p(w | without x) / p(w | with x) of the released outputs w, and K(lambda)
its costs, which build up along the run. Then e^{lambda L - K(lambda)} has mean at most 1: step by step it is a
supermartingale, however later steps depend on earlier outputs. So has a mixture over orders with weights w_j declared
beforehand, and by Markov

    Pr[L > epsilon] <= delta   for the root epsilon of   sum_j w_j e^{lambda_j epsilon - K(lambda_j)} = 1 / delta.
"""

from __future__ import annotations

import math

import numpy as np

from bayesdp.ledger import SNAPSHOT_LAMBDAS
from bayesdp.validation import FloatArray

ORDERS = np.array([*SNAPSHOT_LAMBDAS, 512, 1024], np.float64)
WEIGHTS = np.array([0.12] * len(SNAPSHOT_LAMBDAS) + [0.02, 0.02])
"""Declared once and for all: most on the orders of ordinary runs, little on those of very quiet ones."""
_MOST_STEPS = 60  # usually five are enough; stopping early is safe


def ex_post_epsilons(costs: FloatArray, delta: float) -> FloatArray:
    """The root for each record, [m], never below it, from costs [m, L] at ``ORDERS``; 0 for a record without any.

    One order alone gives a bound above the root; the logarithm of the mixture is convex in epsilon and grows, so that
    Newton's steps come down to the root and never pass it.
    """
    target = -math.log(delta) * (1 + 2.0**-50) + 2.0**-50
    exponents = np.log(WEIGHTS) - costs
    with np.errstate(invalid="ignore"):
        epsilons: FloatArray = np.min((target - exponents) / ORDERS, axis=1)
    going = np.flatnonzero(np.isfinite(epsilons))
    for _ in range(_MOST_STEPS):
        value, slope = _log_mixture(exponents[going], epsilons[going])
        step = np.maximum(value - target, 0.0) / slope
        epsilons[going] -= step
        going = going[step > 2.0**-52 * epsilons[going]]
        if not len(going):
            break
    return np.where((costs == 0).all(axis=1), 0.0, epsilons * (1 + 2.0**-48))


def _log_mixture(exponents: FloatArray, epsilons: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Its logarithm at each record's epsilon, and the derivative: the mean order."""
    logs = exponents + ORDERS * epsilons[:, None]
    largest = logs.max(axis=1)
    with np.errstate(under="ignore"):
        terms = np.exp(logs - largest[:, None])
    total = terms.sum(axis=1)
    return largest + np.log(total), terms @ ORDERS / total
