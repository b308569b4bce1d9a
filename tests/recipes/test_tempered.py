"""The tempered posterior: its laws against an optimiser, its divergences against samples, its labels."""

import pickle

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit
from scipy.stats import multivariate_normal
from sklearn.utils.estimator_checks import estimator_checks_generator

from bayesdp.recipes import TemperedLogisticRegression


def data(n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    return x, (rng.random(n) < expit(x @ [1.0, -0.5])).astype(int)


def laplace(x, y, prior=1.0):
    """Mode and curvature by an optimiser that knows nothing of Newton."""
    rows = np.c_[x, np.ones(len(x))]

    def loss(theta):
        scores = rows @ theta
        return np.logaddexp(0, scores).sum() - y @ scores + theta @ theta / (2 * prior**2)

    mode = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-11, "maxiter": 9999}).x
    p = expit(rows @ mode)
    return mode, (rows * (p * (1 - p))[:, None]).T @ rows + np.eye(3) / prior**2


def delta_by_sampling(epsilon, one, other, count=400_000):
    """P(L > epsilon) - e^epsilon Q(L > epsilon) with L the log ratio of two Gaussian laws (mean, covariance)."""
    p, q = multivariate_normal(*one), multivariate_normal(*other)
    x = p.rvs(count, random_state=0)
    return np.maximum(0, 1 - np.exp(epsilon - (p.logpdf(x) - q.logpdf(x)))).mean()


def test_the_epsilon_of_a_record_covers_what_its_laws_show():
    x, y = data()
    others, classes = data(5, seed=3)
    model = TemperedLogisticRegression(temperature=3.0, random_state=0).fit(x, y)
    epsilons = model.record_epsilons(others, classes, delta=1e-3)
    mode, curvature = laplace(x, y)
    without = mode, 3 * np.linalg.inv(curvature)
    for record, label, epsilon in zip(others, classes, epsilons, strict=True):
        mode, curvature = laplace(np.r_[x, record[None]], np.r_[y, label])
        with_it = mode, 3 * np.linalg.inv(curvature)
        found = [delta_by_sampling(epsilon, *laws) for laws in ((with_it, without), (without, with_it))]
        assert max(found) <= 1e-3
        looser = [delta_by_sampling(epsilon / 3, *laws) for laws in ((with_it, without), (without, with_it))]
        assert max(looser) > 1e-3  # and it is not needlessly large


def test_leaving_a_row_out_is_adding_it_to_the_others():
    x, y = data(60)
    whole = TemperedLogisticRegression(random_state=0).fit(x, y)
    rest = TemperedLogisticRegression(random_state=0).fit(x[1:], y[1:])
    np.testing.assert_allclose(whole.leave_one_out()[0], rest.record_epsilons(x[:1], y[:1])[0], rtol=1e-6)


def test_the_sample_has_the_law_that_is_accounted():
    x, y = data(100)
    mode, curvature = laplace(x, y)
    models = [TemperedLogisticRegression(temperature=4.0).fit(x, y) for _ in range(400)]
    samples = np.array([np.r_[one.coef_[0], one.intercept_] for one in models])
    expected = 4 * np.linalg.inv(curvature)
    np.testing.assert_allclose(samples.mean(axis=0), mode, atol=5 * np.sqrt(expected.diagonal().max() / 400))
    ratios = np.linalg.eigvals(np.linalg.solve(expected, np.cov(samples.T))).real
    assert ratios.min() > 0.6
    assert ratios.max() < 1.5


def test_claims_say_what_they_are():
    (x, y), audit = data(), data(500, seed=9)
    cold, hot = (TemperedLogisticRegression(temperature=t, random_state=0).fit(x, y).claims(audit) for t in (10, 1000))
    assert cold[0].reason == "a sample of a posterior has no worst case, as nothing is clipped"
    for one, other in zip(cold[1:], hot[1:], strict=True):
        assert one.kind == "estimate"
        assert one.private
        assert "EXPERIMENTAL" in str(one)
        assert "not for release" in str(one)
        assert one.epsilon > other.epsilon
    assert [one.share for one in cold[1:]] == [0.5, 0.9, 0.99]
    few = TemperedLogisticRegression(random_state=0).fit(x, y).claims((audit[0][:50], audit[1][:50]))
    assert "459 audit records" in few[3].reason


@pytest.mark.parametrize(
    ("options", "message"),
    [({"temperature": 0}, "temperature=0"), ({"prior_std": -1}, "prior_std=-1"), ({"temperature": np.nan}, "nan")],
)
def test_bad_input_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TemperedLogisticRegression(**options).fit(*data(20))


def test_a_pickle_has_no_training_rows():
    x, y = data(50)
    model = TemperedLogisticRegression(random_state=0).fit(x, y)
    kept = pickle.loads(pickle.dumps(model))
    assert np.array_equal(kept.predict(x), model.predict(x))
    assert not {"_x", "_y"} & set(vars(kept))
    with pytest.raises(ValueError, match="a pickle has no training rows"):
        kept.leave_one_out()


def test_other_classes_are_refused():
    x, y = data(50)
    with pytest.raises(ValueError, match="1 class"):
        TemperedLogisticRegression().fit(x, np.zeros(50))
    with pytest.raises(ValueError, match="y='another class'"):
        TemperedLogisticRegression().fit(x, y).record_epsilons(x, y + 1)


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(*one, id=getattr(one[1], "func", one[1]).__name__)
        for one in estimator_checks_generator(TemperedLogisticRegression(temperature=1.0, random_state=0))
    ],
)
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)
