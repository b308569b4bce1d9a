"""From log-moments to (epsilon, delta): one order and many, one record and many, there and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.profiles.conversion import (
    LEAST_DELTA,
    delta_from_costs,
    epsilon_from_costs,
    record_deltas,
    record_epsilons,
)

LAMBDAS = np.array([1.0, 4.0, 64.0])
costs = st.lists(st.floats(1e-6, 50), min_size=3, max_size=3).map(np.array)


@given(costs, st.floats(1e-12, 0.5))
def test_one_record_and_many_agree(given_costs, delta):
    epsilon, _ = epsilon_from_costs(given_costs, LAMBDAS, delta, "improved")
    assert record_epsilons(given_costs[None], LAMBDAS, delta)[0] == pytest.approx(epsilon, rel=1e-12, abs=1e-12)
    at = delta_from_costs(given_costs, LAMBDAS, epsilon, "improved")[0]
    assert record_deltas(given_costs[None], LAMBDAS, np.array([epsilon]))[0, 0] == pytest.approx(at, rel=1e-9)
    assert at <= delta * (1 + 1e-9)


@pytest.mark.parametrize("conversion", ["improved", "chernoff"])
def test_a_delta_of_zero_stands_for_equal_laws_only(conversion):
    assert delta_from_costs(np.array([1.0]), np.array([64.0]), 20.0, conversion)[0] == LEAST_DELTA > 0
    assert record_deltas(np.array([[1.0]]), np.array([64.0]), np.array([20.0]))[0, 0] == LEAST_DELTA
    assert delta_from_costs(np.array([0.0]), np.array([64.0]), 20.0, conversion)[0] == 0
