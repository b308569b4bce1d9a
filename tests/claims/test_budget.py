"""Declared budgets: what a ledger claims while they are kept, and what it says when they are not."""

import contextlib
import json
import math
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import Budget, InvalidInputError, Ledger, LedgerError, Plan, StopWhen
from bayesdp.attack.loss_walks import worst_steering_delta
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.profiles import gaussian_delta, gaussian_epsilon

STEP = {"noise_std": 2.0, "sample_rate": 0.05, "clip": 1.0}
BUDGET = Budget(epsilon=1.0, delta=1e-5)
NOTE = "the budget of 1.0 at delta 1e-05, declared before the run and kept by its steps"


def run(steps, **options):
    ledger = Ledger(**options)
    for step in steps:
        ledger.step(**step, audit=[0.1] * 20)
    return ledger


def test_a_budget_that_is_kept_is_the_claim_for_everyone_without_a_condition():
    ledger = run([STEP] * 20, budget=BUDGET)
    claims = ledger.claims()
    assert ledger.budget == BUDGET
    assert (claims.everyone.epsilon, claims.everyone.delta) == (1.0, 1e-5)
    assert claims.everyone.kind == "proved"
    assert claims.everyone.condition is None
    assert claims.anytime is None
    assert NOTE in claims.statement(all=True)
    assert "epsilon at most 1 (proved for the budget of 1.0 at delta 1e-05)." in claims.statement()
    assert ledger.worst_case().epsilon == 1.0


def test_settings_chosen_along_the_way_keep_it_while_the_filter_allows_them():
    louder = STEP | {"noise_std": 1.7}
    assert run([STEP, louder, louder], budget=BUDGET).claims().everyone.epsilon == 1.0


def test_a_run_that_exceeds_it_says_where_and_falls_back():
    most = 0
    asked = StopWhen(Ledger(budget=BUDGET))
    while asked.allows(**STEP, steps=most + 1):
        most += 1
    assert run([STEP] * most, budget=BUDGET).claims().everyone.condition is None
    claims = run([STEP] * (most + 2), budget=BUDGET).claims()
    assert f"The run exceeded its budget at step {most + 1}." in claims.statement()
    assert claims.everyone.condition is not None
    assert claims.anytime is not None
    assert claims.everyone.epsilon == worst_case_of([(2.0, 0.05, most + 2)]).epsilon


def test_it_is_read_from_the_steps_and_not_from_what_was_asked():
    ledger = Ledger(budget=BUDGET)
    assert StopWhen(ledger).allows(**STEP)
    ledger.step(**STEP | {"noise_std": 0.5})
    assert "The run exceeded its budget at step 1." in ledger.claims().statement()
    assert not StopWhen(ledger).allows(**STEP)


@pytest.mark.parametrize("step", [STEP, STEP | {"sample_rate": 1.0, "noise_std": 20.0}])
@pytest.mark.parametrize("delta", [1e-8, 1e-6, 1e-3])
def test_at_another_delta_it_is_what_the_filter_guarantees(step, delta):
    ledger = run([step] * 3, budget=BUDGET)
    claim = ledger.claims(delta=delta).everyone
    assert claim.condition is None
    assert claim.kind == "proved"
    assert (claim.epsilon > 1.0) == (delta < 1e-5)
    most = 1
    while StopWhen(ledger).allows(**step, steps=most + 1):
        most += 1
    spent = worst_case_of([(step["noise_std"], step["sample_rate"], most + 3)], delta=delta).epsilon
    assert spent <= claim.epsilon


def test_several_rows_and_the_charts_speak_of_the_budget(tmp_path):
    ledger = run([STEP] * 20, budget=BUDGET)
    assert 3.0 < ledger.claims(rows=3).for_rows.epsilon < 30
    ledger.report(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 0


# With a plan: one declaration, kept by the planned steps that fit


def test_with_a_plan_the_smaller_is_claimed():
    planned = run([STEP] * 5, plan=Plan(steps=10, **STEP), budget=BUDGET).claims()
    assert planned.everyone.epsilon == worst_case_of([(2.0, 0.05, 10)]).epsilon
    long = run([STEP] * 5, plan=Plan(steps=1000, **STEP), budget=BUDGET).claims()
    assert long.everyone.epsilon == pytest.approx(1.0, rel=0.02)
    assert long.everyone.epsilon <= 1.0


@pytest.mark.parametrize("step", [STEP, STEP | {"sample_rate": 1.0, "noise_std": 30.0}])
def test_a_run_that_leaves_its_plan_leaves_the_budget_too(step):
    louder = step | {"noise_std": 0.95 * step["noise_std"]}
    ledger = run([step] * 5 + [louder] * 2, plan=Plan(steps=20, **step), budget=BUDGET)
    assert not StopWhen(run([step] * 5, plan=Plan(steps=20, **step), budget=BUDGET)).allows(**louder)
    claims = ledger.claims()
    assert claims.everyone.condition is not None
    assert claims.anytime is not None
    assert "The run left its plan: step 6" in claims.statement()
    assert "The run exceeded its budget at step 6." in claims.statement()


def test_a_run_that_passes_the_budget_within_its_plan_has_neither():
    claims = run([STEP] * 110, plan=Plan(steps=120, **STEP), budget=BUDGET).claims()
    assert claims.everyone.epsilon == worst_case_of([(2.0, 0.05, 110)]).epsilon
    assert claims.everyone.condition is not None
    assert claims.risk.everyone.condition is not None
    assert "The run exceeded its budget" in claims.statement()


NOISE, LOUDER, DELTA = 5.0, 5.0 / 1.05, 1e-3
WITHIN = float(gaussian_epsilon(math.sqrt(2) / NOISE, DELTA)) * 1.001  # a budget of two steps


def steered(claimed):
    """The true delta, over the one claimed, if steps of two kinds and the end are chosen by looking."""
    kinds = [(1.0, 1 / NOISE), (1.0, 1 / LOUDER)]
    return worst_steering_delta(kinds, 8, claimed, record_in=True) / DELTA


@pytest.mark.parametrize(("planned", "epsilon"), [(1, 1.4), (2, 1.4), (8, 1.4), (1, WITHIN), (8, WITHIN)])
def test_who_chooses_by_looking_whether_to_keep_the_plan_gains_nothing(planned, epsilon):
    plan = Plan(steps=planned, noise_std=NOISE, sample_rate=1.0, clip=1.0)

    def claimed(counts):
        ledger = Ledger(plan=plan, budget=Budget(epsilon=epsilon, delta=DELTA))
        for noise, count in zip((NOISE, LOUDER), counts, strict=True):
            for _ in range(count):
                ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0)
        worst = ledger.worst_case(DELTA)
        return worst.epsilon if worst.condition is None else np.inf

    assert 0.9 < steered(claimed) <= 1.001


@pytest.mark.parametrize(("planned", "epsilon", "least"), [(1, 1.4, 1.74), (8, WITHIN, 1.6)])
def test_the_smaller_of_a_plan_and_a_budget_that_need_not_both_be_kept_is_no_bound(planned, epsilon, least):
    """A plan that fits the budget could be left for it, and one that does not fit could be run to its end."""
    of_plan = float(gaussian_epsilon(math.sqrt(planned) / NOISE, DELTA))

    def claimed(counts):
        exposure = math.sqrt(counts[0] / NOISE**2 + counts[1] / LOUDER**2)
        kept = [of_plan] if counts[1] == 0 and counts[0] <= planned else []
        kept += [epsilon] if gaussian_delta(exposure, epsilon) <= DELTA else []
        return min(kept, default=np.inf)

    assert steered(claimed) > least


def test_it_is_part_of_the_first_hash_and_is_kept_over_a_restart(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger.create(path, budget=BUDGET) as ledger:
        for _ in range(30):
            ledger.step(**STEP)
    with Ledger.open(path) as ledger:
        budget, steps = StopWhen(ledger), 30
        while budget.allows(**STEP):
            ledger.step(**STEP)
            steps += 1
        assert 60 < steps < 90
        assert ledger.claims().everyone.epsilon == 1.0
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        changed = json.dumps({"epsilon": 9.0, "delta": 1e-5, "for_changes": 0.2})
        database.execute("UPDATE settings SET value = ? WHERE name = 'budget'", (changed,))
    with pytest.raises(LedgerError, match="step 1 was changed"):
        Ledger.open(path, write=False)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.floats(1.0, 20), st.sampled_from([1.0, 0.1, 0.01])), min_size=1, max_size=20))
def test_allowed_steps_keep_it(asked):
    """Whatever is asked: if only allowed steps are recorded, the ledger claims the budget."""
    ledger = Ledger(budget=BUDGET)
    budget = StopWhen(ledger)
    for noise, rate in asked:
        if budget.allows(noise_std=noise, sample_rate=rate, clip=1.0):
            ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    assert ledger.worst_case().epsilon <= 1.0
    assert ledger.worst_case().condition is None


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"epsilon": -1.0}, "epsilon=-1"),
        ({"epsilon": float("inf")}, "epsilon=inf"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta=0"),
        ({"epsilon": 1.0, "for_changes": 1.5}, "for_changes=1.5"),
        ({"epsilon": 1.0, "for_changes": -0.5}, "for_changes=-0.5"),
    ],
)
def test_what_no_run_can_keep_is_refused(options, name):
    with pytest.raises(InvalidInputError, match=name):
        Budget(**options)


@pytest.mark.parametrize("budget", [1.0, "epsilon 1", Plan])
def test_what_is_no_budget_is_refused(budget, tmp_path):
    with pytest.raises(InvalidInputError, match="budget="):
        Ledger.create(tmp_path / "run.ledger", budget=budget)
    assert not (tmp_path / "run.ledger").exists()
