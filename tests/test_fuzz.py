"""A few fuzzed calls of everything; ``python -m benchmarks.fuzz`` makes as many as you like."""

import math
import os
import shutil
import warnings
from decimal import Decimal

import numpy as np
import pytest
from benchmarks.fuzz import KINDS, fuzz, run_case
from benchmarks.fuzz_judge import judged, refused, require

import bayesdp
from bayesdp import InvalidInputError, Ledger, properties
from bayesdp.estimators import Betting, StudentT
from bayesdp.profiles.conversion import (
    LEAST_DELTA,
    delta_from_costs,
    epsilon_from_costs,
    record_deltas,
    record_epsilons,
)
from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon

DEAR = ("calibration", "worst_case", "attack_risk", "report", "command")


def test_random_calls_end_in_a_value_or_in_one_line(tmp_path):
    found = fuzz(range(300), seed=20)
    assert found["findings"] == []
    assert found["cases"] == 300


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DEAR])
def test_every_kind_of_call_gives_values_and_refusals(kind, tmp_path):
    outcomes = [run_case(5, number, tmp_path, only=kind) for number in range(12)]
    assert {finding for _, _, finding in outcomes} == {None}
    assert {outcome for _, outcome, _ in outcomes} & {"value", "identical"}


def test_a_case_depends_on_seed_and_number_alone(tmp_path):
    once, again = ([run_case(3, number, tmp_path) for number in range(40)] for _ in range(2))
    assert once == again


def far_posterior(with_record, without):
    """The cost of a law whose covariance is that many times larger than that of the law without the record."""
    covariance = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    laws = [bayesdp.GaussianLaws([[0.0, 0.0]], factor * covariance) for factor in (with_record, without)]
    return bayesdp.UnequalGaussians(without=laws[1]).log_moment(laws[0], [1])


@pytest.mark.skipif(shutil.which("localedef") is None, reason="nothing to build locales with")
def test_some_commands_run_where_decimals_have_commas():
    found = fuzz(range(40), seed=4, only="command")
    assert found["findings"] == []
    assert set(found["locales"]["in_effect"]) >= {"C", *found["locales"]["built"]}
    assert sum(found["locales"]["in_effect"].values()) == 40
    assert "LOCPATH" not in os.environ


def _warns():
    warnings.warn("something", stacklevel=1)


def _loops():
    while True:
        pass


@pytest.mark.parametrize(
    ("case", "found"),
    [
        (lambda: 1 / 0, "ZeroDivisionError"),
        (_warns, "UserWarning: something"),
        (lambda: require(False, "a contract", 5), "a contract: 5"),
        (lambda: refused(InvalidInputError("two\nlines")), "an error of more than one line"),
        (lambda: refused(InvalidInputError("no value")), "an error without name=value"),
    ],
)
def test_the_judge_finds(case, found):
    outcome, finding = judged(case)
    assert outcome == "finding"
    assert found in finding


def test_the_judge_stops_what_never_ends(monkeypatch):
    monkeypatch.setattr("benchmarks.fuzz_judge.MOST_SECONDS", 0.01)
    outcome, finding = judged(_loops)
    assert outcome == "finding"
    assert "TooLong" in finding


def test_the_judge_lets_refusals_pass():
    def refuse():
        raise InvalidInputError("delta=2: expected a probability strictly between 0 and 1.")

    assert judged(refuse) == ("refused", None)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Ledger().step(noise_std=1, sample_rate=1, clip=1, caveats=5), "caveats=5"),
        (lambda: Ledger().step(noise_std=1, sample_rate=1, clip=1, caveats=None), "caveats=None"),
        (lambda: Ledger().step(noise_std=1, sample_rate=1, clip=1, caveats=[None, "zero-out"]), "caveats=None"),
        (lambda: Ledger().claims(shares=0.5), "shares=0.5"),
        (lambda: Ledger().claims(shares="0.5"), "shares='0.5'"),
        (lambda: bayesdp.account([[1.0]], clip=1, sample_rate=1, noise_std=1, groups=5), "groups=5"),
        (lambda: Betting().upper([0.1, 0.2, 0.3], bound=[]), "log_bound.shape=(0,)"),
        (lambda: Betting().upper([0.1, 0.2, 0.3], bound=[1, 2]), "log_bound.shape=(2,)"),
        (lambda: bayesdp.RecordBudgets(10**12, {1: 1.0}), "records=1000000000000"),
        (lambda: properties.basic_composition(3), "guarantees=3"),
        (lambda: bayesdp.epsilon(noise_multiplier=np.ma.masked, sample_rate=1, steps=1), "noise_multiplier=masked"),
        (lambda: bayesdp.SubsampledGaussian().log_moment(np.array(["1e4000"], np.longdouble), [1]), "exposure="),
        (lambda: Ledger(data="x" * 500).then(Ledger(data="y" * 500)), "data='yyyyy"),
        (lambda: gaussian_delta([], [1, 2, 3]), "epsilon.shape=(3,)"),
        (lambda: bayesdp.to_dp_event(3), "history=3"),
        (lambda: bayesdp.worst_case_of(None), "history=None"),
        (lambda: bayesdp.GaussianLaws(np.zeros((1, 1, 1)), [1.0]), "mean.shape=(1, 1, 1)"),
        (lambda: bayesdp.Budget(epsilon=1e308), "epsilon=1e+308"),
        (lambda: far_posterior(1e300, 1e-300), "exposure="),
    ],
)
def test_what_was_found_is_refused_in_one_line(call, name):
    with pytest.raises(InvalidInputError) as refusal:
        call()
    assert str(refusal.value).startswith(name)
    assert refused(refusal.value) == "refused"


def test_what_was_found_is_computed():
    assert properties.markov_share(Decimal("0.125"), 0.5) == 0.75
    assert bayesdp.Plan(steps=1, noise_std=Decimal(2), sample_rate=1, clip=0.5).noise_multiplier == 4
    for mechanism in (bayesdp.RandomizedResponse(), bayesdp.Laplace()):
        assert mechanism.log_moment([1e308], [64]) == math.inf
    assert (bayesdp.SubsampledGaussian(sample_rate=0.04).log_moment([3e153], [49, 62]) == math.inf).all()
    assert bayesdp.published_reverse_cost([1e154], [2], np.array(0.5)) == math.inf
    assert StudentT(gamma=math.nextafter(0.5, 0)).upper([1.0, 2.0, 3.0]) == pytest.approx(2.0, rel=1e-9)
    assert StudentT(gamma=0.01).upper([1e308, 1e308, 1.7e308]) == math.inf
    assert bayesdp.Gate(epsilon=1e308, delta=1e-5, share=0.5, gamma=0.5, records=9).budget > 1e280


def test_an_accountant_takes_any_number_for_delta_and_any_finite_epsilon():
    accountant = bayesdp.BayesianAccountant(1, lambdas=[1, 64])
    accountant.step([0.1, 0.2, 0.3], noise_std=1, sample_rate=1)
    assert accountant.claim(Decimal("0.5")).to_dict() == accountant.claim(0.5).to_dict()
    with np.errstate(all="raise"):
        assert accountant.delta(1e308) == pytest.approx(accountant.total_gamma)


def test_costs_that_overflow_over_all_steps_are_infinite():
    accountant = bayesdp.BayesianAccountant(20, lambdas=[64])
    accountant.step([1e151, 2e151, 3e151], noise_std=1, sample_rate=1, clip=4e151)
    assert accountant.epsilon(0.01) >= 1e290


def test_estimates_are_at_most_the_largest_bound_without_a_warning():
    largest = float(np.finfo(float).max)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Betting().log_upper([1.0, 2.0, 3.0], largest) == largest


def test_risk_where_losses_leave_the_window_is_a_probability():
    risk = bayesdp.attack_risk(noise_multiplier=1e-4, sample_rate=0.5, steps=3, delta=1e-5)
    assert 0 <= risk.advantage <= 1


def test_epsilons_where_a_quotient_would_overflow_are_infinite():
    costs, lambdas = np.array([1e308]), np.array([0.001])
    assert epsilon_from_costs(costs, lambdas, 0.01, "improved") == (math.inf, 0)
    assert record_epsilons(costs[None], lambdas, 0.01) == math.inf


def test_deltas_where_a_product_would_overflow_are_the_least():
    costs, lambdas = np.array([np.inf, 1.0]), np.array([1.0, 1e6])
    with np.errstate(all="raise", under="ignore"):
        assert delta_from_costs(costs, lambdas, 1e308, "improved") == (LEAST_DELTA, 1)
        assert record_deltas(costs[None], lambdas, np.array([1e308])) == LEAST_DELTA


@pytest.mark.parametrize(("mu", "epsilon"), [(5e-324, 1e-9), (1e-308, 1e-9), (1.0, 1e308)])
def test_a_profile_whose_terms_underflow_is_not_one(mu, epsilon):
    assert gaussian_delta(mu, epsilon) == 1e-300
    assert gaussian_epsilon(5e-324, 1e-20) <= 1e-9
