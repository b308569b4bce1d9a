"""The interface of every estimator: an upper estimate of the mean of non-negative values, at a failure probability.

Values are [m], or [m, L] for L columns that are estimated separately, such as one per order lambda; the result is a
float or [L]. ``upper`` and ``log_upper`` agree; the second takes and returns logarithms, for values like e^100000.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.validation import FloatArray, refuse

MINIMUM_SAMPLES = 3
"""The least number of samples from which a mean is estimated."""
_ROUND_UP = 1.0 + 1e-15  # exp(log(b)) may come out just below b


class Estimator(ABC):
    """An upper estimate of the mean of a population from m of its values.

    Formal guarantees: under the estimator's assumptions, which each class states, the result is below the true mean
    with probability at most ``gamma``. Given ``bound``, a number that no value of the
    population exceeds, the result never exceeds it either. Rounding errs upwards.

    Fewer than 3 samples, values that are negative or NaN, and values above their bound raise InvalidInputError.
    """

    gamma: float

    def upper(self, values: Any, bound: Any = None) -> Any:
        """Return an upper estimate of the mean behind ``values``: a float for [m], an array [L] for [m, L].

        ``bound``: a number, or one for each column [L]; None where none is known, which some estimators refuse.
        """
        log_values, log_bound = logarithms(values, bound)
        with np.errstate(over="ignore"):
            result = np.exp(self.log_upper(log_values, log_bound)) * _ROUND_UP
        if bound is not None:
            result = np.minimum(result, validation.as_floats("bound", bound))
        return float(result) if np.ndim(result) == 0 else result

    def log_upper(self, log_values: Any, log_bound: Any = None) -> Any:
        """Return the logarithm of ``upper``, from logarithms of values and bounds; -inf stands for a value of 0."""
        columns, cap = checked_columns(log_values, log_bound)
        result = self._log_upper(columns, cap)
        if cap is not None:
            result = np.minimum(result, cap)
        return float(result[0]) if np.ndim(log_values) == 1 else result

    @abstractmethod
    def _log_upper(self, columns: FloatArray, cap: FloatArray | None) -> FloatArray:
        """Return log upper estimates [L] from checked log values [m, L] and their log bounds [L], None for no bound."""


@dataclass(frozen=True, kw_only=True)
class ColumnEstimator(Estimator):
    """An estimator that looks at one column of values at a time; a subclass defines ``_log_upper_of_one``."""

    gamma: float = 1e-15

    def __post_init__(self) -> None:
        object.__setattr__(self, "gamma", validation.probability("gamma", self.gamma))

    def _log_upper(self, columns: FloatArray, cap: FloatArray | None) -> FloatArray:
        caps = [None] * columns.shape[1] if cap is None else cap.tolist()
        return np.array([self._log_upper_of_one(c, b) for c, b in zip(columns.T, caps, strict=True)])

    @abstractmethod
    def _log_upper_of_one(self, log_values: FloatArray, cap: float | None) -> float:
        """Return the log upper estimate from checked log values [m] and their log bound, None for no bound."""


def logarithms(values: Any, bound: Any) -> tuple[FloatArray, FloatArray | None]:
    """Return logarithms of values, and of their bound if there is one, in their shapes; 0 becomes -inf.

    Raises InvalidInputError for negative numbers and NaN.
    """
    array = validation.non_negative_array("values", values, finite=False)
    limit = None if bound is None else validation.non_negative_array("bound", bound, finite=False)
    with np.errstate(divide="ignore"):
        return np.log(array), None if limit is None else np.log(limit)


def checked_columns(log_values: Any, log_bound: Any) -> tuple[FloatArray, FloatArray | None]:
    """Return log values as columns [m, L] ([m] becomes one column) and their log bounds [L], None for no bound.

    Raises InvalidInputError for other shapes, fewer than 3 samples, NaN, and values more than 1e-9 above their bound.
    """
    array = validation.as_floats("log_values", log_values)
    if array.ndim not in (1, 2):
        raise refuse("log_values.shape", array.shape, "[m] or [m, L]")
    if len(array) < MINIMUM_SAMPLES:
        raise refuse("samples", len(array), f"at least {MINIMUM_SAMPLES}")
    if np.isnan(array).any():
        raise refuse("log_values", math.nan, "numbers")
    columns = array[:, None] if array.ndim == 1 else array
    cap = None
    if log_bound is not None:
        given = validation.as_floats("log_bound", log_bound)
        if given.shape not in ((), (1,), columns.shape[1:]):
            raise refuse("log_bound.shape", given.shape, "a number, or one for each column [L]")
        cap = np.broadcast_to(given, columns.shape[1:])
        if np.isnan(cap).any():
            raise refuse("log_bound", math.nan, "a number")
        excess = columns.max(axis=0) > cap + 1e-9
        if excess.any():
            at = int(np.argmax(excess))
            raise refuse("max(log_values)", float(columns[:, at].max()), f"at most log_bound={float(cap[at])!r}")
    return columns, cap


def scaled(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return values over the largest of their column, in [0, 1], [m, L], and the logarithms of these scales, [L].

    From log values [m, L]; a column whose largest value is 0 or infinite has scale 1.
    """
    top = columns.max(axis=0)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(over="ignore"):
        return np.exp(columns - top), top
