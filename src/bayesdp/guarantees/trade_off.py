"""What an attacker gets, from a privacy profile: true-positive rates, advantage, and the Gaussian that dominates it.

For every epsilon >= 0 of a profile, and every set S of outputs by which an attacker decides "was in the data",

    Pr_in[S] <= e^epsilon Pr_out[S] + delta(epsilon)   and   Pr_out[not S] <= e^epsilon Pr_in[not S] + delta(epsilon).

So the true-positive rate at a false-positive rate a, which is 1 - f(a) with the trade-off function f of Dong, Roth & Su
(2022), is at most e^epsilon a + delta(epsilon), and at most 1 - e^-epsilon (1 - a - delta(epsilon)). Each epsilon gives
a straight line, and all together give 1 - f exactly. Any selection gives an upper bound: a grid errs upwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from bayesdp import validation
from bayesdp.formatting import percent, percent_digits
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.worst_case import merge
from bayesdp.profiles import gaussian_delta
from bayesdp.validation import FloatArray

FALSE_POSITIVE_RATES = (0.001, 0.01)
"""The false-positive rates at which risk is reported."""
_POINTS = 400  # epsilons of the worst case's grid, spaced evenly, and as many spaced evenly in log
_FINEST = 1e-4  # the least of the latter, as a share of the largest
_DEEPER = 1e-4  # the grid ends where delta is this share of the smallest false-positive rate
_BLOCK = 1024  # records at a time
_ROUND_UP, _LEAST = 1 + 2.0**-44, 1e-13  # relative, and absolute: ndtri of two close numbers cancels


@dataclass(frozen=True, kw_only=True)
class Risk:
    """What an attacker gets who knows everything but whether one person was in the data: upper bounds.

    Attributes:
        tpr: The largest true-positive rate at each false-positive rate in ``fpr``, over all attackers.
        fpr: The false-positive rates.
        advantage: The largest difference between true- and false-positive rate: the total variation distance.
        mu: The Gaussian that dominates: every true-positive rate is at most Phi(Phi^-1(fpr) + mu) + ``delta``.
        delta: The part of the profile that ``mu`` leaves out: where delta(epsilon) is at most this.
    """

    tpr: tuple[float, ...]
    fpr: tuple[float, ...]
    advantage: float
    mu: float
    delta: float


class Guarantee(Protocol):
    """A profile that covers everyone, in both directions: ``ClipBound``, or that of a declared budget."""

    def deltas(self, epsilons: FloatArray, delta: float) -> FloatArray:
        """Return delta at epsilons [G], [G]; ``delta`` sets the scale of errors, which are added."""
        ...

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return epsilon at D deltas, [D]."""
        ...

    def epsilons_out(self, deltas: Sequence[float]) -> FloatArray:
        """Return epsilon at D deltas, [D], for everyone who was left out: the direction "record out" alone."""
        ...


@dataclass(frozen=True)
class RecordRisks:
    """Risks of m records: ``tpr`` [m, F] at F false-positive rates, ``advantage`` [m] and ``mu`` [m]."""

    tpr: FloatArray
    advantage: FloatArray
    mu: FloatArray


def attack_risk(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float = 1e-5,
    fpr: Sequence[float] = FALSE_POSITIVE_RATES,
) -> Risk:
    """Return what an attacker gets, at most, from ``steps`` steps of DP-SGD, for everyone.

    Poisson sampling, clipping and Gaussian noise, as for ``bayesdp.epsilon``.

    Formal guarantee: under add/remove of one record, no attacker on the outputs of all steps has a larger true-positive
    rate at these false-positive rates, or a larger advantage, whichever of the two data sets is called "in". Without
    sampling the figures are exact (Phi(Phi^-1(fpr) + mu) with mu = sqrt(steps) / noise_multiplier), otherwise they come
    from the profile and err upwards. ``mu`` leaves out what lies below ``delta``: with sampling, the only Gaussian that
    dominates the whole profile is the one without sampling.

    Raises InvalidInputError for settings out of range, and unless ``delta`` and each of ``fpr`` are strictly between
    0 and 1.
    """
    bound = ClipBound.of(merge([(noise_multiplier, sample_rate, steps)]))
    return clip_bound_risk(bound, delta, fpr)


def clip_bound_risk(bound: ClipBound, delta: float, fpr: Sequence[float] = FALSE_POSITIVE_RATES) -> Risk:
    """Return the risk of a record that is at the clip bound in every step, and so of everyone; see ``attack_risk``."""
    delta = validation.probability("delta", delta)
    rates = tuple(validation.probability("fpr", rate) for rate in fpr)
    # A run with sampling is dominated by the run without: one Gaussian release of all steps together.
    squares = math.fsum((bound.settings.counts[0] * bound.settings.exposures**2).tolist())
    whole = gaussian_risks(np.array([math.sqrt(squares) * (1 + 2.0**-40)]), rates)
    # A record that was never drawn left no trace, so no attacker does better than the chance that it was drawn.
    with np.errstate(divide="ignore"):
        drawn = -math.expm1(float(bound.settings.counts[0] @ np.log1p(-bound.settings.rates)))
    most = np.minimum((np.array([rates]) + drawn) * _ROUND_UP, 1.0)
    risks = smaller(whole, RecordRisks(most, np.array([min(drawn * _ROUND_UP, 1.0)]), np.array([math.inf])))
    if not bound.unsampled:
        risks = smaller(_from_profile(bound, rates, delta), risks)
    return _as_risk(risks, rates, delta)


def guaranteed_risk(bound: Guarantee, delta: float, fpr: Sequence[float] = FALSE_POSITIVE_RATES) -> Risk:
    """Return the risk for everyone from the profile of a guarantee, whatever it comes from; see ``attack_risk``."""
    if isinstance(bound, ClipBound):
        return clip_bound_risk(bound, delta, fpr)
    rates = tuple(validation.probability("fpr", rate) for rate in fpr)
    return _as_risk(_from_profile(bound, rates, validation.probability("delta", delta)), rates, delta)


def _from_profile(bound: Guarantee, rates: Sequence[float], delta: float) -> RecordRisks:
    least = min(delta, _DEEPER * min(rates, default=1.0))
    top = float(bound.epsilons([least])[0])
    if not 0 < top < math.inf:
        return RecordRisks(np.ones((1, len(rates))), np.ones(1), np.full(1, math.inf))
    grid = np.union1d(np.linspace(0, 1.01 * top, _POINTS), np.geomspace(_FINEST * top, top, _POINTS))
    if not isinstance(bound, ClipBound):  # profiles that are loose at 0: no figure may contradict the epsilon beside it
        claimed = bound.epsilons([delta])
        grid = np.union1d(grid, claimed[np.isfinite(claimed)])
    return profile_risks(grid, bound.deltas(grid, least)[None, :], rates, delta)


def _as_risk(risks: RecordRisks, rates: tuple[float, ...], delta: float) -> Risk:
    tpr = tuple(risks.tpr[0].tolist())
    return Risk(tpr=tpr, fpr=rates, advantage=float(risks.advantage[0]), mu=float(risks.mu[0]), delta=delta)


def profile_risks(epsilons: FloatArray, deltas: FloatArray, fpr: Sequence[float], slack: float) -> RecordRisks:
    """Return the risks of m records from their deltas [m, G] at rising ``epsilons`` [G], the first of which is 0.

    ``deltas`` hold in both directions. ``mu`` covers epsilons up to the first whose delta is at most ``slack``; it is
    infinite where there is none.
    """
    blocks = [
        _risks(epsilons, deltas[first : first + _BLOCK], fpr, slack) for first in range(0, max(len(deltas), 1), _BLOCK)
    ]
    return RecordRisks(
        np.concatenate([block.tpr for block in blocks]),
        np.concatenate([block.advantage for block in blocks]),
        np.concatenate([block.mu for block in blocks]),
    )


def probability_with(without: FloatArray, epsilons: FloatArray, deltas: FloatArray) -> FloatArray:
    """Return the most that an event's probability can be with a record in the data, from that without it.

    ``deltas`` [..., G] at ``epsilons`` [G] hold in both directions. Without the last axis they broadcast with
    ``without``, and so does the result. Each epsilon gives two bounds, one from the complement, and the least is taken.
    """
    at = np.asarray(without)[..., None]
    with np.errstate(over="ignore"):
        slopes = np.exp(epsilons)
    steep = (slopes * at + deltas).min(axis=-1)
    flat = (1 - (1 - at - deltas) / slopes).min(axis=-1) + 2.0**-50  # a difference of numbers close to 1
    return np.minimum(np.minimum(steep, flat) * _ROUND_UP, 1.0)


def gaussian_risks(mu: FloatArray, fpr: Sequence[float]) -> RecordRisks:
    """Return the exact risks of Gaussian releases of exposures ``mu`` [m], rounded up."""
    return RecordRisks(gaussian_tpr(mu[:, None], np.array(fpr)[None, :]), gaussian_delta(mu, 0.0), mu)


def gaussian_tpr(mu: Any, fpr: Any) -> FloatArray:
    """Return Phi(Phi^-1(fpr) + mu), the best true-positive rate against a Gaussian release, rounded up; broadcasts."""
    shift, rate = np.broadcast_arrays(np.asarray(mu, np.float64), np.asarray(fpr, np.float64))
    largest = ndtr(ndtri(rate) + shift) * (1 + 2.0**-40)
    return np.where(shift == 0, rate, np.minimum(largest, 1.0))


def attacker_sentence(risk: Risk, at_most: str = "at most") -> str:
    """Return in a sentence how many of the people in the data an attacker finds; true-positive rates are rounded up."""
    (fpr, tpr), *others = sorted(zip(risk.fpr, risk.tpr, strict=True), reverse=True)
    more = "".join(
        f", and one who accepts {percent(rate)} {at_most} {percent_digits(reached)}" for rate, reached in others
    )
    found = f"{percent(fpr)} false alarms finds {at_most} {percent_digits(tpr)} of the people who were in the data"
    return f"An attacker who accepts {found}{more}."


def smaller(first: RecordRisks, second: RecordRisks) -> RecordRisks:
    """Return the smaller of two bounds, figure by figure; shapes broadcast."""
    return RecordRisks(
        np.minimum(first.tpr, second.tpr),
        np.minimum(first.advantage, second.advantage),
        np.minimum(first.mu, second.mu),
    )


def _risks(epsilons: FloatArray, deltas: FloatArray, fpr: Sequence[float], slack: float) -> RecordRisks:
    # delta falls with epsilon, so each value may be replaced by the least before it.
    falling: FloatArray = np.minimum.accumulate(np.minimum(deltas, 1.0), axis=1)
    with np.errstate(over="ignore"):
        slopes = np.exp(epsilons)
    tpr = np.empty((len(falling), len(fpr)))
    for number, rate in enumerate(fpr):
        tpr[:, number] = probability_with(np.array(rate), epsilons, falling)
    # Where nothing is revealed the bound is the false-positive rate itself.
    tpr = np.where(falling[:, :1] == 0, np.array(fpr)[None, :], tpr)
    return RecordRisks(tpr, _advantage(epsilons, falling), _dominating(slopes, falling, slack))


def _advantage(epsilons: FloatArray, deltas: FloatArray) -> FloatArray:
    """Return upper bounds [m] of the total variation distance, from deltas [m, G] at rising ``epsilons`` [G] from 0.

    It is delta(0). Where the profile is a bound that is loose at 0, another epsilon may give less: add the two
    inequalities of a set S, and TPR - FPR is at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1), for every epsilon
    (Kairouz, Oh & Viswanath 2015, "The composition theorem for differential privacy").
    """
    with np.errstate(over="ignore"):
        others = np.tanh(epsilons / 2) + 2 * deltas / (np.exp(epsilons) + 1)
    return np.minimum(deltas[:, 0], others.min(axis=1) * _ROUND_UP)


def _dominating(slopes: FloatArray, deltas: FloatArray, slack: float) -> FloatArray:
    """Return mu [m] with Phi(Phi^-1(a) + mu) + slack >= 1 - f(a) for all a, from the lines t = slope a + delta.

    Walk along the lines from the centre, where false positives are as frequent as false negatives, to a = 0, changing
    from each line to the next steeper one at a point not to the right of the last change. A concave function that is
    above both ends of a segment is above the segment, so it suffices that the Gaussian's is above the points of change.
    The last line is one whose delta is at most ``slack``, so that it starts within slack of 0. What lies beyond the
    centre is the mirror image, for the Gaussian too. No step needs the lines to be in convex position.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        at_centre = np.where(np.isinf(slopes), 1.0, (slopes + deltas) / (1 + slopes))  # on the diagonal t = 1 - a
        first: NDArray[np.intp] = np.argmin(at_centre, axis=1)[:, None]
        centre = 1 - np.take_along_axis(at_centre, first, axis=1)
        change: FloatArray = (deltas[:, :-1] - deltas[:, 1:]) / np.diff(slopes)
        reached: NDArray[np.bool_] = np.greater_equal(np.arange(len(slopes) - 1), first)
        walked = np.logical_and(reached, deltas[:, :-1] > slack)
        change = np.minimum.accumulate(np.where(walked, np.minimum(change, centre), centre), axis=1)
        height = np.maximum(slopes[:-1] * change + deltas[:, :-1], slopes[1:] * change + deltas[:, 1:])
        mus = ndtri(np.minimum(height * (1 + 2.0**-48), 1.0)) - ndtri(change * (1 - 2.0**-48))
        mu = np.maximum(np.where(walked, mus, 0.0).max(axis=1, initial=0.0), -2 * ndtri(centre[:, 0]))
    mu = np.where(np.isnan(mu) | (deltas[:, -1] > slack), np.inf, mu * _ROUND_UP + _LEAST)
    return np.where(deltas[:, 0] == 0, 0.0, mu)
