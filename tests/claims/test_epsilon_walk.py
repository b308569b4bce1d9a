"""The walk to the smallest epsilon that an average supports."""

import numpy as np
import pytest
from scipy.stats import binom

from bayesdp.claims.epsilon_walk import floor, least_epsilon, walk
from bayesdp.estimators import Betting, EmpiricalBernstein, KullbackLeibler
from bayesdp.profiles import gaussian_delta

DELTA = 1e-5


def test_the_grid_depends_on_the_worst_case_only():
    grid = walk(2.0)
    assert grid[0] == 2.0
    assert (np.diff(grid) < 0).all()
    np.testing.assert_allclose(grid[1:] / grid[:-1], 0.99, rtol=1e-12)


def gaussian_population(mu: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    return gaussian_delta(mu[:, None], epsilons)


@pytest.mark.parametrize(
    ("kind", "gamma"),
    [
        (Betting, 0.2),
        (Betting, 0.05),
        (EmpiricalBernstein, 0.2),
        (EmpiricalBernstein, 0.05),
        pytest.param(KullbackLeibler, 0.2, marks=pytest.mark.slow),
        pytest.param(KullbackLeibler, 0.05, marks=pytest.mark.slow),
    ],
)
def test_covers_the_true_average(kind, gamma):
    """Full-batch runs fixed beforehand: one person in twelve is loud, the others are quiet; the truth is known."""
    loud, quiet, share, samples, runs = 1.0, 0.2, 1 / 12, 60, 100
    delta = 1e-3
    epsilons = walk(3.0)
    bounds = gaussian_delta(loud, epsilons)
    truth = share * gaussian_delta(loud, epsilons) + (1 - share) * gaussian_delta(quiet, epsilons)
    true_epsilon = epsilons[truth <= delta].min()
    rng = np.random.default_rng(0)
    table = gaussian_population(np.array([quiet, loud]), epsilons[:150])
    missed = 0
    for _ in range(runs):
        deltas = table[(rng.random(samples) < share).astype(int)]
        found = least_epsilon(kind(gamma=gamma), epsilons[:150], deltas, bounds, delta, known=bounds[0] <= delta)
        missed += found.epsilon < true_epsilon * (1 - 1e-12)
        assert floor(kind(gamma=gamma), samples, epsilons, bounds, delta) <= found.epsilon
    assert missed <= binom.isf(1e-6, runs, gamma)


def test_no_sample_supports_less_than_the_floor():
    epsilons = walk(4.4)
    bounds = gaussian_delta(1.0, epsilons)
    nothing = np.zeros((100, len(epsilons)))
    for kind in (Betting, KullbackLeibler):
        found = least_epsilon(kind(gamma=0.01), epsilons, nothing, bounds, DELTA, known=True)
        least = floor(kind(gamma=0.01), 100, epsilons, bounds, DELTA)
        assert found.epsilon == pytest.approx(least)
        assert 0 < least < 4.4


def test_a_run_without_any_support_ends_at_the_worst_case():
    epsilons = walk(4.4)
    bounds = gaussian_delta(1.0, epsilons)
    everyone = gaussian_population(np.ones(100), epsilons[:50])
    assert least_epsilon(Betting(gamma=0.01), epsilons[:50], everyone, bounds, DELTA, known=True).epsilon == 4.4
    unknown = least_epsilon(Betting(gamma=0.01), epsilons[:50], np.ones((100, 50)), np.ones(50), DELTA, known=False)
    assert unknown.epsilon == np.inf
