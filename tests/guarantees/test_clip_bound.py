"""A record at the clip bound in every step: the worst case of many settings."""

import pytest

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
