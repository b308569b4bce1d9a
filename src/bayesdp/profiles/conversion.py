"""From log-moments to (epsilon, delta) and back.

If E[e^{lambda L}] <= e^K for the privacy loss L, then for every lambda

    delta(epsilon) <= c_lambda e^{K - lambda epsilon},

with c_lambda = 1 by Chernoff (the paper's Theorem 2) or c_lambda = lambda^lambda / (lambda+1)^(lambda+1), "improved"
(Canonne, Kamath & Steinke 2020, Proposition 12). Both are linear in the moment e^K, so they hold as well for its mean
over records.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from bayesdp.validation import FloatArray, refuse

Conversion = Literal["improved", "chernoff"]

LEAST_DELTA = 1e-300
"""Where a delta above 0 would underflow: a delta of 0 stands for equal laws only."""


def check_conversion(value: object) -> Conversion:
    """One of the two names."""
    if value not in get_args(Conversion):
        raise refuse("conversion", value, "'improved' or 'chernoff'")
    return value  # type: ignore[return-value]


def log_constant(lambdas: FloatArray, conversion: Conversion) -> FloatArray:
    """log c_lambda, [L]: 0 for Chernoff, negative for the improved conversion."""
    if conversion == "chernoff":
        return np.zeros_like(lambdas)
    return lambdas * np.log(lambdas) - (lambdas + 1) * np.log(lambdas + 1)


def epsilon_from_costs(
    costs: FloatArray, lambdas: FloatArray, delta: float, conversion: Conversion
) -> tuple[float, int]:
    """The least epsilon over the orders, and the index of its order; costs K [L] may be infinite.

    0 where a cost is 0 (equal laws), and never negative. The exact inverse of ``delta_from_costs``.
    """
    if (costs == 0).any():
        return 0.0, int(np.argmax(costs == 0))
    if delta <= 0:
        return math.inf, 0
    costs = np.where(np.isnan(costs), np.inf, costs)
    values = (costs + log_constant(lambdas, conversion) - math.log(delta)) / lambdas
    best = int(np.argmin(values))
    return max(0.0, float(values[best])), best


def record_epsilons(costs: FloatArray, lambdas: FloatArray, delta: float) -> FloatArray:
    """The least epsilon over the orders for each record, [m], by the improved conversion; costs [m, L]."""
    values = ((costs + (log_constant(lambdas, "improved") - math.log(delta))) / lambdas).min(axis=1)
    return np.where((costs == 0).any(axis=1), 0.0, np.maximum(values, 0.0))


def record_deltas(costs: FloatArray, lambdas: FloatArray, epsilons: FloatArray) -> FloatArray:
    """The least delta over the orders for each record and epsilon, [m, G], by the improved conversion; costs [m, L].

    0 only where a cost is 0 (equal laws).
    """
    constants = costs + log_constant(lambdas, "improved")
    columns = [np.min(constants - lambdas * epsilon, axis=1) for epsilon in epsilons]
    exponents = np.stack(columns, axis=1) if columns else np.empty((len(costs), 0))
    with np.errstate(under="ignore"):
        deltas = np.maximum(np.exp(np.minimum(exponents, 0.0)), LEAST_DELTA)
    return np.where((costs == 0).any(axis=1)[:, None], 0.0, deltas)


def delta_from_costs(
    costs: FloatArray, lambdas: FloatArray, epsilon: float, conversion: Conversion
) -> tuple[float, int]:
    """The least delta over the orders, and the index of its order; at most 1."""
    if (costs == 0).any():
        return 0.0, int(np.argmax(costs == 0))
    costs = np.where(np.isnan(costs), np.inf, costs)
    exponents = costs + log_constant(lambdas, conversion) - lambdas * epsilon
    best = int(np.argmin(exponents))
    return math.exp(min(0.0, float(exponents[best]))), best


def costs_for(orders: FloatArray, epsilon: float, delta: float) -> FloatArray:
    """The largest costs B [L] that amount to (epsilon, delta) at each order: lambda epsilon + log delta - log c_lambda.

    Never above it; below 0 where an order is too small for them.
    """
    terms = [orders * epsilon, np.full(len(orders), math.log(delta)), -log_constant(orders, "improved")]
    # The constant is a difference of terms of size lambda log lambda: their rounding is taken off.
    size = sum(np.abs(term) for term in terms) + 2 * (orders + 1) * np.log(orders + 1)
    return np.add.reduce(terms) - 2.0**-48 * size


def best_order(epsilon: float, delta: float) -> tuple[float, float]:
    """The whole order whose cost for (epsilon, delta) leaves most to a Gaussian step, and that cost.

    The cost of such a step grows like lambda (lambda + 1).
    """
    orders = np.arange(1.0, min(1e6, 2 - 2 * math.log(delta) / epsilon) + 1)  # beyond it less and less is left
    costs = costs_for(orders, epsilon, delta)
    best = int(np.argmax(costs / (orders * (orders + 1))))
    return float(orders[best]), float(costs[best])
