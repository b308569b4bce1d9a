"""Checks of input. Each returns its argument as a plain number or array, or raises InvalidInputError.

The message is one line that quotes name and value and says what would be right:
``sample_rate=1.5: expected a rate in (0, 1].`` Every public function checks before it computes, so that a refused call
changes nothing. Scalars may be anything that ``float`` takes, NumPy and 0-d tensors included, but no strings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


class InvalidInputError(ValueError):
    """Input that cannot be accounted for; a ValueError whose message quotes name=value and says what would be right."""


def refuse(name: str, value: object, expected: str) -> InvalidInputError:
    """Return, for the caller to raise, the error ``name=value: expected {expected}.``, long values shortened."""
    return InvalidInputError(f"{name}={brief(value)}: expected {expected}.")


def brief(value: object) -> str:
    """Return the repr of a value on one line of at most 80 characters, as messages quote it."""
    if isinstance(value, float):  # also a NumPy float, whose own repr is np.float64(...)
        return repr(float(value))
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # a whole number with more digits than Python prints
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def listed(name: str, values: Any, expected: str) -> list[Any]:
    """Return what can be iterated as a list. Raises InvalidInputError for anything else, text among it."""
    if isinstance(values, str | bytes):
        raise refuse(name, values, expected)
    try:
        return list(values)
    except TypeError:
        raise refuse(name, values, expected) from None


def _number(name: str, value: object, expected: str) -> float:
    if isinstance(value, str | bytes) or np.ma.is_masked(value):  # the float of a missing value is NaN, with a warning
        raise refuse(name, value, expected)
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise refuse(name, value, expected) from None


def positive(name: str, value: object) -> float:
    """Return ``value`` as a float above 0 and below infinity; raise InvalidInputError if it is none."""
    expected = "a finite number above 0"
    number = _number(name, value, expected)
    if not 0 < number < math.inf:
        raise refuse(name, value, expected)
    return number


def non_negative(name: str, value: object) -> float:
    """Return ``value`` as a finite float of at least 0; raise InvalidInputError if it is none."""
    expected = "a finite number of at least 0"
    number = _number(name, value, expected)
    if not 0 <= number < math.inf:
        raise refuse(name, value, expected)
    return number


def noise_std(value: object) -> float:
    """Return a standard deviation from 1e-100 to 1e100: its square and that of its inverse are floats.

    Raises InvalidInputError outside that range.
    """
    number = positive("noise_std", value)
    if not 1e-100 <= number <= 1e100:
        raise refuse("noise_std", value, "a number from 1e-100 to 1e100")
    return number


def noise_multiplier(value: object) -> float:
    """Return a noise multiplier (noise over clip) from 1e-6 to 1e12, the range in which dp-accounting computes.

    Raises InvalidInputError outside it.
    """
    expected = "a noise multiplier from 1e-6 to 1e12"
    number = _number("noise_multiplier", value, expected)
    if not 1e-6 <= number <= 1e12:
        raise refuse("noise_multiplier", value, expected)
    return number


def sample_rate(value: object) -> float:
    """Return a Poisson sampling rate as a float in (0, 1]; raise InvalidInputError if it is none."""
    expected = "a rate in (0, 1]"
    number = _number("sample_rate", value, expected)
    if not 0 < number <= 1:
        raise refuse("sample_rate", value, expected)
    return number


def probability(name: str, value: object) -> float:
    """Return ``value`` as a float strictly between 0 and 1; raise InvalidInputError if it is none."""
    expected = "a probability strictly between 0 and 1"
    number = _number(name, value, expected)
    if not 0 < number < 1:
        raise refuse(name, value, expected)
    return number


MOST = 10**12
"""The largest count of steps, records or answers that is accepted; every whole number up to it is a float."""


def count(name: str, value: object, *, minimum: int) -> int:
    """Return ``value`` as an int from ``minimum`` to ``MOST``; 3.0 is accepted.

    Raises InvalidInputError for 3.5, True, infinity, text and anything out of range.
    """
    expected = f"a whole number of at least {minimum}"
    if type(value) in (bool, np.bool_):
        raise refuse(name, value, expected)
    number = _number(name, value, expected)
    if not (math.isfinite(number) and number == int(number) and number >= minimum):
        raise refuse(name, value, expected)
    if number > MOST:
        raise refuse(name, value, f"at most {MOST:g}")
    return int(number)


def lambdas(values: ArrayLike | range, *, whole: bool) -> FloatArray:
    """Return orders lambda in (0, 1e6] as an array [L], in the order given.

    ``whole``: the formula that uses them is a sum over lambda + 1 trials, so they must be whole. Raises
    InvalidInputError if there are none, or quotes the first that is out of range.
    """
    expected = "whole numbers from 1 to 1e6" if whole else "numbers above 0, at most 1e6"
    array = as_floats("lambdas", values).ravel()
    if array.size == 0:
        raise refuse("lambdas", [], "at least one order")
    good = (array > 0) & (array <= 1e6)
    if whole:
        good &= array == np.floor(array)
    if not good.all():
        raise refuse("lambdas", float(array[~good][0]), expected)
    return array


def as_floats(name: str, values: Any) -> FloatArray:
    """Return ``values`` as a float64 array of the same shape; an array that already is one is not copied.

    Takes whatever becomes a NumPy array of real numbers: lists, torch tensors (with or without a graph), JAX arrays,
    data frames. NaN and infinity pass. Raises InvalidInputError for text, complex numbers, masked (missing) entries,
    numbers beyond float64 and rows of different lengths.
    """
    try:
        array = np.asarray(values)
    except RuntimeError:  # a torch tensor that still carries its graph
        array = np.asarray(values.detach())
    except (TypeError, ValueError):  # rows of different lengths
        raise refuse(name, values, "numbers") from None
    if array.dtype == np.float64 and not np.ma.isMaskedArray(values):
        return array
    if array.dtype.kind not in "biufO" or np.ma.is_masked(values):
        raise refuse(name, values, "real numbers, none missing")
    try:
        with np.errstate(over="raise"):
            return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, FloatingPointError):
        raise refuse(name, values, "numbers") from None


def non_negative_array(name: str, values: Any, *, finite: bool = True) -> FloatArray:
    """Return ``values`` as a float64 array of numbers of at least 0, in their shape; as ``as_floats`` otherwise.

    Infinity passes only where ``finite`` is False. Raises InvalidInputError, which names the first entry that is
    negative, NaN or infinite by its index: ``norms[3, 7]=nan``.
    """
    array = as_floats(name, values)
    expected = "finite numbers of at least 0" if finite else "numbers of at least 0"
    # One pass in the common case: min() is NaN if any element is.
    if array.size and not (array.min() >= 0 and (not finite or array.max() < math.inf)):
        bad = ~(array >= 0)
        if finite:
            bad |= ~np.isfinite(array)
        place = np.unravel_index(int(np.argmax(bad)), array.shape)
        where = f"{name}[{', '.join(str(int(i)) for i in place)}]" if place else name
        raise refuse(where, float(array[place]), expected)
    return array
