"""A ledger on a run that has a history: earlier steps are charged at the clip bound, or the ledger is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer

import bayesdp
from bayesdp import Budget, Gate, InvalidInputError, Ledger, Plan
from opacus_runs import RATE, Run, private_run, random_data, settings

ACCOUNTANTS = ["prv", "rdp", "gdp", "bayesdp"]
pytestmark = pytest.mark.filterwarnings("ignore:GDP accounting is experimental")


def worst(*steps: tuple[float, float, int]) -> float:
    return bayesdp.worst_case_of(steps).epsilon


def checkpoint(run: Run, path: Path) -> Path:
    run.engine.save_checkpoint(path=path, module=run.model, optimizer=run.optimizer)
    return path


def load(run: Run, path: Path) -> None:
    run.engine.load_checkpoint(path=path, module=run.model, optimizer=run.optimizer)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("first", ["load", "watch"])
def test_a_new_ledger_after_a_checkpoint_is_charged_with_its_steps(tmp_path: Path, accountant: str, first: str) -> None:
    """Opacus knows 40 steps; a ledger that knew the last 10 would claim far too little."""
    run = private_run(accountant=accountant)
    run.train(3)
    saved = checkpoint(run, tmp_path / "saved")
    run, path = private_run(accountant=accountant, seed=5), tmp_path / "new.ledger"
    if first == "load":
        load(run, saved)
    watched = run.watch(path, audit=random_data(20, seed=9), loss=run.loss)
    if first == "watch":
        load(run, saved)
        assert watched.claims().everyone.epsilon >= worst((1.0, 0.1, 30))
    run.train()
    everyone = watched.claims(shares=[0.5]).everyone
    assert everyone.epsilon == pytest.approx(worst((1.0, RATE, 40)), rel=1e-6)
    assert everyone.epsilon >= worst((1.0, 0.1, 40)) * (1 - 1e-9)
    if accountant == "prv":
        assert everyone.epsilon >= run.engine.get_epsilon(1e-5) - 0.02  # its own error
    if accountant == "bayesdp":
        assert run.engine.get_epsilon(1e-5) == watched.ledger.worst_case().epsilon
    assert settings(watched.ledger)[0] == (1.0, RATE, 1.0, 30)
    assert watched.ledger.history.audited_steps == 10  # at the others audit records are at the clip bound
    assert any("as Opacus' accountant has counted them" in text for text in everyone.assumptions)
    assert everyone.kind == "proved"
    watched.close()
    with Ledger.open(path, write=False) as ledger:
        assert ledger.steps == 40


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_watching_after_an_epoch(accountant: str) -> None:
    run, ledger = private_run(accountant=accountant, noise_multiplier=2.0, max_grad_norm=0.5), Ledger()
    run.train()
    run.watch(ledger)
    assert settings(ledger) == [(1.0, RATE, 0.5, 10)]
    run.train()
    assert settings(ledger) == [(1.0, RATE, 0.5, 10), (1.0, RATE, 0.5, 10)]  # the first with a caveat
    assert ledger.worst_case().epsilon == pytest.approx(worst((2.0, RATE, 20)), rel=1e-6)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("first", ["load", "watch"])
def test_a_ledger_that_is_resumed_is_not_charged_twice(tmp_path: Path, accountant: str, first: str) -> None:
    run = private_run(accountant=accountant)
    with run.watch(tmp_path / "run.ledger"):
        run.train()
        saved = checkpoint(run, tmp_path / "saved")
        run.train(most=2)
    run = private_run(accountant=accountant, seed=5)
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        if first == "load":
            load(run, saved)
        watched = run.watch(ledger)
        if first == "watch":
            load(run, saved)
        watched.claims()
        run.train(most=3)
        watched.claims()
        assert settings(ledger) == [(1.0, RATE, 1.0, 15)]


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_steps_between_two_watches(accountant: str) -> None:
    """Whatever the accountant has counted meanwhile, once; also for another ledger, and back."""
    run, first, second = private_run(accountant=accountant), Ledger(), Ledger()
    with run.watch(first):
        run.train(most=2)
    run.train(most=3)
    with run.watch(first):
        assert first.steps == 5
        run.train(most=1)
    with run.watch(second):
        assert second.steps == 6
        run.train(most=1)
    with run.watch(first):
        assert first.steps == 7
    assert first.worst_case().epsilon == pytest.approx(second.worst_case().epsilon)


def test_a_ledger_with_some_of_the_steps_is_refused(tmp_path: Path) -> None:
    run = private_run()
    run.train()
    saved = checkpoint(run, tmp_path / "saved")
    run, ledger = private_run(), Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    load(run, saved)
    with pytest.raises(InvalidInputError, match="expected the ledger of this run: Opacus has counted 10 steps"):
        run.watch(ledger)
    assert ledger.steps == 1
    run = private_run()
    watched = run.watch(ledger)
    run.train(most=2)
    load(run, saved)
    with pytest.raises(InvalidInputError, match="accountant='8 steps that are not in the ledger': expected"):
        watched.claims()
    with pytest.raises(InvalidInputError, match="load_checkpoint before watch"):
        run.train(most=1)
    assert ledger.steps == 3


def test_steps_of_another_optimizer_of_the_engine() -> None:
    """With one ledger for both, each step is in it once; an optimizer that is not watched is noticed."""
    run, other, ledger = private_run(), private_run(seed=7), Ledger()
    other.optimizer.attach_step_hook(run.engine.accountant.get_optimizer_hook_fn(0.1))
    run.watch(ledger)
    watched = other.watch(ledger)
    for _ in range(2):
        run.train(most=1)
        other.train(most=1)
    assert ledger.steps == 4
    watched.close()
    other.train(most=1)
    with pytest.raises(InvalidInputError, match="one ledger for all optimizers of an engine"):
        run.train(most=1)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_earlier_steps_of_a_shuffled_loader_are_refused(tmp_path: Path, accountant: str) -> None:
    """Opacus has counted an amplification that did not take place."""
    run = private_run(accountant=accountant, poisson_sampling=False, shuffle=True)
    run.train()
    for ledger in (Ledger(), tmp_path / "new.ledger"):
        with pytest.raises(InvalidInputError, match=r"'a new one after 10 steps': expected Ledger\.open.*shuffled"):
            run.watch(ledger)
    assert list(tmp_path.iterdir()) == []
    assert "pre_step" not in vars(run.optimizer)


def test_a_plan_budget_or_gate_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    run = private_run()
    run.train()
    plan = Plan(steps=100, noise_std=1.0, sample_rate=0.2, clip=1.0)
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=100)
    late: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path / "new.ledger", {"steps": 20}),
        (tmp_path / "new.ledger", {"budget": Budget(epsilon=3.0)}),
        (Ledger(plan=plan), {}),
        (Ledger(budget=Budget(epsilon=3.0)), {}),
        (Ledger(gate=gate), {}),
    ]
    for ledger, options in late:
        with pytest.raises(InvalidInputError, match="a plan, budget or gate must be declared before it"):
            run.watch(ledger, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_sum_of_draws_is_charged_as_its_draws() -> None:
    run, ledger = private_run(), Ledger()
    run.model.allow_grad_accumulation()
    batches = iter(run.loader)
    for _ in range(2):
        run.optimizer.zero_grad()
        for x, y in (next(batches), next(batches)):
            run.loss(run.model(x), y).backward()
        run.optimizer.step()
    assert run.engine.accountant.history == [(1.0, 0.2, 2)]
    run.watch(ledger)
    assert settings(ledger) == [(pytest.approx(2**-0.5), RATE, 1.0, 4)]


def test_other_rates_and_noise_are_charged_as_they_were_counted() -> None:
    run, ledger = private_run(), Ledger()
    run.engine.accountant.history = [(3.0, 0.05, 4), (2.0, 0.25, 1)]
    run.watch(ledger)
    assert [(noise, steps) for noise, _, _, steps in settings(ledger)] == [(3.0, 4), (2.0, 1)]
    assert [rate for _, rate, _, _ in settings(ledger)] == pytest.approx([0.05, 0.25], rel=1e-5)
    assert all(rate >= counted for (_, rate, _, _), counted in zip(settings(ledger), (0.05, 0.25), strict=True))


def test_earlier_steps_without_noise_are_refused(tmp_path: Path) -> None:
    run = private_run()
    run.engine.accountant.history = [(0.0, 0.1, 4)]
    with pytest.raises(InvalidInputError, match=r"noise_multiplier=0\.0: expected noise above 0, also in steps before"):
        run.watch(tmp_path / "new.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_noise_that_changes_at_every_step_is_counted_once(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    for x, y in run.loader:
        run.step(x, y)
        run.optimizer.noise_multiplier *= 1.1
    assert ledger.steps == len(run.engine.accountant.history) == 10


def test_a_hook_around_that_of_opacus_is_looked_into() -> None:
    run, ledger = private_run(), Ledger()
    own, called = run.optimizer.step_hook, []

    def hook(optimizer: DPOptimizer) -> None:
        called.append(torch.is_grad_enabled())
        own(optimizer)

    run.optimizer.attach_step_hook(hook)
    run.train(most=2)
    run.watch(ledger)
    assert ledger.steps == len(called) == 2
