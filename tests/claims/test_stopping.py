"""Stopping in time, for a worst case and for a gate."""

from bisect import bisect
from time import thread_time

import numpy as np
import pytest

from bayesdp import Budget, Gate, InvalidInputError, Ledger, Plan, StopWhen
from bayesdp.claims.everyone import ledger_worst_case
from bayesdp.guarantees.selection import Selection

STEP = {"noise_std": 1.0, "sample_rate": 0.02, "clip": 1.0}


def test_with_a_plan_it_stops_with_the_last_step_that_fits_by_pld():
    """The plan declares the settings, and more steps than there will be."""
    ledger = Ledger(plan=Plan(steps=10_000, **STEP))
    budget = StopWhen(ledger, epsilon=3.0)
    while budget.allows(**STEP):
        ledger.step(**STEP)
    assert ledger_worst_case(ledger, 1e-5).epsilon <= 3.0
    assert ledger.worst_case(more=(1.0, 0.02, 3)).epsilon > 3.0
    assert ledger.steps > 10
    assert not budget.allows(**STEP | {"noise_std": 100.0}, steps=10)


def test_without_a_plan_it_stops_a_little_earlier():
    """What it takes to be sure whatever the settings will be: 3 % of the steps, if they are never louder."""
    ledger = Ledger()
    budget = StopWhen(ledger, epsilon=3.0)
    while budget.allows(**STEP):
        ledger.step(**STEP)
    assert 2.93 < ledger.worst_case().epsilon <= 3.0
    assert ledger.worst_case().condition is not None  # the ledger declares no budget


@pytest.mark.slow
def test_settings_may_change_at_every_step():
    ledger = Ledger()
    budget = StopWhen(ledger, epsilon=2.0, delta=1e-6)
    for number in range(200):
        step = {"noise_std": 1.0 + 0.5 * (number % 3), "sample_rate": 0.05, "clip": 1.0}
        if not budget.allows(**step):
            break
        ledger.step(**step)
    assert 0 < ledger.steps < 200
    assert ledger.worst_case(1e-6).epsilon <= 2.0


def test_goes_on_after_a_restart_and_notices_steps_taken_without_asking(tmp_path):
    path, step = tmp_path / "run.ledger", STEP | {"sample_rate": 0.1}  # few steps, as each is written to disk
    with Ledger.create(path) as ledger:
        for _ in range(5):
            ledger.step(**step)
    with Ledger.open(path) as ledger:
        budget = StopWhen(ledger, epsilon=3.0)
        assert budget.allows(**step)
        for _ in range(50):
            ledger.step(**step)
        assert not budget.allows(**step)


def test_a_gate_is_kept():
    rng = np.random.default_rng(0)
    gate = Gate(epsilon=1.0, delta=1e-5, share=0.8, gamma=0.05, records=60)
    ledger = Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    taken = 0
    for _ in range(2000):
        norms = np.exp(rng.normal(-1, 0.5, 60))
        step = {"noise_std": 2.0, "sample_rate": 0.05, "clip": 1.0, "audit": norms}
        if not budget.allows(**step):
            break
        ledger.step(**step)
        taken += 1
    assert 5 < taken < 2000
    assert gate.met(ledger.costs([gate.chosen_order])[:, 0])
    ledger.step(**step)
    assert not gate.met(ledger.costs([gate.chosen_order])[:, 0])  # it was the last that could be taken
    assert not budget.allows(**step)


@pytest.mark.parametrize(("rate", "scale", "epsilon"), [(1.0, 20.0, 0.8), (0.05, 3.0, 0.3)])
def test_a_noise_that_changes_at_every_step(rate, scale, epsilon):
    """Every setting is new: more of them than dp-accounting composes."""
    ledger = Ledger()
    budget = StopWhen(ledger, epsilon=epsilon)
    for noise in scale * np.geomspace(1, 12, 40):
        step = {"noise_std": float(noise), "sample_rate": rate, "clip": 1.0}
        if not budget.allows(**step):
            break
        ledger.step(**step)
    assert ledger.steps > 20
    assert ledger.worst_case().epsilon <= epsilon


def test_what_was_recorded_counts_not_what_was_asked():
    ledger = Ledger()
    quiet = {"noise_std": 4.0, "sample_rate": 0.01, "clip": 1.0}
    first, second = StopWhen(ledger, epsilon=2.0), StopWhen(ledger, epsilon=2.0)
    assert first.allows(**quiet)
    assert second.allows(**quiet)
    for _ in range(5):
        ledger.step(noise_std=0.5, sample_rate=0.5, clip=1.0)
    assert ledger.worst_case().epsilon > 2.0
    assert not first.allows(**quiet)
    assert not second.allows(**quiet)


def test_a_gate_counts_what_was_recorded():
    gate = Gate(epsilon=1.0, delta=1e-5, share=0.8, gamma=0.05, records=60)
    ledger = Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    step = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.0}
    while budget.allows(**step, audit=np.full(60, 0.01)) and ledger.steps < 300:
        ledger.step(**step, audit=np.ones(60))
    assert 1 < ledger.steps < 300


@pytest.mark.parametrize("changing", ["rates", "clips"])
def test_a_gate_is_kept_when_the_ledger_rounds_settings_up(changing):
    rng = np.random.default_rng(0)
    gate = Gate(epsilon=1.0, delta=1e-5, share=0.8, gamma=0.05, records=60)
    ledger = Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    for _ in range(1000):
        change = 1 + 0.01 * rng.random()
        rate, clip = (0.05 * change, 1.0) if changing == "rates" else (0.05, change)
        step = {"noise_std": 2.0, "sample_rate": rate, "clip": clip, "audit": np.exp(rng.normal(-0.5, 0.5, 60))}
        if not budget.allows(**step):
            break
        ledger.step(**step)
    assert 64 < ledger.steps < 1000
    assert gate.met(ledger.costs([gate.chosen_order])[:, 0])


def test_a_step_that_was_not_taken_is_not_charged():
    gate = Gate(epsilon=1.0, delta=1e-5, share=0.8, gamma=0.05, records=60)
    ledger = Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    loud = {"noise_std": 0.5, "sample_rate": 1.0, "clip": 1.0, "audit": np.ones(60)}
    quiet = loud | {"audit": np.full(60, 0.01)}
    for _ in range(50):
        assert not budget.allows(**loud)
    assert budget.allows(**quiet)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "epsilon=None"),
        ({"epsilon": -1}, "epsilon=-1"),
        ({"gate": True}, "gate=True"),
        ({"epsilon": 1, "delta": 0}, "delta=0"),
    ],
)
def test_refused(options, message):
    with pytest.raises(ValueError, match=message):
        StopWhen(Ledger(), **options)


@pytest.mark.parametrize("change", [{"noise_std": 0}, {"sample_rate": 2}, {"clip": -1}])
def test_refused_steps(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        StopWhen(Ledger(), epsilon=1.0).allows(**STEP | change)


def test_several_steps_at_once() -> None:
    """As many as are allowed one after the other, and not one more."""
    settings = {"noise_std": 4.0, "sample_rate": 0.1, "clip": 1.0}
    ledger = Ledger(plan=Plan(steps=1000, **settings))
    budget = StopWhen(ledger, epsilon=0.4)
    most = bisect(range(1, 40), 0.4, key=lambda steps: ledger.worst_case(1e-5, more=(4.0, 0.1, steps)).epsilon)
    assert 10 < most < 39
    assert budget.allows(**settings, steps=most)
    assert not budget.allows(**settings, steps=most + 1)
    assert not StopWhen(ledger, epsilon=0.4).allows(**settings, steps=most + 1)
    for _ in range(3):
        ledger.step(**settings)
    assert budget.allows(**settings, steps=most - 3)
    assert not budget.allows(**settings, steps=most - 2)
    with pytest.raises(InvalidInputError, match="steps=-1"):
        budget.allows(**settings, steps=-1)


def test_a_question_takes_no_longer_after_many_steps() -> None:
    """Settings that change at every step; the filter is asked before each. By processor time: others may compute."""
    ledger = Ledger(budget=Budget(epsilon=1000.0))
    budget, seconds = StopWhen(ledger), []
    for number in range(1500):
        step = {"noise_std": 3.0 + 2e-3 * number, "sample_rate": 0.01, "clip": 1.0}
        started = thread_time()
        assert budget.allows(**step)
        seconds.append(thread_time() - started)
        ledger.step(**step)
    assert np.median(seconds[-200:]) < 3 * np.median(seconds[200:400]) + 1e-4


def test_a_declared_budget_needs_no_epsilon_and_is_kept_beside_a_larger_one() -> None:
    ledger = Ledger(budget=Budget(epsilon=0.5))
    for budget in (StopWhen(ledger), StopWhen(ledger, epsilon=5.0)):
        assert budget.allows(**STEP | {"noise_std": 4.0})
        assert not budget.allows(**STEP, steps=300)
    assert not StopWhen(ledger, epsilon=0.01).allows(**STEP | {"noise_std": 4.0}, steps=50)


def test_a_step_that_is_amended_after_it_was_counted() -> None:
    """Up as well as down, and also if another step follows before the next question."""
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=20)
    step = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
    ledger = Ledger(gate=gate)
    ledger.step(**step, audit=np.full(20, 0.1))
    budget = StopWhen(ledger, gate=True)
    for norm in (0.9, 0.2):
        budget.allows(**step)  # counts what is there
        ledger.amend(ledger.steps, audit=np.full(20, norm))
        ledger.step(**step, audit=np.full(20, 0.1))
        budget.allows(**step)
        assert np.allclose(budget._costs._now(), ledger.costs([gate.chosen_order])[:, 0], rtol=1e-9)


def test_a_run_that_may_be_chosen_among_others_has_no_budget():
    """A budget that one trial keeps says nothing about the best of several."""
    settings = {"noise_std": 100.0, "sample_rate": 1.0, "clip": 1.0}
    ledger = Ledger(plan=Plan(steps=200, **settings), selection=Selection(mean=5))
    with pytest.raises(InvalidInputError, match="a ledger without a selection"):
        StopWhen(ledger, epsilon=0.3)
