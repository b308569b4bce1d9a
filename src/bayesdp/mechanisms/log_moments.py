"""Log-moments of Gaussian steps that differ in their sampling rates: the table behind every cost of a record."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bayesdp.mechanisms.gaussian import SubsampledGaussian
from bayesdp.validation import FloatArray


def log_moments(rates: ArrayLike, exposures: ArrayLike, lambdas: ArrayLike | range) -> FloatArray:
    """Return kappa_lambda(e) of K kinds of steps, [K, L]: sampling rates [K] or one rate, exposures [K].

    An infinite exposure costs infinity. Guarantees and accuracy are those of ``SubsampledGaussian.log_moment``: never
    below the exact value, in both directions of add/remove.
    """
    at, rate_of = np.atleast_1d(np.asarray(exposures, np.float64)), np.asarray(rates, np.float64)
    if rate_of.ndim == 0:
        return SubsampledGaussian(sample_rate=float(rate_of)).log_moment(at, lambdas)
    table = np.empty((len(at), np.size(np.asarray(lambdas))))
    for rate in np.unique(rate_of).tolist():
        here = rate_of == rate
        table[here] = SubsampledGaussian(sample_rate=rate).log_moment(at[here], lambdas)
    return table
