"""The claim about the population on average, on runs whose truth is known."""

import numpy as np
import pytest
from benchmarks.populations import easy

from bayesdp import Ledger
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.claims.epsilon_walk import least_epsilon, walk
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.estimators import Betting, EmpiricalBernstein, KullbackLeibler
from traps import TRAPS, true_delta

DELTA = 1e-5


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
    claims = compute_claims(easy_run, ClaimRequest(delta=DELTA, gamma=1e-10))
    assert claims.average.kind == "estimate"
    assert claims.average.epsilon <= 1.15
    assert claims.everyone.epsilon == pytest.approx(1.828, abs=2e-3)
    figures = RecordFigures(easy_run, DELTA, claims.everyone.epsilon)
    deltas = figures.deltas(figures.plausible_points)
    plug_in = figures.walk[: deltas.shape[1]][deltas.mean(axis=0) <= DELTA].min()
    assert claims.average.epsilon > plug_in
    proved = compute_claims(easy_run, ClaimRequest(delta=DELTA, gamma=1e-10, fixed_exposures=True)).average
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
    claims = compute_claims(ledger, ClaimRequest(delta=delta, gamma=0.01, shares=(0.9,)))
    assert true_delta(trap, claims.average.epsilon, "record in") > 1.2 * delta  # too small
    assert claims.average.kind == "estimate"
    assert claims.bayesian.kind == "model-based"
    assert claims.everyone.epsilon > 4.0
    assert true_delta(trap, claims.everyone.epsilon, "record in") <= delta
