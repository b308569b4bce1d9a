"""The exact delta of two steps, against the slow oracle in mpmath."""

import numpy as np
import pytest

from bayesdp.attack.two_steps import OUTPUTS, step_delta, two_steps_delta
from bayesdp.profiles import gaussian_delta
from oracles import slow_accountant as slow

DIRECTIONS = pytest.mark.parametrize("direction", ["record in", "record out"])


@DIRECTIONS
@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("epsilon", [-2.0, -0.3, 0.0, 0.3, 2.0])
def test_one_step(direction, rate, epsilon):
    for exposure in (0.05, 1.0, 4.0):
        expected = float(slow.step_delta(exposure, rate, epsilon, direction.split()[1]))
        assert float(step_delta(exposure, np.array(epsilon), rate, direction)) == pytest.approx(expected, abs=1e-14)


@DIRECTIONS
@pytest.mark.parametrize(("rate", "epsilon"), [(0.3, 0.2), (0.3, 1.0), (0.05, 0.1)])
def test_two_steps(direction, rate, epsilon):
    first = np.array([[0.7]])
    expected = float(slow.two_step_delta(0.7, rate, epsilon, direction.split()[1]))
    assert two_steps_delta(first, first, epsilon, rate, direction)[0] == pytest.approx(expected, rel=1e-6, abs=1e-15)


@DIRECTIONS
def test_two_steps_without_sampling_are_one_gaussian(direction):
    first, second = np.array([[0.2], [0.9]]), np.array([[0.5], [1.2]])
    together = np.hypot(first, second)[:, 0]
    found = two_steps_delta(first, second, 0.8, direction=direction)
    assert found == pytest.approx(gaussian_delta(together, 0.8), rel=1e-6)


@DIRECTIONS
def test_a_second_step_that_depends_on_nothing_is_one_that_does_not_depend(direction):
    first, second = np.array([[0.2], [0.9]]), np.array([[0.5], [1.2]])
    for rate in (1.0, 0.4):
        fixed, looking = (two_steps_delta(first, each, 0.3, rate, direction) for each in (second, second + 0 * OUTPUTS))
        assert fixed == pytest.approx(looking)
