"""A step whose noise would be that of an earlier step is refused before anything of it is released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bayesdp import Ledger, LedgerError, compose
from bayesdp.opacus import SecureNoise
from bayesdp.randomness import Secure
from opacus_runs import Run, default_run, private_run
from refused_steps import check_step_refused

REFUSED = (
    r"^noise_generator='in the state that it had at an earlier step': expected .* seed before the loop only; to "
    r"resume, take another seed, .*; or use both SecureNoise and SecureSampler\.$"
)


def check_refused(run: Run, ledger: Ledger, steps: int, loader: Any = None) -> None:
    check_step_refused(run, ledger, steps, REFUSED, loader)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("poisson", [True, False])
def test_a_seed_at_each_epoch(ledger: Ledger, mode: str, poisson: bool) -> None:
    run = default_run(mode=mode) if poisson else private_run(mode=mode, poisson_sampling=False)
    run.optimizer.generator = None
    run.watch(ledger)
    torch.manual_seed(7)
    run.train()
    steps = ledger.steps
    torch.manual_seed(7)
    check_refused(run, ledger, steps)
    torch.manual_seed(8)
    run.train()
    assert ledger.steps == 2 * steps


def test_what_is_refused_is_no_gaussian_mechanism() -> None:
    """Without ``watch``, two releases differ by what a record adds to the sum, without any noise."""
    run, released = private_run(), []
    x, y = run.loader.dataset[:20]
    for records in (19, 20):
        run.optimizer.generator.manual_seed(3)
        run.optimizer.original_optimizer.param_groups[0]["lr"] = 0.0
        run.step(x[:records], y[:records])
        released.append(torch.cat([parameter.grad.flatten() for parameter in run.optimizer.params]))
    sums = float((released[1] - released[0]).norm()) * run.optimizer.expected_batch_size
    assert 0.1 < sums <= 1.001  # the clipped gradient of the last record; noise would be about 15 long


def test_a_noise_generator_that_is_seeded_again(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    run.optimizer.generator.manual_seed(3)
    run.train(most=2)
    run.optimizer.generator.manual_seed(3)
    check_refused(run, ledger, 2)
    check_refused(run, ledger, 2)  # noise was not drawn, so the state is still there
    run.optimizer.generator.manual_seed(4)
    run.train(most=1)
    assert ledger.steps == 3


def test_steps_inside_fork_rng(ledger: Ledger) -> None:
    run = private_run()
    run.optimizer.generator = None
    run.watch(ledger)
    batches = iter(run.loader)
    with torch.random.fork_rng():
        run.train(loader=[next(batches)])
    check_refused(run, ledger, 1, loader=[next(batches)])


def resumed(path: Path, run: Run) -> Ledger:
    ledger = Ledger.open(path)
    run.watch(ledger)
    return ledger


@pytest.mark.parametrize("poisson", [True, False])
def test_a_script_that_seeds_at_its_top_and_resumes(tmp_path: Path, poisson: bool) -> None:
    path, options = tmp_path / "a", {"poisson_sampling": poisson}
    run = private_run(**options)
    with run.watch(path) as watched:
        run.train()
        steps = watched.ledger.steps
    run = private_run(**options)
    with resumed(path, run) as ledger:
        check_refused(run, ledger, steps)
    run = private_run(seed=5, **options)
    with resumed(path, run) as ledger:
        run.train()
        assert ledger.steps == 2 * steps


def test_a_state_from_a_checkpoint(tmp_path: Path) -> None:
    """Going on where the generator was is right; going back to where steps were taken since is not."""
    run = private_run()
    with run.watch(tmp_path / "a"):
        run.train(most=3)
        before = run.optimizer.generator.get_state()
        run.train(most=3)
        after = run.optimizer.generator.get_state()
    run = private_run(seed=9)
    with resumed(tmp_path / "a", run) as ledger:
        run.optimizer.generator.set_state(after)
        run.train(most=1)
        assert ledger.steps == 7
        run.optimizer.generator.set_state(before)
        check_refused(run, ledger, 7)


def test_two_runs_with_the_same_seed_are_not_composed(tmp_path: Path) -> None:
    """Each by itself is sound; with seeds of their own, so are both together."""
    ledgers: list[Ledger] = []
    for number, seed in enumerate((3, 3, 4)):
        run = private_run(seed=seed)
        with run.watch(tmp_path / f"{number}.ledger"):
            run.train(most=2)
        ledgers.append(Ledger.open(tmp_path / f"{number}.ledger", write=False))
    with pytest.raises(LedgerError, match=r"1\.ledger': contains a step with the random numbers \(noise\)"):
        compose(ledgers[:2])
    assert compose(ledgers[1:]).steps == 4


def test_noise_from_elsewhere_is_not_looked_at(ledger: Ledger) -> None:
    run = private_run()
    SecureNoise(run.optimizer, Secure())
    run.watch(ledger)
    for _ in range(2):
        run.optimizer.generator.manual_seed(3)
        run.train(most=1)
    assert ledger.steps == 2


def test_a_ledger_that_was_closed_by_another_watch_is_still_known(ledger: Ledger) -> None:
    for _ in range(2):
        run = private_run()
        with run.watch(ledger):
            if ledger.steps:
                check_refused(run, ledger, 2)
            else:
                run.train(most=2)


def test_a_closed_ledger_is_refused_before_anything_is_attached(ledger: Ledger) -> None:
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    ledger.close()
    run = private_run()
    hooks = len(run.model._module._forward_pre_hooks)
    with pytest.raises(LedgerError, match="is closed"):
        run.watch(ledger)
    assert len(run.model._module._forward_pre_hooks) == hooks
