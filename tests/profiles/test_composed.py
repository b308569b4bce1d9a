"""Composed losses against plain convolution and high precision: every error is in the result."""

from functools import reduce

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp.profiles.composed import ComposedLosses
from bayesdp.profiles.step_losses import Losses, step_losses

ORDER = 8.0


def convolved(losses: Losses, counts: list[int]) -> tuple[np.ndarray, int, float]:
    """The distribution of the sum by plain convolution: masses, the first point, and what was lost."""
    total, first, kept = np.ones(1), 0, 1.0
    for kind, times in enumerate(counts):
        here = slice(*np.append(losses.start, len(losses.point))[[kind, kind + 1]])
        start = int(losses.point[here].min())
        mass = np.bincount(losses.point[here] - start, losses.mass[here])
        for _ in range(times):
            total, first, kept = np.convolve(total, mass), first + start, kept * (1 - losses.lost[kind])
    return total, first, 1 - kept


def delta_of(total: np.ndarray, first: int, lost: float, interval: float, epsilon: float) -> float:
    points = (np.arange(len(total)) + first) * interval
    return float(total @ np.maximum(-np.expm1(epsilon - points), 0)) + lost


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0.01, 0.2, 1.0]), st.floats(0.05, 1.5)), min_size=2, max_size=3),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.sampled_from([1e-6, 1e-10]),
)
def test_against_plain_convolution(kinds, counts, allowed):
    rates, exposures = np.array(kinds).T
    counts = [1, *counts[1 : len(kinds)]]
    epsilons = np.array([0.0, 0.05, 0.3, 1.0, 3.0, 8.0])
    for losses in step_losses(rates, exposures, 0.01, 1e-18):
        exact = [delta_of(*convolved(losses, counts), 0.01, epsilon) for epsilon in epsilons]
        composed = ComposedLosses(losses, np.array([counts], float), ORDER, allowed)
        bounds = composed.deltas(epsilons)[0]
        assert (bounds >= np.array(exact) - 1e-14).all()
        assert (bounds <= np.array(exact) + 2 * composed.error[0] + 2 * allowed).all()
        assert composed.error[0] <= 5 * allowed
        for delta in (1e-2, 1e-4):
            epsilon = composed.epsilons(delta)[0]
            total = convolved(losses, counts)
            assert delta_of(*total, 0.01, epsilon) <= delta
            if epsilon > 0:
                assert delta_of(*total, 0.01, epsilon - 1e-9) > delta - 4 * composed.error[0] - 4 * allowed


def test_round_off_is_far_below_what_is_added_for_it():
    """The same sum over frequencies in 40 digits, for 14,062 steps."""
    steps, interval = 14062, 1e-2
    losses, _ = step_losses(np.array([256 / 60000]), np.array([1 / 1.1]), interval, 1e-25)
    composed = ComposedLosses(losses, np.array([[float(steps)]]), ORDER, 1e-18)
    length, end, kept = composed._length, composed._end, len(composed._frequencies)
    epsilon_point = 239
    lowest = int(losses.point.min())
    masses = [mp.mpf(mass) for mass in np.bincount(losses.point - lowest, losses.mass)]
    with mp.workdps(40):
        total = mp.mpf(0)
        for k in range(-kept, kept + 1):
            root = mp.expjpi(mp.mpf(2 * k) / length)
            value = reduce(lambda sum_, mass: sum_ / root + mass, reversed(masses)) * root**-lowest
            if k == 0:
                series = (end - epsilon_point) - (1 - mp.exp((epsilon_point - end) * mp.mpf(interval))) / (
                    1 - mp.exp(-mp.mpf(interval))
                )
            else:
                shrunk = mp.exp(-mp.mpf(interval)) * root
                series = (root**epsilon_point - root**end) / (1 - root) - (
                    root**epsilon_point - mp.exp((epsilon_point - end) * mp.mpf(interval)) * root**end
                ) / (1 - shrunk)
            total += (value**steps * series / length).real
    delta = composed.deltas(np.array([epsilon_point * interval]))[0, 0] - composed.error[0]
    assert abs(delta - float(total)) < composed.error[0] / 10


def test_errors_that_forbid_any_epsilon_give_infinity():
    losses, _ = step_losses(np.array([0.01]), np.array([1.0]), 0.01, 1e-18)
    composed = ComposedLosses(losses, np.array([[10.0]]), ORDER, 1e-6)
    assert composed.epsilons(1e-15)[0] == np.inf
    assert composed.epsilons(0.5)[0] == 0.0


def test_a_window_that_cannot_be_placed_is_an_error_not_a_figure():
    losses, _ = step_losses(np.array([1.0]), np.array([8.0]), 1e-4, 1e-18)
    composed = ComposedLosses(losses, np.array([[1000.0]]), 100.0, 1e-9)
    assert composed.error[0] > 1e-9
    assert composed.epsilons(1e-5)[0] == np.inf


@pytest.mark.parametrize("steps", [1, 30])
def test_records_are_independent_of_their_neighbours(steps):
    rates, exposures = np.array([0.1, 0.1]), np.array([0.2, 0.5])
    losses, _ = step_losses(rates, exposures, 1e-3, 1e-18)
    both = ComposedLosses(losses, np.array([[steps, 0.0], [steps, steps]]), ORDER, 1e-10).epsilons(1e-5)
    alone = ComposedLosses(losses, np.array([[steps, 0.0]]), ORDER, 1e-10).epsilons(1e-5)
    assert both[0] == pytest.approx(alone[0], rel=1e-4)
    assert both[1] > both[0]


@pytest.mark.parametrize(("steps", "rate"), [(1, 0.1), (3, 1.0), (30, 0.2), (2000, 0.01)])
def test_all_points_and_the_search_find_the_same_last_one(steps, rate):
    """Few steps keep most frequencies, many keep a few: each way is checked on both."""
    exposures = np.array([0.05, 0.3, 0.9])
    for losses in step_losses(np.full(3, rate), exposures, 2e-3, 1e-18):
        composed = ComposedLosses(losses, steps * np.array([[1.0, 0, 0], [0, 1, 0], [1, 1, 1]]), ORDER, 1e-10)
        assert composed.error.max() < 1e-8
        for delta in (0.3, 1e-3, 1e-6, 1e-8):
            found, expected = composed._last_of_all(delta), composed._last_by_search(delta)
            assert found[0].tolist() == expected[0].tolist()
            for ours, theirs in zip(found[1:], expected[1:], strict=True):
                assert ours == pytest.approx(theirs, abs=composed.error.min())
