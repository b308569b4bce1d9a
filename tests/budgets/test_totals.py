"""Totals of enforced budgets: never above the budget, never needlessly below it, equal to a plain reference."""

import math
from bisect import bisect_left, bisect_right
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from bayesdp.budgets import RecordBudgets
from bayesdp.budgets.balances import HORIZON
from bayesdp.budgets.clip_costs import FLOOR, Setting, clip_costs
from budget_runs import PLAIN, RECORDS, budgets, costs, events, exact_cost, played, setting


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
    lambdas = list(budgets)
    for step, wanted, before, levels in played(filter_, events):
        more = np.maximum(1.01 * levels, 1.01 * FLOOR * step["clip"])
        short = (costs(np.minimum(more, wanted), step, lambdas) > before).any(axis=1)
        assert ((levels == wanted) | short).all()
        charged = before - filter_.private_remaining()
        allowed = costs(np.maximum(1.002 * levels, 1.002 * FLOOR * step["clip"]), step, lambdas)
        full = levels == wanted
        open_ = filter_.private_remaining().min(axis=1) > 0
        assert (charged <= allowed * (1 + 1e-9))[full & open_].all()


def reference(budgets, events):
    """The filter in plain words: exact fractions, every step, every record."""
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
