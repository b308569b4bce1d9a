"""Enforced budgets: exact totals, tightness, a plain reference, adaptive traps, refusals, state."""

import io
import math
from bisect import bisect_left, bisect_right
from dataclasses import replace
from fractions import Fraction
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import SubsampledGaussian
from bayesdp.budgets import RecordBudgets
from bayesdp.budgets.balances import HORIZON
from bayesdp.budgets.clip_costs import FLOOR, Setting, clip_costs
from traps import TRAPS, naive_delta, true_delta

RECORDS = 4
PLAIN = {"noise_std": 1.0, "sample_rate": 1.0, "clip": 1.0}


def setting(noise_std=1.0, sample_rate=1.0, clip=1.0):
    return {"noise_std": noise_std, "sample_rate": sample_rate, "clip": clip}


@cache
def exact_cost(level, noise_std, sample_rate, order):
    """kappa to 40 digits, as a fraction."""
    with mp.workdps(40):
        u, q, n = (mp.mpf(level) / mp.mpf(noise_std)) ** 2, mp.mpf(sample_rate), int(order) + 1
        if sample_rate == 1:
            kappa = mp.mpf(order) * (mp.mpf(order) + 1) * u / 2
        else:
            weights = [mp.binomial(n, k) * q**k * (1 - q) ** (n - k) for k in range(2, n + 1)]
            kappa = mp.log1p(sum(w * mp.expm1(k * (k - 1) * u / 2) for k, w in enumerate(weights, start=2)))
        sign, mantissa, exponent, _ = kappa._mpf_
        return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent


def costs(levels, step, orders):
    exposure = np.asarray(levels) / step["noise_std"]
    return SubsampledGaussian(sample_rate=step["sample_rate"]).log_moment(exposure, orders)


norms = st.floats(0.1, 2.0) | st.sampled_from([0.0, 1e-7, 0.5, 1.0, 2.0])
steps = st.builds(
    setting,
    noise_std=st.floats(1.0, 9.0),
    sample_rate=st.sampled_from([1.0, 0.5, 0.05]),
    clip=st.sampled_from([1.0, 0.7, 1.7]),
)
events = st.lists(
    st.tuples(steps, st.integers(1, 12)) | st.lists(norms, min_size=RECORDS, max_size=RECORDS), min_size=3, max_size=9
)
budgets = st.dictionaries(
    st.sampled_from([1.0, 2.0, 4.0, 7.0]), st.floats(0.05, 2.0) | st.just(0.0), min_size=1, max_size=3
).map(lambda squares: {order: order * (order + 1) / 2 * square for order, square in squares.items()})


def played(filter_, events):
    """Each step of a run: its setting, the norms that records want, what was left before, the clip norms returned."""
    wanted = np.full(RECORDS, math.inf)
    for event in events:
        if isinstance(event, list):
            wanted = np.array(event)
            filter_.refresh(event)
        else:
            step, times = event
            for _ in range(times):
                before = filter_.private_remaining()
                yield step, np.minimum(step["clip"], wanted), before, filter_.step(**step)


@given(budgets, events)
def test_exact_totals_never_pass_the_budget(budgets, events):
    filter_ = RecordBudgets(RECORDS, budgets)
    totals = {(i, order): Fraction(0) for i in range(RECORDS) for order in budgets}
    for step, wanted, _, levels in played(filter_, events):
        assert (levels >= 0).all()
        assert (levels <= wanted).all()
        for (i, order), total in totals.items():
            totals[i, order] = total + exact_cost(levels[i], step["noise_std"], step["sample_rate"], order)
            assert totals[i, order] <= Fraction(budgets[order])
        left = filter_.private_remaining()
        for (i, order), total in totals.items():
            assert Fraction(left[i, list(budgets).index(order)]) <= Fraction(budgets[order]) - total


@given(budgets, events)
def test_nobody_is_clipped_or_charged_needlessly(budgets, events):
    filter_ = RecordBudgets(RECORDS, budgets)
    orders = list(budgets)
    for step, wanted, before, levels in played(filter_, events):
        more = np.maximum(1.01 * levels, 1.01 * FLOOR * step["clip"])
        short = (costs(np.minimum(more, wanted), step, orders) > before).any(axis=1)
        assert ((levels == wanted) | short).all()
        charged = before - filter_.private_remaining()
        allowed = costs(np.maximum(1.002 * levels, 1.002 * FLOOR * step["clip"]), step, orders)
        full = levels == wanted
        open_ = filter_.private_remaining().min(axis=1) > 0
        assert (charged <= allowed * (1 + 1e-9))[full & open_].all()


def reference(budgets, events):
    """The same filter in plain words: exact fractions, every step, every record."""
    left = [[Fraction(b) for b in budgets.values()] for _ in range(RECORDS)]
    wanted = [math.inf] * RECORDS
    for event in events:
        if isinstance(event, list):
            wanted = event
            continue
        step, times = event
        table = clip_costs(Setting(**step), tuple(budgets))
        grid, prices = table.norms.tolist(), table.costs.tolist()
        for _ in range(times):
            levels = [min(norm, step["clip"]) for norm in wanted]
            for i, level in enumerate(levels):
                place = 0 if level == 0 else max(1, bisect_left(grid, level))
                payable = min(bisect_right(row, rest) - 1 for row, rest in zip(prices, left[i], strict=True))
                if payable >= place:
                    left[i] = [rest - Fraction(row[place]) for row, rest in zip(prices, left[i], strict=True)]
                else:
                    levels[i] = min(level, grid[max(0, payable)])
                    left[i] = [Fraction(0)] * len(budgets)
            yield levels


@given(budgets, events)
def test_equals_the_plain_reference(budgets, events):
    for (step, wanted, _, levels), expected in zip(
        played(RecordBudgets(RECORDS, budgets), events), reference(budgets, events), strict=True
    ):
        full = np.asarray(expected) == wanted
        assert (levels == expected)[full].all()
        assert (levels <= expected).all()
        lowest = 1.003 * FLOOR * step["clip"]
        assert ((levels >= 0.997 * np.asarray(expected)) | (np.asarray(expected) <= lowest)).all()


# Long runs


@pytest.mark.parametrize("full", [HORIZON - 1, HORIZON, HORIZON + 1, 2 * HORIZON + 3])
def test_full_steps_are_counted_beyond_the_horizon(full):
    price = clip_costs(Setting(**PLAIN), (2.0,)).costs[0, -1]
    filter_ = RecordBudgets(2, {2.0: (full + 0.25) * price})
    filter_.refresh([1.0, 0.0])
    for _ in range(full):
        levels = filter_.step(**PLAIN)
    assert levels.tolist() == [1.0, 0.0]
    assert filter_.step(**PLAIN)[0] == pytest.approx(0.5, rel=0.002)  # a quarter of the cost
    assert filter_.step(**PLAIN).tolist() == [0.0, 0.0]
    assert filter_.steps == full + 2


@pytest.mark.parametrize("steps", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_rounding_never_adds_up_in_favour_of_a_record(steps):
    """Settings change at every step, so that what is left is rounded at every step; costs are far below the budget."""
    pair = [setting(noise_std=70.0, sample_rate=0.3), setting(noise_std=90.0, sample_rate=0.3)]
    prices = [Fraction(clip_costs(Setting(**step), (3.0,)).costs[0, -1]) for step in pair]
    budget = float(sum(prices) * steps * 5 / 11)  # for about ten elevenths of the steps
    filter_ = RecordBudgets(1, {3.0: budget})
    total, exact, zeros = Fraction(0), [exact_cost(1.0, step["noise_std"], 0.3, 3.0) for step in pair], 0
    for number in range(steps):
        level = filter_.step(**pair[number % 2])[0]
        if level == 1.0:
            total += exact[number % 2]
        elif level > 0:
            total += exact_cost(level, pair[number % 2]["noise_std"], 0.3, 3.0)
        zeros += level == 0
    assert total <= Fraction(budget)
    assert total >= Fraction(budget) * (1 - Fraction(1, 10**3))
    assert zeros == pytest.approx(steps / 11, abs=2)


@pytest.mark.parametrize("noise", [1.0, 1.7, 3.1])
def test_budgets_next_to_a_whole_number_of_steps(noise):
    price = clip_costs(Setting(**setting(noise)), (1.0,)).costs[0, -1]
    for full in range(1, 50):
        for budget in (full * price, np.nextafter(full * price, 0), np.nextafter(full * price, 9e9)):
            filter_ = RecordBudgets(1, {1.0: budget})
            paid = sum(filter_.step(**setting(noise))[0] == 1.0 for _ in range(full + 1))
            assert paid in (full - 1, full)
            assert paid * Fraction(price) <= Fraction(budget)


@given(st.floats(1e-6, 1e3), st.sampled_from([1.0, 0.5, 0.01]), st.sampled_from([1.0, 3.0, 32.0]))
def test_the_table_is_never_below_exact_and_payable_never_above_the_amount(multiplier, rate, order):
    clip = 0.7
    table = clip_costs(Setting(noise_std=multiplier * clip, sample_rate=rate, clip=clip), (order,))
    for place in (1, 2, 5, 1000, len(table.norms) - 2, len(table.norms) - 1):
        exact = exact_cost(table.norms[place], multiplier * clip, rate, order)
        assert exact <= Fraction(table.costs[0, place])
    assert (np.diff(table.costs[0]) >= 0).all()
    amounts = np.concatenate([table.costs[0, 1:] * factor for factor in (0.999, 1.0, 1.001, 3.0)])
    places = table.payable(0, amounts)
    assert (table.costs[0, places] <= amounts)[places > 0].all()
    above = np.minimum(places.astype(int) + 1, len(table.norms) - 1)
    assert ((table.costs[0, above] >= amounts * (1 - 2.0**-9)) | (above == places)).all()
    inputs = np.array([0.0, 1e-320, 1e-9, clip / 3, np.nextafter(clip / 3, 1), clip, 5.0, math.inf])
    rounded = table.norms[table.places(inputs)]
    assert (rounded >= np.minimum(inputs, clip)).all()
    assert (rounded <= np.maximum(inputs * (1 + 2.0**-9), FLOOR * clip * (1 + 2.0**-9)))[1:].all()
    assert rounded[0] == 0


# Settings and claims


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


# Adaptive traps: docs/theory.md


@pytest.mark.parametrize("trap", TRAPS)
def test_the_average_over_trajectories_is_below_the_truth(trap):
    figures = TRAPS[trap]
    assert naive_delta(trap, 4.0) == pytest.approx(figures["naive"], rel=0.005)
    for direction in ("record in", "record out"):
        truth = true_delta(trap.set_for(direction), 4.0, direction)
        assert truth == pytest.approx(figures[direction], rel=0.005)
        assert truth > 10 * naive_delta(trap, 4.0)


def filtered(trap, filter_):
    """The trap as it goes with a filter: exposures are what the record is clipped to, in the second step if sprung."""
    clip = max(trap.first, trap.second)
    filter_.refresh([trap.first])
    first = float(filter_.step(**setting(clip=clip))[0])
    filter_.refresh([trap.second])
    return replace(trap, first=first, second=float(filter_.step(**setting(clip=clip))[0]))


FILTERS = {
    "gaussian": lambda square: RecordBudgets.for_gaussian(1, mu=math.sqrt(square)),
    "one order": lambda square: RecordBudgets(1, {4.0: 10 * square}),
    "fractional": lambda square: RecordBudgets(1, {2.5: 4.375 * square}),
    "two orders": lambda square: RecordBudgets(1, {3.0: 6.5 * square, 6.0: 21 * square}),
}


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("share", [0.05, 0.3, 0.999, 1.001])
@pytest.mark.parametrize("kind", FILTERS)
def test_traps_behind_a_filter_keep_to_its_claim(trap, share, kind):
    """Budgets of a share of all that the trap would spend: they bind in the first step, in the second, or not."""
    filter_ = FILTERS[kind](share * (trap.first**2 + trap.second**2))
    claimed = filter_.delta(4.0)
    kept = filtered(trap, filter_)
    assert (kept == trap) == (share > 1)
    for side in ("record in", "record out"):
        for direction in ("record in", "record out"):
            assert true_delta(kept.set_for(side), 4.0, direction) <= claimed


def test_the_trap_without_a_filter_breaks_a_claim_that_the_filter_keeps():
    for trap in TRAPS:
        filter_ = RecordBudgets.for_gaussian(1, mu=math.sqrt(trap.first**2 + 0.1 * trap.second**2))
        assert true_delta(trap, 4.0, "record in") > filter_.delta(4.0)


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


def running():
    filter_ = RecordBudgets(3, {1.5: 4.0, 2.0: 5.0})
    filter_.refresh([0.5, 1.0, 0.9])
    filter_.step(**PLAIN)
    filter_.step(**PLAIN)
    return filter_


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


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
    assert same(filter_.state_dict(), before)


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
    assert same(filter_.state_dict(), before)


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


# State


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
    assert same(whole.state_dict(), second.state_dict())


def test_a_state_is_a_copy():
    filter_ = running()
    state = filter_.state_dict()
    other = RecordBudgets(3, filter_.budgets)
    other.load_state_dict(state)
    for name in ("remaining", "norms", "exhausted"):
        state[name][...] = 0
    assert same(other.state_dict(), filter_.state_dict())


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
    assert same(filter_.state_dict(), before)


@pytest.mark.parametrize("state", [None, [], "state", {}])
def test_what_is_no_state_is_refused(state):
    with pytest.raises(ValueError, match=r"state=|version=None"):
        RecordBudgets(1, {1.0: 1.0}).load_state_dict(state)
