"""Two steps without sampling, the second adapted to the first: averages over trajectories are not a bound.

The first step has exposure ``first``. Without the record its output, along the record's direction and in units of the
noise, is y ~ N(0, 1), with it y ~ N(first, 1), and its privacy loss is l(y) = first y - first^2 / 2. The second step
has exposure ``second`` if ``side`` y passes ``threshold``, and 0 otherwise. Given y the second output is independent,
so delta of both steps is the mean over y of the second step's Gaussian profile at the epsilon the first leaves over.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import mpmath as mp

Direction = Literal["record in", "record out"]
DIGITS = 20  # the results are floats; with 30 they differ by less than 1e-11, relative


@dataclass(frozen=True, kw_only=True)
class Trap:
    """``side`` is 1 for a trap set for the record in, -1 for the record out: the side on which losses are large."""

    first: float
    second: float
    threshold: float
    side: Literal[1, -1] = 1

    def set_for(self, direction: Direction) -> "Trap":
        return replace(self, side=1 if direction == "record in" else -1)


TRAPS = {
    Trap(first=0.3, second=1.0, threshold=3.0): {"naive": 1.37e-7, "record in": 4.69e-6, "record out": 2.34e-6},
    Trap(first=0.5, second=1.0, threshold=4.0): {"naive": 9.74e-9, "record in": 5.03e-6, "record out": 1.11e-6},
    Trap(first=0.7, second=1.5, threshold=4.5): {"naive": 8.56e-8, "record in": 2.43e-5, "record out": 1.50e-6},
}
"""Each trap with its deltas at epsilon = 4, when set for the direction."""


def profile(mu, epsilon):
    """Return delta of one Gaussian step of exposure mu, the same in both directions; epsilon may be negative."""
    if mu == 0:
        return max(mp.mpf(0), -mp.expm1(epsilon))
    return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@cache
def true_delta(trap: Trap, epsilon: float, direction: Direction) -> float:
    """Return the exact delta of both steps in one direction, by quadrature over the first output."""
    with mp.workdps(DIGITS):
        first, second, threshold = (mp.mpf(value) for value in (trap.first, trap.second, trap.side * trap.threshold))
        sign, mean = (1, first) if direction == "record in" else (-1, mp.mpf(0))

        def part(mu, low, high):
            def density(y):
                return mp.npdf(y, mean) * profile(mu, epsilon - sign * (first * y - first**2 / 2))

            # If the second step does nothing, there is a kink where the first alone uses up epsilon.
            kinks = [first / 2 + sign * epsilon / first] if first else []
            inner = sorted(y for y in [-12, -8, -4, 0, 4, 8, 12, *kinks] if low < y < high)
            return mp.quad(density, [low, *inner, high])

        below, above = (0, second) if trap.side == 1 else (second, 0)
        return float(part(below, -mp.inf, threshold) + part(above, threshold, mp.inf))


def naive_delta(trap: Trap, epsilon: float) -> float:
    """Return what is not a bound: each trajectory's delta as if its exposures were fixed, averaged record out."""
    with mp.workdps(DIGITS):
        passes = mp.ncdf(-mp.mpf(trap.threshold))
        both = profile(mp.sqrt(mp.mpf(trap.first) ** 2 + mp.mpf(trap.second) ** 2), epsilon)
        return float(passes * both + (1 - passes) * profile(mp.mpf(trap.first), epsilon))
