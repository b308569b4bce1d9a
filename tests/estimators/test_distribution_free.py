"""Betting, Kullback-Leibler and empirical Bernstein against exact and high-precision answers."""

import math
import time

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import rel_entr
from scipy.stats import binom

from bayesdp.estimators import (
    Betting,
    DistributionFree,
    EmpiricalBernstein,
    KullbackLeibler,
)

ALL = [Betting, KullbackLeibler, EmpiricalBernstein]
GAMMAS = st.sampled_from([0.5, 0.05, 1e-4, 1e-15])
FRACTION = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
SAMPLES = st.lists(FRACTION, min_size=3, max_size=40)


def exact_wealth(u, fractions):
    """W(u) as it is defined, in 40 digits."""
    bets = [(0.5, 1.0)] + [(mpmath.mpf(1) / 38, c) for c in [0.99, 0.95, 0.9] + [0.8 * 2.0**-k for k in range(16)]]
    return mpmath.fsum(w * mpmath.fprod(1 + c * (u - z) / (1 - u) for z in fractions) for w, c in bets)


# Betting


@given(SAMPLES, GAMMAS, st.sampled_from([1.0, 3e-7, 5e8]))
def test_betting_is_the_root_of_its_definition_from_above(fractions, gamma, bound):
    result = Betting(gamma=gamma).upper([bound * z for z in fractions], bound) / bound
    with mpmath.workdps(40):
        if result < 1:
            assert exact_wealth(mpmath.mpf(result), fractions) >= 1 / mpmath.mpf(gamma)
        assert exact_wealth(mpmath.mpf(result) * (1 - mpmath.mpf(10) ** -10), fractions) < 1 / mpmath.mpf(gamma)


def test_betting_on_many_samples():
    rng = np.random.default_rng(0)
    values = np.minimum(np.exp(rng.normal(-4, 1.5, 2000)), 1)
    result = Betting(gamma=1e-10).upper(values, 1.0)
    with mpmath.workdps(40):
        assert exact_wealth(mpmath.mpf(result), values.tolist()) >= 10**10
        assert exact_wealth(mpmath.mpf(result * (1 - 1e-10)), values.tolist()) < 10**10


def test_one_evaluation_takes_milliseconds():
    values = np.random.default_rng(0).random(10_000) ** 8
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        assert Betting(gamma=1e-10).supports(values, 0.2, bound=1.0)
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.02


def test_a_sample_at_the_bound_costs_the_whole_bet_only():
    values = np.r_[np.zeros(999), 1.0]
    result = Betting(gamma=0.01).upper(values, 1.0)
    assert Betting(gamma=0.01).upper(np.zeros(1000), 1.0) < result < 0.02


# Kullback-Leibler


@given(SAMPLES, GAMMAS)
def test_kullback_leibler_is_the_root(fractions, gamma):
    mean, m = float(np.mean(fractions)), len(fractions)
    result = KullbackLeibler(gamma=gamma).upper(fractions, 1.0)
    if not 1e-12 < mean < 1 - 1e-6:
        assert result >= mean
        return

    def excess(u):
        return m * (rel_entr(mean, u) + rel_entr(1 - mean, 1 - u)) + math.log(gamma)

    expected = brentq(excess, mean, 1 - 1e-16, xtol=1e-15) if excess(1 - 1e-16) > 0 else 1.0
    assert result == pytest.approx(expected, rel=1e-7)


def test_kullback_leibler_keeps_its_digits_close_to_the_mean():
    mean, m, gamma = 0.25, 4_000_000, 0.01
    result = KullbackLeibler(gamma=gamma).upper(np.r_[np.ones(m // 4), np.zeros(3 * m // 4)], 1.0)
    with mpmath.workdps(40):
        p, u = mpmath.mpf(mean), mpmath.mpf(result)
        kl = p * mpmath.log(p / u) + (1 - p) * mpmath.log((1 - p) / (1 - u))
        assert 0 <= float(m * kl / mpmath.log(1 / mpmath.mpf(gamma)) - 1) < 1e-8


# Empirical Bernstein


def test_empirical_bernstein_by_hand():
    """101 samples, mean 2 and variance 1, of a law on [0, 10]; log(2/gamma) = 1.5."""
    values = np.r_[np.ones(50), 2.0, np.full(50, 3.0)]
    result = EmpiricalBernstein(gamma=2 * math.exp(-1.5)).upper(values, 10.0)
    assert result == pytest.approx(2 + math.sqrt(2 * 1 * 1.5 / 101) + 7 * 10 * 1.5 / 300, rel=1e-11)


@given(st.lists(st.floats(0, 5), min_size=3, max_size=200), GAMMAS)
def test_empirical_bernstein_is_the_printed_formula(values, gamma):
    m, log_odds = len(values), math.log(2 / gamma)
    expected = np.mean(values) + math.sqrt(2 * np.var(values, ddof=1) * log_odds / m)
    expected += 7 * 5 * log_odds / (3 * (m - 1))
    assert EmpiricalBernstein(gamma=gamma).upper(values, 5.0) == pytest.approx(min(5.0, expected), rel=1e-9)


# All of them


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("gamma", [0.5, 0.05, 0.01, 1e-6])
@pytest.mark.parametrize("m", [3, 10, 30, 100])
def test_exact_coverage_of_every_law_on_two_points(kind, gamma, m):
    """With k of m samples at the bound, misses are worst at a mean just above the result: Pr[Bin(m, mean) <= k]."""
    at_the_bound = np.arange(m)
    samples = (np.arange(m)[:, None] < at_the_bound).astype(float)  # column k has k ones
    results = kind(gamma=gamma).upper(samples, 1.0)
    assert ((results == 1) | (binom.cdf(at_the_bound, m, results) <= gamma)).all()


@given(SAMPLES, GAMMAS, st.integers(0, 39), st.floats(0, 1), st.sampled_from([Betting, KullbackLeibler]))
def test_raising_a_value_never_lowers_the_bound(fractions, gamma, at, raised, kind):
    more = list(fractions)
    more[at % len(more)] = max(more[at % len(more)], raised)
    assert kind(gamma=gamma).upper(more, 1.0) >= kind(gamma=gamma).upper(fractions, 1.0) * (1 - 1e-12)


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("gamma", [0.5, 0.01, 1e-15, 1e-300])
@pytest.mark.parametrize("m", [3, 100, 10_000])
def test_zeros_give_the_floor_and_nothing_gives_less(kind, gamma, m):
    estimator = kind(gamma=gamma)
    assert estimator.upper(np.zeros(m), 7.0) == pytest.approx(7.0 * estimator.floor(m), rel=1e-11)
    assert estimator.upper(np.r_[np.zeros(m - 1), 1e-3], 7.0) >= 7.0 * estimator.floor(m)
    assert estimator.floor(m) >= -math.expm1(math.log(gamma) / m) * (1 - 1e-12)


def test_floors_in_closed_form():
    assert KullbackLeibler(gamma=0.01).floor(100) == pytest.approx(1 - 0.01 ** (1 / 100), rel=1e-12)
    assert EmpiricalBernstein(gamma=0.01).floor(100) == pytest.approx(7 * math.log(200) / 297, rel=1e-12)
    assert EmpiricalBernstein(gamma=0.01).floor(3) == 1.0
    whole_bet_alone = 1 - 0.005 ** (1 / 100)
    assert 0.95 * whole_bet_alone < Betting(gamma=0.01).floor(100) < whole_bet_alone


@given(SAMPLES, GAMMAS, st.sampled_from([-0.3, -1e-6, -1e-10, 0.0, 1e-10, 1e-6, 0.3]), st.sampled_from(ALL))
def test_supports_says_what_upper_says(fractions, gamma, shift, kind):
    estimator = kind(gamma=gamma)
    upper = estimator.upper(fractions, 1.0)
    threshold = upper * (1 + shift)
    supported = estimator.supports(fractions, threshold, bound=1.0)
    assert isinstance(supported, bool)
    assert not supported or upper <= threshold
    assert supported or upper > threshold * (1 - 1e-11)


@pytest.mark.parametrize("kind", ALL)
def test_supports_column_by_column(kind):
    values = np.random.default_rng(0).random((50, 3)) * [1.0, 2.0, 4.0]
    estimator = kind(gamma=0.01)
    result = estimator.supports(values, [0.9, 1.1, 4.0], bound=[1.0, 2.0, 4.0])
    one_by_one = [
        estimator.supports(v, t, bound=b) for v, t, b in zip(values.T, [0.9, 1.1, 4.0], [1.0, 2.0, 4.0], strict=True)
    ]
    assert result.tolist() == one_by_one
    assert one_by_one[1:] == [False, True]


# Hostile input


@pytest.mark.parametrize("kind", ALL)
class TestHostileInput:
    def test_a_bound_is_asked_for_in_one_line(self, kind):
        for call in (
            lambda: kind().upper([0.1, 0.2, 0.3]),
            lambda: kind().log_upper([0.1, 0.2, 0.3]),
            lambda: kind().supports([0.1, 0.2, 0.3], 0.5, bound=None),
        ):
            with pytest.raises(ValueError, match=r"^bound=None: expected a number that no value .* exceeds\.$"):
                call()

    def test_what_cannot_be_is_refused(self, kind):
        estimator, values = kind(), [0.1, 0.2, 0.3]
        for call, message in (
            (lambda: estimator.supports(values, -1.0, bound=1.0), r"threshold=-1\.0"),
            (lambda: estimator.supports(values, math.nan, bound=1.0), "threshold=nan"),
            (lambda: estimator.supports(values, "0.5", bound=1.0), "threshold='0.5'"),
            (lambda: estimator.supports(values, [0.5, 0.6], bound=1.0), r"threshold\.shape=\(2,\)"),
            (lambda: estimator.supports(values, 0.5, bound=0.25), r"max\(log_values\)"),
            (lambda: estimator.supports([0.1, 0.2], 0.5, bound=1.0), "samples=2"),
            (lambda: estimator.supports([0.1, 0.2, math.nan], 0.5, bound=1.0), r"values\[2\]=nan"),
            (lambda: estimator.supports(np.zeros((3, 3, 3)), 0.5, bound=1.0), "shape"),
            (lambda: estimator.upper(values, -1.0), r"bound=-1\.0"),
            (lambda: estimator.upper(values, math.nan), "bound=nan"),
            (lambda: estimator.floor(2), "samples=2"),
            (lambda: estimator.floor(3.5), r"samples=3\.5"),
            (lambda: kind(gamma=1.0), r"gamma=1\.0"),
        ):
            with pytest.raises(ValueError, match=message) as caught:
                call()
            assert "\n" not in str(caught.value)

    def test_a_bound_of_zero_or_infinity_is_the_answer(self, kind):
        zeros = np.zeros(10)
        assert kind().upper(zeros, 0.0) == 0.0
        assert kind().supports(zeros, 0.0, bound=0.0) is True
        assert kind().upper([1.0, 2.0, math.inf], math.inf) == math.inf
        assert kind().supports([1.0, 2.0, 3.0], 1e300, bound=math.inf) is False
        assert kind().supports([1.0, 2.0, 3.0], math.inf, bound=math.inf) is True

    def test_values_at_the_bound_give_the_bound(self, kind):
        assert kind().upper(np.full(100, 0.7), 0.7) == 0.7
        assert kind().supports(np.full(100, 0.7), 0.699, bound=0.7) is False
        assert kind().supports(np.full(100, 0.7), 0.7, bound=0.7) is True

    def test_a_threshold_of_zero_is_never_supported(self, kind):
        assert kind(gamma=0.5).supports(np.zeros(10_000), 0.0, bound=1.0) is False

    def test_values_beyond_floating_point(self, kind):
        logs = 1e5 + np.log(np.linspace(0.01, 1, 50))
        expected = math.log(kind().upper(np.linspace(0.01, 1, 50), 1.0)) + 1e5
        assert kind().log_upper(logs, 1e5) == pytest.approx(expected, abs=1e-9)

    def test_fractions_that_vanish_count_as_zero(self, kind):
        assert kind().upper(np.full(20, 1e-320), 1e300) == pytest.approx(1e300 * kind().floor(20), rel=1e-10)


def test_what_is_distribution_free_says_so():
    for kind in ALL:
        assert issubclass(kind, DistributionFree)
        assert "Distribution-free" in kind.__doc__
