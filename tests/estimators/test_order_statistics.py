"""Ranks of order statistics against whole numbers and high precision."""

import math
from fractions import Fraction

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.estimators import order_statistic_rank, records_needed


def exact_tail(m, share, k):
    """Pr[Bin(m, share) >= k] in whole numbers."""
    p = Fraction(share)
    return sum(math.comb(m, i) * p**i * (1 - p) ** (m - i) for i in range(k, m + 1))


def test_ranks_as_published():
    assert order_statistic_rank(10_000, 0.9, 1e-6) == 9141
    assert order_statistic_rank(10_000, 0.99, 1e-6) == 9945
    assert order_statistic_rank(10_000, 0.999, 1e-6) is None
    assert records_needed(0.99, 0.01) == 459
    assert records_needed(0.99, 1e-6) == 1375


@given(st.integers(1, 40), st.floats(0.01, 0.99), st.floats(1e-15, 0.9))
def test_the_rank_is_the_least_that_holds(m, share, gamma):
    k = order_statistic_rank(m, share, gamma)
    tails = [exact_tail(m, share, k) for k in range(1, m + 1)]
    holding = [k for k, tail in enumerate(tails, 1) if tail <= Fraction(gamma)]
    if not holding:
        assert k is None
        return
    assert k in holding
    assert all(tail > gamma * (1 - 2e-9) for tail in tails[: k - 1])


@pytest.mark.parametrize("m", [1000, 10**5, 10**7])
@pytest.mark.parametrize("share", [0.5, 0.99, 0.999])
@pytest.mark.parametrize("gamma", [0.01, 1e-15])
def test_ranks_of_many_samples_in_high_precision(m, share, gamma):
    k = order_statistic_rank(m, share, gamma)
    if k is None:
        assert share**m > gamma
        return
    with mpmath.workdps(40):

        def tail(k):
            p, total = mpmath.mpf(share), mpmath.mpf(0)
            term = mpmath.binomial(m, k) * p**k * (1 - p) ** (m - k)
            for i in range(k, m + 1):
                if term < total * mpmath.mpf(10) ** -25:
                    break
                total += term
                term *= p * (m - i) / ((1 - p) * (i + 1))
            return total

        assert tail(k) <= gamma < tail(k - 1)


@given(st.floats(0.01, 0.9), st.floats(1e-15, 0.99))
def test_records_needed_is_the_least(share, gamma):
    m = records_needed(share, gamma)
    assert Fraction(share) ** m <= Fraction(gamma)
    assert m == 1 or Fraction(share) ** (m - 1) > Fraction(gamma)
    assert order_statistic_rank(m, share, gamma) == m
    assert m == 1 or order_statistic_rank(m - 1, share, gamma) is None


def test_ties_are_decided_exactly():
    assert records_needed(0.5, 2.0**-10) == 10
    assert order_statistic_rank(10, 0.5, 2.0**-10) == 10
    assert records_needed(0.5, math.nextafter(2.0**-10, 0)) == 11


def test_shares_next_to_one_need_many_records():
    m = records_needed(1 - 1e-9, 1e-6)
    assert m == pytest.approx(math.log(1e6) * 1e9, rel=1e-6)
    assert order_statistic_rank(10**12, 1 - 1e-9, 1e-6) > 10**12 * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0.9, 0.1), "m=0"),
        ((10.5, 0.9, 0.1), r"m=10\.5"),
        ((True, 0.9, 0.1), "m=True"),
        ((10, 1.0, 0.1), r"share=1\.0"),
        ((10, math.nan, 0.1), "share=nan"),
        ((10, 0.9, 0), "gamma=0"),
        ((10, 0.9, "0.1"), "gamma='0.1'"),
    ],
)
def test_order_statistics_refuse(arguments, message):
    with pytest.raises(ValueError, match=message):
        order_statistic_rank(*arguments)
    if not message.startswith("m="):
        with pytest.raises(ValueError, match=message):
            records_needed(*arguments[1:])
