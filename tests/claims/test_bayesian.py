"""The paper's claim from a ledger."""

import math

import numpy as np
import pytest

from bayesdp import BayesianAccountant, Ledger
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.estimators import StudentT
from bayesdp.profiles.conversion import epsilon_from_costs

LAMBDAS = np.arange(1.0, 65.0)


def batches(seed: int, steps: int, size: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.exp(rng.normal(-1.5, 0.6, size)) for _ in range(steps)]


def test_from_audit_records_it_is_student_t_over_whole_runs():
    ledger = Ledger()
    for norms in batches(0, 30, 200):
        ledger.step(noise_std=2.0, sample_rate=0.05, clip=1.0, audit=norms)
    claim = compute_claims(ledger, ClaimRequest()).bayesian
    costs = ledger.costs(LAMBDAS)
    averages = StudentT(gamma=1e-15).log_upper(costs)
    expected, best = epsilon_from_costs(averages, LAMBDAS, 1e-5 - 64e-15, "improved")
    assert claim.epsilon == pytest.approx(expected, rel=1e-9)
    assert claim.order == LAMBDAS[best]
    assert (claim.kind, claim.private, claim.gamma_in_delta) == ("model-based", False, True)


@pytest.mark.parametrize("seed", range(5))
def test_from_batches_it_is_never_below_the_accountant_on_the_exact_norms(seed):
    steps = 25
    ledger, accountant = Ledger(), BayesianAccountant(total_steps=steps)
    for norms in batches(seed, steps, 80):
        settings = {"noise_std": 2.0, "sample_rate": 0.05, "clip": 1.0}
        ledger.step(**settings, batch=norms)
        accountant.step(norms, **settings)
    (claim,) = compute_claims(ledger, ClaimRequest(private=True)).private
    exact = accountant.epsilon(1e-5)
    assert exact * (1 - 1e-6) <= claim.epsilon <= exact * 1.05
    assert claim.private
    assert claim.kind == "model-based"
    assert "Private" in str(claim)


def test_too_few_or_no_batches_are_charged_at_the_clip_bound():
    settings = {"noise_std": 2.0, "sample_rate": 0.05, "clip": 1.0}
    for batch in (None, [], [0.1], [0.1, 0.2]):
        ledger, moments = Ledger(), BayesianAccountant(total_steps=3)
        for _ in range(3):
            ledger.step(**settings, batch=batch)
            moments.step(np.ones(10), **settings)
        (claim,) = compute_claims(ledger, ClaimRequest(private=True)).private
        assert claim.epsilon == pytest.approx(moments.moments_accountant_epsilon(1e-5), rel=1e-6)


def test_nearly_equal_norms_say_nothing():
    settings = {"noise_std": 2.0, "sample_rate": 0.05, "clip": 1.0}
    equal, bound = Ledger(), Ledger()
    for _ in range(3):
        equal.step(**settings, batch=np.full(50, 0.1))
        bound.step(**settings)
    assert compute_claims(equal, ClaimRequest(private=True)).private[0].epsilon == pytest.approx(
        compute_claims(bound, ClaimRequest(private=True)).private[0].epsilon
    )


def test_without_a_clip_and_beyond_the_grid_there_is_no_figure():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, batch=[1.0, 2.0, 1e9], audit=[1.0, 2.0, 1e9])
    claims = compute_claims(ledger, ClaimRequest(private=True))
    assert math.isinf(claims.private[0].epsilon)
    assert claims.private[0].reason
    assert claims.bayesian.reason


def test_delta_within_the_failure_probability_gives_no_figure():
    ledger = Ledger()
    ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.linspace(0.1, 1, 30), batch=np.linspace(0.1, 1, 30))
    claims = compute_claims(ledger, ClaimRequest(delta=1e-14, private=True))
    for claim in (claims.bayesian, *claims.private):
        assert "not above" in claim.reason
