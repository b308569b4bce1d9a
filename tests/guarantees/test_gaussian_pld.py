"""Privacy loss distributions computed at all grid points at once are dp-accounting's, to the last bit."""

import math

import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.guarantees import gaussian_pld as computed_at_once
from bayesdp.guarantees.gaussian_pld import composed_pld, gaussian_pld
from bayesdp.guarantees.worst_case import to_dp_event


def masses(distribution):
    """What is compared: for each direction, the lowest loss, all masses on the grid, and the mass at infinity."""
    pmfs = [pmf.to_dense_pmf() for pmf in (distribution._pmf_remove, distribution._pmf_add)]
    return [(pmf._lower_loss, pmf._probs.tolist(), pmf._infinity_mass) for pmf in pmfs]


def check(noise, rate, interval):
    expected = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=interval)
    assert masses(gaussian_pld(noise, rate, interval)) == masses(expected)


@given(st.floats(0.3, 50), st.floats(1e-6, 1), st.floats(1e-3, 0.1))
def test_a_step_is_that_of_dp_accounting(noise, rate, interval):
    check(noise, rate, interval)


@pytest.mark.parametrize(
    ("noise", "rate", "interval"),
    [
        (1.0, 0.01, 1e-4),
        (2.0, 1.0, 1e-4),
        (1e3, 0.01, 1e-7),
        (4.0, 1 - 1e-12, 1e-3),
        (4.0, 1 - 2.0**-53, 1e-3),
        (1.0, 1e-9, 1e-4),
        # the limit of the loss, log(1 - rate), lies on the grid
        (1.0, -math.expm1(-0.25), 2.0**-8),
    ],
)
def test_a_step_at_the_edges(noise, rate, interval):
    check(noise, rate, interval)


def test_a_history_is_that_of_the_accountant():
    history = [(1.0, 0.01, 30), (5.0, 1.0, 3), (0.8, 0.2, 2)]
    accountant = PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(to_dp_event(history))
    composed = composed_pld(history, 1e-3)
    for delta in (1e-3, 1e-5, 1e-9):
        assert composed.get_epsilon_for_delta(delta) == accountant.get_epsilon(delta)


def test_a_loss_beyond_its_limit_is_refused_and_never_a_figure():
    with pytest.raises(ValueError, match="a must be greater than b"):
        from_gaussian_mechanism(1.0, sampling_prob=1e-18, value_discretization_interval=1e-20)
    with pytest.raises(ValueError, match="beyond its limit"):
        gaussian_pld(1.0, 1e-18, 1e-20)


def test_what_is_not_a_number_is_refused():
    class Broken:
        sampling_prob, sensitivity, _standard_deviation = 1.0, 1.0, 1.0

        def mu_upper_cdf(self, points):
            return np.full(len(points), np.nan)

        mu_lower_log_cdf = mu_upper_cdf

    with pytest.raises(ValueError, match="not a number"):
        computed_at_once._deltas(Broken(), np.array([0.0, 1.0]), add=False)
