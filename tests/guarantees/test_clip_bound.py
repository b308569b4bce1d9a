"""A record at the clip bound in every step: the worst case of many settings."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.stats import norm

from bayesdp import InvalidInputError
from bayesdp.guarantees.clip_bound import ClipBound, worst_case_of_many
from bayesdp.guarantees.worst_case import worst_case_of


def test_settings_that_alternate_are_counted_together():
    alternating = [(4.0, 0.1, 1), (5.0, 0.2, 1)] * 20
    assert worst_case_of_many(alternating, 1e-5) == worst_case_of([(4.0, 0.1, 20), (5.0, 0.2, 20)], delta=1e-5)


def test_many_settings_are_never_below_few():
    many = [(4.0 + number / 1000, 0.1, 5) for number in range(12)]
    least, most = (worst_case_of([(noise, 0.1, 60)], delta=1e-5).epsilon for noise in (4.011, 4.0))
    found = worst_case_of_many(many, 1e-5)
    assert least * (1 - 1e-6) <= found.epsilon <= most * (1 + 2e-3)
    assert found.pld_epsilon == found.epsilon < found.rdp_epsilon


def test_bad_settings_are_refused():
    with pytest.raises(InvalidInputError, match="noise_multiplier=0"):
        worst_case_of_many([(0.0, 0.1, 1)] * 9, 1e-5)


def test_epsilons_at_several_deltas_are_those_at_each():
    bound = ClipBound.of([(4.0, 0.1, 50)])
    together = bound.epsilons([1e-6, 1e-4])
    assert together[0] > together[1]
    assert together == pytest.approx([bound.epsilon(1e-6), bound.epsilon(1e-4)], rel=1e-3)


@pytest.mark.parametrize(("exposure", "rate"), [(1.0, 0.1), (0.3, 0.5), (2.0, 0.3), (0.1, 0.9)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_one_step_for_somebody_left_out_is_exact(exposure, rate, delta):
    """H(0 || mixture) is reached by the outputs below a threshold, where the density of the mixture is least."""

    def most(epsilon):
        threshold = (math.log((math.exp(-epsilon) - 1 + rate) / rate) + exposure**2 / 2) / exposure
        mixture = (1 - rate) * norm.cdf(threshold) + rate * norm.cdf(threshold - exposure)
        return norm.cdf(threshold) - math.exp(epsilon) * mixture

    exact = brentq(lambda epsilon: most(epsilon) - delta, 0.0, -math.log1p(-rate) * (1 - 1e-9))
    found = ClipBound.of([(1 / exposure, rate, 1)]).epsilons_out([delta])[0]
    assert exact <= found <= exact * (1 + 2e-2)  # a single step shows the grid


@pytest.mark.parametrize("steps", [[(1.4453, 1 / 11, 110)], [(1.2, 1 / 7, 21)], [(1.0, 0.01, 1000)]])
def test_somebody_left_out_against_dp_accounting(steps):
    [(noise, rate, count)] = steps
    bound = ClipBound.of(steps)
    pld = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=1e-4).self_compose(count)
    for delta in (1e-4, 1e-6):
        expected = pld._pmf_add.get_epsilon_for_delta(delta)
        found = bound.epsilons_out([delta])[0]
        assert found == pytest.approx(expected, rel=2e-3)
        assert found < 0.9 * bound.epsilons([delta])[0]


def test_without_sampling_both_directions_are_equal():
    bound = ClipBound.of([(4.0, 1.0, 10)])
    assert np.array_equal(bound.epsilons_out([1e-5, 1e-3]), bound.epsilons([1e-5, 1e-3]))
