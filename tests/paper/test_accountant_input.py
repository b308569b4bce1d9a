"""What the Bayesian accountant accepts, and what it refuses without changing anything."""

import math

import numpy as np
import pytest

from bayesdp import BayesianAccountant, Laplace
from bayesdp.estimators import Beta

GOOD = {"distances": [0.1, 0.5, 0.9], "noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_rate": 1.5}, r"sample_rate=1.5: expected a rate in \(0, 1\]"),
        ({"sample_rate": 0}, "sample_rate=0"),
        ({"noise_std": 0}, "noise_std=0"),
        ({"noise_std": math.inf}, "noise_std=inf"),
        ({"clip": -1}, "clip=-1"),
        ({"distances": [0.1, math.nan, 0.2]}, r"distances\[1\]=nan"),
        ({"distances": [0.1, math.inf, 0.2]}, r"distances\[1\]=inf"),
        ({"distances": [0.1, -0.1, 0.2]}, r"distances\[1\]=-0.1"),
        ({"distances": [0.1, 0.2]}, "samples=2"),
        ({"distances": []}, "samples=0"),
        ({"distances": ["a", "b", "c"]}, "distances="),
    ],
)
def test_bad_steps_are_refused_and_change_nothing(change, message):
    for as_published in (False, True):
        accountant = BayesianAccountant(total_steps=5, as_published=as_published)
        accountant.step(**GOOD)
        before = accountant.state_dict()
        with pytest.raises(ValueError, match=message):
            accountant.step(**{**GOOD, **change})
        assert accountant.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, "total_steps=0"),
        ({"total_steps": 2.5}, "total_steps=2.5"),
        ({"total_steps": 1, "lambdas": [0]}, "lambdas=0.0"),
        ({"total_steps": 1, "lambdas": []}, r"lambdas=\[\]"),
        ({"total_steps": 1, "conversion": "magic"}, "conversion='magic'"),
        ({"total_steps": 1, "estimator": "t"}, "estimator='t'"),
        ({"total_steps": 1, "estimator": Beta(), "as_published": True}, "estimator='Beta'"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BayesianAccountant(**arguments)


@pytest.mark.parametrize("delta", [0, 1, -1, 2, math.nan])
def test_bad_delta_is_refused(delta):
    with pytest.raises(ValueError, match="delta="):
        BayesianAccountant(total_steps=1).epsilon(delta)


def test_a_larger_planned_number_of_steps_is_valid_and_more_steps_are_refused():
    accountant = BayesianAccountant(total_steps=2)
    for _ in range(2):
        accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = accountant.state_dict()
    with pytest.raises(ValueError, match=r"steps=3: expected at most total_steps=2"):
        accountant.step([0.1, 0.2, 0.9], noise_std=1.0, sample_rate=0.1, clip=1.0)
    assert accountant.state_dict() == before


def test_anything_that_becomes_an_array_is_accepted():
    class Tensor:
        def __array__(self, dtype=None, copy=None):
            return np.array([0.1, 0.5, 0.9], dtype=dtype)

    class WithGraph:
        """Like a torch tensor that requires a gradient."""

        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("call detach first")

        def detach(self):
            return Tensor()

    results = []
    for distances in ([0.1, 0.5, 0.9], (0.1, 0.5, 0.9), np.array([[0.1], [0.5], [0.9]]), Tensor(), WithGraph()):
        accountant = BayesianAccountant(total_steps=1)
        accountant.step(distances, noise_std=1.0, sample_rate=0.1, clip=1.0)
        results.append(accountant.costs)
    assert all((r == results[0]).all() for r in results)


def test_a_cost_that_is_no_number_is_never_read_as_none():
    class Broken(Laplace):
        def forward(self, exposure, lambdas):
            return np.full((np.size(exposure), np.size(lambdas)), np.nan)

    accountant = BayesianAccountant(total_steps=2, as_published=True)
    with pytest.raises(ValueError, match="log_values=nan"):
        accountant.step_with(Broken(), [0.1, 0.2, 0.3])
    assert accountant.steps == 0


def test_exposures_above_their_bound_are_refused_as_published_too():
    for as_published in (False, True):
        accountant = BayesianAccountant(total_steps=2, as_published=as_published)
        with pytest.raises(ValueError, match=r"bound=1\.0"):
            accountant.step_with(Laplace(), [5.0, 5.0, 6.0], bound=1.0)


@pytest.mark.parametrize(
    "distances",
    [
        [1j, 2j, 3j],
        np.array(["1", "2", "3"]),
        np.ma.array([1.0, 2.0, 3.0], mask=[0, 1, 0]),
        [10**400, 1, 2],
        [[1], [2, 3]],
    ],
)
def test_what_are_no_real_numbers_is_refused(distances):
    with pytest.raises(ValueError, match="distances="):
        BayesianAccountant(total_steps=1).step(distances, noise_std=1.0, sample_rate=0.1, clip=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noise_std": 10**400}, "noise_std="),
        ({"noise_std": "1"}, "noise_std='1'"),
        ({"sample_rate": "0.5"}, "sample_rate='0.5'"),
    ],
)
def test_settings_that_are_no_floats_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        BayesianAccountant(total_steps=1).step(**{**GOOD, **arguments})


def test_a_mechanism_is_asked_for():
    with pytest.raises(ValueError, match="mechanism=None"):
        BayesianAccountant(total_steps=1).step_with(None, [1.0, 2.0, 3.0])
