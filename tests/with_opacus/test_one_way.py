"""A step goes one way: its sum is built once, and every norm is checked once, before anything is recorded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager

from bayesdp import InvalidInputError, Ledger, StopWhen, validation
from bayesdp.opacus.recording import GradientSum
from opacus_runs import batch_norms, private_run, random_data


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often norms were checked, by their name ("audit", "batch"), and how often a "sum" was built."""
    counted: Counter[str] = Counter()
    check, build = validation.non_negative_array, GradientSum.__init__

    def check_counted(name: str, values: Any, **options: Any) -> Any:
        counted[name] += 1
        return check(name, values, **options)

    def build_counted(self: GradientSum, *args: Any, **fields: Any) -> None:
        counted["sum"] += 1
        build(self, *args, **fields)

    monkeypatch.setattr(validation, "non_negative_array", check_counted)
    monkeypatch.setattr(GradientSum, "__init__", build_counted)
    return counted


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_once_for_every_step(counted: Counter[str], mode: str, late: bool) -> None:
    run, ledger = private_run(mode=mode), Ledger()
    with run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss) as watched:
        watched._recorder._late = late
        run.train(most=5)
    assert ledger.steps == 5
    assert counted == {"audit": 5, "batch": 5, "sum": 5}


def test_once_with_a_budget(counted: Counter[str]) -> None:
    """Asking whether this step, and the next one, may be taken builds no further sum."""
    run, ledger = private_run(noise_multiplier=4.0), Ledger()
    budget = StopWhen(ledger, epsilon=1.0)
    with run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss, budget=budget):
        run.train(most=5)
    assert {name: counted[name] for name in ("audit", "batch", "sum")} == {"audit": 5, "batch": 5, "sum": 5}


def test_once_for_a_step_of_several_physical_batches(counted: Counter[str]) -> None:
    run, ledger = private_run(records=120, batch=40), Ledger()
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
    with run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss), manager as loader:
        run.train(loader=loader)
    assert ledger.steps == 3
    assert counted == {"audit": 3, "batch": 3, "sum": 3}


def test_once_for_every_batch_of_a_shuffled_epoch(counted: Counter[str]) -> None:
    """The largest exposure of each audit record in the epoch is a new figure, checked once at the end."""
    run, ledger = private_run(poisson_sampling=False, shuffle=True), Ledger()
    with run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss):
        run.train()
    assert ledger.steps == 1
    assert counted == {"audit": 10 + 1, "batch": 10, "sum": 10}


def sum_of_two_draws(run: Any, *, spoil_second: bool = False) -> None:
    run.model.allow_grad_accumulation()
    batches = iter(run.loader)
    run.optimizer.zero_grad()
    for number in range(2):
        x, y = next(batches)
        if spoil_second and number == 1:
            x[-1] = torch.nan
        run.loss(run.model(x), y).backward()
    run.optimizer.step()


def test_once_for_every_draw_of_a_sum(counted: Counter[str]) -> None:
    run, ledger = private_run(), Ledger()
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    sum_of_two_draws(run)
    assert ledger.steps == 2
    assert counted == {"audit": 1, "batch": 2, "sum": 1}


def test_a_sum_of_several_draws_is_checked_whole_before_its_first_step_is_recorded() -> None:
    run, ledger = private_run(), Ledger()
    x, y = random_data(20, seed=9)
    run.watch(ledger, audit=(x, y), loss=run.loss)
    x[3] = torch.nan
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"audit\[3\]=nan"):
        sum_of_two_draws(run)
    assert ledger.steps == 0
    assert np.array_equal(run.parameters, before)


def test_a_broken_record_in_a_sum_of_several_draws_contributes_nothing() -> None:
    run, ledger = private_run(), Ledger(keep_norms=True)
    run.watch(ledger)
    sum_of_two_draws(run, spoil_second=True)
    assert ledger.steps == 2
    assert np.isfinite(run.parameters).all()
    assert batch_norms(ledger, 2)[-1] == 0
