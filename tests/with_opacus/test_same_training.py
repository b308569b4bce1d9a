"""Watching never changes training: parameters are the same to the last bit with ``watch`` and without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPLSTM
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import ADAPTIVE, CLASSES, FEATURES, Run, batch_norms, private_run, random_data, settings

Loop = Callable[[Run], None]


def plain(run: Run) -> None:
    run.train(2)


def virtual(run: Run) -> None:
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=7, optimizer=run.optimizer)
    with manager as loader:
        run.train(2, loader=loader)


def signalled(run: Run) -> None:
    """As dp-transformers accumulates: signal, step and clear after each part, then a step as usual."""
    for _ in range(2):
        for number, (x, y) in enumerate(run.loader):
            run.loss(run.model(x), y).backward()
            if number % 2 == 0:
                run.optimizer.signal_skip_step(True)
            run.optimizer.step()
            run.optimizer.zero_grad()


def signalled_both_ways(run: Run) -> None:
    """Signals for every step, sent ahead of time, in groups of three that go on from one epoch to the next."""
    number = 0
    for _ in range(2):
        for x, y in run.loader:
            if number % 3 == 0:
                for skip in (True, True, False):
                    run.optimizer.signal_skip_step(do_skip=skip)
            number += 1
            run.step(x, y)


def accumulated(run: Run) -> None:
    """Gradients of two draws, with the loss scaled as one does it."""
    run.model.allow_grad_accumulation()
    for _ in range(2):
        for number, (x, y) in enumerate(run.loader):
            (run.loss(run.model(x), y) / 2).backward()
            if number % 2:
                run.optimizer.step()
                run.optimizer.zero_grad()


def scaled(run: Run) -> None:
    for x, y in run.loader:
        run.optimizer.zero_grad()
        (run.loss(run.model(x), y) * 3).backward()
        run.optimizer.step()


def with_a_closure(run: Run) -> None:
    """Fetches a batch ahead, evaluates in between, and steps with a closure."""
    batches = iter(run.loader)
    ahead = next(batches)
    for batch in batches:
        (x, y), ahead = ahead, batch

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> Any:
            run.optimizer.zero_grad()
            loss = run.loss(run.model(x), y)
            loss.backward()
            return loss

        run.optimizer.step(closure)
        run.model.eval()
        with torch.no_grad():
            run.model(random_data(10, seed=4)[0])
        run.model.train()


def with_schedules(run: Run) -> None:
    rate = torch.optim.lr_scheduler.StepLR(run.optimizer, step_size=3, gamma=0.5)
    for x, y in run.loader:
        run.step(x, y)
        rate.step()
        run.optimizer.noise_multiplier *= 0.9


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = DPLSTM(4, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.reshape(-1, 3, 4))[0][:, -1])


class Noisy(nn.Module):
    """Dropout, and random numbers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, 16), nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(torch.tanh(self.inner(x)), 0.3, self.training)
        return self.outer(x) * float(np.random.uniform(0.5, 1.5)) * random.uniform(0.5, 1.5)  # noqa: NPY002


PATTERNS: dict[str, tuple[Loop, dict[str, Any]]] = {
    "flat": (plain, {}),
    "functorch": (plain, {"mode": "functorch"}),
    "layers": (plain, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}),
    "ghost": (plain, {"mode": "ghost"}),
    "adaptive": (plain, ADAPTIVE | {"records": 2000, "batch": 200}),
    "shuffled": (plain, {"poisson_sampling": False, "shuffle": True}),
    "workers": (plain, {"workers": 2}),
    "empty batches": (plain, {"records": 40, "batch": 2}),
    "empty batches, ghost": (plain, {"records": 40, "batch": 2, "mode": "ghost"}),
    "recurrent": (plain, {"model": Recurrent}),
    "dropout": (plain, {"model": Noisy}),
    "dropout, ghost": (plain, {"model": Noisy, "mode": "ghost"}),
    "virtual": (virtual, {}),
    "virtual, ghost": (virtual, {"mode": "ghost"}),
    "virtual, workers": (virtual, {"workers": 2}),
    "signalled": (signalled, {}),
    "signalled, ghost": (signalled, {"mode": "ghost"}),
    "signalled, shuffled": (signalled, {"poisson_sampling": False, "shuffle": True}),
    "signalled, layers": (signalled, {"clipping": "per_layer", "max_grad_norm": [1.0] * 4}),
    "signalled ahead": (signalled_both_ways, {}),
    "signalled ahead, ghost": (signalled_both_ways, {"mode": "ghost"}),
    "accumulated": (accumulated, {}),
    "accumulated, shuffled": (accumulated, {"poisson_sampling": False, "shuffle": True}),
    "scaled": (scaled, {}),
    "scaled, ghost": (scaled, {"mode": "ghost"}),
    "closure": (with_a_closure, {}),
    "schedules": (with_schedules, {}),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_parameters_are_the_same_to_the_last_bit(pattern: str) -> None:
    loop, options = PATTERNS[pattern]
    results = []
    for watched in (False, True):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        random.seed(3)
        made = {name: value() if name == "model" else value for name, value in options.items()}
        run, ledger = private_run(**made), Ledger()
        torch.manual_seed(4)
        start = run.parameters
        if watched:
            run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)
        loop(run)
        assert not np.array_equal(run.parameters, start)
        assert (ledger.steps > 0) == watched
        numbers = float(torch.rand(())), float(np.random.uniform()), random.random()  # noqa: NPY002
        counted = list(run.engine.accountant.history)  # all that Opacus' epsilon depends on
        assert counted
        results.append((run.parameters.tobytes(), counted, np.array(run.losses).tobytes(), numbers))
    assert results[0] == results[1]


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_batches_that_the_user_accumulates_are_one_step(ledger: Ledger, mode: str) -> None:
    """The sum of two draws is one update, with one audit, and costs no more than two steps of noise s / sqrt(2)."""
    run = private_run(mode=mode, noise_multiplier=4.0)
    audits = 0

    class Norms:
        records = 30

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            nonlocal audits
            audits += 1
            return torch.full((30,), 0.5)

    run.watch(ledger, audit=Norms())
    sizes, updates = [], 0
    before = run.parameters
    for number, (x, y) in enumerate(run.loader):
        sizes.append(len(y))
        run.loss(run.model(x), y).backward()
        if number % 2 == 0:
            run.optimizer.signal_skip_step(True)
        run.optimizer.step()
        run.optimizer.zero_grad()
        updates += not np.array_equal(run.parameters, before)
        before = run.parameters
    assert updates == audits == 5
    assert settings(ledger) == [(pytest.approx(4 / np.sqrt(2)), pytest.approx(0.1), 1.0, 10)]
    assert [len(batch_norms(ledger, step)) for step in range(1, 11)] == sizes


def test_signals_beside_those_of_the_memory_manager_are_refused(ledger: Ledger) -> None:
    run = private_run(records=120, batch=40)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=9, optimizer=run.optimizer)
    with manager as loader:
        x, y = next(iter(loader))
        run.optimizer.signal_skip_step(True)
        with pytest.raises(InvalidInputError, match="signal_skip_step=True: expected signals of your own or Batch"):
            run.step(x, y)
    assert ledger.steps == 0


def test_adaptive_clipping_with_signals_is_refused(ledger: Ledger) -> None:
    run = private_run(records=2000, batch=200, **ADAPTIVE)
    run.watch(ledger)
    run.optimizer.signal_skip_step(True)
    with pytest.raises(InvalidInputError, match=r"clipping='adaptive': expected flat clipping for .*signal_skip_step"):
        run.train(most=1)
    assert ledger.steps == 0


def test_signals_that_were_not_used_are_left_to_opacus(ledger: Ledger) -> None:
    run = private_run()
    run.optimizer.signal_skip_step(True)
    watched = run.watch(ledger)
    run.optimizer.signal_skip_step(False)
    run.optimizer.signal_skip_step(True)
    run.train(most=1)
    assert ledger.steps == 0  # the signal from before
    watched.close()
    assert run.optimizer._step_skip_queue == [False, True]
    assert "signal_skip_step" not in vars(run.optimizer)


def test_a_sum_that_has_begun_cannot_be_watched(ledger: Ledger) -> None:
    run = private_run()
    run.optimizer.signal_skip_step(True)
    run.train(most=1)
    with pytest.raises(InvalidInputError, match="optimizer='in the middle of a sum'"):
        run.watch(ledger)
    assert "pre_step" not in vars(run.optimizer)
