"""The interface of every distribution-free estimator: an upper bound of the mean of any law on [0, bound]."""

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
    """An upper bound of a mean from independent samples of one law, whatever that law is.

    Formal guarantees: if no value of the population exceeds ``bound``, the result is below the true mean with
    probability at most ``gamma`` over the draw of the samples, at every sample size. Nothing else is assumed of the
    law. No such estimator exists without a bound, so leaving it out raises InvalidInputError. tests/coverage counts
    misses on hostile laws.
    """

    gamma: float = 0.01
    monotone: ClassVar[bool] = True
    "Whether raising a value never lowers the result, so that values may be replaced by upper bounds of them."

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", validation.probability("gamma", self.gamma))

    def supports(self, values: Any, threshold: Any, *, bound: Any) -> Any:
        """Return whether ``upper(values, bound)`` is at most ``threshold``: bool for [m], [L] for [m, L].

        ``threshold``: a number of at least 0, or one for each column. A subclass may answer faster than ``upper``, and
        may then say False within a relative 1e-11 of the threshold. Raises InvalidInputError as ``upper`` does, and for
        thresholds that are negative or of another shape.
        """
        upper = self.upper(values, bound)
        result = upper <= checked_thresholds(threshold, np.shape(upper))
        return bool(result) if np.ndim(result) == 0 else result

    def floor(self, samples: int) -> float:
        """Return the least result that ``samples`` values can give, as a fraction of the bound: that of all zeros.

        Raises InvalidInputError for fewer than 3 samples.
        """
        return min(1.0, self._floor(validation.count("samples", samples, minimum=MINIMUM_SAMPLES)))

    def _log_upper(self, columns: FloatArray, cap: FloatArray | None) -> FloatArray:
        fractions, cap = as_fractions(columns, cap)
        upper = np.minimum(self._upper_fraction(fractions) * ROUND_UP, 1.0)
        with np.errstate(over="ignore"):  # above the largest float there is infinity
            return np.nextafter(cap + np.log(upper), np.inf)

    @abstractmethod
    def _upper_fraction(self, fractions: FloatArray) -> FloatArray:
        """Return upper bounds [L] of means from fractions of the bound [m, L], each in [0, 1]; above 1 means 1."""

    @abstractmethod
    def _floor(self, samples: int) -> float:
        """Return the upper bound from ``samples`` zeros, as a fraction of the bound; above 1 means 1."""


def as_fractions(columns: FloatArray, cap: FloatArray | None) -> tuple[FloatArray, FloatArray]:
    """Return values over their bound, [m, L] in [0, 1], and the log bounds [L], from log values and log bounds.

    Fractions are 1 where the bound is 0 or infinite, so that the bound is the answer. Raises InvalidInputError without
    a bound.
    """
    if cap is None:
        raise refuse("bound", None, "a number that no value of the population exceeds")
    with np.errstate(invalid="ignore"):
        fractions = np.exp(columns - cap)
    return np.where(np.isfinite(cap), np.minimum(fractions, 1.0), 1.0), cap


def checked_thresholds(threshold: Any, shape: tuple[int, ...]) -> FloatArray:
    """Return thresholds as numbers of at least 0: a single one, or one for each column, of shape ``shape``.

    Raises InvalidInputError for anything else.
    """
    array = validation.non_negative_array("threshold", threshold, finite=False)
    if array.shape not in ((), shape):
        raise refuse("threshold.shape", array.shape, f"one number, or one for each column, {shape}")
    return array
