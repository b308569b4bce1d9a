"""Profiles of thousands of records at once, each from the histogram of its exposures.

Records are sorted by their Rényi epsilon and taken in chunks of similar ones: a chunk has its own grid, as fine as its
quietest record needs, and its own window, as wide as its loudest needs. No figure exceeds what the Rényi divergences of
the same record give, which is tighter where delta is close to the errors of the computation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.mechanisms.kept_results import KeptResults, fingerprint
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles.composed import MOST_POINTS, ComposedLosses
from bayesdp.profiles.conversion import log_constant, record_deltas, record_epsilons
from bayesdp.profiles.step_losses import step_losses
from bayesdp.progress import Progress
from bayesdp.validation import FloatArray, refuse

_LAMBDAS = np.unique(np.geomspace(1, 1024, 80).round())
_CHUNK, _RATIO = 4096, 1.75  # records in a chunk, and how much their epsilons may differ
_COARSEST = 0.01
_TOO_COARSE = 100.0  # a grid on which e^loss could overflow; Rényi divergences are as good then
_MOST_WORK = 1 << 26  # kinds of steps times points of the window
_LOUDEST, _LEAST_DELTA = 20.0, 1e-100  # exposures above and deltas below are left to Rényi divergences
_ROUND_UP = 1 + 2.0**-38


@dataclass(frozen=True)
class ExposureCounts:
    """How often each of m records took each of B kinds of steps.

    A kind is a sampling rate and an exposure: ``rates`` [B] in (0, 1], ``exposures`` [B] of at least 0 (infinity is
    allowed), ``counts`` [m, B] whole numbers.
    """

    rates: FloatArray
    exposures: FloatArray
    counts: FloatArray


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How exact profiles are. Whatever the settings, results are upper bounds: all errors are added to them.

    ``grid``: about what fraction of epsilon the discretisation may add. ``error``: the fraction of delta that the
    window, the frequencies left out and the truncation may each take. ``interval``: a fixed distance of grid points, at
    most 1, instead of one that follows from ``grid``. Raises InvalidInputError for values out of range.
    """

    grid: float = 2e-4
    error: float = 1e-5
    interval: float | None = None

    def __post_init__(self) -> None:
        validation.probability("grid", self.grid)
        validation.probability("error", self.error)
        if self.interval is not None and validation.positive("interval", self.interval) > 1:
            raise refuse("interval", self.interval, "at most 1")


@dataclass(frozen=True)
class Profiles:
    """Upper bounds for m records in both directions of add/remove: ``_in`` with the record, ``_out`` without it.

    epsilon at the delta asked for is [m], or [m, D] for D deltas; delta at G given epsilons is [m, G].
    """

    epsilon_in: FloatArray
    epsilon_out: FloatArray
    delta_in: FloatArray
    delta_out: FloatArray

    @property
    def epsilon(self) -> FloatArray:
        """Epsilon in the larger of both directions, [m] or [m, D]."""
        return np.maximum(self.epsilon_in, self.epsilon_out)

    @property
    def delta(self) -> FloatArray:
        """Delta in the larger of both directions, [m, G]."""
        return np.maximum(self.delta_in, self.delta_out)


_KEPT: KeptResults[Profiles] = KeptResults(1 << 24)


def profiles(
    given: ExposureCounts,
    delta: float | Sequence[float],
    *,
    epsilons: Any = (),
    precision: Precision | None = None,
    track: Progress = iter,
) -> Profiles:
    """Return epsilon of every record at ``delta``, or at each of several deltas, and delta at each of ``epsilons`` [G].

    Formal guarantee: never below the exact profile of the record's subsampled Gaussian steps, composed, if its
    exposures do not depend on earlier outputs; for adaptive ones it is an estimate. Never above what Rényi divergences
    give, and they alone serve records with an exposure above 20 and deltas below 1e-100. A record without exposure has
    epsilon and delta 0, one with an infinite exposure has epsilon infinite and delta 1.

    ``track`` is a progress bar over chunks of records. Raises InvalidInputError unless every delta is strictly between
    0 and 1, epsilons are finite and at least 0, and the counts are whole numbers of the right shape.
    """
    deltas_asked = [validation.probability("delta", value) for value in np.atleast_1d(delta).tolist()]
    at = validation.non_negative_array("epsilons", np.atleast_1d(epsilons)).ravel()
    counts = _checked(given)
    precision = precision or Precision()
    arguments = fingerprint([given.rates, given.exposures, counts, at], str(deltas_asked), str(precision))
    result = _KEPT.find(arguments)
    if result is None:
        result = _computed(replace(given, counts=counts), deltas_asked, at, precision, track)
        _KEPT.keep(arguments, result, sum(array.nbytes for array in vars(result).values()))
    result = Profiles(**{name: array.copy() for name, array in vars(result).items()})
    if np.ndim(delta):
        return result
    return replace(result, epsilon_in=result.epsilon_in[:, 0], epsilon_out=result.epsilon_out[:, 0])


def _computed(
    given: ExposureCounts, deltas_asked: Sequence[float], at: FloatArray, precision: Precision, track: Progress
) -> Profiles:
    """Return the profiles of checked arguments; epsilon is [m, D]."""
    least = min(deltas_asked)  # what errors may cost is a part of it
    counts = given.counts
    costs = _costs(given, counts)
    by_delta = np.stack([record_epsilons(costs, _LAMBDAS, asked) for asked in deltas_asked], axis=1)
    renyi = by_delta.max(axis=1)
    renyi_deltas = record_deltas(costs, _LAMBDAS, at)
    result = Profiles(by_delta, by_delta.copy(), renyi_deltas, renyi_deltas.copy())
    computable = ~counts[:, given.exposures > _LOUDEST].any(axis=1) & (least > _LEAST_DELTA)
    for chunk in track(list(_chunks(np.where(computable, renyi, np.inf)))):
        order = _best_order(costs[chunk], least)
        interval = precision.interval or _interval(costs[chunk], counts[chunk], renyi[chunk], least, precision)
        if interval > _TOO_COARSE:
            continue
        kinds = np.flatnonzero(counts[chunk].any(axis=0) & (given.exposures > 0))
        taken = counts[np.ix_(chunk, kinds)]
        truncation = precision.error * least / (2 * taken.sum(axis=1).max())
        both = step_losses(given.rates[kinds], given.exposures[kinds], interval, truncation)
        for losses, epsilon, deltas in zip(
            both, (result.epsilon_in, result.epsilon_out), (result.delta_in, result.delta_out), strict=True
        ):
            composed = ComposedLosses(losses, taken, order, precision.error * least)
            for number, asked in enumerate(deltas_asked):
                epsilon[chunk, number] = np.minimum(epsilon[chunk, number], composed.epsilons(asked))
            deltas[chunk] = np.minimum(deltas[chunk], composed.deltas(at))
    return result


def _checked(given: ExposureCounts) -> FloatArray:
    shape = np.shape(given.counts)
    if np.ndim(given.counts) != 2 or shape[1:] != np.shape(given.exposures) or shape[1:] != np.shape(given.rates):
        raise refuse("counts.shape", shape, "[records, kinds of steps]")
    counts = validation.non_negative_array("counts", given.counts)
    if (counts != np.floor(counts)).any():
        raise refuse("counts", float(counts[counts != np.floor(counts)][0]), "whole numbers")
    return counts


def _costs(given: ExposureCounts, counts: FloatArray) -> FloatArray:
    """Return the cost of every record at every order, [m, L]; infinite where a record had an infinite exposure."""
    table = np.zeros((len(given.rates), len(_LAMBDAS)))
    finite = np.isfinite(given.exposures)
    table[finite] = log_moments(given.rates[finite], given.exposures[finite], _LAMBDAS)
    costs = counts @ table * _ROUND_UP
    costs[counts[:, ~finite].any(axis=1)] = np.inf
    return costs


def _chunks(renyi: FloatArray) -> Iterator[np.ndarray]:
    """Yield indices of records with similar epsilons; those with epsilon 0 or infinite are left out."""
    order = np.argsort(renyi, kind="stable")
    order = order[(renyi[order] > 0) & (renyi[order] < np.inf)]
    while len(order):
        similar = int(np.searchsorted(renyi[order], _RATIO * renyi[order[0]], side="right"))
        yield order[: min(similar, _CHUNK)]
        order = order[min(similar, _CHUNK) :]


def _best_order(costs: FloatArray, delta: float) -> float:
    """Return the median, over the records of a chunk, of the order that gives each its Rényi epsilon."""
    values = (costs + log_constant(_LAMBDAS, "improved") - math.log(delta)) / _LAMBDAS
    return float(np.median(_LAMBDAS[np.argmin(values, axis=1)]))


def _interval(costs: FloatArray, counts: FloatArray, renyi: FloatArray, delta: float, precision: Precision) -> float:
    """Return an interval h whose rounding adds about ``precision.grid`` to epsilon, or the finest that can be afforded.

    Moving a step's loss to both ends of its interval adds about h^2/6 to its variance, T h^2/6 for T steps. The
    variance of a record is about K(1), its cost at lambda = 1, and epsilon grows like the root of the variance.
    """
    variance = float(np.min(costs[:, 0] / counts.sum(axis=1)))
    wanted = min(math.sqrt(12 * precision.grid * variance), float(renyi.min()) / 200, _COARSEST)
    tails = np.min((costs - math.log(precision.error * delta)) / _LAMBDAS, axis=1)
    kinds = np.count_nonzero(counts.any(axis=0))
    return max(wanted, 4 * float(tails.max()) / min(MOST_POINTS, _MOST_WORK // kinds))
