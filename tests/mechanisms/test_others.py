"""Laplace, randomized response, unequal Gaussians and subsampling against quadrature and enumeration."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from bayesdp import (
    GaussianLaws,
    Laplace,
    PoissonSubsampled,
    RandomizedResponse,
    SubsampledGaussian,
    UnequalGaussians,
)
from bayesdp.mechanisms import Mechanism


def laplace_density(x, shift):
    return mpmath.exp(-abs(x - shift)) / 2


@pytest.mark.parametrize("e", [1e-8, 1e-3, 0.5, 3.0])
@pytest.mark.parametrize("order", [0.5, 1, 8, 64])
def test_laplace_against_quadrature(e, order):
    with mpmath.workdps(40):

        def integrand(x):
            p, q = laplace_density(x, mpmath.mpf(e)), laplace_density(x, 0)
            return p * ((p / q) ** order - 1)

        exact = mpmath.log1p(mpmath.quad(integrand, [-60, 0, e, 60]))
        value = Laplace().log_moment([e], [order])[0, 0]
        assert 0 <= float(value / exact - 1) < 1e-10


def test_laplace_stays_finite_at_the_far_ends():
    value = Laplace().log_moment([1e-8, 1e3], [4096])
    assert value[0, 0] == pytest.approx(4096 * 4097 * 1e-16 / 2, rel=1e-4)
    assert value[1, 0] == pytest.approx(4096e3 + math.log(4097 / 8193), rel=1e-12)


def discrete_log_moment(p, q, order):
    with mpmath.workdps(40):
        return mpmath.log(sum(mpmath.mpf(a) * (mpmath.mpf(a) / b) ** order for a, b in zip(p, q, strict=True)))


def response_laws(e, answers):
    lie = 1 / (mpmath.exp(e) + answers - 1)
    return [1 - (answers - 1) * lie] + [lie] * (answers - 1)


@pytest.mark.parametrize("answers", [2, 5])
@pytest.mark.parametrize("e", [1e-8, 0.01, 1.0, 8.0])
@pytest.mark.parametrize("order", [0.5, 1, 16, 300])
def test_randomized_response_by_enumeration(answers, e, order):
    with mpmath.workdps(40):
        p = response_laws(mpmath.mpf(e), answers)
        q = [p[1], p[0], *p[2:]]
        exact = discrete_log_moment(p, q, order)
        value = RandomizedResponse(answers=answers).log_moment([e], [order])[0, 0]
        assert 0 <= float(value / exact - 1) < 1e-10


@pytest.mark.parametrize("order", [1, 3, 8])
@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_subsampled_response_by_enumeration_in_both_directions(order, rate):
    with mpmath.workdps(40):
        p = response_laws(mpmath.mpf("1.3"), 2)
        q = p[::-1]
        mixture = [(1 - rate) * b + rate * a for a, b in zip(p, q, strict=True)]
        forward, reverse = discrete_log_moment(mixture, q, order), discrete_log_moment(q, mixture, order)
        value = PoissonSubsampled(mechanism=RandomizedResponse(), sample_rate=rate).log_moment([1.3], [order])[0, 0]
        assert 0 <= float(value / forward - 1) < 1e-10
        assert forward >= reverse


@pytest.mark.parametrize("e", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("order", [1, 4, 16])
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.7])
def test_subsampled_laplace_by_quadrature_in_both_directions(e, order, rate):
    with mpmath.workdps(30):

        def mixture(x):
            return (1 - rate) * laplace_density(x, 0) + rate * laplace_density(x, e)

        def moment(top, bottom):
            return mpmath.log1p(mpmath.quad(lambda x: top(x) * ((top(x) / bottom(x)) ** order - 1), [-60, 0, e, 60]))

        forward = moment(mixture, lambda x: laplace_density(x, 0))
        reverse = moment(lambda x: laplace_density(x, 0), mixture)
        value = PoissonSubsampled(mechanism=Laplace(), sample_rate=rate).log_moment([e], [order])[0, 0]
        assert 0 <= float(value / forward - 1) < 1e-9
        assert value >= reverse * (1 - mpmath.mpf(10) ** -12)


class TwoPoints(Mechanism):
    """P = (.02, .98), Q = (.3, .7) whatever the exposure: a mechanism without an involution."""

    p, q = (0.02, 0.98), (0.3, 0.7)

    def forward(self, exposure, lambdas):
        return np.array([[float(discrete_log_moment(self.p, self.q, k)) for k in np.ravel(lambdas)]])

    def reverse(self, exposure, lambdas):
        return np.array([[float(discrete_log_moment(self.q, self.p, k)) for k in np.ravel(lambdas)]])


def test_the_reverse_of_an_asymmetric_mechanism_can_win():
    subsampled = PoissonSubsampled(mechanism=TwoPoints(), sample_rate=0.5)
    mixture = [0.5 * a + 0.5 * b for a, b in zip(TwoPoints.p, TwoPoints.q, strict=True)]
    forward = float(discrete_log_moment(mixture, TwoPoints.q, 7))
    reverse = float(discrete_log_moment(TwoPoints.q, mixture, 7))
    assert subsampled.forward([1.0], [7])[0, 0] == pytest.approx(forward, rel=1e-10)
    assert reverse == pytest.approx(3.20, abs=0.01)
    assert forward == pytest.approx(1.10, abs=0.01)
    assert subsampled.log_moment([1.0], [7])[0, 0] >= reverse


@given(st.floats(0.001, 0.999), st.floats(0.01, 3), st.integers(1, 40))
def test_subsampling_the_gaussian_equals_the_fast_formula(rate, e, order):
    generic = PoissonSubsampled(mechanism=SubsampledGaussian(), sample_rate=rate).forward([e], [order])
    fast = SubsampledGaussian(sample_rate=rate).log_moment([e], [order])
    np.testing.assert_allclose(generic, fast, rtol=1e-9)


def test_subsampling_at_rate_one_changes_nothing():
    np.testing.assert_array_equal(
        PoissonSubsampled(mechanism=Laplace(), sample_rate=1.0).forward([0.7, 2.0], [1, 5]),
        Laplace().forward([0.7, 2.0], [1, 5]),
    )


def gaussian_log_moment(m1, v1, m0, v0, order):
    def integrand(x):
        log_p = -((x - m1) ** 2) / (2 * v1) - 0.5 * math.log(2 * math.pi * v1)
        log_q = -((x - m0) ** 2) / (2 * v0) - 0.5 * math.log(2 * math.pi * v0)
        return math.exp((order + 1) * log_p - order * log_q)

    return math.log(quad(integrand, -60, 60, epsabs=0, epsrel=1e-12, limit=500)[0])


@pytest.mark.parametrize(("m1", "v1"), [(0.3, 1.0), (0.0, 0.8), (0.5, 1.15), (1.0, 0.5)])
@pytest.mark.parametrize("order", [0.5, 1, 4])
def test_unequal_gaussians_by_quadrature(m1, v1, order):
    mechanism = UnequalGaussians(GaussianLaws([[0.1]], [[0.9]]))
    laws = GaussianLaws([[m1]], [[v1]])
    for value, there, here in ((mechanism.forward, (m1, v1), (0.1, 0.9)), (mechanism.reverse, (0.1, 0.9), (m1, v1))):
        exact = gaussian_log_moment(*there, *here, order) if 1 - order * (there[1] / here[1] - 1) > 0 else math.inf
        assert value(laws, [order])[0, 0] == pytest.approx(exact, rel=1e-8)


def test_unequal_gaussians_are_infinite_where_the_divergence_is():
    mechanism = UnequalGaussians(GaussianLaws([[0.0]], [[1.0]]))
    value = mechanism.log_moment(GaussianLaws([[0.0]], [[1.5]]), [1, 2, 3])
    assert np.isfinite(value[0, 0])
    assert np.isinf(value[0, 1:]).all()


def test_tiny_changes_keep_their_digits():
    mechanism = UnequalGaussians(GaussianLaws([[0.0]], [[1.0]]))
    change = 2.0**-30
    exact = 0.5 * (change**2 / 2 + change**2 / 2)  # order 1: (h(-u) + h(u)) / 2, h(x) = x^2 / 2 to first order
    assert mechanism.forward(GaussianLaws([[0.0]], [[1.0 + change]]), [1])[0, 0] == pytest.approx(exact, rel=1e-8)


def test_full_covariance_is_invariant_under_a_change_of_coordinates():
    rng = np.random.default_rng(0)
    v0, v1, shift = rng.uniform(0.8, 1.2, 3), rng.uniform(0.8, 1.2, (2, 3)), rng.normal(size=(2, 3))
    orders = [1, 1.5, 3]
    diagonal = UnequalGaussians(GaussianLaws(np.zeros((1, 3)), v0[None])).log_moment(GaussianLaws(shift, v1), orders)
    turn = rng.normal(size=(3, 3))
    base = GaussianLaws(np.zeros((1, 3)), (turn @ np.diag(v0) @ turn.T)[None])
    laws = GaussianLaws(shift @ turn.T, np.stack([turn @ np.diag(v) @ turn.T for v in v1]))
    np.testing.assert_allclose(UnequalGaussians(base).log_moment(laws, orders), diagonal, rtol=1e-9)


@pytest.mark.parametrize(
    ("mean", "spread", "message"),
    [
        ([[0.0]], [[0.0]], "variance=0.0"),
        ([[0.0, 1.0]], [[1.0]], "spread.shape="),
        ([[math.nan]], [[1.0]], "mean, spread"),
    ],
)
def test_laws_that_are_none_are_refused(mean, spread, message):
    with pytest.raises(ValueError, match=message):
        GaussianLaws(mean, spread)


def test_a_covariance_must_be_positive_definite():
    mechanism = UnequalGaussians(GaussianLaws([[0.0, 0.0]], np.eye(2)[None]))
    for broken, reason in (([[1.0, 2.0], [2.0, 1.0]], "definite"), ([[1.0, 0.2], [0.0, 1.0]], "symmetric")):
        with pytest.raises(ValueError, match=reason):
            mechanism.log_moment(GaussianLaws([[0.0, 0.0]], [broken]), [1])


def test_randomized_response_needs_two_answers():
    with pytest.raises(ValueError, match="answers=1"):
        RandomizedResponse(answers=1)


def test_orders_of_subsampling_are_whole():
    for mechanism, order in itertools.product([Laplace(), RandomizedResponse()], [0.5, 2.5]):
        with pytest.raises(ValueError, match="lambdas="):
            PoissonSubsampled(mechanism=mechanism, sample_rate=0.5).log_moment([1.0], [order])


def test_the_border_of_the_infinite_is_infinite():
    """v* = 4 * 3 - 3 * 4 = 0, although 1 - 3 * (4/3 - 1) is not in floating point."""
    for spread in ([[4.0]], [[[4.0]]]):
        mechanism = UnequalGaussians(GaussianLaws([[0.0]], [[3.0]]))
        assert mechanism.forward(GaussianLaws([[0.0]], spread), [3])[0, 0] == math.inf
    huge = UnequalGaussians(GaussianLaws([[0.0]], [[1e-200]]))
    assert huge.log_moment(GaussianLaws([[0.0]], [[1e200]]), [1])[0, 0] == math.inf


def test_small_changes_of_an_odd_variance_keep_their_digits():
    base = 119 / 7
    other = base * (1 + 1e-12)
    with mpmath.workdps(60):
        u = mpmath.mpf(other) / mpmath.mpf(base) - 1
        exact = 0.5 * ((-u - mpmath.log1p(-u)) + (u - mpmath.log1p(u)))
    value = UnequalGaussians(GaussianLaws([[0.0]], [[base]])).forward(GaussianLaws([[0.0]], [[other]]), [1])[0, 0]
    assert value == pytest.approx(float(exact), rel=1e-9)
