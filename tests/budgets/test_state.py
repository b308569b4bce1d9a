"""Saving enforced budgets and going on: bit for bit, and never from a state that does not fit."""

import io
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.budgets import RecordBudgets
from budget_runs import RECORDS, budgets, equal_states, events, played, running


@given(budgets, events, st.integers(0, 8), st.booleans())
def test_the_state_continues_bit_for_bit(budgets, events, cut, saved):
    whole, first, second = (RecordBudgets(RECORDS, budgets) for _ in range(3))
    for _ in played(first, events[:cut]):
        pass
    state = first.state_dict()
    if saved:
        file = io.BytesIO()
        np.savez(file, **state)
        state = np.load(io.BytesIO(file.getvalue()))
    second.load_state_dict(state)
    expected = [levels.copy() for *_, levels in played(whole, events)]
    rest = [levels.copy() for *_, levels in played(second, events[cut:])]
    assert np.array_equal(expected[len(expected) - len(rest) :], rest)
    assert equal_states(whole.state_dict(), second.state_dict())


def test_a_state_is_a_copy():
    filter_ = running()
    state = filter_.state_dict()
    other = RecordBudgets(3, filter_.budgets)
    other.load_state_dict(state)
    for name in ("remaining", "norms", "exhausted"):
        state[name][...] = 0
    assert equal_states(other.state_dict(), filter_.state_dict())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version=2"),
        ({"records": 4}, "records=4"),
        ({"budgets": [4.0, 5.1]}, "budgets="),
        ({"budgets": None}, "budgets=None"),
        ({"lambdas": [1.0, 2.0]}, "lambdas="),
        ({"mu": [1.0]}, "mu="),
        ({"steps": -1}, "steps=-1"),
        ({"steps": 1}, "taken=2"),
        ({"taken": 0.5}, r"taken=0\.5"),
        ({"taken": 10, "steps": 10}, "taken=10: expected a number of steps that was taken and paid for"),
        ({"setting": []}, "taken=2"),
        ({"setting": [1.0, 1.0]}, "setting="),
        ({"setting": [1.0, 1.0, math.nan]}, "clip=nan"),
        ({"setting": [1.0, 0.5, 1.0]}, r"lambdas=1\.5"),
        ({"setting": None}, "setting="),
        ({"remaining": np.full((2, 3), np.nan)}, r"remaining\[0, 0\]=nan"),
        ({"remaining": np.full((2, 3), -1.0)}, r"remaining\[0, 0\]=-1\.0"),
        ({"remaining": np.full((2, 3), 4.5)}, r"remaining=4\.5: expected no more than the budgets"),
        ({"remaining": np.zeros((2, 3))}, "taken=2"),
        ({"remaining": np.ones((3, 2))}, "remaining="),
        ({"remaining": None}, "remaining=None"),
        ({"norms": np.array([1.0, math.nan, 1.0])}, r"norms\[1\]=nan"),
        ({"norms": np.ones(2)}, "norms="),
        ({"exhausted": np.zeros(3)}, "exhausted="),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change, message):
    filter_ = running()
    before = filter_.state_dict()
    with pytest.raises(ValueError, match=message):
        filter_.load_state_dict({**before, **change})
    assert equal_states(filter_.state_dict(), before)


@pytest.mark.parametrize("state", [None, [], "state", {}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"state=|version=None"):
        RecordBudgets(1, {1.0: 1.0}).load_state_dict(state)
