"""One step's losses against dp-accounting, point by point, and against their own definition."""

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from bayesdp.profiles.step_losses import Losses, step_losses

SETTINGS = [
    (256 / 60000, 1 / 1.1, 1e-3),
    (0.01, 1 / 0.8, 1e-3),
    (0.1, 0.25, 1e-4),
    (0.068, 0.01, 1e-4),
    (0.9, 2.0, 1e-3),
    (1.0, 0.5, 1e-3),
    (1e-4, 4.0, 1e-2),
]


def dense(losses: Losses, first: int, length: int) -> np.ndarray:
    return np.bincount(losses.point - first, losses.mass, length)


@pytest.mark.parametrize(("rate", "exposure", "interval"), SETTINGS)
def test_equal_to_dp_accounting_point_by_point(rate, exposure, interval):
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        1 / exposure, value_discretization_interval=interval, sampling_prob=rate
    )
    directions = step_losses(np.array([rate]), np.array([exposure]), interval, 1e-20)
    for losses, pmf in zip(directions, (theirs._pmf_remove, theirs._pmf_add), strict=True):
        given = pmf.to_dense_pmf()
        first = min(int(losses.point.min()), given._lower_loss)
        length = max(int(losses.point.max()), given._lower_loss + len(given._probs)) - first + 1
        expected = np.zeros(length)
        expected[given._lower_loss - first :][: len(given._probs)] = given._probs
        np.testing.assert_allclose(dense(losses, first, length), expected, atol=1e-10, rtol=0)


def hockey_stick(rate: float, exposure: float, epsilon: float, record_in: bool) -> float:
    """The exact delta(epsilon) of one step, by its closed form."""
    if rate == 1:
        at = epsilon / exposure + exposure / 2
        return float(norm.sf(at - exposure) - np.exp(epsilon) * norm.sf(at))
    inner = (np.exp(epsilon if record_in else -epsilon) - 1 + rate) / rate
    if inner <= 0:
        return max(0.0, 1 - np.exp(epsilon)) if record_in else 0.0
    at = np.log(inner) / exposure + exposure / 2
    if record_in:
        with_record = (1 - rate) * norm.sf(at) + rate * norm.sf(at - exposure)
        return float(with_record - np.exp(epsilon) * norm.sf(at))
    with_record = (1 - rate) * norm.cdf(at) + rate * norm.cdf(at - exposure)
    return float(norm.cdf(at) - np.exp(epsilon) * with_record)


@given(st.floats(0.001, 1.0), st.floats(0.01, 4.0), st.sampled_from([1e-3, 1e-2, 0.1]), st.floats(-0.2, 4.0))
def test_dominates_the_step_and_touches_it_on_the_grid(rate, exposure, interval, epsilon):
    for losses, record_in in zip(
        step_losses(np.array([rate]), np.array([exposure]), interval, 1e-20), (True, False), strict=True
    ):
        assert losses.mass.min() >= 0
        assert losses.mass.sum() + losses.lost[0] == pytest.approx(1, abs=1e-12)
        for at in (epsilon, round(epsilon / interval) * interval):
            above = np.maximum(-np.expm1(at - losses.point * interval), 0)
            delta = losses.mass @ above + losses.lost[0]
            exact = hockey_stick(rate, exposure, at, record_in)
            assert delta >= exact - 1e-13
        assert delta == pytest.approx(exact, abs=1e-11)


def test_many_kinds_are_those_of_each_alone():
    rates, exposures = np.array([0.01, 1.0, 0.5, 1e-3]), np.array([0.3, 0.1, 2.0, 1e-6])
    together = step_losses(rates, exposures, 1e-3, 1e-18)
    for number in range(4):
        alone = step_losses(rates[[number]], exposures[[number]], 1e-3, 1e-18)
        for many, single in zip(together, alone, strict=True):
            here = slice(*np.append(many.start, len(many.point))[[number, number + 1]])
            first, length = int(single.point.min()), int(np.ptp(single.point)) + 1
            own = np.bincount(many.point[here] - first, many.mass[here], length)
            np.testing.assert_array_equal(own, dense(single, first, length))
            assert many.lost[number] == single.lost[0]


@pytest.mark.parametrize("rate", [5e-324, 1e-310, 1e-300])
def test_records_that_are_never_drawn_lose_nothing(rate):
    for losses in step_losses(np.array([rate]), np.array([1.0]), 1e-3, 1e-18):
        assert losses.mass[losses.point == 0].sum() == pytest.approx(1.0, abs=1e-12)
        assert losses.lost.sum() <= 1e-17
