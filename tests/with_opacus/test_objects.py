"""Opacus' objects: which are accepted, what else may not touch them, and that they are left as they were."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run, random_data, small_model


def test_objects_that_opacus_did_not_make_are_refused(ledger: Ledger) -> None:
    run = private_run()
    plain = torch.optim.SGD(run.model.parameters(), lr=0.1)
    with pytest.raises(InvalidInputError, match="optimizer='SGD': expected the optimizer that make_private returned"):
        bayesdp.opacus.watch(run.model, plain, run.loader, ledger=ledger)
    with pytest.raises(InvalidInputError, match="model='Sequential': expected the model that make_private returned"):
        bayesdp.opacus.watch(small_model(), run.optimizer, run.loader, ledger=ledger)
    with pytest.raises(InvalidInputError, match=r"data_loader=.*: expected the data loader that make_private returned"):
        bayesdp.opacus.watch(run.model, run.optimizer, [1, 2], ledger=ledger)
    silent = private_run(noise_multiplier=0.0)
    with pytest.raises(InvalidInputError, match=r"noise_multiplier=0\.0"):
        silent.watch(ledger)
    run.watch(ledger)  # nothing was left behind by the refusals
    with pytest.raises(InvalidInputError, match="not watched already"):
        run.watch(ledger)


def test_an_optimizer_that_is_not_known_is_refused(ledger: Ledger) -> None:
    class Own(DPOptimizer):
        pass

    run = private_run()
    run.optimizer.__class__ = Own
    with pytest.raises(InvalidInputError, match=r"optimizer='Own': expected one of DPOptimizer, "):
        run.watch(ledger)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_is_refused(ledger: Ledger, affine: bool) -> None:
    """Opacus itself accepts layers without trainable parameters, even if they normalise by the batch."""
    model = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16, affine=affine), nn.Linear(16, 3))
    if affine:
        with pytest.raises(Exception, match="BatchNorm"):
            private_run(model)
        return
    run = private_run(model)
    with pytest.raises(InvalidInputError, match=r"model='BatchNorm1d': .*ModuleValidator\.fix"):
        run.watch(ledger)
    model[1].eval()
    run.watch(ledger)
    run.train(most=1)
    run.model.train()
    with pytest.raises(InvalidInputError, match="BatchNorm1d"):
        run.train(most=1)
    assert ledger.steps == 1


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_a_pass_shortens_are_refused(layer: type[nn.Module], ledger: Ledger) -> None:
    """The rows that a batch looks up are shortened in the weight, so it shows who was in the batch."""
    model = nn.Sequential(layer(50, 12, max_norm=1.0), nn.Flatten(), nn.Linear(12, 3))
    run = private_run(model)
    with pytest.raises(InvalidInputError, match=rf"{layer.__name__}\.max_norm=1\.0: expected None"):
        run.watch(ledger)
    model[0].max_norm = None
    run.watch(ledger)


def test_instance_norm_that_keeps_statistics_is_refused(ledger: Ledger) -> None:
    norm = nn.InstanceNorm1d(1, affine=False, track_running_stats=True)
    run = private_run(nn.Sequential(nn.Unflatten(1, (1, 12)), norm, nn.Flatten(), nn.Linear(12, 3)))
    with pytest.raises(InvalidInputError, match="InstanceNorm1d"):
        run.watch(ledger)


def test_a_step_hook_attached_after_watch_is_noticed(ledger: Ledger) -> None:
    run = private_run()
    run.watch(ledger)
    run.optimizer.attach_step_hook(lambda optimizer: None)
    before = run.parameters
    with pytest.raises(InvalidInputError, match=r"step_hook=.*: expected the hook that watch attached.* close the w"):
        run.train(most=1)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 0


def test_a_step_hook_called_out_of_turn_is_refused(ledger: Ledger) -> None:
    """No sum is waiting to be released."""
    run = private_run()
    run.watch(ledger)
    run.train(most=1)
    with pytest.raises(InvalidInputError, match=r"pre_step=.*: expected the method that watch has put there"):
        run.optimizer.step_hook(run.optimizer)
    assert ledger.steps == 1


def test_steps_of_the_wrapped_optimizer_are_refused(ledger: Ledger) -> None:
    """Such steps would have no noise, and would not be recorded."""
    run = private_run()
    run.watch(ledger)
    run.train(most=1)
    before = run.parameters
    x, y = random_data(20)
    run.optimizer.zero_grad()
    run.loss(run.model(x), y).backward()
    with pytest.raises(InvalidInputError, match="steps of the optimizer that make_private returned"):
        run.optimizer.original_optimizer.step()
    assert np.array_equal(run.parameters, before)


def test_training_without_an_optimizer_is_noticed(ledger: Ledger) -> None:
    run = private_run()
    watched = run.watch(ledger)
    x, y = random_data(20)
    run.loss(run.model(x), y).backward()
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter -= 0.1 * parameter.grad
    with pytest.warns(UserWarning, match="Parameters were changed, but no step was recorded"):
        watched.claims()
    watched.claims()  # and not again


def test_closing_leaves_opacus_as_it_was(ledger: Ledger) -> None:
    run = private_run(mode="ghost")
    before = dict(run.optimizer.__dict__), type(run.loader.batch_sampler)
    watched = run.watch(ledger)
    run.train(most=2)
    watched.close()
    watched.close()
    assert run.optimizer.__dict__.keys() == before[0].keys()
    assert run.optimizer.step_hook is before[0]["step_hook"]
    assert type(run.loader.batch_sampler) is before[1]
    run.train(most=2)
    assert ledger.steps == 2


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_copies_are_not_watched(ledger: Ledger, mode: str) -> None:
    """Copies of model and loader are free; Opacus' optimizers cannot be copied in any case."""
    run = private_run(mode=mode)
    run.watch(ledger)
    run.train(most=2)
    best = copy.deepcopy(run.model)
    assert best.state_dict().keys() == run.model.state_dict().keys()
    torch.save(run.model, io.BytesIO())
    loader = copy.deepcopy(run.loader)
    x, y = next(iter(loader))
    if mode == "ghost":
        assert best.get_norm_sample.__self__ is best
    with pytest.raises(InvalidInputError, match=r"data_loader='other batches'|no more samples than"):
        run.step(torch.cat([x] * 5), torch.cat([y] * 5))
    run.train(most=2)
    assert ledger.steps == 4
