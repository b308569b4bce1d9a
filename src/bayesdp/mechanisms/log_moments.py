"""Log-moments of Gaussian steps that differ in their sampling rates: the table behind every cost of a record."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bayesdp.mechanisms.gaussian import SubsampledGaussian
from bayesdp.validation import FloatArray


def log_moments(rates: ArrayLike, exposures: ArrayLike, lambdas: ArrayLike | range) -> FloatArray:
    """Return kappa_lambda(e) of K kinds of steps at L orders, [K, L]; a kind is a sampling rate and an exposure.

    ``rates``: sampling rates [K], or one rate for all kinds. ``exposures``: [K], or a single number; 0 costs 0 and
    infinity costs infinity. ``lambdas``: orders [L], whole numbers wherever a rate is below 1.

    Row k is ``SubsampledGaussian(sample_rate=rates[k]).log_moment(exposures[k], lambdas)``, up to the last digits
    because kinds of one rate are computed together: never below the exact value, in both directions of add/remove. For
    finite exposures, records that took ``counts`` [m, K] steps of each kind cost ``counts @ log_moments(...)``, [m, L].
    Raises InvalidInputError for a rate outside (0, 1], a negative or NaN exposure, or an order that is out of range.
    """
    at, rate_of = np.atleast_1d(np.asarray(exposures, np.float64)), np.asarray(rates, np.float64)
    if rate_of.ndim == 0:
        return SubsampledGaussian(sample_rate=float(rate_of)).log_moment(at, lambdas)
    table = np.empty((len(at), np.size(np.asarray(lambdas))))
    for rate in np.unique(rate_of).tolist():
        here = rate_of == rate
        table[here] = SubsampledGaussian(sample_rate=rate).log_moment(at[here], lambdas)
    return table
