"""Steps that adapt to what was released (docs/theory.md): a filter keeps its claim where averages would not."""

import math
from dataclasses import replace

import pytest

from bayesdp.budgets import RecordBudgets
from budget_runs import setting
from traps import TRAPS, naive_delta, true_delta


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
