"""The Bayesian accountant against the moments accountant and itself: order, gamma, conversion, claims."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import BayesianAccountant, Laplace, LastLambdaWarning, SubsampledGaussian
from bayesdp.estimators import Beta, Dirichlet, StudentT

runs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "steps": st.integers(1, 5),
        "spare": st.integers(0, 20),
        "noise": st.floats(0.5, 10),
        "rate": st.floats(1e-3, 1.0),
        "spread": st.floats(0.01, 2.0),
    }
)


def account(run, *, noise=None, steps=None, conversion="improved", total=None):
    rng = np.random.default_rng(run["seed"])
    steps = run["steps"] if steps is None else steps
    accountant = BayesianAccountant(
        total_steps=total or run["steps"] + run["spare"] + 1, lambdas=range(1, 17), conversion=conversion
    )
    for _ in range(steps):
        norms = np.exp(-0.5 + run["spread"] * rng.standard_normal(50))
        accountant.step(norms, noise_std=noise or run["noise"], sample_rate=run["rate"], clip=1.0)
    return accountant


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.sampled_from(["improved", "chernoff"]))
def test_never_above_the_moments_accountant_once_gamma_is_accounted_for(run, conversion):
    accountant = account(run, conversion=conversion)
    usable = 1e-5 - accountant.total_gamma
    assert accountant.epsilon(1e-5) <= accountant.moments_accountant_epsilon(usable) * (1 + 1e-12)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs)
def test_more_steps_and_smaller_delta_never_lower_epsilon(run):
    less, more = account(run), account(run, steps=run["steps"] + 1)
    assert more.epsilon(1e-5) >= less.epsilon(1e-5)
    assert less.epsilon(1e-7) >= less.epsilon(1e-5)
    assert more.delta(1.0) >= less.delta(1.0)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.floats(1.01, 3))
def test_less_noise_never_lowers_epsilon(run, factor):
    quiet, loud = account(run, noise=run["noise"] * factor), account(run)
    # Student-t is not monotone in its samples in general; with all exposures scaled alike it must be.
    assert loud.epsilon(1e-5) >= quiet.epsilon(1e-5) * (1 - 1e-9)


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
@settings(max_examples=settings().max_examples * 40 // 100)
@given(runs, st.floats(-9, -1), st.sampled_from(["improved", "chernoff"]))
def test_epsilon_and_delta_are_inverse(run, exponent, conversion):
    accountant = account(run, conversion=conversion)
    delta = 10.0**exponent
    epsilon = accountant.epsilon(delta)
    if epsilon > 0:
        assert accountant.delta(epsilon) == pytest.approx(delta, rel=1e-9)
        assert accountant.epsilon(accountant.delta(epsilon)) == pytest.approx(epsilon, rel=1e-9)
    else:
        assert accountant.delta(0.0) <= delta * (1 + 1e-12)
    assert 0 <= accountant.delta(0.0) <= 1


@pytest.mark.filterwarnings("ignore::bayesdp.LastLambdaWarning")
def test_the_improved_conversion_gains_what_theory_says():
    plain, better = (
        account({"seed": 1, "steps": 3, "spare": 0, "noise": 4, "rate": 0.1, "spread": 0.5}, conversion=c)
        for c in ("chernoff", "improved")
    )
    for order, gain in ((1, 1.39), (4, 0.63), (8, 0.39)):
        a, b = (BayesianAccountant(total_steps=1, lambdas=[order], conversion=c) for c in ("chernoff", "improved"))
        for accountant in (a, b):
            accountant.step([0.1, 0.5, 0.9], noise_std=1.0, sample_rate=1.0, clip=1.0)
        assert a.epsilon(1e-5) - b.epsilon(1e-5) == pytest.approx(gain, abs=0.005)
    assert better.epsilon(1e-5) < plain.epsilon(1e-5)


def test_hoelder_composition_dominates_the_product_inside_the_mean():
    """For fixed exposures E e^{sum_t kappa_t} <= prod (E e^{T kappa_t})^{1/T}, with plain means as estimates."""
    rng = np.random.default_rng(0)
    exposures = np.exp(rng.normal(-1, 0.5, (6, 400)))
    costs = np.stack([SubsampledGaussian(sample_rate=0.1).log_moment(e, [8])[:, 0] for e in exposures])
    inside = math.log(np.exp(costs.sum(axis=0)).mean())
    holder = sum(math.log(np.exp(6 * c).mean()) / 6 for c in costs)
    assert inside <= holder
    accountant = BayesianAccountant(total_steps=6, lambdas=[8])
    for e in exposures:
        accountant.step(e, noise_std=1.0, sample_rate=0.1)
    assert accountant.costs[0] >= holder


def test_gamma_is_charged_per_step_and_order_in_both_directions():
    accountant = BayesianAccountant(total_steps=100, lambdas=range(1, 11), estimator=StudentT(gamma=1e-9))
    assert accountant.total_gamma == pytest.approx(1e-6)
    accountant.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    assert accountant.delta(100.0) == pytest.approx(1e-6, rel=1e-6)
    with pytest.raises(ValueError, match="delta=1e-06: expected more than the total gamma"):
        accountant.epsilon(1e-6)
    labelled = BayesianAccountant(
        total_steps=100, lambdas=range(1, 11), estimator=StudentT(gamma=1e-9), as_published=True
    )
    labelled.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    assert labelled.total_gamma == pytest.approx(1e-9)


def test_nothing_released_costs_nothing():
    accountant = BayesianAccountant(total_steps=10)
    assert accountant.epsilon(1e-5) == 0
    assert accountant.delta(0.0) == pytest.approx(accountant.total_gamma)


def test_the_last_order_is_warned_about_and_noted():
    accountant = BayesianAccountant(total_steps=1, lambdas=range(1, 5))
    accountant.step([0.1, 0.2, 0.9], noise_std=10.0, sample_rate=0.1, clip=1.0)
    with pytest.warns(LastLambdaWarning, match="lambda=4 is the last"):
        accountant.epsilon(1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accountant.epsilon(1e-5)  # it is said once
        claim = accountant.claim(1e-5)
    assert any("last of the grid" in note for note in claim.notes)
    assert claim.order == 4


def test_other_mechanisms_and_estimators():
    accountant = BayesianAccountant(total_steps=2, lambdas=[1, 2, 8], estimator=Dirichlet(gamma=1e-12))
    accountant.step_with(Laplace(), [0.1, 0.1, 0.3, 0.3, 0.5], bound=0.5)
    ceiling = Laplace().log_moment([0.5], [1, 2, 8])[0]
    assert (accountant.costs <= ceiling * (1 + 1e-12)).all()
    assert (accountant.costs > Laplace().log_moment([0.3], [1, 2, 8])[0]).all()
    binary = BayesianAccountant(total_steps=1, lambdas=[4], estimator=Beta(gamma=1e-12))
    binary.step(np.r_[np.zeros(50), np.ones(2)], noise_std=2.0, sample_rate=0.1, clip=1.0)
    assert 0 < binary.costs[0] < SubsampledGaussian(sample_rate=0.1).log_moment([0.5], [4])[0, 0]


def test_unclipped_steps_have_no_worst_case():
    accountant = BayesianAccountant(total_steps=1)
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1)
    claim = accountant.claim(1e-5)
    assert math.isfinite(claim.epsilon)
    assert claim.worst_case.epsilon == math.inf
    assert claim.to_dict()["worst_case"]["epsilon"] is None


def test_the_claim_names_everything():
    accountant = BayesianAccountant(total_steps=5, as_published=True)
    accountant.step([0.1, 0.5, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    claim = accountant.claim(1e-5)
    text = str(claim)
    assert claim.kind == "model-based"
    assert claim.private
    for part in ("On average", "as published", "delta = 1e-05", "Private", "It assumes", "For everyone"):
        assert part in text
    assert "as published" not in str(BayesianAccountant(total_steps=5, audit=True).claim(1e-5))
    json.dumps(claim.to_dict(), allow_nan=False)


@pytest.mark.parametrize("m", [7, 50, 1001])
def test_equal_exposures_are_one_value_for_estimators_that_count(m):
    exposures = np.where(np.random.default_rng(0).random(m) < 0.3, 0.5, 0.1)
    results = []
    for estimator in (Beta(gamma=1e-9), Dirichlet(gamma=1e-9)):
        accountant = BayesianAccountant(total_steps=100, estimator=estimator)
        accountant.step(exposures, noise_std=1.0, sample_rate=0.3, clip=0.5)
        results.append(accountant.costs)
    assert (results[1] >= results[0] * (1 - 1e-12)).all()  # two categories: Dirichlet bounds Beta
