"""A declared budget: training ends cleanly, and nothing is released beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opacus.utils.batch_memory_manager import BatchMemoryManager

import bayesdp.opacus
from bayesdp import Budget, Gate, InvalidInputError, Ledger, LedgerError, StopWhen
from bayesdp.opacus import BudgetReachedWarning
from opacus_runs import private_run, random_data


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [{}, {"mode": "ghost"}, {"virtual": True}, {"poisson_sampling": False}])
def test_training_ends_before_the_budget_is_exceeded(options: dict[str, Any], workers: int) -> None:
    options = dict(options)
    virtual, poisson = options.pop("virtual", False), options.get("poisson_sampling", True)
    run, ledger = private_run(workers=workers, shuffle=not poisson, noise_multiplier=4.0, **options), Ledger()
    epsilon = 0.6 if poisson else 1.0  # without amplification an epoch alone costs 0.93
    budget = StopWhen(ledger, epsilon=epsilon, delta=1e-5)
    watched = run.watch(ledger, budget=budget)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=7, optimizer=run.optimizer)
    loader = manager.__enter__() if virtual else run.loader
    with pytest.warns(BudgetReachedWarning, match="training has ended"):
        run.train(40, loader=loader)
    assert watched.stopped
    spent = ledger.worst_case(1e-5)
    last = ledger.history.stretches[-1]
    assert last.clip is not None
    one_more = ledger.worst_case(1e-5, more=(last.noise_std / last.clip, last.sample_rate, 1)).epsilon
    assert spent.epsilon <= epsilon < one_more * (1.03 if poisson else 1)  # a part of delta is for other settings
    assert ledger.steps > 0
    before, steps = run.parameters, ledger.steps
    run.train(2, loader=loader)
    run.step(*random_data(20))  # also a step that does not come from the loader
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == steps


def test_opacus_does_not_count_what_was_not_released() -> None:
    run, ledger = private_run(noise_multiplier=4.0), Ledger()
    budget = StopWhen(ledger, epsilon=0.4)
    run.watch(ledger, budget=budget)
    with pytest.warns(BudgetReachedWarning):
        run.train(30)
    assert run.engine.accountant.history == [(4.0, 0.1, ledger.steps)]


def test_a_gate_stops_training() -> None:
    """Audit records count against the gate before the step that would exceed it."""
    gate = Gate(epsilon=2.0, delta=1e-5, share=0.5, gamma=0.01, records=300)
    run, ledger = private_run(max_grad_norm=3.0), Ledger(gate=gate)
    budget = StopWhen(ledger, gate=True)
    audit = random_data(300, seed=9)
    watched = run.watch(ledger, audit=audit, loss=run.loss, budget=budget)
    with pytest.warns(BudgetReachedWarning):
        run.train(100)
    assert watched.stopped
    assert 0 < ledger.steps < 1000
    assert gate.met(ledger.costs([gate.chosen_order])[:, 0])
    assert not [claim for claim in watched.claims() if claim.method.startswith("gate") and claim.reason]


def test_a_budget_for_a_new_ledger_is_declared_and_is_the_claim_for_everyone(tmp_path: Path) -> None:
    run = private_run(noise_multiplier=4.0)
    watched = run.watch(tmp_path / "run.ledger", budget=Budget(epsilon=0.6))
    with pytest.warns(BudgetReachedWarning):
        run.train(40)
    everyone = watched.claims().everyone
    assert (everyone.epsilon, everyone.delta, everyone.kind, everyone.condition) == (0.6, 1e-5, "proved", None)
    watched.close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.budget == Budget(epsilon=0.6)


def test_a_budget_and_a_plan_of_more_steps_than_fit_stop_where_pld_reaches_it(tmp_path: Path) -> None:
    run = private_run(noise_multiplier=4.0)
    watched = run.watch(tmp_path / "run.ledger", steps=10_000, budget=Budget(epsilon=0.6))
    with pytest.warns(BudgetReachedWarning):
        run.train(40)
    one_more = watched.ledger.worst_case(1e-5, more=(4.0, 0.1, 1)).epsilon
    assert watched.ledger.worst_case().epsilon <= 0.6 < one_more
    assert watched.claims().everyone.condition is None
    watched.close()


@pytest.mark.parametrize("budget", [3.0, "epsilon 3", object()])
def test_what_is_no_budget_is_refused(budget: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="budget="):
        private_run().watch(tmp_path / "run.ledger", budget=budget)
    assert not list(tmp_path.iterdir())


def test_a_budget_is_not_declared_in_a_ledger_that_exists() -> None:
    with pytest.raises(InvalidInputError, match=r"declare it in Ledger.create\(budget=...\)"):
        private_run().watch(Ledger(), budget=Budget(epsilon=1.0))


def test_a_budget_of_another_ledger_is_refused() -> None:
    run, other = private_run(), StopWhen(Ledger(), epsilon=1)
    with pytest.raises(InvalidInputError, match=r"budget=.*: expected StopWhen of the ledger that is given"):
        run.watch(Ledger(), budget=other)


def test_a_step_that_cannot_be_recorded_is_not_applied(tmp_path: Path) -> None:
    run = private_run()
    ledger = Ledger.create(tmp_path / "run.ledger")
    run.watch(ledger)
    run.train(most=1)
    ledger.close()
    before = run.parameters
    with pytest.raises(LedgerError, match="is closed"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert run.engine.accountant.history == [(1.0, 0.1, 1)]


def test_a_path_is_a_new_ledger_that_close_closes(tmp_path: Path) -> None:
    run = private_run()
    with run.watch(tmp_path / "run.ledger") as watched:
        run.train(most=2)
    assert [path.name for path in tmp_path.iterdir()] == ["run.ledger"]
    assert "For everyone: epsilon = " in Ledger.open(tmp_path / "run.ledger", write=False).claims()[0].statement()
    assert watched.ledger.path.endswith("run.ledger")
    with pytest.raises(LedgerError, match="exists already"):
        run.watch(tmp_path / "run.ledger")


@pytest.mark.parametrize("virtual", [False, True])
def test_training_goes_on_after_a_step_that_failed(tmp_path: Path, virtual: bool) -> None:
    """Nothing of its sum is left in the next sum."""
    run = private_run(records=120, batch=40)
    ledger = Ledger.create(tmp_path / "run.ledger", keep_norms=True)
    watched = run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=10, optimizer=run.optimizer)
    loader = manager.__enter__() if virtual else run.loader
    record, failures = watched._recorder.record, iter([True])

    def fail_once(released: Any) -> None:
        if next(failures, False):
            raise OSError("the disk is full")
        record(released)

    watched._recorder.record = fail_once
    before = run.parameters
    with pytest.raises(OSError, match="the disk is full"):
        run.train(loader=loader)
    assert np.array_equal(run.parameters, before)
    assert all(parameter.summed_grad is None for parameter in run.optimizer.params)
    run.train(loader=loader)
    assert ledger.steps == 3
    assert [stretch.noise_std for stretch in ledger.history.stretches] == [1.0]
    ledger.close()


def test_a_sum_of_several_draws_counts_as_several_steps_against_the_budget() -> None:
    run, ledger = private_run(noise_multiplier=4.0), Ledger()
    one_step = bayesdp.worst_case_of([(4.0, 0.1, 1)]).epsilon
    budget = StopWhen(ledger, epsilon=one_step * 1.01)
    run.watch(ledger, budget=budget)
    run.model.allow_grad_accumulation()
    before, batches = run.parameters, iter(run.loader)
    for _ in range(2):
        x, y = next(batches)
        run.loss(run.model(x), y).backward()
    with pytest.warns(BudgetReachedWarning):
        run.optimizer.step()
    assert ledger.steps == 0
    assert np.array_equal(run.parameters, before)
