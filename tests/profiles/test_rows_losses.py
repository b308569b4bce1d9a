"""Losses of a person with several rows: against formulas, dp-accounting, and rows that point elsewhere."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import ndtr

from bayesdp.profiles.composed import ComposedLosses
from bayesdp.profiles.rows_losses import RowsStep, rows_losses
from bayesdp.profiles.step_losses import step_losses


def exact_deltas(rate, exposure, rows, epsilon):
    """Delta of one step, rows in and rows out: the loss rises with the output, so the set is a half-line."""
    weights = np.array([math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in range(rows + 1)])
    shifts = exposure * np.arange(rows + 1)

    def loss(x):
        powers = np.log(weights) + shifts * x - shifts**2 / 2
        return powers.max() + math.log(np.exp(powers - powers.max()).sum())

    cut = brentq(lambda x: loss(x) - epsilon, -500, 500, xtol=1e-13)
    inward = float(weights @ ndtr(shifts - cut)) - math.exp(epsilon) * float(ndtr(-cut))
    if -epsilon <= rows * math.log1p(-rate):
        return inward, 0.0
    cut = brentq(lambda x: loss(x) + epsilon, -500, 500, xtol=1e-13)
    return inward, float(ndtr(cut)) - math.exp(epsilon) * float(weights @ ndtr(cut - shifts))


@settings(max_examples=settings().max_examples * 20 // 100, deadline=None)
@given(st.floats(1e-3, 0.9), st.floats(0.05, 2.0), st.integers(1, 6), st.floats(0.05, 2.0))
def test_one_step_is_never_below_the_formula_and_close(rate, exposure, rows, epsilon):
    both = rows_losses([RowsStep.of(rate, exposure, rows, 1e-16)], 1e-3, 1e-16)
    for losses, exact in zip(both, exact_deltas(rate, exposure, rows, epsilon), strict=True):
        found = float(ComposedLosses(losses, np.ones((1, 1)), 2.0, 1e-13).deltas(np.array([epsilon]))[0, 0])
        assert exact - 1e-15 <= found <= exact * (1 + 1e-4) + 1e-6


def test_one_row_is_the_step_of_a_record():
    row = rows_losses([RowsStep.of(0.01, 1.0, 1, 1e-20)], 1e-3, 1e-16)
    for mine, theirs in zip(row, step_losses(np.array([0.01]), np.array([1.0]), 1e-3, 1e-16), strict=True):
        assert (mine.point == theirs.point).all()
        assert mine.mass == pytest.approx(theirs.mass, abs=1e-10)


def test_masses_agree_with_those_of_dp_accounting():
    weights = [math.comb(3, j) * 0.05**j * 0.95 ** (3 - j) for j in range(4)]
    theirs = pld.from_mixture_gaussian_mechanism(1.0, range(4), weights, value_discretization_interval=1e-2)
    both = rows_losses([RowsStep.of(0.05, 1.0, 3, 1e-20)], 1e-2, 1e-16)
    for losses, name in zip(both, ("_pmf_remove", "_pmf_add"), strict=True):
        composed = ComposedLosses(losses, np.full((1, 1), 40.0), 4.0, 1e-12)
        pmf = getattr(theirs, name).self_compose(40)
        for epsilon in (0.5, 1.0, 3.0):
            found = float(composed.deltas(np.array([epsilon]))[0, 0])
            assert found == pytest.approx(float(pmf.get_delta_for_epsilon(epsilon)), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize(
    ("rows", "rate"), [(3, 0.01), (50, 0.3), (1000, 1e-5), (3000, 0.2), (40, 0.999), (10**9, 1e-9)]
)
def test_drawn_rows_are_rounded_to_the_side_of_more(rows, rate):
    step = RowsStep.of(rate, 1.0, rows, 1e-14)
    assert len(step.shifts) <= 64
    assert step.weights.sum() + step.dropped == pytest.approx(1.0, abs=1e-12)
    assert step.dropped <= 1e-14 * (1 + 1e-9)
    with mpmath.workdps(30):
        for number in np.linspace(0, float(step.shifts[-1]) - 1, 7).round().tolist():
            tail = mpmath.betainc(number + 1, rows - number, 0, mpmath.mpf(rate), regularized=True)
            assert float(step.weights[step.shifts > number].sum()) + step.dropped >= float(tail) * (1 - 1e-13) - 1e-16


def hockey_sticks(weights, means, epsilon, grid):
    """Both divergences between a mixture of Gaussians in the plane and N(0, I), by a sum over a fine grid."""
    q = np.exp(-(grid[0] ** 2 + grid[1] ** 2) / 2)
    m = sum(
        w * np.exp(-((grid[0] - a) ** 2 + (grid[1] - b) ** 2) / 2) for w, (a, b) in zip(weights, means, strict=True)
    )
    total, factor = q.sum(), math.exp(epsilon)
    return np.maximum(m - factor * q, 0).sum() / total, np.maximum(q - factor * m, 0).sum() / total


@settings(max_examples=settings().max_examples * 10 // 100, deadline=None)
@given(
    st.floats(0.01, 0.9),
    st.floats(0.0, 1.5),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)), min_size=3, max_size=3),
)
def test_rows_of_other_lengths_and_directions_cost_no_more(rate, epsilon, rows):
    """Kahane's inequality: aligned rows at the clip bound are the worst, in both directions."""
    axis = np.linspace(-8, 11, 400)
    grid = np.meshgrid(axis, axis)
    vectors = np.array([[length * math.cos(angle), length * math.sin(angle)] for length, angle in rows])
    drawn = [[int(bit) for bit in f"{number:03b}"] for number in range(8)]
    weights = [rate ** sum(bits) * (1 - rate) ** (3 - sum(bits)) for bits in drawn]
    any_rows = hockey_sticks(weights, [np.array(bits) @ vectors for bits in drawn], epsilon, grid)
    aligned = hockey_sticks(weights, [(float(sum(bits)), 0.0) for bits in drawn], epsilon, grid)
    assert (np.array(any_rows) <= np.array(aligned) + 1e-4).all()
