"""Log-moments by sampling rate: row by row those of the subsampled Gaussian."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import SubsampledGaussian
from bayesdp.mechanisms.log_moments import log_moments

LAMBDAS = [1, 2, 7, 32, 200]
RATES = st.sampled_from([1e-6, 0.01, 0.3, 1.0])
EXPOSURES = st.one_of(st.sampled_from([0.0, 1e-200, 1e200, np.inf]), st.floats(-8, 3).map(lambda x: 10.0**x))


def row_by_row(rates, exposures, lambdas):
    return np.array(
        [
            SubsampledGaussian(sample_rate=rate).log_moment([exposure], lambdas)[0]
            for rate, exposure in zip(rates, exposures, strict=True)
        ]
    )


@given(st.lists(st.tuples(RATES, EXPOSURES), min_size=1, max_size=12))
def test_each_row_is_that_of_its_own_rate_and_exposure(kinds):
    rates, exposures = np.array(kinds).T
    table = log_moments(rates, exposures, LAMBDAS)
    assert table.shape == (len(kinds), len(LAMBDAS))
    assert table.dtype == np.float64
    expected = row_by_row(rates, exposures, LAMBDAS)
    np.testing.assert_array_equal(np.isinf(table), np.isinf(expected))
    np.testing.assert_array_equal(table == 0, expected == 0)
    np.testing.assert_allclose(table, expected, rtol=2e-12)


@given(RATES, st.lists(EXPOSURES, min_size=1, max_size=12))
def test_one_rate_is_that_rate_for_every_exposure(rate, exposures):
    table = log_moments(rate, exposures, LAMBDAS)
    np.testing.assert_array_equal(table, log_moments([rate] * len(exposures), exposures, LAMBDAS))
    np.testing.assert_array_equal(table, SubsampledGaussian(sample_rate=rate).log_moment(exposures, LAMBDAS))


def test_kinds_of_one_rate_equal_the_mechanism_bit_for_bit_wherever_they_stand():
    rng = np.random.default_rng(0)
    rates, exposures = rng.choice([0.01, 0.2, 1.0], 40), 10 ** rng.uniform(-3, 1, 40)
    table = log_moments(rates, exposures, LAMBDAS)
    for rate in np.unique(rates):
        here = rates == rate
        expected = SubsampledGaussian(sample_rate=rate).log_moment(exposures[here], LAMBDAS)
        np.testing.assert_array_equal(table[here], expected)


def test_no_exposure_costs_nothing_and_an_infinite_one_infinity():
    for rates in (0.1, 1.0, [0.1, 1.0], [0.1, 0.1]):
        table = log_moments(rates, [0.0, np.inf], LAMBDAS)
        assert (table[0] == 0).all()
        assert (table[1] == np.inf).all()


def test_costs_are_counts_times_the_table():
    rates, exposures, counts = [0.1, 1.0, 0.1], [0.5, 0.2, 1.5], np.array([[3.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    expected = counts @ row_by_row(rates, exposures, LAMBDAS)
    np.testing.assert_allclose(counts @ log_moments(rates, exposures, LAMBDAS), expected, rtol=2e-12)


@pytest.mark.parametrize("rates", [0.3, [0.3]])
def test_a_single_exposure_and_a_range_of_orders(rates):
    table = log_moments(rates, 0.7, range(1, 5))
    np.testing.assert_array_equal(table, SubsampledGaussian(sample_rate=0.3).log_moment([0.7], [1, 2, 3, 4]))


def test_no_kinds_give_an_empty_table():
    assert log_moments(np.empty(0), np.empty(0), LAMBDAS).shape == (0, len(LAMBDAS))


def test_real_orders_without_sampling_only():
    np.testing.assert_allclose(log_moments([1.0], [2.0], [0.5, 1.5]), [[0.75 * 2, 3.75 * 2]], rtol=1e-12)
    with pytest.raises(ValueError, match=r"lambdas=0\.5: expected whole numbers"):
        log_moments([1.0, 0.5], [2.0, 2.0], [0.5, 1.5])


@pytest.mark.parametrize(
    ("rates", "exposures", "lambdas", "message"),
    [
        ([0.1, 1.5], [1.0, 1.0], [1], r"sample_rate=1\.5"),
        ([0.1, np.nan], [1.0, 1.0], [1], "sample_rate=nan"),
        (0.0, [1.0], [1], r"sample_rate=0\.0"),
        ([0.1, 0.1], [1.0, -1.0], [1], r"exposure\[1\]=-1\.0"),
        ([0.1], [np.nan], [1], r"exposure\[0\]=nan"),
        ([0.1], [1.0], [0], r"lambdas=0\.0"),
    ],
)
def test_bad_input_is_refused(rates, exposures, lambdas, message):
    with pytest.raises(ValueError, match=message):
        log_moments(rates, exposures, lambdas)
