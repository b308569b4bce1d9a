"""Enforced budgets: what records are clipped to, what the budgets prove, what is refused."""

import math

import numpy as np
import pytest

from bayesdp.budgets import RecordBudgets
from bayesdp.budgets.clip_costs import FLOOR
from budget_runs import PLAIN, equal_states, exact_cost, running, setting


def test_norms_are_in_use_from_the_next_step_on_and_may_grow_again():
    filter_ = RecordBudgets(3, {2.0: 1e6})
    assert filter_.step(**PLAIN).tolist() == [1.0, 1.0, 1.0]
    filter_.refresh([0.3, 0.0, 9.0])
    assert filter_.step(**PLAIN).tolist() == [0.3, 0.0, 1.0]
    assert filter_.step(**setting(clip=2.5)).tolist() == [0.3, 0.0, 2.5]
    filter_.refresh([0.9, 0.1, 0.2])
    assert filter_.step(**PLAIN).tolist() == [0.9, 0.1, 0.2]


def test_a_budget_of_zero_clips_everything_to_zero():
    filter_ = RecordBudgets(2, {1.0: 0.0, 2.0: 5.0})
    assert filter_.step(**PLAIN).tolist() == [0.0, 0.0]
    assert filter_.private_exhausted() == 2
    assert filter_.claim(1e-5).epsilon == 0
    assert filter_.delta(0.0) == 0


def test_below_the_floor_nothing_is_paid_for():
    price = exact_cost(1.0, 1.0, 1.0, 1.0)
    filter_ = RecordBudgets(1, {1.0: float(price) * FLOOR**2 * 0.9})
    assert filter_.step(**PLAIN)[0] == 0
    filter_ = RecordBudgets(1, {1.0: float(price) * FLOOR**2 * 1.1})
    assert filter_.step(**PLAIN)[0] == pytest.approx(FLOOR, rel=0.06)


def test_what_was_exhausted_stays_at_zero_and_is_counted():
    filter_ = RecordBudgets(2, {1.0: 1.5})
    filter_.refresh([1.0, 0.1])
    for expected in ([1.0, 0.1], [pytest.approx(math.sqrt(0.5), rel=0.002), 0.1], [0.0, 0.1]):
        assert filter_.step(**PLAIN).tolist() == expected
    assert filter_.private_exhausted() == 1
    assert filter_.private_remaining()[0, 0] == 0
    filter_.refresh([0.01, 0.1])
    assert filter_.step(**setting(noise_std=50.0)).tolist() == [0.0, 0.1]


def test_the_returned_array_is_read_only():
    levels = RecordBudgets(2, {1.0: 1.0}).step(**PLAIN)
    with pytest.raises(ValueError, match="read-only"):
        levels[0] = 9.0


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_budgets_for_epsilon_are_the_largest_and_give_epsilon_back(epsilon, delta):
    filter_ = RecordBudgets.for_epsilon(3, epsilon=epsilon, delta=delta)
    [(order, budget)] = filter_.budgets.items()
    assert filter_.claim(delta).epsilon <= epsilon
    assert filter_.claim(delta).epsilon == pytest.approx(epsilon, rel=1e-9)
    assert filter_.delta(epsilon) <= delta * (1 + 1e-12)
    k = np.arange(1.0, 20_000.0)
    all_budgets = k * epsilon + math.log(delta) - k * np.log(k) + (k + 1) * np.log(k + 1)
    allows = all_budgets / (k * (k + 1))
    assert budget / (order * (order + 1)) == pytest.approx(allows.max(), rel=1e-9)


def test_budgets_for_epsilon_at_given_orders():
    filter_ = RecordBudgets.for_epsilon(3, epsilon=1.0, delta=1e-5, lambdas=[2, 16, 40.5])
    assert list(filter_.budgets) == [16.0, 40.5]  # at 2 nothing is left: 2 - 11.5 + 1.9
    assert filter_.claim(1e-5).epsilon == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"epsilon=0\.1: expected enough for a budget above 0"):
        RecordBudgets.for_epsilon(3, epsilon=0.1, delta=1e-5, lambdas=[2, 3])
    with pytest.raises(ValueError, match="epsilon=1e-06: expected enough"):
        RecordBudgets.for_epsilon(3, epsilon=1e-6, delta=1e-9)


def test_gaussian_budgets_count_squared_exposures():
    filter_ = RecordBudgets.for_gaussian(2, mu=1.5)
    assert filter_.step(**setting(noise_std=2.0, clip=2.0)).tolist() == [2.0, 2.0]
    assert filter_.private_remaining() == pytest.approx(1.25)
    with pytest.raises(ValueError, match=r"sample_rate=0\.5: expected 1"):
        filter_.step(**setting(sample_rate=0.5))
    assert filter_.step(**setting(noise_std=1.0, clip=2.0)) == pytest.approx(math.sqrt(1.25), rel=0.002)
    claim = filter_.claim(1e-5)
    assert claim.order is None
    assert filter_.delta(claim.epsilon) == pytest.approx(1e-5, rel=1e-6)
    assert claim.epsilon < RecordBudgets.for_epsilon(1, epsilon=claim.epsilon, delta=1e-5).claim(1e-5).epsilon * 1.01
    assert RecordBudgets.for_gaussian(1, mu=0.0).claim(1e-5).epsilon == 0


def test_the_claim_is_proved_for_everyone_and_does_not_depend_on_what_was_spent():
    filter_ = RecordBudgets.for_epsilon(2, epsilon=2.0, delta=1e-6)
    before = filter_.claim(1e-6)
    filter_.step(**setting(sample_rate=0.1))
    assert filter_.claim(1e-6) == before
    assert (before.kind, before.audience, before.direction) == ("proved", "everyone", "both")
    assert before.method == "enforced budget"
    assert before.order == next(iter(filter_.budgets))
    assert "is not a claim" in str(before)
    assert not before.private


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"records": 0}, "records=0: expected a whole number of at least 1"),
        ({"records": 2.5}, r"records=2\.5"),
        ({"budgets": {}}, r"budgets=\{\}: expected a mapping"),
        ({"budgets": [1.0]}, r"budgets=\[1\.0\]"),
        ({"budgets": {0: 1.0}}, r"lambdas=0\.0"),
        ({"budgets": {-1: 1.0}}, r"lambdas=-1\.0"),
        ({"budgets": {2: -1.0}}, r"budgets\[2\]=-1\.0"),
        ({"budgets": {2: math.nan}}, r"budgets\[2\]=nan"),
        ({"budgets": {2: math.inf}}, r"budgets\[2\]=inf"),
        ({"budgets": {"a": 1.0}}, "lambdas="),
    ],
)
def test_bad_budgets_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RecordBudgets(**{"records": 3, "budgets": {2: 1.0}, **arguments})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_std": 0}, "noise_std=0"),
        ({"noise_std": math.nan}, "noise_std=nan"),
        ({"noise_std": 1e-9}, "noise_multiplier=1e-09"),
        ({"sample_rate": 0}, "sample_rate=0"),
        ({"sample_rate": 1.5}, r"sample_rate=1\.5"),
        ({"sample_rate": 0.5}, r"lambdas=1\.5: expected whole numbers"),
        ({"clip": 0}, "clip=0"),
        ({"clip": math.inf}, "clip=inf"),
        ({"clip": "1"}, "clip='1'"),
    ],
)
def test_bad_steps_are_refused_and_change_nothing(change, message):
    filter_ = running()
    before = filter_.state_dict()
    with pytest.raises(ValueError, match=message):
        filter_.step(**{**PLAIN, **change})
    assert equal_states(filter_.state_dict(), before)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.1, 0.2], r"norms='array of shape \(2,\)': expected one norm for each of records=3"),
        ([[0.1, 0.2, 0.3]], "norms="),
        ([0.1, math.nan, 0.3], r"norms\[1\]=nan"),
        ([0.1, -1.0, 0.3], r"norms\[1\]=-1\.0"),
        ([0.1, math.inf, 0.3], r"norms\[1\]=inf"),
        (["a", "b", "c"], "norms="),
        (None, "norms="),
    ],
)
def test_bad_norms_are_refused_and_change_nothing(values, message):
    filter_ = running()
    before = filter_.state_dict()
    with pytest.raises(ValueError, match=message):
        filter_.refresh(values)
    assert equal_states(filter_.state_dict(), before)


def test_later_changes_of_what_was_given_change_nothing():
    filter_, given_norms = RecordBudgets(2, {1.0: 9.0}), np.array([0.5, 0.6])
    filter_.refresh(given_norms)
    given_norms[:] = 0.0
    assert filter_.step(**PLAIN).tolist() == [0.5, 0.6]


@pytest.mark.parametrize("call", ["claim", "delta"])
@pytest.mark.parametrize("value", [-1.0, math.nan, "x"])
def test_bad_epsilon_and_delta_are_refused(call, value):
    with pytest.raises(ValueError, match=("delta=" if call == "claim" else "epsilon=")):
        getattr(RecordBudgets(1, {1.0: 1.0}), call)(value)
