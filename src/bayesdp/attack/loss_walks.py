"""The most that somebody gains who chooses each next step by looking, against an epsilon that depends on the run.

Exact, by backward induction over how often each kind of step was taken and over a grid of losses. Nothing of the
accountant is used here: the law of one step's loss comes from its two densities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from bayesdp.validation import FloatArray

_WIDTH = 9.0  # standard deviations of an output that are looked at
Kind = tuple[float, float]
"""A step that an adversary may choose: (sampling rate, exposure)."""


def hockey_stick(losses: FloatArray, epsilon: float) -> FloatArray:
    """Return (1 - e^{epsilon - L})_+: what differential privacy counts as failure."""
    return np.maximum(-np.expm1(np.minimum(epsilon - losses, 0.0)), 0.0)


def exceeds(losses: FloatArray, epsilon: float) -> FloatArray:
    """Return 1 if L > epsilon: what the Markov form counts as failure."""
    return (losses > epsilon).astype(float)


def worst_steering_delta(
    kinds: Sequence[Kind],
    steps: int,
    epsilon_of: Callable[[tuple[int, ...]], float],
    *,
    record_in: bool,
    failure: Callable[[FloatArray, float], FloatArray] = hockey_stick,
    spacing: float = 1e-3,
    rounding: Literal["down", "interpolated"] = "interpolated",
) -> float:
    """Return the supremum over adversaries of E[failure(L, epsilon)]; outputs decide each step's kind, and the end.

    ``epsilon_of`` gives the epsilon that is claimed after so many steps of each kind. L is the loss of a record in the
    direction asked for: log M/Q under M, or log Q/M under Q.

    Each step's loss is put onto a grid of this ``spacing``. Rounded "down", the result is a lower bound of the
    supremum, up to 1e-13 for round-off: the adversary can follow the rounded walk, and failure grows with the loss. It
    is too small by at most what ``steps * spacing`` more of epsilon would change. "interpolated" shares each loss out
    between its neighbours, which keeps its mean: closer to the supremum, but on neither side of it for certain.
    """
    increments = [_increments(rate, exposure, record_in, spacing, rounding) for rate, exposure in kinds]
    reach = steps * max(max(-int(offsets[0]), int(offsets[-1])) for offsets, _ in increments)
    losses: FloatArray = np.arange(-reach, reach + 1, dtype=np.float64) * spacing
    counts_of: dict[int, list[tuple[int, ...]]] = {taken: [] for taken in range(steps + 1)}
    for counts in product(range(steps + 1), repeat=len(kinds)):
        if sum(counts) <= steps:
            counts_of[sum(counts)].append(counts)
    values: dict[tuple[int, ...], FloatArray] = {}
    for taken in range(steps, -1, -1):
        for counts in counts_of[taken]:
            value = failure(losses, epsilon_of(counts))
            for number, (offsets, weights) in enumerate(increments if taken < steps else ()):
                after = values[*counts[:number], counts[number] + 1, *counts[number + 1 :]]
                beyond = after[-1] if rounding == "down" else 1.0
                padded = np.concatenate([np.zeros(-int(offsets[0])), after, np.full(int(offsets[-1]), beyond)])
                value = np.maximum(value, fftconvolve(padded, weights[::-1], mode="valid"))
            values[counts] = value
        for counts in counts_of.get(taken + 1, ()):
            del values[counts]
    return float(values[(0,) * len(kinds)][reach])


def _increments(
    rate: float, exposure: float, record_in: bool, spacing: float, rounding: str
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the law of one step's loss on the grid: consecutive whole offsets, and their probabilities."""
    if rounding == "down":
        return _rounded_down(rate, exposure, record_in, spacing)
    x = np.linspace(-_WIDTH, _WIDTH + exposure, 40_001)
    loss = np.log1p(rate * np.expm1(exposure * x - exposure**2 / 2))
    density = norm.pdf(x) * (np.exp(loss) if record_in else 1.0)
    mass = density / density.sum()
    at = (loss if record_in else -loss) / spacing
    below = np.floor(at).astype(np.int64)
    first = min(int(below.min()), 0)
    last = max(int(below.max()) + 1, 0)
    weights = np.zeros(last - first + 1)
    np.add.at(weights, below - first, mass * (below + 1 - at))
    np.add.at(weights, below + 1 - first, mass * (at - below))
    return np.arange(first, last + 1), weights


def _rounded_down(
    rate: float, exposure: float, record_in: bool, spacing: float
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the exact law of floor(loss / spacing); what lies below or above all offsets counts as the lowest.

    The loss is log(1 - q + q e^{e x - e^2/2}) of the output x, or its negative, so its distribution function is that of
    a normal law, or of the mixture, at the output where the loss is reached.
    """
    sign = 1 if record_in else -1
    ends = [
        sign * float(np.log1p(rate * np.expm1(exposure * x - exposure**2 / 2))) for x in (-_WIDTH, _WIDTH + exposure)
    ]
    first, last = min(math.floor(min(ends) / spacing), 0), max(math.floor(max(ends) / spacing), 0)
    edges = np.arange(first, last + 2) * spacing
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = (np.exp(sign * edges) - (1 - rate)) / rate
        output = np.where(ratio > 0, (np.log(ratio) + exposure**2 / 2) / exposure, -np.inf)
    below = norm.cdf(output)
    if record_in:
        below = (1 - rate) * below + rate * norm.cdf(output - exposure)
    weights = np.diff(below) if record_in else -np.diff(below)
    weights[0] += max(1.0 - float(weights.sum()), 0.0)
    return np.arange(first, last + 1), weights
