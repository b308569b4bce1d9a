"""What every distribution-free estimator offers: an upper bound of the mean of any law on [0, bound]."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bayesdp import validation
from bayesdp.estimators.estimator import MINIMUM_SAMPLES, Estimator
from bayesdp.validation import FloatArray, refuse

ROUND_UP = 1.0 + 1e-12  # more than logarithms of numbers from 1e-308 to 1e308 lose


@dataclass(frozen=True, kw_only=True)
class DistributionFree(Estimator):
    """An upper bound of a mean from independent samples of one law, whatever that law is, with a known bound.

    Formal guarantees: if no value of the population exceeds ``bound``, the result is below the true mean with
    probability at most ``gamma`` over the draw of the samples, at every sample size. Nothing is asked of the
    law. Without a bound no such estimator exists, so that is refused.
    """

    gamma: float = 0.01
    monotone: ClassVar[bool] = True
    "Whether raising a value never lowers the result, so that values may be replaced by upper bounds of them."

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", validation.probability("gamma", self.gamma))

    def supports(self, values: Any, threshold: Any, *, bound: Any) -> Any:
        """Whether the upper bound is at most ``threshold``; bool for [m], [L] for [m, L]."""
        upper = self.upper(values, bound)
        result = upper <= checked_thresholds(threshold, np.shape(upper))
        return bool(result) if np.ndim(result) == 0 else result

    def floor(self, samples: int) -> float:
        """The least that so many samples can support, as a share of the bound: the result if all of them are 0."""
        return min(1.0, self._floor(validation.count("samples", samples, minimum=MINIMUM_SAMPLES)))

    def _log_upper(self, columns: FloatArray, cap: FloatArray | None) -> FloatArray:
        fractions, cap = as_fractions(columns, cap)
        upper = np.minimum(self._upper_fraction(fractions) * ROUND_UP, 1.0)
        return np.nextafter(cap + np.log(upper), np.inf)

    @abstractmethod
    def _upper_fraction(self, fractions: FloatArray) -> FloatArray:
        """Upper bounds [L] of the means of fractions of the bound [m, L], each in [0, 1]."""

    @abstractmethod
    def _floor(self, samples: int) -> float:
        """The upper bound for so many zeros; more than 1 means 1."""


def as_fractions(columns: FloatArray, cap: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Values over their bound, in [0, 1], and its logarithm; 1 where the bound is 0 or infinite: it is the answer."""
    if cap is None:
        raise refuse("bound", None, "a number that no value of the population exceeds")
    with np.errstate(invalid="ignore"):
        fractions = np.exp(columns - cap)
    return np.where(np.isfinite(cap), np.minimum(fractions, 1.0), 1.0), cap


def checked_thresholds(threshold: Any, shape: tuple[int, ...]) -> FloatArray:
    """Thresholds of at least 0: one number, or one for each column."""
    array = validation.non_negative_array("threshold", threshold, finite=False)
    if array.shape not in ((), shape):
        raise refuse("threshold.shape", array.shape, f"one number, or one for each column, {shape}")
    return array
