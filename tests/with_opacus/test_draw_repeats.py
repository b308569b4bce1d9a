"""A step whose batch was drawn as that of an earlier step is refused before anything of it is released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader

from bayesdp import InvalidInputError, Ledger
from bayesdp.ledger import StepSource
from bayesdp.opacus import SecureNoise, SecureSampler
from bayesdp.randomness import Secure
from opacus_runs import Run, default_run, private_run, random_data
from refused_steps import check_step_refused

REFUSED = (
    r"^batch_sampler\.generator='in the state that it had at an earlier draw': expected .* seed before the loop only; "
    r"to resume, take another seed, .*; or use both SecureNoise and SecureSampler\.$"
)


def secure_noise(**options: Any) -> Run:
    """Return a run that draws batches from PyTorch's own generator, and noise from the operating system."""
    run = default_run(**options)
    SecureNoise(run.optimizer, Secure())
    return run


def check_refused(run: Run, ledger: Ledger, steps: int, loader: Any = None) -> None:
    check_step_refused(run, ledger, steps, REFUSED, loader)


@pytest.mark.parametrize("options", [{}, {"mode": "ghost"}, {"workers": 2}], ids=["hooks", "ghost", "workers"])
def test_a_seed_at_each_epoch(ledger: Ledger, options: dict[str, Any]) -> None:
    run = secure_noise(**options)
    run.watch(ledger)
    torch.manual_seed(7)
    run.train()
    assert ledger.steps == 10
    torch.manual_seed(7)
    check_refused(run, ledger, 10)
    torch.manual_seed(8)
    run.train()
    assert ledger.steps == 20


def test_noise_from_a_generator_of_its_own(ledger: Ledger) -> None:
    run = private_run()
    run.loader.batch_sampler.generator = None
    run.watch(ledger)
    torch.manual_seed(7)
    run.train()
    torch.manual_seed(7)
    check_refused(run, ledger, 10)


def test_a_generator_of_the_loader_that_is_seeded_again(ledger: Ledger) -> None:
    """The state is that of the generator that draws, whatever happens to others."""
    run = private_run()
    run.watch(ledger)
    for seed in (3, 4):
        torch.manual_seed(1)
        run.loader.batch_sampler.generator.manual_seed(seed)
        run.train(most=2)
    run.loader.batch_sampler.generator.manual_seed(4)
    check_refused(run, ledger, 4)


def test_physical_batches(ledger: Ledger) -> None:
    """All parts of a draw have its state, which is used once the whole of it is released."""
    run = secure_noise()
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=7, optimizer=run.optimizer)
    with manager as loader:
        torch.manual_seed(7)
        run.train(loader=loader)
        assert ledger.steps == 10
        torch.manual_seed(7)
        with pytest.raises(InvalidInputError, match=REFUSED):
            run.train(loader=loader)
    assert ledger.steps == 10


def test_equal_draws_in_one_sum(ledger: Ledger) -> None:
    run = secure_noise()
    run.watch(ledger)
    for _ in range(2):
        torch.manual_seed(7)
        x, y = next(iter(run.loader))
        run.optimizer.signal_skip_step(do_skip=not run.losses)
        if run.losses:
            with pytest.raises(InvalidInputError, match=REFUSED):
                run.step(x, y)
        else:
            run.step(x, y)
    assert ledger.steps == 0


def resumed(path: Path, run: Run) -> Ledger:
    ledger = Ledger.open(path)
    run.watch(ledger)
    return ledger


def test_a_script_that_seeds_at_its_top_and_resumes(tmp_path: Path) -> None:
    """The digests are read from the file: nothing else connects the two runs."""
    path = tmp_path / "a"
    run = secure_noise()
    torch.manual_seed(0)
    with run.watch(path) as watched:
        run.train()
        states = [StepSource.read(stored.step.source).draws for stored in watched.ledger.stored_steps()]
    assert len({state for (state,) in states}) == 10
    run = secure_noise()
    torch.manual_seed(0)
    with resumed(path, run) as ledger:
        check_refused(run, ledger, 10)
    run = secure_noise(seed=5)
    torch.manual_seed(5)
    with resumed(path, run) as ledger:
        run.train()
        assert ledger.steps == 20
        assert len(ledger.history.stretches) == 1


def test_a_state_from_a_checkpoint(tmp_path: Path) -> None:
    """Going on where the generator was is right; going back to where steps were taken since is not."""
    run = secure_noise()
    with run.watch(tmp_path / "a"):
        run.train(most=3)
        before = torch.get_rng_state()
        run.train(most=3)
        after = torch.get_rng_state()
    run = secure_noise()
    with resumed(tmp_path / "a", run) as ledger:
        torch.set_rng_state(after)
        run.train(most=1)
        assert ledger.steps == 7
        torch.set_rng_state(before)
        check_refused(run, ledger, 7)


def test_folds_with_the_same_seed_and_a_ledger_each() -> None:
    for _ in range(3):
        run = secure_noise()
        torch.manual_seed(0)
        ledger = Ledger()
        with run.watch(ledger, audit=random_data(40, seed=9), loss=run.loss):
            run.train()
        assert ledger.steps == 10


def evaluate_by_fork_rng(run: Run) -> None:
    run.model.eval()
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        for x, y in run.loader:  # batches that no step uses
            run.loss(run.model(x), y)
    run.model.train()


def evaluate_and_restore(run: Run) -> None:
    state = torch.get_rng_state()
    for seed in (1, 1):
        torch.manual_seed(seed)
        next(iter(run.loader))
    torch.set_rng_state(state)


@pytest.mark.parametrize("evaluate", [evaluate_by_fork_rng, evaluate_and_restore])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_that_leaves_the_generator_as_it_was(ledger: Ledger, evaluate: Any, workers: int) -> None:
    run = default_run(workers=workers)
    run.watch(ledger, audit=random_data(40, seed=9), loss=run.loss)
    for _ in range(2):
        evaluate(run)
        run.train()
    assert ledger.steps == 20


def test_a_batch_that_was_looked_at_may_be_drawn_again(ledger: Ledger) -> None:
    run = secure_noise()
    run.watch(ledger)
    torch.manual_seed(7)
    next(iter(run.loader))
    torch.manual_seed(7)
    run.train()
    assert ledger.steps == 10


def test_a_loop_that_fetches_ahead(ledger: Ledger) -> None:
    run = default_run()
    run.watch(ledger)
    for _ in range(2):
        batches = iter(run.loader)
        ahead = next(batches)
        for batch in batches:
            (x, y), ahead = ahead, batch
            run.step(x, y)
    assert ledger.steps == 18


def test_empty_draws(ledger: Ledger) -> None:
    run = secure_noise(records=5, batch=1)
    run.watch(ledger)
    torch.manual_seed(7)
    run.train(epochs=4)
    assert ledger.steps == 20
    torch.manual_seed(7)
    check_refused(run, ledger, 20)


def test_two_generators_with_the_same_seed_are_no_repetition(ledger: Ledger) -> None:
    run = private_run()
    run.loader.batch_sampler.generator.manual_seed(3)
    run.optimizer.generator.manual_seed(3)
    run.watch(ledger)
    run.train()
    assert ledger.steps == 10


def test_draws_without_chance_or_from_a_cryptographic_generator_are_not_looked_at() -> None:
    """Each record is in each batch, or in one of an epoch, or drawn by SecureSampler."""
    everybody, shuffled, secure = secure_noise(batch=200), private_run(poisson_sampling=False), secure_noise()
    SecureNoise(shuffled.optimizer, Secure())
    sampler = SecureSampler(num_samples=200, sample_rate=0.1, steps=10, randomness=Secure())
    secure.loader = DataLoader(secure.loader.dataset, batch_sampler=sampler)
    for run in (everybody, shuffled, secure):
        ledger = Ledger()
        run.watch(ledger)
        for _ in range(2):
            torch.manual_seed(7)
            run.train()
        assert ledger.steps >= 2
        assert not any(StepSource.read(stored.step.source).draws for stored in ledger.stored_steps())
