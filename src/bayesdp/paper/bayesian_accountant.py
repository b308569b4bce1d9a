"""The Bayesian accountant: the paper in one object."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.claims.claim import Claim
from bayesdp.estimators import Estimator, StudentT
from bayesdp.logspace import log1p_exp, log_expm1
from bayesdp.mechanisms import Mechanism, SubsampledGaussian
from bayesdp.paper.excess_table import ExcessTable
from bayesdp.profiles.conversion import (
    Conversion,
    check_conversion,
    delta_from_costs,
    epsilon_from_costs,
)
from bayesdp.validation import FloatArray, refuse

_STATE_VERSION = 1
_TABLES = 8  # sampling rates whose tables are kept
_MODERATE = 1e100  # exposures that tables serve: their squares and multiples stay far from overflow


class LastLambdaWarning(UserWarning):
    """Warns that the best order is the largest one given: larger orders may give a smaller epsilon."""


class BayesianAccountant:
    """Bayesian differential privacy of a run of at most ``total_steps`` steps (Triastcyn & Faltings 2020).

    Each step adds, at every order lambda, the cost

        c_t = (1/T) log of an upper estimate of E_x[e^{T kappa_lambda(e_t(x))}],

    where kappa is the log-moment of the mechanism, the mean is over the population, and T = ``total_steps`` is fixed
    before the run: Hölder's inequality needs it (fewer steps are valid, more are refused). The ``estimator`` sees the
    distances of m sampled records and may fail with probability gamma at each step and order; T gamma times the number
    of ``lambdas`` is charged inside delta, in both directions. ``conversion``: from costs to (epsilon, delta), see
    profiles/conversion.py. With ``clip``, no cost exceeds that of the moments accountant, which is the case d = clip.

    Its claims are model-based: see docs/theory.md, "Where the literal paper is not a bound". Sums over samples err
    upwards, so that costs are never below those of the formula.

    ``as_published=True`` does what the authors' code does: gamma once per step instead of per step and order, no cap at
    the clip bound, zero variance taken at its word. It is for reproduction, and its claims are labelled.
    ``audit=True`` says that distances come from held-out records; otherwise claims are marked private.

    Settings out of range, and an estimator other than StudentT as published, raise InvalidInputError.
    """

    def __init__(
        self,
        total_steps: int,
        lambdas: ArrayLike | range = range(1, 65),
        estimator: Estimator | None = None,
        conversion: Conversion = "improved",
        as_published: bool = False,
        *,
        audit: bool = False,
    ) -> None:
        self.total_steps = validation.count("total_steps", total_steps, minimum=1)
        self.lambdas = validation.lambdas(lambdas, whole=False)
        self.conversion: Conversion = check_conversion(conversion)
        self.as_published = as_published
        self.audit = audit
        self.estimator = StudentT() if estimator is None else estimator
        if not isinstance(self.estimator, Estimator):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refuse("estimator", estimator, "an Estimator such as StudentT(gamma=1e-15)")
        if as_published:
            if not isinstance(self.estimator, StudentT):
                raise refuse("estimator", type(self.estimator).__name__, "StudentT, as published")
            self.estimator = replace(self.estimator, as_published=True)
        self.steps = 0
        self._costs = np.zeros(len(self.lambdas))
        self._told = False
        "Whether LastLambdaWarning was issued already."
        self._moments_accountant = np.zeros(len(self.lambdas))
        self._tables: dict[float, ExcessTable] = {}

    # Accounting

    def step(self, distances: Any, *, noise_std: float, sample_rate: float, clip: float | None = None) -> None:
        """Account for one step of the (subsampled) Gaussian mechanism.

        ``distances`` [m]: how far each sampled record would move the sum of the step, before clipping. ``noise_std``:
        standard deviation of the noise on that sum. ``sample_rate``: the probability with which a record is in a batch.
        ``clip``: the bound on distances, if any; larger ones count as clipped.

        Raises InvalidInputError, and changes nothing, for fewer than 3 samples, numbers out of range, a step beyond
        ``total_steps``, and nearly equal distances without a clip.
        """
        array = validation.non_negative_array("distances", distances).ravel()
        noise_std = validation.positive("noise_std", noise_std)
        rate = validation.sample_rate(sample_rate)
        bound = None
        if clip is not None:
            clip = validation.positive("clip", clip)
            array, bound = np.minimum(array, clip), clip / noise_std
        self._check_room()
        with np.errstate(over="ignore"):
            exposure = array / noise_std
        moderate = bound < _MODERATE if bound is not None else not len(exposure) or exposure.max() < _MODERATE
        if isinstance(self.estimator, StudentT) and not self.as_published and moderate:
            cost, ceiling = self._table(rate).cost(exposure, bound, self.estimator)
        else:
            cost, ceiling = self._estimate(SubsampledGaussian(sample_rate=rate), exposure, bound)
        self._add(cost, ceiling)

    def step_with(self, mechanism: Mechanism, exposure: Any, bound: Any = None) -> None:
        """Account for one step of any mechanism, from its exposures (m of them).

        ``bound``: an exposure, in the mechanism's own form, that no record of the population exceeds, if one is known.
        Raises InvalidInputError, and changes nothing, as ``step`` does, and if a sampled exposure exceeds the bound.
        """
        if not isinstance(mechanism, Mechanism):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refuse("mechanism", mechanism, "a Mechanism such as Laplace()")
        self._check_room()
        self._add(*self._estimate(mechanism, exposure, bound))

    def _estimate(self, mechanism: Mechanism, exposure: Any, bound: Any) -> tuple[FloatArray, FloatArray]:
        """Return the cost of a step [L] from every sample at every order, and its ceiling [L], that of the bound."""
        # Excess e^x - 1 rather than e^x: the estimators are shift-equivariant, and tiny costs keep their digits.
        moments = _log_moments(mechanism, exposure, self.lambdas)
        with np.errstate(over="ignore"):
            excess = log_expm1(self.total_steps * moments)
        ceiling, cap = np.full(len(self.lambdas), np.inf), None
        if bound is not None:
            reference = [bound] if np.ndim(bound) == 0 else bound
            ceiling = mechanism.log_moment(reference, self.lambdas).max(axis=0)
            if (moments.max(axis=0, initial=0.0) > ceiling * (1 + 1e-9)).any():
                raise refuse("bound", bound, "an exposure that no sampled exposure exceeds")
            with np.errstate(over="ignore"):
                cap = None if self.as_published else log_expm1(self.total_steps * ceiling)
        log_upper = self.estimator.log_upper(excess, cap)
        return log1p_exp(log_upper) / self.total_steps, ceiling

    def _table(self, rate: float) -> ExcessTable:
        if rate not in self._tables:
            if len(self._tables) >= _TABLES:
                self._tables.pop(next(iter(self._tables)))
            self._tables[rate] = ExcessTable(rate, self.lambdas, self.total_steps)
        return self._tables[rate]

    def _check_room(self) -> None:
        if self.steps >= self.total_steps:
            raise refuse(
                "steps",
                self.steps + 1,
                f"at most total_steps={self.total_steps}, which Hölder's inequality fixes before the run",
            )

    def _add(self, cost: FloatArray, ceiling: FloatArray) -> None:
        cost = np.where(np.isnan(cost), np.inf, cost)  # never taken for no cost
        self._costs = self._costs + cost
        self._moments_accountant = self._moments_accountant + ceiling
        self.steps += 1

    # Results

    @property
    def costs(self) -> FloatArray:
        """The cost of all steps so far at each order, [L]; a copy."""
        return self._costs.copy()

    @property
    def total_gamma(self) -> float:
        """How much of delta pays for possible failures of the estimator: T gamma L, or steps gamma as published."""
        if self.as_published:
            return self.steps * self.estimator.gamma
        return self.total_steps * len(self.lambdas) * self.estimator.gamma

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon_mu over the orders at delta_mu = ``delta``, which includes ``total_gamma``.

        0 before the first step. Warns once with LastLambdaWarning if the largest order gives it. Raises
        InvalidInputError unless ``delta`` is above ``total_gamma`` and below 1.
        """
        value, notes = self._noted_epsilon(delta)
        if notes and not self._told:
            self._told = True
            warnings.warn(notes[0], LastLambdaWarning, stacklevel=2)
        return value

    def _noted_epsilon(self, delta: float) -> tuple[float, tuple[str, ...]]:
        """Return epsilon, and a sentence if the largest order gives it."""
        value, best = epsilon_from_costs(self._costs, self.lambdas, self._usable(delta), self.conversion)
        if not (self.steps and value > 0 and len(self.lambdas) > 1 and best == np.argmax(self.lambdas)):
            return value, ()
        return value, (
            f"lambda={self.lambdas[best]:g} is the last of the grid: a larger one may give a smaller epsilon.",
        )

    get_epsilon = epsilon

    def delta(self, epsilon: float) -> float:
        """Return the least delta_mu over the orders at epsilon_mu = ``epsilon``, ``total_gamma`` included, at most 1.

        The inverse of ``epsilon``. Raises InvalidInputError unless ``epsilon`` is finite and at least 0.
        """
        epsilon = validation.non_negative("epsilon", epsilon)
        value, _ = delta_from_costs(self._costs, self.lambdas, epsilon, self.conversion)
        return min(1.0, value + self.total_gamma)

    def best_lambda(self, delta: float) -> float:
        """Return the order lambda that gives ``epsilon(delta)``; raises as that does."""
        best = epsilon_from_costs(self._costs, self.lambdas, self._usable(delta), self.conversion)[1]
        return float(self.lambdas[best])

    def moments_accountant_epsilon(self, delta: float) -> float:
        """Return epsilon of the moments accountant, the case d = clip, at the same orders and conversion.

        It holds for everyone and needs no gamma. Infinite if any step had no clip.
        """
        delta = validation.probability("delta", delta)
        return epsilon_from_costs(self._moments_accountant, self.lambdas, delta, self.conversion)[0]

    def claim(self, delta: float) -> Claim:
        """Return the Bayesian claim at ``delta``, with that of the moments accountant for everyone beside it.

        Model-based, on average over the population, in both directions; marked private unless ``audit``. Where the
        largest order is the best, a note says so instead of a warning. Raises InvalidInputError as ``epsilon`` does.
        """
        delta = validation.probability("delta", delta)
        epsilon, notes = self._noted_epsilon(delta)
        label = "Bayesian accountant" + (", as published" if self.as_published else "")
        everyone = Claim(
            epsilon=self.moments_accountant_epsilon(delta),
            delta=delta,
            audience="everyone",
            direction="both",
            kind="proved",
            method="moments accountant",
        )
        return Claim(
            epsilon=epsilon,
            delta=delta,
            audience="average",
            direction="both",
            kind="model-based",
            method=f"{label}, {type(self.estimator).__name__}",
            gamma=self.total_gamma,
            gamma_in_delta=True,
            order=self.best_lambda(delta),
            assumptions=(
                "sampled records are drawn from the same distribution as everybody's",
                "the estimator's model of their costs",
                "costs do not depend on earlier outputs",
            ),
            notes=notes,
            private=not self.audit,
            worst_case=everyone,
        )

    def _usable(self, delta: float) -> float:
        delta = validation.probability("delta", delta)
        if delta <= self.total_gamma:
            raise refuse("delta", delta, f"more than the total gamma={self.total_gamma:.3g} of all steps and orders")
        return delta - self.total_gamma

    # State

    def state_dict(self) -> dict[str, Any]:
        """Return settings and costs as plain JSON values; floats keep their last bit, infinite costs are None."""
        return {
            "version": _STATE_VERSION,
            **self._settings(),
            "steps": self.steps,
            "costs": _to_json(self._costs),
            "moments_accountant": _to_json(self._moments_accountant),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, bit for bit, where ``state`` was taken by ``state_dict``.

        Raises InvalidInputError, and changes nothing, if the settings differ from these or the state is damaged.
        """
        if not isinstance(state, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise refuse("state", state, "what state_dict returned")
        expected = {"version": _STATE_VERSION, **self._settings()}
        for name, value in expected.items():
            if name not in state or state[name] != value:
                raise refuse(name, state.get(name), f"{value!r}, the setting of this accountant")
        steps = validation.count("steps", state.get("steps"), minimum=0)
        if steps > self.total_steps:
            raise refuse("steps", steps, f"at most total_steps={self.total_steps}")
        costs = self._from_json("costs", state.get("costs"))
        moments = self._from_json("moments_accountant", state.get("moments_accountant"))
        self.steps, self._costs, self._moments_accountant = steps, costs, moments

    def _settings(self) -> dict[str, Any]:
        return {
            "total_steps": self.total_steps,
            "lambdas": self.lambdas.tolist(),
            "estimator": type(self.estimator).__name__,
            "gamma": self.estimator.gamma,
            "conversion": self.conversion,
            "as_published": self.as_published,
            "audit": self.audit,
        }

    def _from_json(self, name: str, values: Any) -> FloatArray:
        listed = cast(list[Any], values) if isinstance(values, list) else []
        if len(listed) != len(self.lambdas) or not all(v is None or isinstance(v, float | int) for v in listed):
            raise refuse(name, cast(object, values), f"a list of {len(self.lambdas)} numbers")
        filled = [math.inf if v is None else v for v in listed]
        return validation.non_negative_array(name, filled, finite=False)


def _log_moments(mechanism: Mechanism, exposure: Any, lambdas: FloatArray) -> FloatArray:
    """Return log-moments [m, L]; equal scalar exposures get equal bits, which estimators that count values need."""
    if isinstance(exposure, list | tuple | np.ndarray):
        distinct, place = np.unique(validation.as_floats("exposure", exposure).ravel(), return_inverse=True)
        return mechanism.log_moment(distinct, lambdas)[place]
    return mechanism.log_moment(exposure, lambdas)


def _to_json(values: FloatArray) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]
