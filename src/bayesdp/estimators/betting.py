"""The sharpest distribution-free bound here: the wealth won by betting against every mean that is too large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp.estimators.closing_in import root_from_above
from bayesdp.estimators.distribution_free import ROUND_UP, DistributionFree, as_fractions, checked_thresholds
from bayesdp.estimators.estimator import checked_columns, logarithms
from bayesdp.validation import FloatArray

_SMALLER_BETS = np.array([0.99, 0.95, 0.9, *(0.8 * 0.5**k for k in range(16))])
_FEW = 2048  # samples whose bets are computed together
_LOG_HALF = math.log(0.5)  # the weight of the whole bet; the smaller ones share the other half
_LOG_WEIGHT = math.log(0.5 / len(_SMALLER_BETS))
_ROUND_OFF = 64 * np.finfo(np.float64).eps  # of log W, per sample


@dataclass(frozen=True, kw_only=True)
class Betting(DistributionFree):
    """The upper bound bound * inf{u : W(u) >= 1/gamma}, ``bound`` itself if there is no such u.

    With z_i = value_i / bound,

        W(u) = sum_j w_j prod_i (1 + c_j (u - z_i) / (1 - u)),

    c_j in {1, .99, .95, .9, .8 * 2^-k for k = 0..15}, half the weight on c = 1 and the rest in equal parts. Each factor
    is at least 1 - c_j >= 0. If u is the true mean, each factor has mean 1, so has W(u), and Pr[W(u) >= 1/gamma] <=
    gamma by Markov's inequality. W increases in u and decreases in every z_i: the result is below the true mean only in
    that event, and raising a value never lowers it (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
    variables by betting", with bets fixed beforehand). W is rounded down and its root up.

    **Distribution-free**: for independent samples of any law on [0, bound], at every sample size.
    """

    def supports(self, values: Any, threshold: Any, *, bound: Any) -> Any:
        """Return whether ``upper`` is at most ``threshold``, by one evaluation of W: bool for [m], [L] for [m, L].

        True is always right. Within a relative 1e-11 of the threshold the answer may be False. Raises InvalidInputError
        as ``upper`` does, and for thresholds that are negative or of another shape.
        """
        log_values, log_bound = logarithms(values, bound)
        fractions, cap = as_fractions(*checked_columns(log_values, log_bound))
        with np.errstate(divide="ignore"):
            log_limit = np.log(checked_thresholds(threshold, log_values.shape[1:]))
        log_limit = np.broadcast_to(log_limit, cap.shape)
        result = log_limit >= cap
        for at in np.flatnonzero(~result):
            u = math.exp(log_limit[at] - cap[at]) / ROUND_UP**3
            result[at] = _Wealth(fractions[:, at]).log(u) >= -math.log(self.gamma)
        return bool(result[0]) if log_values.ndim == 1 else result

    def _upper_fraction(self, fractions: FloatArray) -> FloatArray:
        return np.array([self._root(_Wealth(column)) for column in fractions.T])

    def _floor(self, samples: int) -> float:
        return self._root(_Wealth(np.zeros(1), repeats=samples))

    def _root(self, wealth: _Wealth) -> float:
        """Return inf{u : W(u) >= 1/gamma} from above; 1 if there is none."""
        target = -math.log(self.gamma)
        high = wealth.whole_bet_reaches(target)
        return root_from_above(lambda u: wealth.log(u) - target, wealth.mean, high, 1e-13)


class _Wealth:
    """The wealth W of bets on fractions [m], each of which counts ``repeats`` times."""

    def __init__(self, fractions: FloatArray, repeats: int = 1) -> None:
        self.fractions = np.ascontiguousarray(fractions)
        self.repeats = repeats
        self.samples = repeats * len(fractions)
        self.mean = float(self.fractions.mean())  # W <= 1 there: no bet wins on average
        with np.errstate(divide="ignore"):
            self.log_left = repeats * float(np.log1p(-self.fractions).sum())

    def log(self, u: float) -> float:
        """Return log W(u), rounded down, for 0 <= u < 1."""
        slope = (u - self.fractions) / (1.0 - u)
        # c = 1: the factor is (1 - z) / (1 - u), free of the cancellation that 1 + slope has.
        logs = [_LOG_HALF + self.log_left - self.samples * math.log1p(-u)]
        if len(slope) <= _FEW:
            sums = np.log1p(_SMALLER_BETS[:, None] * slope).sum(axis=1)
        else:
            sums = np.array([np.log1p(bet * slope).sum() for bet in _SMALLER_BETS])
        logs += (_LOG_WEIGHT + self.repeats * sums).tolist()
        return float(np.logaddexp.reduce(logs)) - self.samples * _ROUND_OFF

    def whole_bet_reaches(self, target: float) -> float:
        """Return the u at which the bet c = 1 alone has log wealth ``target``, from above."""
        return -math.expm1((_LOG_HALF - target + self.log_left) / self.samples - _ROUND_OFF)
