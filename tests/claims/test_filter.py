"""Filters: a budget holds against whoever chooses settings and the last step by looking at every output."""

from bisect import bisect
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from bayesdp import Budget, Ledger, Plan, StopWhen
from bayesdp.claims.filter import limits_of
from bayesdp.claims.plan import DeclaredPlan
from bayesdp.claims.spending import BudgetBound, Spending
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.ledger import Stretch
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.profiles import gaussian_delta
from stopping_adversaries import hockey_stick, steered_delta, two_step_delta

EPSILON, DELTA = 1.0, 1e-5
BOTH = ("in", "out")
FIRST = (0.2, 1.0)
RATES = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3)


def run(steps, plan=None):
    """What a filter reads of a ledger with these steps (exposure, rate, count)."""
    stretches, first = [], 1
    for exposure, rate, count in steps:
        stretches.append(Stretch(1 / exposure, rate, 1.0, None, "", "", first, count))
        first += count
    declared = None if plan is None else DeclaredPlan.of(plan).to_json()
    return SimpleNamespace(history=SimpleNamespace(stretches=stretches), declared_plan=declared)


def loudest_second(first, rate, fits):
    """The exposure at ``rate`` that just fits after the first step, None if none does."""
    exposures = np.geomspace(1e-3, 10, 400)
    place = bisect(exposures, False, key=lambda exposure: not fits((exposure, rate)))
    return (float(exposures[place - 1]), rate) if place else None


# The case: two steps, the second chosen by the output of the first


def test_the_oracles_know_the_answer_without_a_choice():
    exact = float(gaussian_delta(np.hypot(0.2, 0.3), EPSILON))
    assert two_step_delta((0.2, 1.0), [(0.3, 1.0)], EPSILON) == pytest.approx(exact, rel=1e-6)
    for direction in BOTH:
        assert hockey_stick(direction, 0.3, 1.0, 1.0) == pytest.approx(float(gaussian_delta(0.3, 1.0)), rel=1e-9)
        eight = {(count,) for count in range(9)}
        exact = float(gaussian_delta(0.1 * np.sqrt(8), 1.0))
        assert steered_delta(direction, [(0.1, 1.0)], eight, 1.0) == pytest.approx(exact, rel=1e-3)
    sampled = float(ClipBound.of([(1.25, 0.1, 8)]).deltas(np.array([1.0]), 1e-6)[0])
    assert steered_delta("in", [(0.8, 0.1)], eight, 1.0) == pytest.approx(sampled, rel=2e-3)


@pytest.mark.parametrize(("rates", "least"), [((1.0, 0.03), 1.66), (RATES, 2.0)])
def test_asking_pld_at_each_step_is_no_filter(rates, least):
    """Every choice spends the budget exactly, by PLD and by quadrature; choosing among them by looking does not."""
    choices = []
    for rate in rates:

        def excess(exposure, rate=rate):
            return np.log(two_step_delta(FIRST, [(exposure, rate)], EPSILON) / DELTA)

        choices.append((brentq(excess, 1e-2, 10, rtol=1e-6), rate))
    for exposure, rate in choices:
        pld = worst_case_of([(1 / FIRST[0], FIRST[1], 1), (1 / exposure, rate, 1)], delta=DELTA).epsilon
        assert pld == pytest.approx(EPSILON, rel=2e-3)
    assert two_step_delta(FIRST, choices, EPSILON) > least * DELTA


@pytest.mark.parametrize("for_changes", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("first", [FIRST, (0.2, 0.5), (0.5, 0.1), (0.9, 0.02), (1.2, 1e-3)])
def test_the_filter_holds_against_a_choice_of_the_second_step(first, for_changes):
    budget = Budget(epsilon=EPSILON, delta=DELTA, for_changes=for_changes)
    spending = Spending(budget, run([(*first, 1)]))
    assert spending.kept
    choices = [loudest_second(first, rate, lambda at: spending.allows(1 / at[0], at[1], 1)) for rate in RATES]
    choices = [choice for choice in choices if choice]
    assert choices
    assert two_step_delta(first, choices, EPSILON) <= DELTA


# Many steps


def steered(menu, rule, direction, most=16):
    """The best that somebody does who may take any step of the menu while ``rule(first, counts)`` allows it."""
    best = 0.0
    for first in range(len(menu)):
        allowed = {counts for counts in product(range(most), repeat=len(menu)) if counts[first] and rule(first, counts)}
        start = tuple(int(place == first) for place in range(len(menu)))
        if start in allowed:
            best = max(best, steered_delta(direction, menu, allowed | {(0,) * len(menu)}, EPSILON))
    return best


MENUS = [[(0.8, 0.05), (0.12, 1.0)], [(1.4, 0.01), (0.5, 0.1)]]


@pytest.mark.parametrize("direction", BOTH)
@pytest.mark.parametrize("menu", MENUS)
def test_the_filter_holds_against_steering(menu, direction):
    def kept(first, counts):
        order = [first, *(place for place in range(len(menu)) if place != first)]
        return Spending(Budget(epsilon=EPSILON), run([(*menu[p], counts[p]) for p in order if counts[p]])).kept

    assert (1e-8 if direction == "in" else 0) < steered(menu, kept, direction) <= DELTA


def test_asking_pld_does_not():
    menu = MENUS[0]

    def asked(_, counts):
        steps = [(1 / exposure, rate, count) for (exposure, rate), count in zip(menu, counts, strict=True) if count]
        return float(ClipBound.of(steps).epsilons([DELTA])[0]) <= EPSILON

    assert steered(menu, asked, "in") > 1.6 * DELTA


def test_without_sampling_noise_may_be_chosen_by_looking_and_nothing_is_lost():
    """Exposures of which the squares add up to the limit in many ways: whatever one does, delta is that of the sum."""
    limits = limits_of(Budget(epsilon=EPSILON, delta=DELTA), None, 10.0, 1.0)
    unit = limits.filters[0].limit / 12 * (1 - 1e-9)
    menu = [(float(np.sqrt(unit)), 1.0), (float(np.sqrt(4 * unit)), 1.0)]

    def kept(first, counts):
        steps = [(*menu[p], counts[p]) for p in (first, 1 - first) if counts[p]]
        return Spending(Budget(epsilon=EPSILON, delta=DELTA), run(steps)).kept

    assert kept(0, (12, 0))
    assert kept(1, (0, 3))
    assert not kept(0, (9, 1))
    assert steered(menu, kept, "in") == pytest.approx(DELTA, rel=5e-3)


@pytest.mark.parametrize("epsilon", [0.5, 1.5, 2.0])
def test_what_is_claimed_at_other_epsilons_holds_as_well(epsilon):
    menu, budget = MENUS[0], Budget(epsilon=EPSILON, delta=DELTA)

    def kept(first, counts):
        return Spending(budget, run([(*menu[p], counts[p]) for p in (first, 1 - first) if counts[p]])).kept

    for first in (0, 1):
        allowed = {counts for counts in product(range(16), repeat=2) if counts[first] and kept(first, counts)}
        bound = Spending(budget, run([(*menu[first], 1)]))
        assert bound.kept
        claimed = float(bound.bound().deltas(np.array([epsilon]), DELTA)[0])
        for direction in BOTH:
            assert steered_delta(direction, menu, allowed | {(0, 0)}, epsilon) <= claimed


# How many steps there are


def test_without_sampling_as_many_as_the_exact_profile_allows():
    for noise in (3.0, 10.0, 31.7):
        ledger, steps = Ledger(), 0
        budget = StopWhen(ledger, epsilon=EPSILON, delta=DELTA)
        settings = {"noise_std": noise, "sample_rate": 1.0, "clip": 1.0}
        while gaussian_delta(np.sqrt(steps + 1) / noise, EPSILON) <= DELTA:
            steps += 1
        assert not steps or budget.allows(**settings, steps=steps)
        assert not budget.allows(**settings, steps=steps + 1)


@pytest.mark.parametrize(
    ("epsilon", "noise", "rate", "as_first", "changing", "all_changing"),
    [
        (3.0, 1.0, 0.02, 0.96, 0.50, 0.70),
        (2.382, 1.1, 256 / 60000, 0.97, 0.69, 0.81),
        (0.72, 6.0, 4096 / 60000, 0.96, 0.66, 0.79),
        (8.0, 0.6, 0.01, 0.95, 0.45, 0.61),
        (0.01, 40.0, 0.01, 0.94, 0.55, 0.75),
    ],
)
def test_how_many_steps_a_budget_allows_beside_pld(epsilon, noise, rate, as_first, changing, all_changing):
    """Of the steps that PLD allows: if none is louder than the first, if settings change, if all of delta is for it."""
    asked = noise, rate
    limits = limits_of(Budget(epsilon=epsilon), None, *asked)
    pld = limits_of(Budget(epsilon=epsilon, for_changes=0), None, *asked).reach
    every = limits_of(Budget(epsilon=epsilon, for_changes=1), None, *asked)
    shares = [limits.reach / pld, *(2**62 // min(bound.parts([asked])[0]) / pld for bound in (limits, every))]
    print(
        f"epsilon {epsilon}, noise {noise}, rate {rate:.4g}: PLD {pld} steps; " + ", ".join(f"{s:.3f}" for s in shares)
    )
    for share, least in zip(shares, (as_first, changing, all_changing), strict=True):
        assert least <= share <= least + 0.06


# The limits are kept


SETTINGS = st.tuples(
    st.floats(0.3, 30), st.sampled_from([1.0, 0.5, 0.1, 0.01]) | st.floats(1e-4, 1), st.integers(1, 40)
)


@settings(max_examples=50)
@given(
    st.lists(SETTINGS, min_size=1, max_size=12),
    st.sampled_from([0.3, 1.0, 4.0]),
    st.sampled_from([0.0, 0.2, 0.5, 1.0]),
)
def test_whatever_is_asked_the_limits_are_kept(asked, epsilon, for_changes):
    budget = Budget(epsilon=epsilon, delta=DELTA, for_changes=for_changes)
    ledger = run([])
    spending, taken = Spending(budget, ledger), []
    for noise, rate, steps in asked:
        if spending.allows(noise, rate, steps):
            taken.append((1 / noise, rate, steps))
            first = sum(count for *_, count in taken) - steps + 1
            ledger.history.stretches.append(Stretch(noise, rate, 1.0, None, "", "", first, steps))
    assert Spending(budget, ledger).kept
    assert spending.kept
    if not taken:
        return
    limits = limits_of(budget, None, 1 / taken[0][0], taken[0][1])
    exposures, rates, counts = map(np.array, zip(*taken, strict=True))
    as_first = (exposures <= exposures[0] * (1 + 1e-15)).all() and (rates <= rates[0]).all()
    within = as_first and counts.sum() <= limits.reach
    for kept in limits.filters:
        costs = exposures**2 if kept.order is None else log_moments(rates, exposures, [kept.order])[:, 0]
        within |= counts @ costs <= kept.limit
    assert within


@given(st.lists(SETTINGS, min_size=1, max_size=12), st.integers(0, 3))
def test_counting_along_the_way_gives_what_counting_afterwards_gives(steps, plan):
    """Also the first step that was too much."""
    plans = [
        None,
        Plan(steps=20, noise_std=2.0, sample_rate=0.1, clip=1.0),
        Plan(steps=3000, noise_std=2.0, sample_rate=0.1, clip=1.0),
    ]
    declared = plans[min(plan, 2)]
    budget, ledger = Budget(epsilon=1.0), run([], declared)
    along, number = Spending(budget, ledger), 0
    for noise, rate, count in steps:
        for _ in range(count):
            number += 1
            last = ledger.history.stretches[-1:]
            if last and (last[0].noise_std, last[0].sample_rate) == (noise, rate):
                last[0].steps += 1
            else:
                ledger.history.stretches.append(Stretch(noise, rate, 1.0, None, "", "", number, 1))
            along.update()
    afterwards = Spending(budget, ledger)
    assert along.kept == afterwards.kept
    assert along.exceeded == afterwards.exceeded


@settings(max_examples=15)
@given(st.floats(0.05, 8), st.sampled_from([1e-9, 1e-6, 1e-3]), st.floats(0.5, 10), st.sampled_from([1.0, 0.3, 0.01]))
def test_the_bound_is_the_budget_at_its_own_delta_and_falls_with_delta(epsilon, delta, noise, rate):
    limits = limits_of(Budget(epsilon=epsilon, delta=delta), None, noise, rate)
    if not limits.filters:
        return
    bound = BudgetBound(limits)
    less, own, more = bound.epsilons([delta / 10, delta, min(0.5, delta * 10)])
    assert less >= own == epsilon
    assert more <= own
    assert float(bound.deltas(np.array([epsilon]), delta)[0]) <= delta * (1 + 1e-4)


# With a plan


def test_a_plan_that_does_not_fit_is_cut_where_pld_reaches_the_budget():
    plan = Plan(steps=3000, noise_std=1.0, sample_rate=0.02, clip=1.0)
    spending = Spending(Budget(epsilon=3.0), run([(1.0, 0.02, 1)], plan))
    exact = [worst_case_of([(1.0, 0.02, steps)]).epsilon for steps in (580, 600)]
    assert exact[0] < 3.0 < exact[1]
    most = bisect(range(1, 1000), False, key=lambda steps: not spending.allows(1.0, 0.02, steps))
    assert 580 < most + 1 < 600
    assert not spending.allows(0.99, 0.02, 1)
    assert not spending.allows(1.0, 0.021, 1)
    assert float(spending.bound().epsilons([DELTA])[0]) == pytest.approx(3.0, rel=5e-3)


def test_a_plan_that_fits_may_not_be_left():
    plan = Plan(steps=300, noise_std=1.0, sample_rate=0.02, clip=1.0)
    quieter = Spending(Budget(epsilon=3.0), run([(1.0, 0.02, 10), (0.9, 0.02, 290)], plan))
    assert quieter.kept
    louder = Spending(Budget(epsilon=3.0), run([(1.0, 0.02, 10), (1.1, 0.02, 1)], plan))
    assert not louder.kept
    assert louder.exceeded == 11
    longer = Spending(Budget(epsilon=3.0), run([(1.0, 0.02, 400)], plan))
    assert not longer.kept
    assert longer.exceeded == 301


def test_a_step_without_a_clip_bound_exceeds_every_budget():
    ledger = Ledger(budget=Budget(epsilon=100.0))
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None)
    assert ledger.worst_case().note == "The run exceeded its budget at step 1."
    assert np.isinf(ledger.worst_case().epsilon)
    assert not StopWhen(ledger).allows(noise_std=100.0, sample_rate=0.01, clip=1.0)


def test_who_has_left_the_first_settings_cannot_come_back_to_them():
    """80 steps like the first fit, and 49 if any was louder: coming back would have both."""
    first, louder = (0.5, 0.05), (1 / 1.9, 0.05)
    budget = Budget(epsilon=EPSILON, delta=DELTA)
    assert Spending(budget, run([(*first, 70)])).kept
    assert Spending(budget, run([(*first, 1), (*louder, 1), (*first, 30)])).kept
    back = Spending(budget, run([(*first, 1), (*louder, 1), (*first, 68)]))
    assert not back.kept
    assert 32 < back.exceeded < 70
