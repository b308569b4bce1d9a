"""Figures per record, from which claims are made: costs and profiles of audit records, and of the clip bound."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from bayesdp.claims.epsilon_walk import walk
from bayesdp.claims.everyone import ledger_clip_bound
from bayesdp.claims.ex_post import Form, ex_post_epsilons
from bayesdp.claims.selected import SelectionPrice
from bayesdp.claims.step_kinds import exposure_counts
from bayesdp.guarantees.clip_bound import CLIP_BOUND_LAMBDAS
from bayesdp.guarantees.trade_off import RecordRisks, gaussian_risks, profile_risks
from bayesdp.ledger import StoredLedger
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.profiles import ExposureCounts, Precision, gaussian_delta, gaussian_epsilon, profiles
from bayesdp.profiles.conversion import record_deltas, record_epsilons
from bayesdp.validation import FloatArray

_MIDDLE = 8.0  # the order at which rounding to a few kinds of steps should add little
_FURTHER = 0.6  # profiles often support an average epsilon smaller than Rényi divergences do, by about this factor
_COARSER_GRID = 1e-3  # spacing of epsilons, for a table of many deltas
_EVERY = 4  # of the walk: the epsilons that risk is computed from
_NEARLY_ALWAYS = 0.9  # of the steps


class RecordFigures:
    """Costs and profiles of the m audit records of a ledger at one delta; computed on first use and then kept.

    All figures err upwards: exposures are rounded up in the ledger and again to kinds of steps, and profiles are
    rounded up. ``worst_case`` is the epsilon for everyone, which caps the estimates and starts the walk. Epsilons of a
    run that was chosen among others include what the choice costs (``SelectionPrice``); costs, and profiles other than
    epsilons, are those of the run alone.
    """

    def __init__(
        self,
        ledger: StoredLedger,
        delta: float,
        worst_case: float,
        precision: Precision | None = None,
        form: Form = "hockey-stick",
    ) -> None:
        self._ledger, self._precision = ledger, precision
        self.delta = delta
        self._form: Form = form
        self.clip_bound = ledger_clip_bound(ledger)
        self._price = SelectionPrice.of(ledger)
        self.walk = walk(worst_case)
        self.worst_case = worst_case
        "Epsilon for everyone at delta."

    @cached_property
    def costs(self) -> FloatArray:
        """The costs K_x of every audit record, [m, L], capped at those of the clip bound."""
        costs = self._ledger.costs(CLIP_BOUND_LAMBDAS)
        return costs if self.clip_bound is None else np.minimum(costs, self.clip_bound.costs)

    def mixture_costs(self, mixture: OrderMixture) -> FloatArray:
        """Return the costs [m, L] at the orders of a mixture, capped at those of the clip bound."""
        costs = self._ledger.mixture_costs(mixture)
        return costs if self.clip_bound is None else np.minimum(costs, self.clip_bound.mixture_costs(mixture))

    @cached_property
    def ex_post(self) -> FloatArray:
        """The ex-post epsilon of every audit record, [m], for somebody who was left out."""
        return self.ex_post_at(self.delta)

    def ex_post_at(self, delta: float) -> FloatArray:
        """Return the ex-post epsilon of every audit record, [m], at any delta."""
        return self.ex_post_from(self.costs_out, delta)

    def ex_post_from(self, costs: FloatArray, delta: float) -> FloatArray:
        """Return ex-post epsilons [m] from costs [m, L] that records had at some step, at the mixture's orders."""
        at = delta / self._price.mean
        return ex_post_epsilons(costs, at, self._ledger.mixture, self._form) + self._price.log_ratio

    def ex_post_if_always_audited(self) -> FloatArray | None:
        """Return about what ``ex_post`` would be, [m], had norms been computed at every step; None if they were.

        Costs add up over steps. Of the cost of a record, the steps without norms make up their share of the cost of the
        clip bound, at which they are charged; what is left belongs to the steps with norms, and is scaled to all steps.
        An estimate: it takes both kinds of steps to have the same settings on average, and the same norms. None also if
        fewer than a tenth of the steps are without norms, or all.
        """
        share = self._ledger.history.audited_steps / max(self._ledger.steps, 1)
        if self.clip_bound is None or not 0 < share <= _NEARLY_ALWAYS:
            return None
        most = self.clip_bound.mixture_costs(self._ledger.mixture)
        own = np.maximum(self.costs_out - (1 - share) * most, 0.0) / share
        return self.ex_post_from(np.minimum(own, most), self.delta)

    @property
    def audited_steps(self) -> int:
        """How many steps have norms of audit records; the others are charged at the clip bound."""
        return self._ledger.history.audited_steps

    @cached_property
    def ex_post_in(self) -> FloatArray:
        """The ex-post epsilon that every audit record would have, [m], had it been in the data: hockey-stick form."""
        mixture, at = self._ledger.mixture_in, self.delta / self._price.mean
        return ex_post_epsilons(self.mixture_costs(mixture), at, mixture) + self._price.log_ratio

    @cached_property
    def costs_out(self) -> FloatArray:
        """The costs [m, L] behind ``ex_post``, at the orders and in the direction of the ledger's mixture."""
        return self.mixture_costs(self._ledger.mixture)

    @cached_property
    def estimates(self) -> FloatArray:
        """The epsilon of every audit record, [m], as if its exposures had been fixed before the run."""
        if self._price.mean > 1:
            return np.minimum(self.estimates_at([self.delta])[:, 0], self.worst_case)
        renyi = record_epsilons(self.costs, CLIP_BOUND_LAMBDAS, self.delta)
        return np.minimum(np.minimum(self._first[0], renyi), self.worst_case)

    def estimates_at(self, deltas: Sequence[float]) -> FloatArray:
        """Return estimates at several deltas, [m, D], not capped at the worst case.

        They are computed together on a coarser grid, which makes them slightly larger.
        """
        deltas = [delta / self._price.mean for delta in deltas]
        renyi = np.stack([record_epsilons(self.costs, CLIP_BOUND_LAMBDAS, delta) for delta in deltas], axis=1)
        if self.unsampled:
            epsilons = np.stack([gaussian_epsilon(self._exposures, delta) for delta in deltas], axis=1)
        else:
            coarser = self._precision or Precision(grid=_COARSER_GRID)
            epsilons = profiles(self._counts, deltas, precision=coarser).epsilon
        return np.minimum(epsilons, renyi) + self._price.log_ratio

    @property
    def method(self) -> str:
        """How the profiles of records are computed."""
        return "exact Gaussian profile" if self.unsampled else "PLD of each record"

    @cached_property
    def bounds(self) -> FloatArray:
        """The worst case's delta at each epsilon of the walk, [G]; 1 without a clip bound."""
        if self.clip_bound is None:
            return np.ones(len(self.walk))
        return self.clip_bound.deltas(self.walk, self.delta, self._precision)

    def deltas(self, steps: int) -> FloatArray:
        """Return every audit record's delta at the first ``steps`` epsilons of the walk, [m, g]."""
        first = self._first[1][:, : self.plausible_points]
        known = first.shape[1]
        if steps <= known:
            return first[:, :steps]
        return np.concatenate([first, self._profiles_at(self.walk[known:steps])[1]], axis=1)

    @cached_property
    def plausible_points(self) -> int:
        """How far down the walk an average is likely to get: somewhat beyond where Rényi divergences end."""
        low, high = 0, len(self.walk) - 1
        while low < high:
            middle = (low + high + 1) // 2
            mean = float(record_deltas(self.costs, CLIP_BOUND_LAMBDAS, self.walk[[middle]]).mean())
            low, high = (middle, high) if mean <= self.delta else (low, middle - 1)
        return int(np.count_nonzero(self.walk >= _FURTHER * self.walk[low]))

    def risks(self, fpr: Sequence[float]) -> RecordRisks:
        """Return what an attacker gets about each audit record, as if its exposures had been fixed before the run.

        Errs upwards: exact without sampling, otherwise from a grid of about 230 epsilons.
        """
        if self.unsampled:
            return gaussian_risks(self._exposures, fpr)
        rising = self._first[1][:, self.plausible_points :]
        return profile_risks(self._risk_epsilons, rising, fpr, self.delta)

    @property
    def _risk_epsilons(self) -> FloatArray:
        """Epsilons for risk: 0 and some of the walk, rising."""
        return np.unique(np.append(self.walk[::_EVERY], 0.0))

    @cached_property
    def _first(self) -> tuple[FloatArray, FloatArray]:
        """Epsilons at delta, and deltas at the plausible part of the walk and then at ``_risk_epsilons``.

        One pass over all records serves both.
        """
        points = self.walk[: self.plausible_points]
        return self._profiles_at(points if self.unsampled else np.append(points, self._risk_epsilons))

    @property
    def _exposures(self) -> FloatArray:
        """The exposure of all steps together, [m], without sampling: the root of K(1), the sum of squared exposures."""
        return np.sqrt(self.costs[:, 0]) * (1 + 2.0**-50)

    @property
    def unsampled(self) -> bool:
        """Whether every step used all records."""
        return all(rate == 1 for rate in self._ledger.history.bins.rates)

    @cached_property
    def _counts(self) -> ExposureCounts:
        middle = self.costs[:, np.searchsorted(CLIP_BOUND_LAMBDAS, _MIDDLE)]
        return exposure_counts(self._ledger.step_counts(), middle, _MIDDLE)

    def _profiles_at(self, epsilons: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return epsilons [m] at delta, and deltas [m, g] at ``epsilons``: exact without sampling, by PLD otherwise."""
        if self.unsampled:
            exposures = self._exposures
            return gaussian_epsilon(exposures, self.delta), gaussian_delta(exposures[:, None], epsilons)
        computed = profiles(self._counts, self.delta, epsilons=epsilons, precision=self._precision)
        return computed.epsilon, computed.delta
