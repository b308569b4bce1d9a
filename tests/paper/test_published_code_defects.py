"""What the authors' public code gets wrong (docs/theory.md), shown to be right here."""

import math
import warnings

import numpy as np
import pytest

from bayesdp import BayesianAccountant, SubsampledGaussian
from bayesdp.estimators import StudentT


def test_outliers_give_no_nan():
    accountant = BayesianAccountant(total_steps=10**6)
    accountant.step([1e8, 0.1, 0.2, 0.3], noise_std=1.0, sample_rate=0.01)
    assert np.isfinite(accountant.costs).all()
    assert math.isfinite(accountant.epsilon(1e-5))
    assert accountant.delta(1.0) == 1.0
    clipped = BayesianAccountant(total_steps=10**6)
    clipped.step([1e8, 0.1, 0.2, 0.3], noise_std=1.0, sample_rate=0.01, clip=1.0)
    ceiling = SubsampledGaussian(sample_rate=0.01).log_moment([1.0], range(1, 65))[0]
    assert (clipped.costs <= ceiling).all()


@pytest.mark.parametrize("spread", [0.0, 1e-300, 1e-16, 1e-12, 1e-8, 1e-4])
def test_nearly_equal_samples_give_no_nan(spread):
    accountant = BayesianAccountant(total_steps=1000)
    accountant.step(0.3 * (1 + spread * np.arange(30)), noise_std=1.0, sample_rate=0.01, clip=1.0)
    assert np.isfinite(accountant.costs).all()
    published = BayesianAccountant(total_steps=1000, as_published=True)
    published.step(0.3 * (1 + spread * np.arange(30)), noise_std=1.0, sample_rate=0.01)
    assert np.isfinite(published.costs).all()


def test_gamma_1e_17_is_usable():
    """ppf(1 - 1e-17) is infinite; isf is not."""
    accountant = BayesianAccountant(total_steps=100, estimator=StudentT(gamma=1e-17))
    accountant.step(np.linspace(0.1, 0.9, 28), noise_std=1.0, sample_rate=0.01)
    assert np.isfinite(accountant.costs).all()
    assert accountant.total_gamma == pytest.approx(6.4e-14)


def test_more_steps_than_planned_are_refused_not_warned_about():
    accountant = BayesianAccountant(total_steps=1)
    accountant.step([0.1, 0.2, 0.3], noise_std=1.0, sample_rate=0.01)
    with pytest.raises(ValueError, match="steps=2"):
        accountant.step([0.1, 0.2, 0.3], noise_std=1.0, sample_rate=0.01)


def test_delta_of_epsilon_includes_gamma():
    accountant = BayesianAccountant(total_steps=10, lambdas=[1, 2], estimator=StudentT(gamma=1e-8))
    accountant.step([0.1, 0.2, 0.3], noise_std=1.0, sample_rate=0.01)
    assert accountant.delta(1e3) == pytest.approx(2e-7, rel=1e-6)


def test_no_floor_before_the_first_step():
    accountant = BayesianAccountant(total_steps=10, lambdas=[32])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert accountant.epsilon(1e-10) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.step([0.1, 0.2, 0.3], noise_std=1.0, sample_rate=1.5), r"sample_rate=1\.5"),
        (lambda a: a.step([0.1, 0.2, 0.3], noise_std=0, sample_rate=0.5), "noise_std=0"),
        (lambda a: a.step([0.1, 0.2], noise_std=1.0, sample_rate=0.5), "samples=2"),
        (lambda a: a.step([0.1, math.nan, 0.3], noise_std=1.0, sample_rate=0.5), r"distances\[1\]=nan"),
        (lambda a: a.epsilon(a.total_gamma), "delta=.*total gamma"),
        (lambda a: BayesianAccountant(total_steps=1, lambdas=[0]), "lambdas=0"),
    ],
)
def test_refusals_quote_name_and_value(call, message):
    with pytest.raises(ValueError, match=message):
        call(BayesianAccountant(total_steps=10))


def test_student_t_misses_skewed_data_which_is_why_it_is_labelled():
    """With 0.1 % outliers and m = 28 the estimate at gamma = 1e-15 is below the true mean in most samples."""
    rng = np.random.default_rng(0)
    misses, runs = 0, 2000
    for _ in range(runs):
        values = 1 + 1e-3 * rng.random(28) + 1e4 * (rng.random(28) < 0.001)
        misses += StudentT(gamma=1e-15).upper(values) < 1 + 5e-4 + 10
    assert misses / runs > 0.76
