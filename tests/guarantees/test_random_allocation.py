"""Random allocation: against quadrature in two dimensions, simulations of the true mechanism, and the Gaussian."""

import math

import numpy as np
import pytest
from scipy.stats import norm

import bayesdp
from bayesdp import InvalidInputError
from bayesdp.guarantees.random_allocation import _losses_in, _losses_out, random_allocation_epsilon


def exact_of_two(noise, epsilon):
    """Both hockey-stick divergences of an epoch of two steps, by the midpoint rule on the plane."""
    reach = 9 * noise + 1
    side = np.linspace(-reach, reach, 1501)
    cell = (side[1] - side[0]) ** 2
    here, there = norm.pdf(side, 0, noise), norm.pdf(side, 1, noise)
    p = (np.outer(there, here) + np.outer(here, there)) / 2
    q = np.outer(here, here)
    a = math.exp(epsilon)
    return (np.maximum(p - a * q, 0).sum() * cell, np.maximum(q - a * p, 0).sum() * cell)


@pytest.mark.parametrize("noise", [0.8, 5.0])
def test_an_epoch_of_two_steps(noise):
    laws = [law(1 / noise, 2) for law in (_losses_in, _losses_out)]
    for epsilon in (0.0, 0.2, 1.0):
        for law, exact in zip(laws, exact_of_two(noise, epsilon), strict=True):
            bound = law.get_delta_for_epsilon(epsilon)
            assert exact * (1 - 1e-6) <= bound
            if noise > 1:  # with less, W is so spread that the grid is coarse
                assert bound <= exact * 1.01 + 1e-3


def simulated_losses(noise, per_epoch, epochs, count, random):
    """Losses of runs with the record in (log P/Q under P), and out (log Q/P under Q)."""
    totals = []
    for inside in (True, False):
        total = np.zeros(count)
        for _ in range(epochs):
            x = noise * random.normal(size=(count, per_epoch))
            if inside:
                x[:, 0] += 1  # which step it is does not change the law of the loss
            ratio = np.log(np.exp(x / noise**2 - 1 / (2 * noise**2)).mean(axis=1))
            total += ratio if inside else -ratio
        totals.append(total)
    return totals


@pytest.mark.parametrize(
    ("noise", "per_epoch", "epochs", "epsilon"),
    [(1.0, 10, 1, 0.8), pytest.param(1.5, 20, 3, 0.7, marks=pytest.mark.slow)],
)
def test_never_below_a_simulation_of_the_mechanism(noise, per_epoch, epochs, epsilon):
    losses = simulated_losses(noise, per_epoch, epochs, 100_000, np.random.default_rng(0))
    deltas = [np.maximum(1 - np.exp(epsilon - loss), 0) for loss in losses]
    lower, upper = (max(d.mean() + sign * 5 * d.std() / math.sqrt(len(d)) for d in deltas) for sign in (-1, 1))
    settings = {"noise_multiplier": noise, "sample_rate": 1 / per_epoch, "steps": per_epoch * epochs}
    assert random_allocation_epsilon(**settings, delta=float(lower)).epsilon >= epsilon
    assert random_allocation_epsilon(**settings, delta=float(upper)).epsilon <= epsilon * 1.02 + 0.01


@pytest.mark.slow
def test_about_as_good_as_poisson_and_much_better_than_no_amplification():
    settings = {"noise_multiplier": 1.0, "sample_rate": 0.01, "steps": 200}
    found = bayesdp.epsilon(**settings, sampling="random-allocation")
    poisson = bayesdp.epsilon(**settings)
    assert 0.7 * poisson.epsilon < found.epsilon < 1.1 * poisson.epsilon
    assert "exactly one step" in found.statement()


def test_an_epoch_that_was_begun_counts_as_whole():
    settings = {"noise_multiplier": 2.0, "sample_rate": 0.1}
    assert random_allocation_epsilon(**settings, steps=11) == random_allocation_epsilon(**settings, steps=20)


def test_without_a_choice_it_is_the_gaussian():
    found = random_allocation_epsilon(noise_multiplier=2.0, sample_rate=1.0, steps=3)
    assert found.epsilon == bayesdp.epsilon(noise_multiplier=2.0, sample_rate=1.0, steps=3).epsilon
    assert "Without amplification" in found.statement()


@pytest.mark.parametrize(("noise", "per_epoch"), [(0.05, 100), (1e-6, 2), (1e12, 10**6)])
def test_where_the_grid_cannot_help_there_is_no_amplification(noise, per_epoch):
    found = random_allocation_epsilon(noise_multiplier=noise, sample_rate=1 / per_epoch, steps=per_epoch)
    assert found.epsilon <= bayesdp.epsilon(noise_multiplier=noise, sample_rate=1.0, steps=1).epsilon
    assert found.epsilon >= 0


def test_no_steps_cost_nothing():
    assert random_allocation_epsilon(noise_multiplier=1.0, sample_rate=0.1, steps=0).epsilon == 0


def test_a_rate_must_be_one_over_the_steps_of_an_epoch():
    with pytest.raises(InvalidInputError, match=r"sample_rate=0.3: expected 1 over the number of steps in an epoch"):
        random_allocation_epsilon(noise_multiplier=1.0, sample_rate=0.3, steps=10)
