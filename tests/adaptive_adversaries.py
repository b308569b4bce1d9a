"""The most that somebody gains who chooses each next step by looking, against an epsilon that depends on the run.

Exact, by backward induction over how often each kind of step was taken and over a grid of losses.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

Kind = tuple[float, float]
"""A step that an adversary may choose: (sampling rate, exposure)."""


def hockey_stick(losses, epsilon):
    """(1 - e^{epsilon - L})_+: what differential privacy counts as failure."""
    return np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)


def exceeds(losses, epsilon):
    """1 if L > epsilon: what the Markov form counts as failure."""
    return (losses > epsilon).astype(float)


def worst_steering_delta(
    kinds: Sequence[Kind],
    steps: int,
    epsilon_of: Callable[[tuple[int, ...]], float],
    *,
    record_in: bool,
    failure: Callable[[NDArray[np.float64], float], NDArray[np.float64]] = hockey_stick,
    spacing: float = 1e-3,
) -> float:
    """sup over adversaries of E[failure(L, epsilon)], where each step's kind and the end are chosen from the outputs.

    ``epsilon_of`` gives the epsilon that is claimed after so many steps of each kind. L is the loss of a record in the
    direction asked for: log M/Q under M, or log Q/M under Q. Exact up to the grid of losses, on which values between
    two points are interpolated.
    """
    increments = [_increments(rate, exposure, record_in, spacing) for rate, exposure in kinds]
    reach = steps * max(max(-int(offsets[0]), int(offsets[-1])) for offsets, _ in increments)
    losses = np.arange(-reach, reach + 1) * spacing
    values = {}
    for counts in product(range(steps + 1), repeat=len(kinds)):
        if sum(counts) <= steps:
            values[counts] = failure(losses, epsilon_of(counts))
    for taken in range(steps - 1, -1, -1):
        for counts in [counts for counts in values if sum(counts) == taken]:
            for number, (offsets, weights) in enumerate(increments):
                after = values[*counts[:number], counts[number] + 1, *counts[number + 1 :]]
                padded = np.concatenate([np.zeros(-int(offsets[0])), after, np.ones(int(offsets[-1]))])
                values[counts] = np.maximum(values[counts], fftconvolve(padded, weights[::-1], mode="valid"))
    return float(values[(0,) * len(kinds)][reach])


def _increments(rate: float, exposure: float, record_in: bool, spacing: float):
    """The law of one step's loss on the grid: consecutive whole offsets, and their probabilities."""
    x = np.linspace(-9, 9 + exposure, 40_001)
    loss = np.log1p(rate * np.expm1(exposure * x - exposure**2 / 2))
    density = norm.pdf(x) * (np.exp(loss) if record_in else 1.0)
    mass = density / density.sum()
    at = (loss if record_in else -loss) / spacing
    below = np.floor(at).astype(int)
    first = min(int(below.min()), 0)
    last = max(int(below.max()) + 1, 0)
    weights = np.zeros(last - first + 1)
    np.add.at(weights, below - first, mass * (below + 1 - at))
    np.add.at(weights, below + 1 - first, mass * (at - below))
    return np.arange(first, last + 1), weights
