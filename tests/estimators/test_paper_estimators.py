"""Student-t, Beta and Dirichlet against exact posteriors and by their own formulas."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta as beta_law

from bayesdp import InvalidInputError
from bayesdp.estimators import Beta, Dirichlet, StudentT
from bayesdp.estimators.student_t import standard_errors


def exact_quantile(gamma, df):
    """The upper t quantile by 40-digit root finding."""
    with mpmath.workdps(40):

        def tail(x):
            return mpmath.betainc(mpmath.mpf(df) / 2, 0.5, 0, df / (df + x**2), regularized=True) / 2

        return mpmath.findroot(lambda x: mpmath.log(tail(x)) - mpmath.log(gamma), (5, 20))


@pytest.mark.parametrize("gamma", [1e-3, 1e-15, 1e-17])
@pytest.mark.parametrize("m", [28, 1225])
def test_standard_errors_at_tiny_gamma(gamma, m):
    exact = float(exact_quantile(gamma, m - 1)) / math.sqrt(m - 1)
    assert standard_errors(gamma, m) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("gamma", [1e-300, 1e-200, 9e-101, 1e-100, 1e-50])
@pytest.mark.parametrize("m", [2, 3, 4, 5, 20, 101, 1001])
def test_standard_errors_at_the_tiniest_gamma_are_on_the_private_side(gamma, m):
    """SciPy's quantile is half of the exact one at n = 3 and gamma = 1e-200, and minus infinity at 1e-290."""
    with mpmath.workdps(340):
        n, quantile = mpmath.mpf(m - 1), mpmath.mpf(standard_errors(gamma, m)) * mpmath.sqrt(m - 1)
        tail = mpmath.betainc(n / 2, 0.5, 0, n / (n + quantile**2), regularized=True) / 2
    assert tail <= gamma * (1 + 1e-9)
    if gamma >= 1e-100:
        assert tail >= gamma * (1 - 1e-9)


def test_student_t_refuses_a_gamma_beyond_its_range():
    with pytest.raises(InvalidInputError, match=r"gamma=1e-301: expected a failure probability in \[1e-300, 0.5\)"):
        StudentT(gamma=1e-301)


def test_student_t_is_the_printed_formula():
    values = np.random.default_rng(0).exponential(size=100)
    expected = values.mean() + standard_errors(1e-3, 100) * values.std()
    assert StudentT(gamma=1e-3).upper(values) == pytest.approx(expected, rel=1e-12)


def test_no_cancellation_for_large_offsets():
    values = 1e9 + np.arange(10.0)
    expected = values.mean() + standard_errors(1e-6, 10) * np.arange(10.0).std()
    assert StudentT(gamma=1e-6, as_published=True).upper(values) == pytest.approx(expected, rel=1e-15, abs=1e-5)


def test_the_estimate_moves_continuously_to_the_bound():
    base = np.linspace(-1, 1, 50)
    spreads = np.concatenate([np.linspace(0, 4e-6, 4001), np.geomspace(4e-6, 1e-2, 50)])
    results = [StudentT(gamma=1e-10).upper(1 + s * base, bound=50.0) for s in spreads]
    assert results[0] == pytest.approx(50.0, rel=1e-12)
    assert max(abs(math.log(a / b)) for a, b in itertools.pairwise(results)) < 0.02
    assert results[-1] < 1.1


def test_as_published_takes_equal_values_at_their_word():
    assert StudentT(gamma=1e-15, as_published=True).upper(np.full(5, 2.0)) == pytest.approx(2.0)


def test_infinite_values_give_infinity_or_the_bound():
    values = [1.0, 2.0, math.inf]
    assert StudentT(gamma=1e-6).upper(values) == math.inf
    assert StudentT(gamma=1e-6).upper(values, bound=math.inf) == math.inf


def test_zeros_are_no_infinity():
    values = np.r_[np.zeros(90), np.full(10, 7.0)]
    expected = 0.7 + standard_errors(1e-6, 100) * values.std()
    assert StudentT(gamma=1e-6).upper(values) == pytest.approx(expected)


def test_beta_is_the_papers_example():
    """100 zeros: the value 0.01 has failure probability 0.99^101."""
    assert Beta(gamma=0.99**101).upper(np.zeros(100)) == pytest.approx(0.01, rel=1e-9)


@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from([0.3, 1e-3, 1e-9]))
def test_beta_is_the_posterior_quantile(ones, zeros, gamma):
    values = np.r_[np.ones(ones), np.zeros(zeros)]
    if len(values) < 3:
        return
    result = Beta(gamma=gamma).upper(values, 1.0)
    assert beta_law.sf(result, ones + 1, zeros + 1) <= gamma * (1 + 1e-9)
    if result < 1:
        assert beta_law.sf(result * (1 - 1e-6), ones + 1, zeros + 1) > gamma


def test_beta_at_gamma_1e_15_against_high_precision():
    with mpmath.workdps(40):
        x = mpmath.mpf(Beta(gamma=1e-15).upper(np.r_[np.zeros(90), np.ones(10)]))
        tail = mpmath.betainc(11, 91, x, 1, regularized=True)
        assert float(tail) <= 1e-15
        assert float(tail) > 0.999e-15


def test_beta_refuses_what_is_not_binary():
    with pytest.raises(ValueError, match="distinct values=3"):
        Beta(gamma=0.1).upper([0.0, 0.5, 1.0])
    with pytest.raises(ValueError, match=r"value=0\.5"):
        Beta(gamma=0.1).upper([0.5, 0.5, 0.5])


@pytest.mark.parametrize("gamma", [0.2, 0.01, 1e-4])
@pytest.mark.parametrize("counts", [[5, 3, 1], [50, 1, 0, 2], [100, 10, 10, 10, 1]])
def test_dirichlet_bounds_the_posterior_quantile(gamma, counts):
    """By Monte Carlo: the posterior exceeds the estimate with probability at most gamma, and not absurdly less."""
    rng = np.random.default_rng(1)
    support = np.arange(len(counts)) / (len(counts) - 1)
    values = np.repeat(support, counts)
    present = [c > 0 for c in counts]
    draws = rng.dirichlet(np.array(counts)[present] + 1.0, size=400_000) @ support[present]
    result = Dirichlet(gamma=gamma).upper(values)
    share = (draws > result).mean()
    assert share <= gamma + 4 * math.sqrt(gamma / 400_000)
    looser = np.quantile(draws, 1 - gamma / 100) if gamma > 1e-3 else 1.0
    assert result <= looser + 1e-9


def test_dirichlet_of_two_values_is_above_beta_and_close():
    values = np.r_[np.zeros(90), np.ones(10)]
    for gamma in (1e-3, 1e-9, 1e-15):
        exact, bound = Beta(gamma=gamma).upper(values), Dirichlet(gamma=gamma).upper(values)
        assert exact <= bound <= 1.25 * exact


def test_dirichlet_counts_an_unseen_bound():
    values = np.r_[np.zeros(500), np.full(500, 0.1)]
    assert Dirichlet(gamma=1e-15).upper(values) < 0.1
    assert 0.05 < Dirichlet(gamma=1e-15).upper(values, bound=1.0) < 0.2
