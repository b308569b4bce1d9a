"""The most that somebody gains who chooses each next step by looking, against an epsilon that depends on the run.

Exact, by backward induction over how often each kind of step was taken and over a grid of losses. Nothing of the
accountant is used here: the law of one step's loss comes from its two densities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.stats import norm

from bayesdp.validation import FloatArray

_WIDTH = 9.0  # standard deviations of an output that are looked at
_BEYOND = 16.0  # a loss that is further above epsilon counts as this far above it
State = TypeVar("State", bound=Hashable)
Rounding = Literal["down", "interpolated"]
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
    rounding: Rounding = "interpolated",
) -> float:
    """Return the supremum over adversaries of E[failure(L, epsilon)]; outputs decide each step's kind, and the end.

    ``epsilon_of`` gives the epsilon that is claimed after so many steps of each kind. See ``worst_delta``.
    """

    def choices(counts: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Kind]]:
        if sum(counts) < steps:
            for number, kind in enumerate(kinds):
                yield (*counts[:number], counts[number] + 1, *counts[number + 1 :]), kind

    start = (0,) * len(kinds)
    return worst_delta(
        start, choices, epsilon_of, record_in=record_in, failure=failure, spacing=spacing, rounding=rounding
    )


def worst_delta(
    start: State,
    choices: Callable[[State], Iterable[tuple[State, Kind]]],
    epsilon_of: Callable[[State], float],
    *,
    record_in: bool,
    failure: Callable[[FloatArray, float], FloatArray] = hockey_stick,
    spacing: float = 1e-3,
    rounding: Rounding = "interpolated",
) -> float:
    """Return the supremum over adversaries of E[failure(L, epsilon)], where outputs decide the way through a run.

    A run begins in the state ``start``. ``choices`` gives the steps that may be taken in a state, each with the state
    it leads to; states are hashable, and every way to a state takes equally many steps. ``epsilon_of`` gives the
    epsilon that is claimed if the run ends in a state. L is the loss of a record in the direction asked for: log M/Q
    under M, or log Q/M under Q.

    Each step's loss is put onto a grid of this ``spacing``. Rounded "down", the result is a lower bound of the
    supremum, up to 1e-13 for round-off: the adversary can follow the rounded walk, failure grows with the loss, and
    losses that leave the grid count as its highest, or as no failure. It is too small by at most what ``steps *
    spacing`` more of epsilon would change. "interpolated" shares each loss out between its neighbours, which keeps its
    mean: closer to the supremum, but on neither side of it for certain.
    """
    layers = _layers(start, choices)
    loudest = max((kind[1] for layer in layers for ways in layer.values() for _, kind in ways), default=0.0)
    steps = len(layers) - 1

    def law(kind: Kind) -> tuple[NDArray[np.int64], FloatArray]:
        return loss_law(*kind, record_in, spacing, rounding)

    furthest = max((int(np.abs(law(k)[0]).max()) for layer in layers for w in layer.values() for _, k in w), default=0)
    epsilons = {state: epsilon_of(state) for layer in layers for state in layer}
    reach = steps * furthest
    if rounding == "down":
        likely = _WIDTH * math.sqrt(steps) * loudest + steps * loudest**2
        matters = max((value for value in epsilons.values() if math.isfinite(value)), default=0.0) + _BEYOND
        reach = min(reach, math.ceil(min(likely, matters) / spacing) + furthest)
    losses: FloatArray = np.arange(-reach, reach + 1, dtype=np.float64) * spacing
    values: dict[State, FloatArray] = {}
    for layer in reversed(layers):
        later, values = values, {}
        for state, ways in layer.items():
            value = failure(losses, epsilons[state])
            for following, kind in ways:
                offsets, weights = law(kind)
                after = later[following]
                beyond = after[-1] if rounding == "down" else 1.0
                padded = np.concatenate([np.zeros(-int(offsets[0])), after, np.full(int(offsets[-1]), beyond)])
                value = np.maximum(value, fftconvolve(padded, weights[::-1], mode="valid"))
            values[state] = value
    return float(values[start][reach])


def _layers(
    start: State, choices: Callable[[State], Iterable[tuple[State, Kind]]]
) -> list[dict[State, list[tuple[State, Kind]]]]:
    """Return for each number of steps the states that can be reached, with the steps that may follow."""
    layers: list[dict[State, list[tuple[State, Kind]]]] = []
    states = {start: None}
    while states:
        layers.append({state: list(choices(state)) for state in states})
        states = {following: None for ways in layers[-1].values() for following, _ in ways}
    return layers


@lru_cache(maxsize=64)
def loss_law(
    rate: float, exposure: float, record_in: bool, spacing: float, rounding: str
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the law of one step's loss on the grid: consecutive whole offsets, and their probabilities."""
    if exposure == 0:
        return np.zeros(1, np.int64), np.ones(1)
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
