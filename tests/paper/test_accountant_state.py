"""Saving the Bayesian accountant and going on: bit for bit, and never from a state that does not fit."""

import json
import math

import numpy as np
import pytest

from bayesdp import BayesianAccountant, SubsampledGaussian
from bayesdp.estimators import StudentT


def test_the_state_continues_bit_for_bit():
    rng = np.random.default_rng(3)
    norms = np.exp(rng.normal(-1, 1, (20, 40)))
    settings_ = {"total_steps": 25, "lambdas": range(1, 33)}
    whole = BayesianAccountant(**settings_)
    first = BayesianAccountant(**settings_)
    for row in norms[:11]:
        first.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    second = BayesianAccountant(**settings_)
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    for row in norms[11:]:
        second.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    for row in norms:
        whole.step(row, noise_std=1.3, sample_rate=0.05, clip=1.0)
    assert whole.state_dict() == second.state_dict()
    assert (whole.costs == second.costs).all()


def test_the_state_of_an_unclipped_run_is_json_too():
    accountant = BayesianAccountant(total_steps=3)
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1)
    state = json.loads(json.dumps(accountant.state_dict(), allow_nan=False))
    other = BayesianAccountant(total_steps=3)
    other.load_state_dict(state)
    assert other.moments_accountant_epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total_steps": 9}, "total_steps=9"),
        ({"gamma": 0.5}, "gamma=0.5"),
        ({"steps": 99}, "steps=99"),
        ({"steps": -1}, "steps=-1"),
        ({"costs": [1.0]}, "costs="),
        ({"costs": "x"}, "costs="),
        ({"moments_accountant": None}, "moments_accountant=None"),
        ({"version": 2}, "version=2"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    accountant = BayesianAccountant(total_steps=5, lambdas=[1, 2])
    accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = accountant.state_dict()
    with pytest.raises(ValueError, match=message):
        accountant.load_state_dict({**before, **change})
    assert accountant.state_dict() == before


@pytest.mark.parametrize("state", [None, [], "state"])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match="state="):
        BayesianAccountant(total_steps=1).load_state_dict(state)


@pytest.mark.parametrize("costs", [[[1.0]] * 64, ["1"] * 64, [math.nan] * 64, [-1.0] * 64])
def test_damaged_costs_are_refused(costs):
    accountant = BayesianAccountant(total_steps=1)
    with pytest.raises(ValueError, match="costs"):
        accountant.load_state_dict({**accountant.state_dict(), "costs": costs})


def test_numpy_scalars_are_kept_as_plain_floats():
    accountant = BayesianAccountant(total_steps=np.int64(3), estimator=StudentT(gamma=np.float32(1e-5)))
    json.dumps(accountant.state_dict())
    assert type(SubsampledGaussian(sample_rate=np.float32(0.5)).sample_rate) is float
