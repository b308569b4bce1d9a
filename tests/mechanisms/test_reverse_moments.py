"""What a sampled step costs somebody who was left out: never below 40-digit quadrature, and hardly above."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import InvalidInputError
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.mechanisms.log_moments import log_moments

RATES = st.floats(1e-7, 0.999)
EXPOSURES = st.floats(1e-5, 14.0)
ORDERS = st.floats(1e-6, 2000.0)


def exact(rate, exposure, order):
    """log E[m^-lambda] with m = 1 - q + q e^{e x - e^2/2}, by the trapezoidal rule in 40 digits."""
    with mp.workdps(40):
        q, e, power = mp.mpf(rate), mp.mpf(exposure), mp.mpf(order)
        height = -order * np.log1p(-rate)
        low, high = -13 - min(order * exposure, np.sqrt(2 * height)), 2 * exposure + 13
        step = mp.mpf(min(0.2 / np.sqrt(1 + order * exposure**2 / 4), 0.08 / exposure))
        total = mp.mpf(0)
        for i in range(int((high - low) / step) + 1):
            x = low + step * i
            above = q * mp.expm1(e * x - e * e / 2)
            total += mp.npdf(x) * (mp.exp(-power * mp.log1p(above)) - 1 + power * above)
        return mp.log1p(step * total)


def reverse(rate, exposure, order):
    return float(SubsampledGaussian(sample_rate=rate).reverse([exposure], [order])[0, 0])


@pytest.mark.parametrize(
    ("rate", "exposure", "order"),
    [
        (0.01, 1.0, 32.0),
        (0.01, 2.0, 4.0),
        (0.05, 1 / 3, 100.5),
        (1e-6, 0.7, 480.36),
        (0.0043, 0.91, 0.63),
        (0.5, 0.2, 8.0),
        (0.9, 1.5, 3.0),
        (0.99985, 5e-4, 111.0),
        (0.3, 6.0, 20.0),
        (0.068, 1e-4, 2.5),
        (2e-5, 1.05, 1.97),
        (0.02, 12.0, 70.0),
        (0.9, 5.0, 1e-3),  # far from 1 at an order so small that their product is not
        (0.09, 10.0, 0.01),
        (9e-4, 3.0, 1.0),
    ],
)
def test_never_below_and_hardly_above_quadrature(rate, exposure, order):
    found, truth = reverse(rate, exposure, order), exact(rate, exposure, order)
    assert truth <= found <= float(truth) * (1 + 1e-10)


@given(RATES, EXPOSURES, ORDERS)
def test_between_nothing_and_what_it_costs_at_any_exposure(rate, exposure, order):
    assert 0 < reverse(rate, exposure, order) <= -order * np.log1p(-rate) * (1 + 1e-10)


@given(RATES, EXPOSURES, st.integers(1, 500))
def test_never_above_the_record_in(rate, exposure, order):
    step = SubsampledGaussian(sample_rate=rate)
    assert reverse(rate, exposure, order) <= float(step.forward([exposure], [order])[0, 0]) * (1 + 1e-9)


@given(RATES, EXPOSURES, ORDERS, st.floats(1.001, 3.0))
def test_increases_in_everything(rate, exposure, order, factor):
    least = reverse(rate, exposure, order) * (1 - 1e-10)
    assert reverse(rate, exposure * factor, order) >= least
    assert reverse(rate, exposure, order * factor) >= least
    assert reverse(min(rate * factor, 0.9995), exposure, order) >= least


def test_up_to_15_times_less_than_the_record_in():
    step = SubsampledGaussian(sample_rate=0.01)
    assert float(step.forward([2.0], [4])[0, 0]) > 15 * reverse(0.01, 2.0, 4)


def test_at_the_edges():
    step = SubsampledGaussian(sample_rate=0.1)
    table = step.reverse([0.0, 1e-300, 1e3, np.inf], [1.0, 2.5])
    assert (table[0] == 0).all()
    assert (table[1] > 0).all()
    np.testing.assert_allclose(table[2:], [-np.log1p(-0.1) * np.array([1.0, 2.5])] * 2, rtol=1e-9)
    unsampled = SubsampledGaussian()
    np.testing.assert_array_equal(unsampled.reverse([0.7], [3.5]), unsampled.forward([0.7], [3.5]))
    for bad in ([0], [-1], [np.nan], [np.inf], []):
        with pytest.raises(InvalidInputError, match="lambdas="):
            step.reverse([1.0], bad)
    with pytest.raises(InvalidInputError, match=r"exposure\[0\]=-1.0"):
        step.reverse([-1.0], [1.0])


def test_directions_of_the_table():
    rates, exposures, lambdas = [0.1, 1.0], [0.5, 0.5], [2.0, 8.0]
    both, inside, outside = (log_moments(rates, exposures, lambdas, d) for d in ("both", "record in", "record out"))
    np.testing.assert_allclose(inside, both, rtol=1e-12)
    assert (outside[0] < both[0]).all()
    np.testing.assert_array_equal(outside[1], both[1])


@given(st.floats(0.01, 0.9), st.floats(0.05, 3.0), st.floats(0.1, 60.0))
def test_between_whole_orders_the_record_in_costs_the_chord(rate, exposure, order):
    """Never below the exact moment, which is convex in the order: by quadrature with the record in."""
    found = float(log_moments([rate], [exposure], [order], "record in")[0, 0])
    x = np.linspace(-13 - exposure, 13 + (order + 2) * exposure, 60_001)
    logs = (order + 1) * np.log1p(rate * np.expm1(exposure * x - exposure**2 / 2)) - x * x / 2
    top = logs.max()
    truth = top + np.log(np.exp(logs - top).sum() * (x[1] - x[0]) / np.sqrt(2 * np.pi))
    assert truth <= found + 1e-9 * max(1.0, abs(top))
    around = log_moments([rate], [exposure], [np.floor(order) or 1.0, np.ceil(order)], "record in")[0]
    assert found <= around[1] * (1 + 1e-12)


def test_orders_that_hardly_exist():
    found = SubsampledGaussian(sample_rate=1e-5).reverse([0.1, 5.0, 14.2, 20.0], [5e-324, 1e-310, 1e-200])
    assert ((found >= 0) & (found < 1e-190)).all()
