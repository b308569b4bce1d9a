"""Private selection: the best of a random number of runs, and what choosing it adds to epsilon.

A trial is a whole private run that also releases its score. After each trial a coin decides whether another follows, so
the number K of trials is geometric; only the trial with the highest score is released, and K is not. Let Q be the law
of a trial with some person in the data and Q' without. Trials are independent, so the law of what is released has the
density

    phi(F(w)) Q(w),    F(w) = Q(score below that of w),    phi(s) = E[K s^(K-1)] = p / (1 - (1-p) s)^2,   p = 1 / E[K]

(Papernot & Steinke 2022, "Hyperparameter tuning with Renyi differential privacy", proof of Lemma 7), and phi(F'(w))
Q'(w) without the person. "Score below that of w" is the same set under both laws, so F <= 1 - f(F') with the trade-off
function f of a trial. Hence for every epsilon, with the likelihood ratio L = Q / Q',

    delta(epsilon) <= E_Q'[ max_t ( phi(1 - f(t)) L - e^epsilon phi(t) )_+ ].

The maximum is a convex function of L that is 0 at L = 0, so its expectation is a sum of hockey-stick divergences of a
trial, weighted by changes of slope: the profile of a trial is all that is needed. Papernot & Steinke bound Renyi
divergences instead; for runs with small epsilon that gives 1.4 to 3 times as much.

Ties need no care: they are as probable in one order of the trials as in any other, so the first of them may win.
"""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtr, ndtri

from bayesdp import validation
from bayesdp.guarantees.renyi_divergences import sampled_divergences
from bayesdp.mechanisms.gaussian import RepeatedStep
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from bayesdp.validation import FloatArray, refuse

_CELLS = 1 << 15  # of t: each adds at most 2 log(mean) / _CELLS to epsilon
_CHORDS = 256  # on which the convex function of L is rounded up
_LEAST_DELTA = 1e-15  # the profile of a trial is looked at down to it,
_MOST_EPSILON = 600.0  # and up to this epsilon: beyond both, a straight line lies above what follows
_LINES = 512  # epsilons of the profile of a trial, each of which gives two straight lines above 1 - f
_ROUND_UP = 1 + 1e-9
_CLOSE, _GUESSES, _CORRECTIONS = 1e-3, 20, 60  # the target is met within this share
_DOUBLINGS = 64  # of epsilon, after which there is none for a delta
_AT_ONCE = 32
_RENYI_ROUND_OFF = 1e-12  # by which the divergence of one sampled step may be too small


class Profile(Protocol):
    """The profile of a trial, in both directions: any ``Guarantee``."""

    def deltas(self, epsilons: FloatArray, delta: float) -> FloatArray:
        """Return delta at epsilons [G], [G]; ``delta`` sets the scale of errors, which are added."""
        ...

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return epsilon at D deltas, [D]."""
        ...


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The declaration that a run is the best of a random number of trials, ``mean`` of them on average.

    After each trial another follows with probability 1 - 1 / ``mean``. Declare it when the ledger of a trial is
    created, ``Ledger.create(path, plan=..., selection=...)``, and call ``Ledger.mark_chosen`` on that of the best one
    after the last: what it claims then covers the choice. This holds if the trials were independent and alike,
    differing in chance only (settings drawn at random among them), if their scores were releases of their plans, if
    their number was drawn before the first and all of them ended, and if nothing of the others is released: not their
    number, and not their scores.

    ``exposure`` is for trials whose plans differ: none of them reveals more than one Gaussian release of that exposure
    (difference of means over standard deviation). Claims then take it for every trial, also where the plan of the one
    that was chosen reveals less. None declares that all trials have the plan of this one.

    ``began`` is when the choice began, in ISO 8601 form with a time zone: the same for all trials. The first trial
    takes longer than later ones, so times would tell whether it was chosen, which no guarantee covers. All steps of a
    trial therefore have one time in its ledger: this one, which is also that of the ledger's creation. With None it is
    when the ledger was created, which must then stay secret.

    Raises InvalidInputError for a mean below 1 or above 1,000,000, for an exposure that is not a finite number above 0,
    and for a text that is no such time.
    """

    mean: float
    exposure: float | None = None
    began: str | None = None

    def __post_init__(self) -> None:
        mean = validation.positive("mean", self.mean)
        if not 1 <= mean <= 1e6:
            raise refuse("mean", self.mean, "the number of trials on average, from 1 to 1,000,000")
        object.__setattr__(self, "mean", mean)
        if self.exposure is not None:
            object.__setattr__(self, "exposure", validation.positive("exposure", self.exposure))
        if self.began is not None:
            object.__setattr__(self, "began", _utc(self.began))

    def trials(self, uniform: float) -> int:
        """Return the number of trials that a uniform draw from [0, 1) stands for."""
        if self.mean == 1:
            return 1
        return 1 + math.floor(math.log1p(-uniform) / math.log1p(-1 / self.mean))

    def density(self, below: FloatArray) -> FloatArray:
        """Return phi, by which the best trial is more probable than a trial if a share ``below`` scores less."""
        stop = 1 / self.mean
        return stop / (1 - (1 - stop) * below) ** 2

    def to_json(self) -> str:
        """Return the declaration as text, for the settings of a ledger."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Selection:
        """Return the declaration from the text that ``to_json`` gave."""
        return Selection(**json.loads(text))


def _utc(given: object) -> str:
    try:
        time = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise refuse("began", given, "a time with its zone, such as '2026-01-31T12:00:00+00:00'")
    return time.astimezone(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class SelectedBound:
    """What everyone is guaranteed by the best of a random number of trials; ``trial`` is the profile of one of them.

    Formal guarantee: delta(epsilon) of what is released is at most ``deltas``, in both directions, if ``trial`` bounds
    both directions of every trial. Everything is rounded up: cells of t take phi(1 - f) at one end and phi(t) at the
    other, and chords lie above a convex function.
    """

    trial: Profile
    selection: Selection

    @cached_property
    def log_ratio(self) -> float:
        """The logarithm of the largest phi(1 - f(t)) / phi(t): what choosing by score adds to a loss, at most."""
        high, low = self._cells
        return float(np.log(high / low).max()) + 1e-12

    def deltas(self, epsilons: FloatArray, delta: float) -> FloatArray:
        """Return upper bounds of delta at ``epsilons`` [G], [G]; ``delta`` sets the scale of errors of the profile."""
        bends, slopes = self._bends
        at = np.asarray(epsilons, np.float64)[:, None] + bends
        sizes = np.abs(at)
        found = np.reshape(self.trial.deltas(sizes.ravel(), delta / self.selection.mean), at.shape)
        # H(-x) = 1 - e^-x + e^-x H(x), where H(x) bounds the other direction too.
        found = np.where(at < 0, 1 - np.exp(-sizes) * (1 - found), found)
        return np.minimum(found @ slopes * _ROUND_UP, 1.0)

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon at D deltas, [D]; infinite where the profile of a trial supports none."""
        return np.array([self._epsilon(delta) for delta in deltas])

    def epsilons_out(self, deltas: Sequence[float]) -> FloatArray:
        """Return upper bounds of epsilon for everyone who was left out, [D]: the same, both directions are bounded."""
        return self.epsilons(deltas)

    def _epsilon(self, delta: float) -> float:
        def reaches(epsilon: float) -> bool:
            return bool(self.deltas(np.array([epsilon]), delta)[0] <= delta)

        # phi is at most E[K], so (epsilon + log_ratio, E[K] delta) follows from (epsilon, delta) of a trial.
        high = float(self.trial.epsilons([delta / self.selection.mean])[0]) + self.log_ratio
        if not math.isfinite(high):
            return math.inf
        if reaches(0.0):
            return 0.0
        for _ in range(_DOUBLINGS):
            if reaches(high):
                break
            high *= 2
        else:
            return math.inf
        low = 0.0
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if reaches(middle) else (middle, high)
        return high

    @cached_property
    def _cells(self) -> tuple[FloatArray, FloatArray]:
        """phi(1 - f(t)) at the upper end and phi(t) at the lower end of each cell of t; equal steps of log phi(t)."""
        stop = 1 / self.selection.mean
        if stop == 1:
            return np.ones(1), np.ones(1)
        ends = -np.expm1(np.linspace(0.0, math.log(stop), _CELLS + 1)) / (1 - stop)
        ends[0], ends[-1] = 0.0, 1.0
        return self.selection.density(self._highest(ends[1:])), self.selection.density(ends[:-1])

    def _highest(self, shares: FloatArray) -> FloatArray:
        """Return upper bounds of 1 - f at ``shares`` [n]: the least of the lines that the profile of a trial gives."""
        if isinstance(self.trial, GaussianTrial):
            return self.trial.most_probable(shares)
        top = self._top
        epsilons = np.concatenate([np.linspace(0.0, top, _LINES // 2), np.geomspace(1e-6 * top, top, _LINES // 2)])
        lost = self.trial.deltas(epsilons, _LEAST_DELTA)
        slopes = np.concatenate([np.exp(epsilons), np.exp(-epsilons)])
        starts = np.concatenate([lost, 1 - np.exp(-epsilons) * (1 - lost)])
        best = np.ones(len(shares))
        for first in range(0, len(slopes), _AT_ONCE):
            block = slice(first, first + _AT_ONCE)
            np.minimum(best, (slopes[block, None] * shares + starts[block, None]).min(axis=0), out=best)
        return np.minimum(best * _ROUND_UP, 1.0)

    @cached_property
    def _top(self) -> float:
        """The epsilon up to which the profile of a trial is looked at; wherever it lies, what follows is a bound."""
        return min(float(self.trial.epsilons([_LEAST_DELTA])[0]), _MOST_EPSILON)

    @cached_property
    def _bends(self) -> tuple[FloatArray, FloatArray]:
        """Where the convex function of L bends, as log L - epsilon [J], and by how much its slope rises there [J]."""
        high, low = self._cells
        if len(high) == 1:
            return np.zeros(1), np.ones(1)
        points = np.geomspace(math.exp(-self.log_ratio), math.exp(self._top), _CHORDS)
        values = np.concatenate(
            [(points[first : first + _AT_ONCE, None] * high - low).max(axis=1) for first in range(0, _CHORDS, _AT_ONCE)]
        )
        chords = np.diff(np.maximum(values, 0.0)) / np.diff(points)
        slopes = np.maximum.accumulate(np.append(chords, self.selection.mean))
        return np.log(points), np.diff(slopes, prepend=0.0)


@dataclass(frozen=True)
class GaussianTrial:
    """The profile of a trial without sampling: one Gaussian release of exposure ``mu``."""

    mu: float

    def deltas(self, epsilons: FloatArray, delta: float) -> FloatArray:
        """Return the exact profile at ``epsilons`` [G], [G]."""
        return gaussian_delta(self.mu, epsilons)

    def most_probable(self, shares: FloatArray) -> FloatArray:
        """Return 1 - f at ``shares`` [n], rounded up: Phi(Phi^-1(share) + mu) (Dong, Roth & Su 2022)."""
        return np.minimum(ndtr(ndtri(shares) + self.mu) * _ROUND_UP, 1.0)

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return epsilon at D deltas, [D]."""
        return np.array([float(gaussian_epsilon(self.mu, delta)) for delta in deltas])


@dataclass(frozen=True)
class EitherTrial:
    """The profile of a trial that has one of two profiles, whichever: the larger one at each epsilon."""

    first: Profile
    second: Profile

    def deltas(self, epsilons: FloatArray, delta: float) -> FloatArray:
        """Return the larger delta at ``epsilons`` [G], [G]."""
        return np.maximum(self.first.deltas(epsilons, delta), self.second.deltas(epsilons, delta))

    def epsilons(self, deltas: Sequence[float]) -> FloatArray:
        """Return the larger epsilon at D deltas, [D]."""
        return np.maximum(self.first.epsilons(deltas), self.second.epsilons(deltas))


def trial_epsilon(selection: Selection, target_epsilon: float, delta: float) -> float:
    """Return the epsilon that a trial without sampling may have if the best of them is to have the target.

    Formal guarantee: with that epsilon or less at ``delta``, ``SelectedBound`` of the trial is at most
    ``target_epsilon``. The result is within 0.1 % of the largest. Raises InvalidInputError for a target that is not a
    finite number above 0, and unless delta is strictly between 0 and 1.
    """
    target = validation.positive("target_epsilon", target_epsilon)
    delta = validation.probability("delta", delta)

    def cost(mu: float) -> float:
        return float(SelectedBound(GaussianTrial(mu), selection).epsilons([delta])[0])

    # Small costs are nearly proportional to mu: a few corrections reach the target. ``low`` is on the private side.
    low, high, mu = 0.0, math.inf, 1.0
    for number in range(_CORRECTIONS):
        found = cost(mu)
        if found <= target:
            low = mu
        else:
            high = mu
        if (1 - _CLOSE) * target <= found <= target:
            break
        guess = mu * ((1 - _CLOSE / 2) * target / found if 0 < found < math.inf else 0.25 if found else 4.0)
        mu = guess if low < guess < high and (number < _GUESSES or math.isinf(high)) else (low + high) / 2
    epsilon = float(gaussian_epsilon(low, delta))
    if epsilon == 0:  # nothing was found, or delta is so large that epsilon does not say how much noise there is
        raise refuse("target_epsilon", target, "an epsilon that the best of several runs can have at this delta")
    return epsilon


def renyi_selection_epsilon(selection: Selection, steps: Sequence[RepeatedStep], delta: float) -> float:
    """Return epsilon of the selection by the Rényi divergences of its trials, as dp-accounting has it; also a bound.

    Where an ``exposure`` is declared, a trial has the plan ``steps`` or reveals as much as that exposure, whichever. So
    its divergence is at most the larger of the two at each order, and that curve is what the theorem takes (Papernot &
    Steinke 2022, Theorem 2). The theorem looks at two orders at once: the larger result of two curves is no bound.
    """
    library: Any = importlib.import_module("dp_accounting.rdp.rdp_privacy_accountant")
    accountant = library.RdpAccountant()
    orders = accountant._orders
    curve = _divergences(steps, orders)
    if selection.exposure is not None:
        curve = np.maximum(curve, _divergences([(1 / selection.exposure, 1.0, 1)], orders))
    with np.errstate(all="ignore"):
        accountant._rdp = library._compute_rdp_repeat_and_select(orders, curve, selection.mean, 1.0)
        return max(0.0, float(accountant.get_epsilon(delta)))


def _divergences(steps: Sequence[RepeatedStep], orders: FloatArray) -> FloatArray:
    """Return the Rényi divergences [A] of a trial at ``orders`` [A], rounded up."""
    total = np.zeros(len(orders))
    for noise, rate, count in steps:
        one = sampled_divergences(noise, rate, orders) + _RENYI_ROUND_OFF if rate < 1 else orders / (2 * noise**2)
        total = total + count * one
    return total * _ROUND_UP
