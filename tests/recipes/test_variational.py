"""Private Bayesian logistic regression: the posterior, the noise, scikit-learn's conventions."""

import pickle
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from scipy.special import expit
from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from bayesdp import Ledger, RunClaims
from bayesdp.randomness import Seeded
from bayesdp.recipes import BayesianLogisticRegression
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.datasets import Rows
from bayesdp.recipes.variational import _clipped_sum, _norms


def data(n=2000, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, (rng.random(n) < 1 / (1 + np.exp(-x @ [1.0, -0.5, 0.2]))).astype(int)


def best_mean_field(x, y):
    """Maximise the evidence lower bound by quadrature, one Gaussian integral for each record."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)

    def minus_bound(parameters):
        mean, log_scale = np.split(parameters, 2)
        variance = np.exp(2 * log_scale)
        scores = (x @ mean)[:, None] + np.sqrt((x * x) @ variance)[:, None] * nodes
        likelihood = ((y[:, None] * scores - np.logaddexp(0, scores)) @ weights / weights.sum()).sum()
        return -likelihood + 0.5 * (mean @ mean + variance.sum()) - log_scale.sum()

    mean, log_scale = np.split(minimize(minus_bound, np.r_[np.zeros(3), np.full(3, -3.0)]).x, 2)
    return mean, np.exp(log_scale)


def test_with_little_noise_it_finds_the_best_posterior():
    x, y = data()
    mean, scale = best_mean_field(x, y)
    options = {"epsilon": 200, "clip": 50.0, "learning_rate": 1.0, "random_state": 1, "fit_intercept": False}
    model = BayesianLogisticRegression(steps=2000, **options).fit(x, y)
    np.testing.assert_allclose(model.posterior_mean_, mean, atol=0.3 * scale.min())
    np.testing.assert_allclose(model.posterior_scale_, scale, rtol=0.15)


def test_with_much_noise_the_posterior_stays_within_the_prior():
    x, y = data()
    model = BayesianLogisticRegression(epsilon=1e-3, random_state=0).fit(x, y)
    assert (model.posterior_scale_ <= 1).all()
    assert (model.posterior_scale_ > 0).all()


def test_probabilities_average_over_the_posterior():
    x, y = data()
    model = BayesianLogisticRegression(epsilon=5, random_state=0, posterior_samples=4_000).fit(x, y)
    rows = np.c_[x[:5], np.ones(5)]
    thetas = np.random.default_rng(9).normal(model.posterior_mean_, model.posterior_scale_, (20_000, 4))
    expected = (1 / (1 + np.exp(-rows @ thetas.T))).mean(axis=1)
    np.testing.assert_allclose(model.predict_proba(x[:5])[:, 1], expected, atol=0.02)
    assert model.score(x, y) > 0.6
    assert np.array_equal(model.predict(x), (model.predict_proba(x)[:, 1] > 0.5).astype(int))
    assert ((model.decision_function(x) > 0) == model.predict(x)).mean() > 0.99
    assert model.coef_.shape == (1, 3)
    assert model.intercept_.shape == (1,)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_the_worst_case_is_within_epsilon_and_audit_records_below(rate):
    x, y = data()
    audit = data(500, seed=5)
    model = BayesianLogisticRegression(epsilon=0.5, sample_rate=rate, clip=2.0, random_state=0).fit(x, y, audit)
    assert 0.49 < model.ledger_.worst_case().epsilon <= 0.5
    assert model.ledger_.audit_records == 500
    claims = model.claims()
    assert claims.share(0.5).estimate.epsilon < claims.share(0.99).estimate.epsilon <= 0.5
    assert isinstance(claims, RunClaims)
    assert claims == model.ledger_.claims(model.delta)
    words = model.statement()
    assert "people whose data was not used" in words
    assert "NOT FOR RELEASE" in words


def test_clipping_bounds_what_a_record_adds():
    x, y = data(300)
    x[3] *= 1e6
    theta = np.array([0.3, 0.1, -2.0])
    rows = Rows(x, y)
    norms = _norms(rows, theta)
    each = (expit(x @ theta) - y)[:, None] * x
    np.testing.assert_allclose(norms, np.linalg.norm(each, axis=1), rtol=1e-9)
    for which in range(0, 300, 7):
        rest = rows.take(np.delete(np.arange(300), which))
        change = np.linalg.norm(_clipped_sum(rows, theta, 0.5) - _clipped_sum(rest, theta, 0.5))
        assert change <= min(0.5, norms[which] * (1 + 1e-9) + 1e-9)


def test_noise_of_the_released_gradient():
    """The first step starts at a mean of 0: its update is the released gradient, the prior adds nothing."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((50, 4000)) * 1e-9, rng.integers(0, 2, 50)  # gradients are nearly 0: noise is left
    model = BayesianLogisticRegression(
        epsilon=1.0, steps=1, learning_rate=1.0, average=0.0, fit_intercept=False, random_state=3
    ).fit(x, y)
    noise = -model.posterior_mean_ * 50 / model.ledger_.history.stretches[0].noise_std
    assert stats.kstest(noise, "norm").pvalue > 1e-6


def test_seeds_repeat_and_without_one_nothing_does():
    x, y = data()
    means = [BayesianLogisticRegression(random_state=2).fit(x, y).posterior_mean_ for _ in range(2)]
    assert np.array_equal(*means)
    fresh = [BayesianLogisticRegression().fit(x, y) for _ in range(2)]
    assert not np.isclose(fresh[0].posterior_mean_, fresh[1].posterior_mean_, rtol=1e-9).any()
    assert "NOT FOR RELEASE" not in fresh[0].statement()


def test_the_ledger_is_a_file_when_asked_for(tmp_path):
    x, y = data(100)
    path = tmp_path / "fit.ledger"
    BayesianLogisticRegression(ledger=path, steps=3).fit(x, y).ledger_.close()
    assert Ledger.open(path, write=False).steps == 3


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({}, lambda y: y * 0, "y='1 class': expected two classes"),
        ({}, lambda y: np.arange(len(y)) % 3, "y='3 classes': expected two classes"),
        ({"epsilon": 0.0}, None, "target_epsilon=0.0"),
        ({"steps": 0}, None, "steps=0"),
        ({"sample_rate": 2}, None, "sample_rate=2"),
        ({"clip": -1.0}, None, "clip=-1.0"),
        ({"prior_std": np.inf}, None, "prior_std=inf"),
        ({"learning_rate": np.nan}, None, "learning_rate=nan"),
    ],
)
def test_bad_input_is_refused_before_a_ledger_is_made(tmp_path, options, labels, message):
    x, y = data(50)
    path = tmp_path / "fit.ledger"
    with pytest.raises(ValueError, match=message):
        BayesianLogisticRegression(ledger=path, **options).fit(x, y if labels is None else labels(y))
    assert not path.exists()


def test_a_pickle_has_the_model_and_not_the_ledger():
    x, y = data(50)
    model = BayesianLogisticRegression().fit(x, y)
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.predict_proba(x), model.predict_proba(x))
    with pytest.raises(ValueError, match="ledger_=None: expected the ledger of the fit"):
        again.claims()


def test_audit_rows_of_another_class_are_refused():
    x, y = data(50)
    with pytest.raises(ValueError, match=r"audit='another class': expected the classes \[0, 1\]"):
        BayesianLogisticRegression().fit(x, y, (x, y + 1))


def test_it_goes_on_after_an_interruption(tmp_path):
    x, y = data(200)
    whole = BayesianLogisticRegression(steps=6, random_state=0).fit(x, y)
    kept, path = partial(Checkpoint, tmp_path / "checkpoint.safetensors"), tmp_path / "run.ledger"

    def stop(numbers):
        for number in numbers:
            if number == 3:
                raise KeyboardInterrupt
            yield number

    model = BayesianLogisticRegression(steps=6)
    with Ledger.create(path) as ledger, pytest.raises(KeyboardInterrupt):
        model.fit_into(ledger, x, y, randomness=Seeded(0), checkpoint=kept, track=stop)
    with Ledger.open(path) as ledger:
        model.fit_into(ledger, x, y, randomness=Seeded(0), checkpoint=kept)
    assert ledger.steps == 6
    assert np.array_equal(model.posterior_mean_, whole.posterior_mean_)
    assert np.array_equal(model.posterior_scale_, whole.posterior_scale_)


CHECKS = list(estimator_checks_generator(BayesianLogisticRegression(epsilon=1e4, steps=20, random_state=0)))


NAMES = [f"{number}-{check.func.__name__}" for number, (_, check) in enumerate(CHECKS)]


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=NAMES)
def test_scikit_learn_conventions(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(clone(estimator))


def test_classes_that_are_known_beforehand_need_not_occur():
    x, y = data(200)
    model = BayesianLogisticRegression(steps=2, classes=(0, 1), random_state=0).fit(x, np.zeros_like(y))
    assert model.classes_.tolist() == [0, 1]
    with pytest.raises(ValueError, match="y='another class': expected the classes"):
        BayesianLogisticRegression(classes=(1, 2)).fit(x, y)


@pytest.mark.parametrize("value", [3e37, 1e200])
def test_a_hostile_row_contributes_nothing_and_stops_nobody(value):
    """Infinity and NaN are refused before the first step, as scikit-learn asks; what overflows later is not."""
    x, y = data(300)
    x[3] = value
    model = BayesianLogisticRegression(epsilon=1.0, delta=1e-5, steps=5, clip=0.5, learning_rate=1.0, random_state=0)
    assert np.isfinite(model.fit(x, y).posterior_mean_).all()
    assert model.ledger_.steps == 5


def test_a_fit_declares_its_plan_and_what_the_audit_rows_were_used_for(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((80, 2)), rng.integers(0, 2, 80)
    for ledger in (None, tmp_path / "run.ledger"):
        model = BayesianLogisticRegression(epsilon=1.0, steps=3, ledger=ledger)
        model.fit(x[:40], y[:40], audit=(x[40:], y[40:]), audit_used_for="the clip")
        claims = model.claims(shares=(0.5,))
        assert claims.everyone.condition is None
        assert claims.everyone.epsilon <= 1.0
        assert "the plan of 3 steps" in claims.statement()
        assert claims.average.kind == claims.share(0.5).estimate.kind == "estimate"
        assert claims.share(0.5).ex_post.kind in ("estimate", claims.everyone.kind)  # or no better than for everyone
        assert "were used for: the clip" in claims.statement()
