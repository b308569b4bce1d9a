"""Noise, batches and masks from a cryptographic generator, or from a seed when a run must be repeated exactly.

Anyone who knows the seed knows the noise and which records were drawn, so a seeded run protects nobody. That is why the
operating system's generator is the default, and why a seeded run says "not for release" wherever it is shown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bayesdp import validation
from bayesdp.validation import FloatArray

_AT_ONCE = 1 << 18  # values of noise that are made together: temporary arrays stay small
Purpose = Literal["noise", "batch", "mask", "posterior", "trials"]
"""What random bytes are for; each purpose has a stream of its own."""


class Randomness(Protocol):
    """A source of random bytes: ``Secure`` or ``Seeded``."""

    reproducible: bool
    "True if the same bytes can be had again; then a run is not for release."

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """Return ``count`` random bytes; ``part`` counts the calls for one purpose at one step."""
        ...


class Secure:
    """The operating system's cryptographic generator: nothing can be predicted or repeated.

    Use it for every model that is released.
    """

    reproducible = False

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """Return ``count`` bytes of ``os.urandom``, fresh at every call."""
        return os.urandom(count)


class Seeded:
    """A generator that repeats: the bytes are a function of seed, step, purpose and part.

    For experiments only. Runs that use it say that they are not for release. Raises InvalidInputError unless the seed
    is a whole number of at least 0.
    """

    reproducible = True
    _PURPOSES = ("noise", "batch", "mask", "posterior", "trials")

    def __init__(self, seed: int) -> None:
        self.seed = validation.count("seed", seed, minimum=0)

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """Return ``count`` bytes of a Philox generator that has a stream of its own for these arguments."""
        key = np.random.SeedSequence([self.seed, step, self._PURPOSES.index(purpose), part])
        return np.random.Generator(np.random.Philox(key)).bytes(count)


def source(seed: int, *, reproducible: bool) -> Randomness:
    """Return ``Seeded(seed)`` if the run must be repeatable, and ``Secure()`` otherwise, whatever the seed."""
    return Seeded(seed) if reproducible else Secure()


def gaussian(
    randomness: Randomness, shape: Sequence[int], std: float, *, step: int, purpose: Purpose = "noise"
) -> FloatArray:
    """Return independent Gaussian noise of standard deviation ``std``, an array of this shape.

    Each value is the sum of four normal values divided by two, as Holohan & Braghin (2021) propose: the floating-point
    numbers that a single normal value can take give away what it was added to (Mironov, 2012). The uniform numbers
    behind the values have 64 bits, so the tail ends beyond 9 standard deviations, where less than 1e-18 of the mass is
    left.
    """
    noise = np.empty(math.prod(shape))
    for part, start in enumerate(range(0, len(noise), _AT_ONCE)):
        block = noise[start : start + _AT_ONCE]
        bits = np.frombuffer(randomness.bytes(4 * 8 * len(block), step=step, purpose=purpose, part=part), dtype="<u8")
        block[:] = _sums_of_four(bits.reshape(2, 2, -1), std / 2)
    return noise.reshape(shape)


def _sums_of_four(bits: NDArray[np.uint64], std: float) -> FloatArray:
    """Return sums [n] of four Gaussians from four whole numbers each, [2, 2, n], by the method of Box and Muller."""
    radius, angle = (bits + 0.5) * 2.0**-64  # in (0, 1]: the logarithm is finite
    radius = std * np.sqrt(-2 * np.log(radius))
    angle *= 2 * np.pi
    return (radius * (np.cos(angle) + np.sin(angle))).sum(axis=0)


def poisson_batch(randomness: Randomness, records: int, rate: float, *, step: int) -> NDArray[np.int64]:
    """Draw a Poisson batch, and return the indices of its records in ascending order.

    Each of the ``records`` records is drawn independently, with a probability that is never above ``rate`` and at most
    2^-32 below it: rounding is on the private side.
    """
    draws = np.frombuffer(randomness.bytes(4 * records, step=step, purpose="batch"), dtype="<u4")
    return np.flatnonzero(draws < math.floor(rate * 2.0**32))


def random_mask(randomness: Randomness, shape: Sequence[int], share: float, *, step: int) -> NDArray[np.bool_]:
    """Draw the mask of the weights that a step updates, True with probability ``share`` for each, independently.

    It does not depend on the data, so it costs no privacy.
    """
    draws = np.frombuffer(randomness.bytes(4 * math.prod(shape), step=step, purpose="mask"), dtype="<u4")
    return (draws < share * 2.0**32).reshape(shape)


def uniform(randomness: Randomness, *, step: int, part: int = 0) -> float:
    """Draw a number from [0, 1), a multiple of 2^-53: for the number of trials, and for the settings of each."""
    [draw] = np.frombuffer(randomness.bytes(8, step=step, purpose="trials", part=part), dtype="<u8")
    return float(int(draw) >> 11) * 2.0**-53
