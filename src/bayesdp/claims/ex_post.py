"""What a finished run has cost each record, without assuming anything about how its steps depended on each other.

For a record x, let P be the law of the released outputs w that is true of it and Q the law if it had been otherwise
(record out: P without x, Q with it), L = log P(w) / Q(w), and K(lambda) the costs of x, which accumulate along the run.
Then e^{lambda L - K(lambda)} has mean at most 1 under P: step by step it is a supermartingale, however later steps
depend on earlier outputs. The same holds for a mixture M = sum_j w_j e^{lambda_j L - K(lambda_j)} over orders that were
declared beforehand. Two forms of a bound follow from it; docs/theory.md has the proofs.

Hockey-stick form, the default: P(S) <= E_Q[e^{epsilon(w)} 1_S] + delta for every set S of outputs. With a constant
epsilon this *is* (epsilon, delta)-DP; here epsilon may depend on the run that took place.

Markov form: Pr[L > epsilon(w)] <= delta. It bounds the loss itself, which is stricter, so its epsilon is larger.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.validation import FloatArray

Form = Literal["hockey-stick", "markov"]
FORMS: tuple[Form, ...] = ("hockey-stick", "markov")
"""The forms of an ex-post bound; the first is the default."""
_MOST_ITERATIONS = 60  # usually five are enough; stopping early leaves epsilon too large, never too small
_NEAR = 2.0**-46  # of a root: how far Newton's method may be from it before the bisection takes over


def ex_post_epsilons(costs: FloatArray, delta: float, mixture: OrderMixture, form: Form = "hockey-stick") -> FloatArray:
    """Return each record's ex-post epsilon, [m], from its costs [m, L] at the orders of the mixture.

    Never below the exact value; 0 for a record that cost nothing, and infinite if all its costs are.
    """
    return (hockey_stick_epsilons if form == "hockey-stick" else markov_epsilons)(costs, delta, mixture)


def hockey_stick_epsilons(costs: FloatArray, delta: float, mixture: OrderMixture) -> FloatArray:
    """Return each record's epsilon in the form of differential privacy, [m].

    It suffices that (1 - e^{epsilon - L})_+ <= delta M(L) for all L. So epsilon = max_L [L + log(1 - delta M(L))],
    which is concave in L: its derivative vanishes where delta (M + M') = 1, and that is found by Newton's method and,
    to neighbouring floats, by bisection.
    """
    orders = mixture.lambdas
    exponents: FloatArray = np.log(mixture.weights) + math.log(delta) - costs
    with np.errstate(invalid="ignore"):
        high: FloatArray = np.min(-exponents / orders, axis=1)  # delta M(L) >= 1 there
    finite = np.isfinite(high)
    high = np.where(finite, high, 0.0)
    low: FloatArray = high - (2.0 + math.log(2.0 * len(orders) * (1 + orders[-1]))) / orders[0]  # delta (M + M') < 1
    usable = np.where(finite[:, None], exponents, -np.inf)
    near = _where_derivative_vanishes(usable, orders, high, finite)
    _narrow(usable, orders, low, high, near + _NEAR * np.abs(near))
    _narrow(usable, orders, low, high, near - _NEAR * np.abs(near))
    for _ in range(100):
        if not _narrow(usable, orders, low, high, (low + high) / 2):  # neighbouring floats
            break
    mixed = np.exp(usable + orders * low[:, None]).sum(axis=1)
    # At the upper end of the bracket L is larger and the mixture at its lower end smaller: above the maximum.
    largest = np.maximum(high + np.log1p(-mixed), 0.0) * (1 + 2.0**-40) + 2.0**-50
    return np.where((costs == 0).all(axis=1), 0.0, np.where(finite, largest, np.inf))


def _where_derivative_vanishes(
    exponents: FloatArray, orders: FloatArray, start: FloatArray, finite: NDArray[np.bool_]
) -> FloatArray:
    """Return about the L at which delta (M + M') = 1, [m]: Newton's method on its logarithm, which is convex."""
    near, going = start.copy(), np.flatnonzero(finite)
    weighted = exponents + np.log1p(orders)
    for _ in range(_MOST_ITERATIONS):
        value, slope = _log_mixture(weighted[going], orders, near[going])
        step = value / slope
        near[going] -= step
        going = going[np.abs(step) > _NEAR * np.abs(near[going])]
        if not len(going):
            break
    return near


def _narrow(exponents: FloatArray, orders: FloatArray, low: FloatArray, high: FloatArray, at: FloatArray) -> bool:
    """Move an end of each search to ``at`` if that lies between its ends; False if none does."""
    inside = np.flatnonzero((low < at) & (at < high))
    terms = np.exp(exponents[inside] + orders * at[inside, None])
    beyond = terms @ (1 + orders) >= 1
    high[inside[beyond]] = at[inside[beyond]]
    low[inside[~beyond]] = at[inside[~beyond]]
    return len(inside) > 0


def markov_epsilons(costs: FloatArray, delta: float, mixture: OrderMixture) -> FloatArray:
    """Return the root of M(epsilon) = 1 / delta for each record, [m].

    The search starts at the bound of the best single order, which lies above the root. The logarithm of the mixture is
    convex and increasing in epsilon, so Newton's method descends towards the root and never passes it.
    """
    orders = mixture.lambdas
    target = -math.log(delta) * (1 + 2.0**-50) + 2.0**-50
    exponents = np.log(mixture.weights) - costs
    with np.errstate(invalid="ignore"):
        epsilons: FloatArray = np.min((target - exponents) / orders, axis=1)
    going = np.flatnonzero(np.isfinite(epsilons))
    for _ in range(_MOST_ITERATIONS):
        value, slope = _log_mixture(exponents[going], orders, epsilons[going])
        step = np.maximum(value - target, 0.0) / slope
        epsilons[going] -= step
        going = going[step > 2.0**-52 * epsilons[going]]
        if not len(going):
            break
    return np.where((costs == 0).all(axis=1), 0.0, epsilons * (1 + 2.0**-48))


def _log_mixture(exponents: FloatArray, orders: FloatArray, epsilons: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the logarithm of the mixture at each record's epsilon, [m], and its derivative, the mean order, [m]."""
    logs = exponents + orders * epsilons[:, None]
    largest = logs.max(axis=1)
    with np.errstate(under="ignore"):
        terms = np.exp(logs - largest[:, None])
    total = terms.sum(axis=1)
    return largest + np.log(total), terms @ orders / total
