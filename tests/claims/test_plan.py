"""Plans: what is guaranteed whenever a run stops, and what is not without one."""

import contextlib
import json
import sqlite3

import numpy as np
import pytest

from bayesdp import Gate, InvalidInputError, Ledger, LedgerError, Plan
from bayesdp.claims.ex_post import hockey_stick_epsilons
from bayesdp.claims.plan import DeclaredPlan
from bayesdp.formatting import round_up
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.mechanisms.order_mixture import WIDE_IN
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from stopping_adversaries import worst_stopping_delta

ORDERS = WIDE_IN.lambdas
STEP = {"noise_std": 10.0, "sample_rate": 1.0, "clip": 1.0}
PLAN = Plan(steps=100, **STEP)
DELTA = 1e-5


def costs(exposure, steps):
    """K at ``ORDERS`` after 1 .. steps steps without sampling, [steps, L]."""
    return np.arange(1, steps + 1)[:, None] * (ORDERS * (ORDERS + 1) * exposure**2 / 2)


# The case: stopping by looking


def test_the_worst_case_of_the_steps_so_far_is_no_guarantee_for_whoever_stops_by_looking():
    """Exposure 0.1, up to 100 steps: at the printed epsilons the true delta is 11 times the printed one."""
    printed = gaussian_epsilon(0.1 * np.sqrt(np.arange(1, 101)), DELTA)
    assert 10 * DELTA < worst_stopping_delta(0.1, printed.tolist()) < 12 * DELTA


@pytest.mark.parametrize(("delta", "times"), [(1e-5, 17.7), (1e-8, 30.2)])
def test_with_more_and_smaller_steps_it_is_further_off(delta, times):
    """Exposure 0.05, up to 1000 steps: 18 times the printed delta at 1e-5, 30 times at 1e-8."""
    printed = gaussian_epsilon(0.05 * np.sqrt(np.arange(1, 1001)), delta)
    assert worst_stopping_delta(0.05, printed.tolist(), parts=12) == pytest.approx(times * delta, rel=0.02)


@pytest.mark.parametrize(("exposure", "steps", "delta"), [(0.1, 100, 1e-5), (0.05, 1000, 1e-5), (0.05, 1000, 1e-8)])
def test_the_plan_and_the_anytime_figure_are(exposure, steps, delta):
    planned = [float(gaussian_epsilon(exposure * np.sqrt(steps), delta))] * steps
    assert worst_stopping_delta(exposure, planned, parts=12) == pytest.approx(delta, rel=0.02)
    anytime = hockey_stick_epsilons(costs(exposure, steps), delta, WIDE_IN)
    assert worst_stopping_delta(exposure, anytime.tolist(), parts=12) <= delta


def test_the_oracle_knows_the_answer_without_a_choice():
    epsilon = 2.0
    never = [np.inf] * 24 + [epsilon]
    assert worst_stopping_delta(0.2, never) == pytest.approx(float(gaussian_delta(1.0, epsilon)), rel=2e-3)


# Claims


def run(steps, *, plan=PLAN, **changes):
    ledger = Ledger(plan=plan)
    for _ in range(steps):
        ledger.step(**{**STEP, **changes}, audit=[0.1] * 50)
    return ledger


def test_without_a_plan_the_line_names_its_condition_and_the_anytime_figure_stands_beside_it():
    claims = run(30, plan=None).claims()
    assert claims.everyone.kind == "proved"
    condition = "if the number of steps and the settings did not depend on earlier results"
    assert claims.everyone.condition == condition
    first, second = (claims.statement(all=True).split(f"\n{number}. ")[1] for number in (1, 2))
    assert first.startswith("For everyone: epsilon = ")
    assert condition in first.splitlines()[0]
    assert second.startswith("For everyone: epsilon = ")
    [line] = [line for line in claims.statement().splitlines() if line.startswith("Guarantee for everyone")]
    assert f"(proved {condition})." in line
    assert (
        f"However steps and settings were chosen, epsilon is at most {round_up(claims.anytime.epsilon)} for this run."
        in line
    )
    assert claims[1] is claims.anytime
    assert claims.anytime.epsilon > claims.everyone.epsilon
    assert claims.anytime.epsilon == pytest.approx(
        float(hockey_stick_epsilons(costs(0.1, 30)[-1:], DELTA, WIDE_IN)[0]), rel=1e-6
    )
    assert condition in run(30, plan=None).worst_case().statement()


@pytest.mark.parametrize("steps", [1, 30, 100])
def test_with_a_plan_it_is_that_of_the_plan_whenever_the_run_ends(steps):
    claims = run(steps).claims()
    assert claims.everyone.epsilon == worst_case_of([(10.0, 1.0, 100)], delta=DELTA).epsilon
    assert claims.everyone.condition is None
    assert claims.everyone.kind == "proved"
    assert claims.anytime is None
    assert "the plan of 100 steps" in claims.statement()
    assert run(steps).worst_case().epsilon == claims.everyone.epsilon


@pytest.mark.parametrize(
    ("steps", "changes", "words"),
    [
        (101, {}, "101 steps were taken, 100 were planned"),
        (3, {"noise_std": 9.0}, "step 1 had less noise"),
        (3, {"clip": 1.1}, "step 1 had less noise"),
    ],
)
def test_a_run_that_leaves_its_plan_says_so(steps, changes, words):
    claims = run(steps, **changes).claims()
    assert claims.everyone.condition is not None
    assert f"The run left its plan: {words}" in claims.statement()
    assert claims.anytime is not None


@pytest.mark.parametrize("change", [{"noise_std": 10 - 1e-12}, {"clip": 1 + 1e-13}])
def test_no_noise_is_too_little_less_to_count(change):
    """A tolerance here would be an epsilon that is too small."""
    assert "The run left its plan: step 1 had less noise" in run(2, **change).claims().statement()


def test_more_noise_and_a_lower_rate_keep_to_the_plan():
    claims = run(5, noise_std=12.0, sample_rate=0.5).claims()
    assert claims.everyone.condition is None
    assert claims.everyone.epsilon == worst_case_of([(10.0, 1.0, 100)], delta=DELTA).epsilon


def test_a_plan_of_a_single_step():
    with Ledger(plan=Plan(steps=1, **STEP)) as ledger:
        ledger.step(**STEP)
        assert "the plan of 1 step)" in ledger.claims().statement()


def test_the_plan_is_part_of_the_first_hash_and_survives_the_file(tmp_path):
    path = tmp_path / "run.ledger"
    stages = [Plan(steps=1, noise_std=3.0, sample_rate=1.0, clip=1.0), PLAN]
    with Ledger.create(path, plan=stages) as ledger:
        ledger.step(noise_std=3.0, sample_rate=1.0, clip=1.0)
        ledger.step(**STEP)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.plan == tuple(stages)
        assert "the plan of 101 steps" in ledger.claims().statement()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        changed = json.dumps([{**stage, "steps": 1000} for stage in json.loads(DeclaredPlan.of(stages).to_json())])
        database.execute("UPDATE settings SET value = ? WHERE name = 'plan'", (changed,))
    with pytest.raises(LedgerError, match="step 1 was changed"):
        Ledger.open(path, write=False)


def test_stages_are_compared_step_by_step():
    stages = [Plan(steps=2, noise_std=3.0, sample_rate=1.0, clip=1.0), Plan(steps=2, **STEP)]
    ledger = Ledger(plan=stages)
    for noise in (3.0, 3.0, 10.0):
        ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0)
    assert ledger.claims().everyone.condition is None
    ledger.step(noise_std=3.0, sample_rate=1.0, clip=1.0)  # loud again, where a quiet step was planned
    assert "step 4 had less noise" in ledger.claims().statement()


@pytest.mark.parametrize("plan", ["100 steps", [], [PLAN, 3], 7, Gate])
def test_what_is_no_plan_is_refused(plan):
    with pytest.raises(InvalidInputError, match="plan="):
        Ledger(plan=plan)


@pytest.mark.parametrize("change", [{"steps": 0}, {"noise_std": -1.0}, {"sample_rate": 2.0}, {"clip": 0.0}])
def test_settings_that_no_step_has_are_refused(change):
    with pytest.raises(InvalidInputError, match=f"{next(iter(change))}="):
        Plan(**{"steps": 100, **STEP, **change})
