"""The walk to the least epsilon that an average supports."""

import numpy as np
import pytest
from benchmarks.populations import easy
from scipy.stats import binom

from bayesdp import Ledger
from bayesdp.claims import ClaimRequest, run_claims
from bayesdp.claims.epsilon_walk import floor, least_epsilon, walk
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.estimators import Betting, EmpiricalBernstein, KullbackLeibler
from bayesdp.profiles import gaussian_delta
from traps import TRAPS, true_delta

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


@pytest.fixture(scope="module")
def easy_run() -> Ledger:
    ledger = Ledger()
    for norms in easy(10_000, seed=0):
        ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0, audit=norms)
    return ledger


def test_easy_with_renyi_deltas_as_published(easy_run):
    """THEORY's figures are of per-record Rényi deltas: betting 1.21 to 1.28, KL 1.28, Maurer-Pontil 1.36."""
    from bayesdp.profiles.conversion import log_constant

    lambdas = np.arange(1.0, 257.0)
    figures = RecordFigures(easy_run, DELTA, 2.108)
    costs = easy_run.costs(lambdas) + log_constant(lambdas, "improved")
    everyone = figures.clip_bound.costs[:256] + log_constant(lambdas, "improved")
    epsilons = walk(2.108)[:120]
    deltas = np.stack([np.exp(np.minimum((costs - lambdas * e).min(axis=1), 0)) for e in epsilons], axis=1)
    bounds = np.array([np.exp(min(0.0, float((everyone - lambdas * e).min()))) for e in epsilons])
    found = {
        kind: least_epsilon(kind(gamma=1e-10), epsilons, deltas, bounds, DELTA, known=True).epsilon
        for kind in (Betting, KullbackLeibler, EmpiricalBernstein)
    }
    truth = epsilons[deltas.mean(axis=0) <= DELTA].min()
    assert truth == pytest.approx(1.058, rel=0.06)
    assert truth < found[Betting] <= 1.30
    assert found[Betting] < found[KullbackLeibler] < found[EmpiricalBernstein] < 1.4


@pytest.mark.slow
def test_easy_with_profiles_is_tighter_still(easy_run):
    claims = run_claims(easy_run, ClaimRequest(delta=DELTA, gamma=1e-10))
    assert claims.average.kind == "estimate"
    assert claims.average.epsilon <= 1.15
    assert claims.everyone.epsilon == pytest.approx(1.828, abs=2e-3)
    figures = RecordFigures(easy_run, DELTA, claims.everyone.epsilon)
    deltas = figures.deltas(figures.plausible_steps)
    plug_in = figures.walk[: deltas.shape[1]][deltas.mean(axis=0) <= DELTA].min()
    assert claims.average.epsilon > plug_in
    proved = run_claims(easy_run, ClaimRequest(delta=DELTA, gamma=1e-10, fixed_exposures=True)).average
    assert proved.kind == "proved"
    assert proved.epsilon == claims.average.epsilon


@pytest.mark.parametrize("trap", TRAPS)
def test_on_a_trap_the_average_is_too_small_and_says_that_it_is_an_estimate(trap):
    """What was released decides the second exposure, so no average over one trajectory is a bound."""
    rng = np.random.default_rng(0)
    ledger = Ledger()
    people = 40_000
    first = np.full(people, trap.first)
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=trap.second, audit=first)
    second = np.where(rng.standard_normal(people) > trap.threshold, trap.second, 0.0)
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=trap.second, audit=second)
    delta = true_delta(trap, 4.0, "record in") / 2
    claims = run_claims(ledger, ClaimRequest(delta=delta, gamma=0.01, shares=(0.9,)))
    assert true_delta(trap, claims.average.epsilon, "record in") > 1.2 * delta  # too small
    assert claims.average.kind == "estimate"
    assert claims.bayesian.kind == "model-based"
    assert claims.everyone.epsilon > 4.0
    assert true_delta(trap, claims.everyone.epsilon, "record in") <= delta
