"""Ex-post epsilons: the root, and runs of known law whose steps depend on what was released before."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from bayesdp import Ledger
from bayesdp.claims.ex_post import ORDERS, WEIGHTS, ex_post_epsilons
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.estimators import order_statistic_rank
from traps import TRAPS


def gaussian_costs(squared: float) -> np.ndarray:
    return ORDERS * (ORDERS + 1) * squared / 2


def test_weights_are_a_distribution():
    assert WEIGHTS.sum() == pytest.approx(1, abs=1e-12)
    assert WEIGHTS.sum() <= 1 + 1e-12


@given(st.floats(1e-8, 100), st.floats(1e-12, 0.5), st.floats(0.3, 3))
def test_the_root_in_high_precision(squared, delta, power):
    costs = gaussian_costs(squared) * ORDERS ** (power - 1)
    found = ex_post_epsilons(costs[None], delta)[0]
    with mp.workdps(50):

        def mixture(epsilon):
            terms = zip(WEIGHTS.tolist(), ORDERS.tolist(), costs.tolist(), strict=True)
            return sum(mp.mpf(w) * mp.exp(mp.mpf(order) * epsilon - mp.mpf(cost)) for w, order, cost in terms)

        assert mixture(mp.mpf(float(found))) >= 1 / mp.mpf(delta)
        assert mixture(mp.mpf(float(found) * (1 - 1e-9))) < 1 / mp.mpf(delta)


def test_extreme_costs():
    nothing, infinite = np.zeros(len(ORDERS)), np.full(len(ORDERS), np.inf)
    some = infinite.copy()
    some[0] = 1.0
    found = ex_post_epsilons(np.stack([nothing, infinite, some, np.full(len(ORDERS), 1e-300)]), 1e-5)
    assert found[0] == 0
    assert found[1] == np.inf
    assert found[2] == pytest.approx((np.log(1e5 / 0.12) + 1) / 2)
    assert 0 < found[3] < 0.02


@given(st.floats(1e-6, 10), st.floats(1.0, 2.0))
def test_more_cost_gives_more(squared, factor):
    low, high = ex_post_epsilons(np.stack([gaussian_costs(squared), gaussian_costs(squared * factor)]), 1e-5)
    assert high >= low


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("direction", ["record in", "record out"])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-7])
def test_holds_on_the_traps(trap, direction, delta):
    """Pr[L > epsilon of the trajectory] by quadrature over the first output, for someone who was left out."""
    trap = trap.set_for(direction)
    squares = np.array([trap.first**2, trap.first**2 + trap.second**2])
    quiet, loud = ex_post_epsilons(np.stack([gaussian_costs(square) for square in squares]), delta)
    y = np.linspace(-14, 14, 400001)
    first = trap.first**2 / 2 - trap.first * y
    passes = trap.side * y > trap.threshold
    second = norm.sf((loud - first - trap.second**2 / 2) / trap.second)
    exceeds = np.where(passes, second, first > quiet)
    assert np.trapezoid(norm.pdf(y) * exceeds, y) <= delta


class Population:
    """People whose exposure rises once an output along their own direction was large; outputs without them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.rate, self.steps, self.noise = 0.3, 12, 2.0

    def run(self, people: int) -> tuple[np.ndarray, np.ndarray]:
        """Norms [steps, people] (clip 1), and the loss of each, [people], record out."""
        level = np.minimum(1.0, np.exp(-1.5 + self.rng.standard_normal(people)))
        norms, losses = np.empty((self.steps, people)), np.zeros(people)
        current = level.copy()
        for step in range(self.steps):
            norms[step] = current
            exposure = current / self.noise
            outputs = self.rng.standard_normal(people)
            losses -= np.log1p(self.rate * np.expm1(exposure * outputs - exposure**2 / 2))
            current = np.where(outputs < -1.0, 1.0, level)  # large when the release says "was left out"
        return norms, losses

    def epsilons(self, norms: np.ndarray, delta: float) -> np.ndarray:
        ledger = Ledger()
        for row in norms:
            ledger.step(noise_std=self.noise, sample_rate=self.rate, clip=1.0, audit=row)
        return RecordFigures(ledger, delta, 1.0).ex_post


def check_shares_end_to_end(runs: int, seed: int, delta: float, gamma: float, share: float) -> None:
    population = Population(seed)
    audit, fresh = 150, 150
    rank = order_statistic_rank(audit, share, gamma)
    assert rank is not None
    violations, too_small, missed = 0, 0, 0
    reference = np.concatenate(
        [population.epsilons(population.run(2000)[0], delta) for _ in range(3)]
    )  # people are alike in law and independent of each other: the true quantile is the same in every run
    true_quantile = np.quantile(reference, share)
    for _ in range(runs):
        norms, losses = population.run(audit + fresh)
        epsilons = population.epsilons(norms, delta)
        violations += np.count_nonzero(losses > epsilons)
        too_small += np.count_nonzero(losses > epsilons / 20)
        missed += np.sort(epsilons[:audit])[rank - 1] < true_quantile * 0.995
    assert violations <= binom.isf(1e-6, runs * (audit + fresh), delta)
    assert missed <= binom.isf(1e-6, runs, gamma)
    assert too_small > delta * runs * (audit + fresh)  # the losses are not all tiny


def test_shares_end_to_end():
    check_shares_end_to_end(runs=60, seed=0, delta=0.2, gamma=0.05, share=0.9)


@pytest.mark.slow
@pytest.mark.parametrize(("delta", "gamma", "share"), [(0.2, 0.05, 0.9), (0.05, 0.01, 0.5), (0.01, 0.05, 0.95)])
def test_shares_end_to_end_in_many_runs(delta, gamma, share):
    check_shares_end_to_end(runs=1000, seed=1, delta=delta, gamma=gamma, share=share)
