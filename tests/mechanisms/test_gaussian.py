"""The subsampled Gaussian against high precision, and its shape by property tests."""

import mpmath
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import SubsampledGaussian, published_reverse_cost
from oracle_files import rows

rates = st.floats(-9, 0).map(lambda x: 10.0**x)
exposures = st.floats(-8, 3).map(lambda x: 10.0**x)
orders = st.integers(1, 300)


def kappa(q: float, e: float, order: int) -> float:
    return float(SubsampledGaussian(sample_rate=q).log_moment([e], [order])[0, 0])


def exact(q: float, e: float, order: int) -> mpmath.mpf:
    """The defining sum with 60 digits."""
    with mpmath.workdps(60):
        rate, u = mpmath.mpf(q), mpmath.mpf(e) ** 2
        weight, total = (1 - rate) ** (order + 1), mpmath.mpf(0)
        for k in range(1, order + 2):
            if rate < 1:
                weight *= mpmath.mpf(order + 2 - k) / k * rate / (1 - rate)
            else:
                weight = mpmath.mpf(k == order + 1)
            if k >= 2:
                total += weight * mpmath.expm1(k * (k - 1) * u / 2)
        return mpmath.log1p(total) if total > mpmath.mpf(10) ** -40 else total


@pytest.mark.parametrize(
    "row", rows("log_moments.csv"), ids=lambda r: f"{r['q'][:6]}-{r['d_over_sigma']}-{r['lambda']}"
)
def test_against_quadrature(row):
    q, e, order = float(row["q"]), float(row["d_over_sigma"]), int(row["lambda"])
    value = kappa(q, e, order)
    assert value == pytest.approx(float(row["exact_forward"]), rel=1e-10)
    assert value >= float(row["exact_reverse"])
    published = published_reverse_cost([e], [order], q)[0, 0]
    assert published == pytest.approx(float(row["published_cR"]), rel=1e-9)


@given(rates, exposures, orders)
def test_never_below_the_exact_sum_and_close_to_it(q, e, order):
    excess = mpmath.mpf(kappa(q, e, order)) / exact(q, e, order) - 1
    assert 0 <= excess <= 1e-10


@pytest.mark.parametrize("q", [1e-9, 1e-4, 0.3, 1 - 1e-6, 1.0])
@pytest.mark.parametrize("e", [1e-8, 1e-3, 0.05, 1.0, 1e3])
def test_order_4096(q, e):
    assert 0 <= mpmath.mpf(kappa(q, e, 4096)) / exact(q, e, 4096) - 1 <= 1e-10


@given(rates, exposures, exposures, orders)
def test_increasing_in_exposure_order_and_rate(q, a, b, order):
    low, high = sorted((a, b))
    tolerance = 1 + 2e-12
    assert kappa(q, low, order) <= kappa(q, high, order) * tolerance
    assert kappa(q, low, order) <= kappa(q, low, order + 1) * tolerance
    assert kappa(q, low, order) <= kappa(min(1.0, 1.5 * q), low, order) * tolerance
    assert kappa(q, 0.0, order) == 0


@given(rates, exposures, st.floats(1.0001, 4.0), st.floats(0.01, 0.99), orders)
def test_convex_in_the_squared_exposure(q, e, ratio, w, order):
    mechanism = SubsampledGaussian(sample_rate=q)
    u = np.array([e**2, (1 - w) * e**2 + w * (ratio * e) ** 2, (ratio * e) ** 2])
    low, middle, high = mechanism.log_moment(np.sqrt(u), [order])[:, 0]
    assert middle <= ((1 - w) * low + w * high) * (1 + 1e-11)


@given(rates, st.floats(0.3, 100.0), st.integers(1, 255))
def test_agrees_with_dp_accounting(q, noise_multiplier, order):
    accountant = RdpAccountant(orders=[order + 1])
    accountant.compose(PoissonSampledDpEvent(q, GaussianDpEvent(noise_multiplier)))
    theirs = order * float(accountant.rdp[0])
    value = kappa(q, 1 / noise_multiplier, order)
    assert abs(value - theirs) <= 1e-9 * max(1.0, theirs / 1e-4 if theirs > 1e-4 else 1.0) or value == pytest.approx(
        theirs, rel=1e-9
    )


def test_full_batch_takes_real_orders():
    value = SubsampledGaussian(sample_rate=1.0).log_moment([2.0], [0.5, 1.5])
    np.testing.assert_allclose(value, [[0.5 * 1.5 * 2, 1.5 * 2.5 * 2]], rtol=1e-12)


def test_many_at_once_equal_one_by_one():
    rng = np.random.default_rng(0)
    e, mechanism = np.r_[0.0, 10 ** rng.uniform(-4, 1, 50)], SubsampledGaussian(sample_rate=0.02)
    together = mechanism.log_moment(e, [300, 7, 1, 64])
    alone = [[kappa(0.02, x, k) for k in (300, 7, 1, 64)] for x in e]
    np.testing.assert_allclose(together, alone, rtol=2e-12)


def test_infinite_exposure_costs_infinity():
    assert kappa(0.1, np.inf, 3) == np.inf
    assert kappa(0.1, 1e200, 3) == np.inf


@pytest.mark.parametrize("q", [0, -0.1, 1.5, float("nan"), "a"])
def test_refuses_a_bad_rate(q):
    with pytest.raises(ValueError, match="sample_rate="):
        SubsampledGaussian(sample_rate=q)


def test_the_theorems_reverse_cost_is_far_above_the_forward_where_costs_are_small():
    ratio = published_reverse_cost([0.01], [1], 0.001)[0, 0] / kappa(0.001, 0.01, 1)
    assert ratio == pytest.approx(2 / (2 * 0.001), rel=0.01)


def test_large_weights_that_cancel_do_not_round_below_exact():
    q, e = 1.357354653086823e-08, 0.09404162153348157
    assert 0 <= mpmath.mpf(kappa(q, e, 4096)) / exact(q, e, 4096) - 1 <= 1e-10


def test_nothing_released_underflows_to_no_cost():
    assert kappa(1e-200, 1.0, 1) > 0
    assert kappa(0.1, 1e-200, 1) > 0
    assert kappa(1.0, 1e-200, 1) > 0
