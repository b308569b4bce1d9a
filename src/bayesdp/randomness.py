"""Where noise and batches come from: a cryptographic generator, or a seed when a run must be repeated exactly.

Whoever knows a seed knows the noise and which records were drawn, so a seeded run protects nobody. That is why the
default draws both from the operating system, and why a seeded run says "not for release" wherever it is shown.
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

_AT_ONCE = 1 << 18  # values of noise: what is computed on the way stays small
Purpose = Literal["noise", "batch", "mask", "posterior"]


class Randomness(Protocol):
    """A source of random bytes; those of a seeded one are a function of step and purpose."""

    reproducible: bool

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """So many random bytes; ``part`` counts the calls for one purpose at one step."""
        ...


class Secure:
    """The operating system's cryptographic generator: nothing can be predicted or repeated."""

    reproducible = False

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """So many bytes of ``os.urandom``; fresh ones at every call."""
        return os.urandom(count)


class Seeded:
    """The same bytes for the same seed, step and purpose: for experiments, not for release."""

    reproducible = True
    _PURPOSES = ("noise", "batch", "mask", "posterior")

    def __init__(self, seed: int) -> None:
        self.seed = validation.count("seed", seed, minimum=0)

    def bytes(self, count: int, *, step: int, purpose: Purpose, part: int = 0) -> bytes:
        """So many bytes of a Philox generator with a stream of its own."""
        key = np.random.SeedSequence([self.seed, step, self._PURPOSES.index(purpose), part])
        return np.random.Generator(np.random.Philox(key)).bytes(count)


def source(seed: int, *, reproducible: bool) -> Randomness:
    """Seeded if the run is to be repeated exactly, else cryptographic, whatever the seed is."""
    return Seeded(seed) if reproducible else Secure()


def gaussian(
    randomness: Randomness, shape: Sequence[int], std: float, *, step: int, purpose: Purpose = "noise"
) -> FloatArray:
    """Independent Gaussian noise of standard deviation ``std``.

    Each value is the sum of four normal ones over two, as Holohan & Braghin (2021) propose: which floating-point
    numbers a single one can take gives away what it was added to (Mironov, 2012). The uniform numbers behind them have
    64 bits, so the tail ends beyond 9 standard deviations, where less than 1e-18 of the mass is left.
    """
    noise = np.empty(math.prod(shape))
    for part, start in enumerate(range(0, len(noise), _AT_ONCE)):
        some = noise[start : start + _AT_ONCE]
        bits = np.frombuffer(randomness.bytes(4 * 8 * len(some), step=step, purpose=purpose, part=part), dtype="<u8")
        some[:] = _sums_of_four(bits.reshape(2, 2, -1), std / 2)
    return noise.reshape(shape)


def _sums_of_four(bits: NDArray[np.uint64], std: float) -> FloatArray:
    """Sums of four Gaussians from four whole numbers each, [2, 2, n], by the method of Box and Muller."""
    radius, angle = (bits + 0.5) * 2.0**-64  # in (0, 1]: the logarithm is finite
    radius = std * np.sqrt(-2 * np.log(radius))
    angle *= 2 * np.pi
    return (radius * (np.cos(angle) + np.sin(angle))).sum(axis=0)


def poisson_batch(randomness: Randomness, records: int, rate: float, *, step: int) -> NDArray[np.int64]:
    """Which records are drawn: each by itself with a probability of at most ``rate``, and less by 2^-32 at most."""
    draws = np.frombuffer(randomness.bytes(4 * records, step=step, purpose="batch"), dtype="<u4")
    return np.flatnonzero(draws < math.floor(rate * 2.0**32))


def random_mask(randomness: Randomness, shape: Sequence[int], share: float, *, step: int) -> NDArray[np.bool_]:
    """Which weights a step updates: each by itself with probability ``share``. It does not depend on the data."""
    draws = np.frombuffer(randomness.bytes(4 * math.prod(shape), step=step, purpose="mask"), dtype="<u4")
    return (draws < share * 2.0**32).reshape(shape)
