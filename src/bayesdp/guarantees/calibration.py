"""The noise that a target epsilon needs, by a search that ends on the private side."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from bayesdp import validation
from bayesdp.formatting import round_up
from bayesdp.guarantees.worst_case import WorstCase, epsilon, rdp_epsilon
from bayesdp.profiles import gaussian_epsilon
from bayesdp.validation import refuse

_CLOSE = 1e-3  # epsilon is within this share below the target
_LEAST, _MOST = 1e-2, 1e12  # noise multipliers that are tried
_FLATTEST = -0.5  # slope of log epsilon against log noise


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A noise multiplier and its ``worst_case``, whose epsilon is at most the target."""

    noise_multiplier: float
    worst_case: WorstCase

    def statement(self) -> str:
        """Return the result in words; the noise is rounded up, so that the printed value reaches the target too."""
        return f"Noise multiplier {round_up(self.noise_multiplier, 6)}. {self.worst_case.statement()}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: ``noise_multiplier`` and those of ``WorstCase.to_dict``."""
        return {"noise_multiplier": self.noise_multiplier, **self.worst_case.to_dict()}


def calibrate(*, target_epsilon: float, sample_rate: float, steps: int, delta: float = 1e-5) -> Calibration:
    """Return a noise multiplier, close to the least, whose worst-case epsilon does not exceed the target.

    For ``steps`` steps of DP-SGD at ``sample_rate`` and ``delta``, as ``bayesdp.epsilon`` counts them. Rényi
    divergences and the Gaussian profile bracket the root; ``bayesdp.epsilon`` polishes it until epsilon is within 0.1 %
    below the target.

    Formal guarantee: the noise multiplier returned was itself evaluated, so its epsilon is at most ``target_epsilon``
    whatever the search did. It may be larger than necessary where the search stops early: it does not go below a noise
    multiplier of 0.01, nor on once it has located the root to 1e-4 relative.

    Raises InvalidInputError for arguments out of range, and for a target that no noise multiplier below 1e12 reaches.
    """
    target = validation.positive("target_epsilon", target_epsilon)
    validation.sample_rate(sample_rate)
    validation.count("steps", steps, minimum=1)
    validation.probability("delta", delta)

    @cache
    def rough(noise: float) -> float:
        # Rényi divergences have a floor, about -log(delta) over their largest order, below which only Gaussians reach.
        exposure = math.sqrt(steps) / noise * (1 + 2.0**-40)
        return min(rdp_epsilon([(noise, sample_rate, steps)], delta=delta), float(gaussian_epsilon(exposure, delta)))

    def exact(noise: float) -> WorstCase:
        return epsilon(noise_multiplier=noise, sample_rate=sample_rate, steps=steps, delta=delta)

    high = _bracket(rough, target)
    best, low = exact(high), 0.0
    # On a log-log scale epsilon is nearly a straight line in the noise: aim a little below the target along it.
    slope = math.log(max(rough(0.9 * high), 1e-300) / max(rough(high), 1e-300)) / math.log(0.9)
    while best.epsilon < (1 - _CLOSE) * target and high > _LEAST and high - low > 1e-4 * high:
        aim = (1 - _CLOSE / 2) * target
        guess = high * (aim / best.epsilon) ** (1 / min(slope, _FLATTEST)) if best.epsilon > 0 else high / 2
        if not max(low, high / 16) < guess < high:
            guess = math.sqrt(low * high) if low else high / 2
        tried = exact(guess)
        if 0 < tried.epsilon != best.epsilon > 0:
            slope = math.log(tried.epsilon / best.epsilon) / math.log(guess / high)
        if tried.epsilon <= target:
            high, best = guess, tried
        else:
            low = guess
    return Calibration(noise_multiplier=high, worst_case=best)


def _bracket(rough: Callable[[float], float], target: float) -> float:
    """Return a noise multiplier with rough(noise) <= target, within 1 % of the least, but hardly below ``_LEAST``."""
    high = 2.0 ** _first_doubling(lambda doublings: rough(2.0**doublings) <= target)
    if high > _MOST:
        raise refuse("target_epsilon", target, f"an epsilon that a noise multiplier below {_MOST:g} reaches")
    low = high / 2
    while rough(low) <= target:
        low, high = low / 2, low
        if low < _LEAST:
            return high
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if rough(middle) > target else (low, middle)
    return high


def _first_doubling(reaches: Callable[[int], bool]) -> int:
    """Return the least number of doublings of 1 that ``reaches``; one more than ``_MOST`` allows if none does.

    Steps that double, then halving: most targets need one or two doublings, tiny ones dozens.
    """
    most = int(math.log2(_MOST))
    below, tried = -1, 0
    while not reaches(tried):
        if tried == most:
            return most + 1
        below, tried = tried, min(2 * tried if tried else 1, most)
    while tried - below > 1:
        middle = (below + tried) // 2
        below, tried = (below, middle) if reaches(middle) else (middle, tried)
    return tried
