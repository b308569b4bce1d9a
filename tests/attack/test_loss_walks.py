"""Exact adversaries against what is known in closed form."""

import pytest

from bayesdp.attack.loss_walks import worst_steering_delta
from bayesdp.profiles import gaussian_delta
from stopping_adversaries import worst_stopping_delta


@pytest.mark.parametrize("record_in", [True, False])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_who_cannot_gain_by_stopping_reaches_the_gaussian_profile(record_in, epsilon):
    exact = float(gaussian_delta(0.5 * 2, epsilon))
    reached = {
        rounding: worst_steering_delta([(1.0, 0.5)], 4, lambda _: epsilon, record_in=record_in, rounding=rounding)
        for rounding in ("down", "interpolated")
    }
    assert reached["down"] < exact < reached["interpolated"] * (1 + 1e-4)
    assert reached["down"] == pytest.approx(exact, rel=0.03)


def test_rounding_down_is_below_an_adversary_computed_otherwise():
    epsilons = [0.2, 0.25, 0.3]
    other = worst_stopping_delta(0.2, epsilons, parts=96)
    reached = worst_steering_delta(
        [(1.0, 0.2)],
        3,
        lambda counts: epsilons[counts[0] - 1] if counts[0] else 10.0,
        record_in=True,
        rounding="down",
        spacing=1e-4,
    )
    assert 0.99 * other < reached < other * (1 + 1e-4)
