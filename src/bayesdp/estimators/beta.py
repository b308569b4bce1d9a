"""The paper's estimator for binary values: an upper quantile of the Beta posterior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainccinv

from bayesdp.estimators.estimator import ColumnEstimator
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True, kw_only=True)
class Beta(ColumnEstimator):
    """The estimate low + (high - low) rho of a mean over two values, rho the upper gamma quantile of a Beta posterior.

    The posterior is Beta(N1 + 1, N0 + 1), from a flat prior, N1 samples at ``high`` and N0 at ``low`` (the paper's
    estimator for binary values). Where only one value was seen, the other is the bound; without a bound it is 0 or 1
    for samples in {0, 1}. The result is never ``low`` itself: 100 zeros do not prove 0.

    **Model-based**: ``gamma`` is a posterior probability. It is also nearly the Clopper-Pearson bound. More than two
    different values, or a single one other than 0 and 1 without a bound, raise InvalidInputError.
    """

    def _log_upper_of_one(self, log_values: FloatArray, cap: float | None) -> float:
        seen = np.unique(log_values)
        if len(seen) > 2:
            raise refuse(
                "distinct values", len(seen), "at most 2; use Dirichlet for finitely many, StudentT for continuous"
            )
        low, high = float(seen[0]), float(seen[-1])
        if len(seen) == 1:
            if cap is not None and low < cap:
                high = cap
            elif cap is not None or low == np.inf:
                return low
            elif low in (0.0, -np.inf):  # values 1 or 0
                low, high = -np.inf, 0.0
            else:
                raise refuse("value", float(np.exp(low)), "two different values, or a known bound")
        ones = int((log_values == high).sum())
        rho = float(betainccinv(ones + 1.0, len(log_values) - ones + 1.0, self.gamma))
        rho = min(1.0, rho * (1 + 1e-12))
        with np.errstate(divide="ignore"):
            return float(np.logaddexp(low + np.log1p(-rho), high + np.log(rho)))
