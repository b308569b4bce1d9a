"""Log-moments of Gaussian steps that differ in their sampling rates: the table behind every cost of a record."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.mechanisms.gaussian import SubsampledGaussian
from bayesdp.mechanisms.kept_results import KeptResults, fingerprint
from bayesdp.validation import FloatArray

Direction = Literal["both", "record in", "record out"]
"""Whom a cost is about: somebody who was in the data, somebody who was not, or either."""
_KEPT: KeptResults[FloatArray] = KeptResults(1 << 25)


def log_moments(
    rates: ArrayLike, exposures: ArrayLike, lambdas: ArrayLike | range, direction: Direction = "both"
) -> FloatArray:
    """Return kappa_lambda(e) of K kinds of steps at L orders, [K, L]; a kind is a sampling rate and an exposure.

    ``rates``: sampling rates [K], or one rate for all kinds. ``exposures``: [K], or a single number; 0 costs 0 and
    infinity costs infinity. ``lambdas``: orders [L]. ``direction``: "both" is ``SubsampledGaussian.log_moment`` and
    needs whole orders wherever a rate is below 1; "record in" equals it there, and costs the chord between the whole
    orders around an order that is not whole; "record out" is ``SubsampledGaussian.reverse``, often much less.

    Up to the last digits, because kinds of one rate are computed together, and never below the exact value. For finite
    exposures, records that took ``counts`` [m, K] steps of each kind cost ``counts @ log_moments(...)``, [m, L]. Raises
    InvalidInputError for a rate outside (0, 1], a negative or NaN exposure, or an order that is out of range.
    """
    at, rate_of = np.atleast_1d(np.asarray(exposures, np.float64)), np.asarray(rates, np.float64)
    if rate_of.ndim == 0:
        return _of_one_rate(float(rate_of), at, lambdas, direction)
    table = np.empty((len(at), np.size(np.asarray(lambdas))))
    for rate in np.unique(rate_of).tolist():
        here = rate_of == rate
        table[here] = _of_one_rate(rate, at[here], lambdas, direction)
    return table


def _of_one_rate(rate: float, exposures: FloatArray, lambdas: ArrayLike | range, direction: Direction) -> FloatArray:
    orders = np.asarray(lambdas)
    if orders.dtype.kind not in "iuf":
        return _computed(rate, exposures, lambdas, direction)  # which says what is wrong with them
    arguments = fingerprint([exposures, orders], rate, direction)
    table = _KEPT.find(arguments)
    if table is None:
        table = _computed(rate, exposures, lambdas, direction)
        _KEPT.keep(arguments, table, table.nbytes)
    return table.copy()


def _computed(rate: float, exposures: FloatArray, lambdas: ArrayLike | range, direction: Direction) -> FloatArray:
    step = SubsampledGaussian(sample_rate=rate)
    if direction == "both":
        return step.log_moment(exposures, lambdas)
    if direction == "record out":
        return np.where(np.isinf(exposures)[:, None], np.inf, step.reverse(exposures, lambdas))
    orders = validation.lambdas(lambdas, whole=False)
    if rate == 1:
        return step.forward(exposures, orders)
    # lambda -> log E[e^{lambda L}] is convex and 0 at 0, so chords lie above it.
    below = np.floor(orders)
    share = orders - below
    whole = np.unique([*below, *np.ceil(orders)])
    table = np.zeros((len(exposures), len(whole)))
    table[:, whole > 0] = step.forward(exposures, whole[whole > 0])
    lower, upper = table[:, np.searchsorted(whole, below)], table[:, np.searchsorted(whole, np.ceil(orders))]
    return np.where(share == 0, upper, (1 - share) * lower + share * upper) * (1 + 2.0**-50)
