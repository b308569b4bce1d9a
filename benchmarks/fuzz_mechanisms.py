"""Fuzzed mechanisms, events and histories, and figures beside those of the slow accountant of tests/oracles."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import mpmath as mp
import numpy as np

import bayesdp
from bayesdp.claims.ex_post import hockey_stick_epsilons, markov_epsilons
from bayesdp.estimators import order_statistic_rank
from bayesdp.mechanisms.order_mixture import WIDE_IN, WIDE_OUT, OrderMixture
from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon
from benchmarks.fuzz_judge import are_figures, is_figure, require
from benchmarks.fuzz_values import Values

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles import slow_accountant as slow


def posterior(values: Values) -> None:
    """Samples of fitted posteriors: ``GaussianLaws`` and ``UnequalGaussians``, diagonal or not."""
    d = int(values.rng.integers(1, 5))
    mechanism = bayesdp.UnequalGaussians(without=_laws(values, 1, d))
    laws = values.one_of((3.0, None, [1.0])) if values.chance(0.03) else _laws(values, int(values.rng.integers(4)), d)
    orders = values.orders()
    forward, reverse = mechanism.forward(laws, orders), mechanism.reverse(laws, orders)
    larger = mechanism.log_moment(laws, orders)
    are_figures(larger, "log-moments")
    require((larger == np.maximum(forward, reverse)).all(), "not the larger direction", larger, forward, reverse)


def _laws(values: Values, n: int, d: int) -> Any:
    """Return n Gaussian laws in d dimensions; one in twenty does not fit."""
    spread: Any = values.rng.lognormal(0.0, values.log_uniform(1e-12, 2), (n, d))
    if values.chance(0.3):
        turned = np.linalg.qr(values.rng.standard_normal((d, d)))[0]
        spread = np.stack([turned @ np.diag(row) @ turned.T for row in spread]) if n else np.zeros((0, d, d))
        spread = (spread + np.swapaxes(spread, 1, 2)) / 2
    mean = values.rng.standard_normal((n, d)) * values.log_uniform(1e-9, 100)
    if values.chance(0.05):
        return bayesdp.GaussianLaws(values.norms(), values.norms())
    if values.chance(0.05):
        spread = values.one_of((-spread, spread[..., :-1], spread * np.nan, 0.0, spread * 1e300, spread * 1e-300))
    return bayesdp.GaussianLaws(mean, spread)


def subsampled(values: Values) -> None:
    """Poisson sampling of any mechanism: never costs more than the mechanism itself, and rises with the rate."""
    bases: tuple[Any, ...] = (bayesdp.Laplace(), bayesdp.RandomizedResponse(), bayesdp.SubsampledGaussian())
    base = values.one_of(bases) if values.chance(0.97) else values.one_of((None, 3, "Laplace"))
    exposure, orders, rate = values.norms((0, 1, 3)), values.orders(most=1e3), values.rate()
    sampled = bayesdp.PoissonSubsampled(mechanism=base, sample_rate=rate)
    found = sampled.log_moment(exposure, orders)
    are_figures(found, "log-moments")
    whole = base.log_moment(exposure, orders)
    require((found <= whole * (1 + 1e-9) + 1e-300).all(), "sampling made it dearer", found, whole, rate)
    if base is bases[2] and sampled.sample_rate < 1:
        known = bayesdp.SubsampledGaussian(sample_rate=rate).log_moment(exposure, orders)
        require(np.allclose(found, known, rtol=1e-9, atol=1e-290), "two ways to the same figure", found, known)


def events(values: Values) -> None:
    """Histories become events of dp-accounting and come back; both have the same worst case."""
    history: Any = [
        (values.positive(0.5, 50), values.one_of((1.0, 0.1, values.rate())), values.count(50))
        for _ in range(int(values.rng.integers(4)))
    ]
    if values.chance(0.05):
        history = values.one_of((None, 3, "ab", [1], [(1, 2)], [(1, 2, 3, 4)], object(), [()]))
    if values.chance(0.05):
        bayesdp.from_dp_event(values.one_of((None, 3, "ab", [], [(1.0, 0.1, 5)], object, object())))
    event = bayesdp.to_dp_event(history)
    back = bayesdp.from_dp_event(event)
    require(bayesdp.to_dp_event(back) == event, "an event is not what it was", event, back)
    require(sum(steps for _, _, steps in back) == sum(int(steps) for *_, steps in history), "steps are lost", back)
    if values.chance(0.1):
        delta = values.probability()
        found, of_event = bayesdp.worst_case_of(history, delta=delta), bayesdp.worst_case_of(event, delta=delta)
        is_figure(found.epsilon)
        require(abs(found.epsilon - of_event.epsilon) <= 1e-6 * found.epsilon, "two worst cases", found, of_event)


def beside_the_oracle(values: Values) -> None:
    """An ordinary figure beside the slow accountant's: not below it, and hardly above it."""
    kind = int(values.rng.integers(6))
    exposure, rate = values.log_uniform(1e-3, 4), values.log_uniform(1e-4, 0.9)
    delta = values.log_uniform(1e-12, 0.1)
    if kind == 0:
        order = int(values.rng.integers(1, 65))
        found = bayesdp.SubsampledGaussian(sample_rate=rate).log_moment([exposure], [order])[0, 0]
        _just_above(found, slow.log_moment(exposure, rate, order, "in"), 1e-9)
    elif kind == 1:
        order = values.log_uniform(0.5, 32)
        found = bayesdp.SubsampledGaussian(sample_rate=rate).reverse([exposure], [order])[0, 0]
        _just_above(found, slow.log_moment(exposure, rate, order, "out"), 1e-8)
    elif kind == 2:
        epsilon = values.log_uniform(1e-3, 20)
        _just_above(gaussian_delta(exposure, epsilon), slow.gaussian_delta(exposure, epsilon), 1e-9, slack=1e-12)
    elif kind == 3:
        exact = slow.epsilon_at(lambda at: slow.gaussian_delta(exposure, at), delta)
        _just_above(gaussian_epsilon(exposure, delta), exact, 1e-8, slack=1e-9)
    elif kind == 4:
        mixture: OrderMixture = values.one_of((WIDE_OUT, WIDE_IN, OrderMixture((1.5, 40.0), (0.25, 0.75))))
        costs = exposure**2 / 2 * mixture.lambdas * (mixture.lambdas + 1)
        for form, oracle in _FORMS:
            exact = oracle(list(costs), mixture.orders, mixture.weights, delta)
            _just_above(form(costs[None], delta, mixture)[0], exact, 1e-10, slack=1e-13)
    else:
        records, share = int(values.rng.integers(1, 500)), values.rng.uniform(0.01, 0.99)
        found = order_statistic_rank(records, share, delta)
        require(found == slow.rank(records, share, delta), "a rank", found, records, share, delta)


_FORMS = ((markov_epsilons, slow.markov_epsilon), (hockey_stick_epsilons, slow.hockey_stick_epsilon))


@cache
def _smallest() -> mp.mpf:
    return 1 - mp.mpf("1e-15")


def _just_above(found: float, exact: mp.mpf, tightness: float, *, slack: float = 0.0) -> None:
    at = mp.mpf(float(found))
    require(at >= exact * _smallest() - mp.mpf("1e-300"), "below the slow accountant", found, exact)
    require(at <= exact * (1 + mp.mpf(tightness)) + slack, "far above the slow accountant", found, exact)
