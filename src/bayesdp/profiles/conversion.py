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
"""The least delta above 0. Whatever would underflow becomes this, since a delta of 0 stands for equal laws only."""
_LARGEST_EPSILON = 1e290
"""What a larger epsilon is taken for, on the private side: its product with an order does not overflow."""
_FEW = 8  # epsilons for which costs are not turned round
_ROWS = 1024  # records that are computed together: as many as a processor keeps at hand


def check_conversion(value: object) -> Conversion:
    """Return ``value`` if it names a conversion; raise InvalidInputError if it does not."""
    if value not in get_args(Conversion):
        raise refuse("conversion", value, "'improved' or 'chernoff'")
    return value  # type: ignore[return-value]


def log_constant(lambdas: FloatArray, conversion: Conversion) -> FloatArray:
    """Return log c_lambda at each order, [L]: 0 for Chernoff, negative for the improved conversion."""
    if conversion == "chernoff":
        return np.zeros_like(lambdas)
    return lambdas * np.log(lambdas) - (lambdas + 1) * np.log(lambdas + 1)


def epsilon_from_costs(
    costs: FloatArray, lambdas: FloatArray, delta: float, conversion: Conversion
) -> tuple[float, int]:
    """Return the least epsilon over the orders at ``delta``, and the index of the order that gives it.

    epsilon = min_lambda (K_lambda + log c_lambda - log delta) / lambda, never negative; ``costs`` K are [L], infinite
    or NaN where an order says nothing. It is 0 where a cost is 0 (equal laws); otherwise it is infinite at ``delta`` 0.
    The inverse of ``delta_from_costs``. Costs that bound log-moments give an upper bound of epsilon.
    """
    if (costs == 0).any():
        return 0.0, int(np.argmax(costs == 0))
    if delta <= 0:
        return math.inf, 0
    costs = np.where(np.isnan(costs), np.inf, costs)
    with np.errstate(over="ignore"):  # costs near the largest float at an order below 1: infinite
        values = (costs + log_constant(lambdas, conversion) - math.log(delta)) / lambdas
    best = int(np.argmin(values))
    return max(0.0, float(values[best])), best


def record_epsilons(costs: FloatArray, lambdas: FloatArray, delta: float) -> FloatArray:
    """Return the least epsilon over the orders at ``delta`` for each record, [m], from costs [m, L].

    ``epsilon_from_costs`` for many records, by the improved conversion. 0 only where a cost is 0 (equal laws), or where
    ``delta`` alone allows the loss.
    """
    values = np.empty(len(costs))
    with np.errstate(over="ignore"):
        for first in range(0, len(costs), _ROWS):
            some = costs[first : first + _ROWS] + (log_constant(lambdas, "improved") - math.log(delta))
            np.min(some / lambdas, axis=1, out=values[first : first + _ROWS])
    return np.where((costs == 0).any(axis=1), 0.0, np.maximum(values, 0.0))


def record_deltas(costs: FloatArray, lambdas: FloatArray, epsilons: FloatArray) -> FloatArray:
    """Return the least delta over the orders for each record at each of ``epsilons`` [G], [m, G], from costs [m, L].

    ``delta_from_costs`` for many records, by the improved conversion. 0 only where a cost is 0 (equal laws).
    """
    exponents = np.empty((len(costs), len(epsilons)))
    for first in range(0, len(costs), _ROWS):
        some = slice(first, first + _ROWS)
        exponents[some] = _least_exponents(costs[some] + log_constant(lambdas, "improved"), lambdas, epsilons)
    with np.errstate(under="ignore"):
        deltas = np.maximum(np.exp(np.minimum(exponents, 0.0)), LEAST_DELTA)
    return np.where((costs == 0).any(axis=1)[:, None], 0.0, deltas)


def _least_exponents(constants: FloatArray, lambdas: FloatArray, epsilons: FloatArray) -> FloatArray:
    """Return min over the orders of constants [m, L] - lambda epsilon, [m, G]."""
    exponents = np.empty((len(epsilons), len(constants)))
    turned = len(epsilons) > _FEW  # orders as rows: one row is quickly compared with the next
    constants = np.ascontiguousarray(constants.T) if turned else constants
    room = np.empty_like(constants)
    for row, epsilon in enumerate(epsilons):
        losses = lambdas * min(epsilon, _LARGEST_EPSILON)
        np.subtract(constants, losses[:, None] if turned else losses, out=room)
        np.min(room, axis=0 if turned else 1, out=exponents[row])
    return exponents.T


def delta_from_costs(
    costs: FloatArray, lambdas: FloatArray, epsilon: float, conversion: Conversion
) -> tuple[float, int]:
    """Return the least delta over the orders at ``epsilon``, at most 1, and the index of the order that gives it.

    delta = min_lambda c_lambda e^{K_lambda - lambda epsilon}; ``costs`` K are [L], infinite or NaN where an order says
    nothing. It is 0 only where a cost is 0 (equal laws). The inverse of ``epsilon_from_costs``.
    """
    if (costs == 0).any():
        return 0.0, int(np.argmax(costs == 0))
    costs = np.where(np.isnan(costs), np.inf, costs)
    exponents = costs + log_constant(lambdas, conversion) - lambdas * min(epsilon, _LARGEST_EPSILON)
    best = int(np.argmin(exponents))
    return max(math.exp(min(0.0, float(exponents[best]))), LEAST_DELTA), best


def costs_for(lambdas: FloatArray, epsilon: float, delta: float) -> FloatArray:
    """Return the largest cost at each order that still gives (epsilon, delta), [L], by the improved conversion.

    B_lambda = lambda epsilon + log delta - log c_lambda, rounded down; negative where an order is too small for any.
    """
    budgets = lambdas * min(epsilon, _LARGEST_EPSILON)
    terms = [budgets, np.full(len(lambdas), math.log(delta)), -log_constant(lambdas, "improved")]
    # The constant is a difference of terms of size lambda log lambda: their rounding is taken off.
    size = sum(np.abs(term) for term in terms) + 2 * (lambdas + 1) * np.log(lambdas + 1)
    return np.add.reduce(terms) - 2.0**-48 * size


def best_order(epsilon: float, delta: float) -> tuple[float, float]:
    """Return the whole order whose cost for (epsilon, delta) allows most Gaussian steps, and that cost.

    It maximises B_lambda / (lambda (lambda + 1)) with B from ``costs_for``, because the cost of a Gaussian step grows
    like lambda (lambda + 1). The cost is negative if (epsilon, delta) allow nothing at any order up to 1e5.
    """
    lambdas = np.arange(1.0, min(1e5, 2 - 2 * math.log(delta) / epsilon) + 1)  # beyond it less and less is left
    costs = costs_for(lambdas, epsilon, delta)
    best = int(np.argmax(costs / (lambdas * (lambdas + 1))))
    return float(lambdas[best]), float(costs[best])
