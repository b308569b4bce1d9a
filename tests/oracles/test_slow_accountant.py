"""The library against the slow accountant: never below it, and within the tightness that its docstrings state."""

import math

import mpmath as mp
import numpy as np
import pytest

import bayesdp
from bayesdp.attack.finding import Detection
from bayesdp.claims.ex_post import hockey_stick_epsilons, markov_epsilons
from bayesdp.estimators import Betting, order_statistic_rank
from bayesdp.mechanisms.order_mixture import WIDE_OUT, OrderMixture
from bayesdp.profiles.conversion import delta_from_costs, epsilon_from_costs
from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon
from oracles import slow_accountant as slow

STEPS = [(1.0, 0.01), (0.02, 0.001), (1e-6, 0.5), (4.0, 1e-5), (2.0, 0.999), (0.5, 1 / 3)]
"""Exposures and rates, ordinary and extreme."""


def assert_just_above(found, exact, tightness, *, slack=0.0):
    """The library's figure is not below the exact one, and above it by at most a relative ``tightness``."""
    found = mp.mpf(float(found))
    assert found >= exact * (1 - mp.mpf("1e-15")), (found, exact)
    assert found <= exact * (1 + mp.mpf(tightness)) + slack, (found, exact)


@pytest.mark.parametrize(("exposure", "rate"), [(1.0, 0.01), (1e-6, 0.5), (2.0, 0.999)])
def test_the_quadrature_agrees_with_the_binomial_theorem(exposure, rate):
    for order in (1, 7, 32):
        exact = slow.closed_log_moment(exposure, rate, order)
        assert abs(slow.log_moment(exposure, rate, order, "in") - exact) < mp.mpf(10) ** -slow.DIGITS * (1 + exact)


@pytest.mark.parametrize(("exposure", "rate"), STEPS)
@pytest.mark.parametrize("order", [1, 8, 64])
def test_log_moments(exposure, rate, order):
    step = bayesdp.SubsampledGaussian(sample_rate=rate)
    exact = slow.log_moment(exposure, rate, order, "in")
    assert_just_above(step.log_moment([exposure], [order])[0, 0], exact, 1e-10)
    out = slow.log_moment(exposure, rate, order, "out")
    assert out <= exact * (1 + mp.mpf("1e-18"))  # so one figure bounds both directions
    assert_just_above(step.reverse([exposure], [order])[0, 0], out, 1e-9)


def test_a_record_left_out_at_orders_that_are_not_whole():
    exact = slow.log_moment(0.7, 0.2, 2.5, "out")
    assert_just_above(bayesdp.SubsampledGaussian(sample_rate=0.2).reverse([0.7], [2.5])[0, 0], exact, 1e-9)


@pytest.mark.parametrize("delta", [1e-5, 1e-30, 0.3])
@pytest.mark.parametrize("conversion", ["chernoff", "improved"])
def test_composition_and_conversion(delta, conversion):
    orders = [1, 4, 16, 64]
    run = [(1.0, 0.01, 300), (0.25, 0.1, 50)]  # exposure, rate, how often
    exact = [sum(n * slow.log_moment(e, q, order, "in") for e, q, n in run) for order in orders]
    parts = [n * bayesdp.SubsampledGaussian(sample_rate=q).log_moment([e], orders)[0] for e, q, n in run]
    costs = np.sum(parts, axis=0)
    epsilon = slow.composed_epsilon(exact, orders, delta, improved=conversion == "improved")
    found, _ = epsilon_from_costs(costs, np.array(orders, float), delta, conversion)
    assert_just_above(found, epsilon, 1e-9)
    if epsilon:
        back, _ = delta_from_costs(costs, np.array(orders, float), found, conversion)
        assert back == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize(("mu", "epsilon"), [(1.0, 1.0), (0.01, 0.05), (1e-4, 0.0), (6.0, 0.5), (20.0, 300.0)])
def test_gaussian_profile(mu, epsilon):
    assert_just_above(gaussian_delta(mu, epsilon), slow.gaussian_delta(mu, epsilon), 1e-10, slack=1e-12)


@pytest.mark.parametrize(("mu", "delta"), [(1.0, 1e-5), (0.03, 1e-9), (5.0, 1e-30)])
def test_epsilon_of_a_gaussian_and_of_many_steps_without_sampling(mu, delta):
    exact = slow.epsilon_at(lambda epsilon: slow.gaussian_delta(mu, epsilon), delta)
    assert_just_above(gaussian_epsilon(mu, delta), exact, 1e-9)
    worst = bayesdp.epsilon(noise_multiplier=10 / mu, sample_rate=1, steps=100, delta=delta)
    assert_just_above(worst.epsilon, exact, 1e-6)


@pytest.mark.parametrize(("noise", "rate", "delta"), [(1.0, 0.01, 1e-5), (0.3, 0.2, 1e-9), (1.0, 1e-4, 1e-8)])
def test_epsilon_of_one_and_of_two_sampled_steps(noise, rate, delta):
    for steps, delta_of in ((1, slow.step_delta), (2, slow.two_step_delta)):
        found = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta).epsilon
        for direction in ("in", "out"):  # not below either direction
            assert delta_of(1 / noise, rate, mp.mpf(found), direction) <= delta * (1 + 1e-9)
        below = found * (1 - 2e-3) - 1e-4  # the grid of losses
        assert below < 0 or delta_of(1 / noise, rate, mp.mpf(below), "in") > delta


@pytest.mark.parametrize(("exposure", "rate", "steps", "epsilon"), [(1.0, 0.1, 2, 0.7), (0.5, 0.3, 6, 1.2)])
@pytest.mark.parametrize("direction", ["in", "out"])
def test_epsilon_of_a_few_steps_by_brute_force(exposure, rate, steps, epsilon, direction):
    lower, upper = slow.convolved_deltas(exposure, rate, steps, epsilon, direction, spacing=2e-3)
    if steps == 2:
        assert lower <= slow.two_step_delta(exposure, rate, epsilon, direction) <= upper
    if lower > 0:
        found = bayesdp.epsilon(noise_multiplier=1 / exposure, sample_rate=rate, steps=steps, delta=lower).epsilon
        assert found >= epsilon * (1 - 1e-9) or direction == "out"  # "in" is the larger of the two
    found = bayesdp.epsilon(noise_multiplier=1 / exposure, sample_rate=rate, steps=steps, delta=max(upper, 1e-12))
    assert found.epsilon <= epsilon * 1.002 or direction == "out"


MIXTURES = [WIDE_OUT, OrderMixture((3.0,), (1.0,)), OrderMixture((1.5, 40.0), (0.25, 0.75))]


@pytest.mark.parametrize("mixture", MIXTURES)
@pytest.mark.parametrize("delta", [1e-5, 1e-12, 0.5])
def test_ex_post_epsilons(mixture, delta):
    orders = mixture.lambdas
    costs = np.stack([0.5 * mu**2 * orders * (orders + 1) for mu in (1e-3, 0.1, 1.0, 7.0)])
    for form, oracle in ((markov_epsilons, slow.markov_epsilon), (hockey_stick_epsilons, slow.hockey_stick_epsilon)):
        for found, record in zip(form(costs, delta, mixture), costs, strict=True):
            exact = oracle(list(record), mixture.orders, mixture.weights, delta)
            assert_just_above(found, exact, 1e-11, slack=1e-14)


@pytest.mark.parametrize(
    ("m", "share", "gamma"),
    [(1, 0.5, 0.5), (7, 0.5, 0.01), (6, 0.5, 0.01), (459, 0.99, 0.01), (458, 0.99, 0.01), (600, 0.9, 1e-12)],
)
def test_ranks_in_whole_numbers(m, share, gamma):
    assert order_statistic_rank(m, share, gamma) == slow.rank(m, share, gamma)


def test_ranks_of_all_small_samples():
    for m in range(1, 40):
        for share in (0.1, 0.5, 0.9):
            for gamma in (1e-9, 0.01, 0.3):
                assert order_statistic_rank(m, share, gamma) == slow.rank(m, share, gamma)


@pytest.mark.parametrize("gamma", [0.01, 1e-15])
@pytest.mark.parametrize(
    "values",
    [np.zeros(30), np.linspace(0, 1, 40) ** 6, np.r_[np.zeros(20), 1.0], np.full(25, 1e-9), np.array([0.2, 0, 1])],
)
def test_betting_bound(values, gamma):
    exact = slow.betting_bound(values, 1.0, gamma)
    assert_just_above(Betting(gamma=gamma).upper(values, bound=1.0), exact, 1e-9, slack=1e-11)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (20, 20), (1, 1), (37, 40), (3, 60)])
def test_clopper_pearson(hits, trials):
    seen = Detection(
        bug="none", attacker="none", level=0.05, caught=hits, trials=trials, false_alarms=0, right_trials=1
    )
    for found, exact in zip(seen.power, slow.clopper_pearson(hits, trials, 0.95), strict=True):
        assert math.isclose(found, exact, rel_tol=1e-9, abs_tol=1e-12)
