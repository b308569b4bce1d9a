"""Several passes through the model for one batch, as in a GAN: the audit makes one, and claims say so."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesdp.opacus
from bayesdp import Gate, InvalidInputError, Ledger
from opacus_runs import FEATURES, Run, audit_norms, batch_norms, private_run, random_data

RECORDS = 40


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(output[:, 0], target)


def discriminator_run() -> tuple[Run, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    data = random_data(RECORDS)[0], torch.ones(RECORDS)
    model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))
    generator = nn.Linear(4, FEATURES)
    run = private_run(model, data=data, batch=RECORDS, max_grad_norm=20.0)
    return run, generator, torch.optim.SGD(generator.parameters(), lr=0.1)


def train(run: Run, generator: nn.Module, generator_optimizer: Any, *, fake: bool) -> None:
    """Train for three steps of each, as in Opacus' example."""
    for _ in range(3):
        for real, label in run.loader:
            run.optimizer.zero_grad(set_to_none=True)
            error = loss(run.model(real), label)
            if fake:
                generated = generator(torch.randn(len(real), 4))
                error = error + loss(run.model(generated.detach()), torch.zeros(len(real)))
            error.backward()
            run.optimizer.step()
            run.optimizer.zero_grad(set_to_none=True)
            generator_optimizer.zero_grad()
            loss(run.model(generator(torch.randn(len(real), 4))), torch.ones(len(real))).backward()
            generator_optimizer.step()


@pytest.mark.parametrize("fake", [False, True])
def test_an_audit_that_misses_the_generated_samples_says_so(fake: bool) -> None:
    data = random_data(RECORDS)[0], torch.ones(RECORDS)
    gate = Gate(epsilon=20.0, delta=1e-5, share=0.5, gamma=0.01, records=RECORDS)
    run, *generator = discriminator_run()
    ledger = Ledger(keep_norms=True, gate=gate)
    watched = run.watch(ledger, audit=data, loss=loss)
    train(run, *generator, fake=fake)
    assert ledger.steps == 3
    alike = np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-3)
    assert alike != fake  # the whole training set is drawn, and is the audit set
    assert ledger.history.caveats == ["given-loss"] + ["several-passes"] * fake
    claims = watched.claims(shares=[0.5])
    assert claims.everyone.kind == "proved"
    assert claims.share(0.5).ex_post.kind == ("estimate" if fake else "ex-post")
    assert {claim.kind for claim in claims.gate} == {"estimate" if fake else "proved"}
    assert ("training made several for each batch" in claims.statement()) == fake


def test_an_audit_of_your_own_may_make_both_passes() -> None:
    class Norms:
        records = 30

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            return torch.full((30,), 0.5)

    run, *generator = discriminator_run()
    ledger = Ledger()
    run.watch(ledger, audit=Norms())
    train(run, *generator, fake=True)
    assert ledger.history.caveats == []


@pytest.mark.parametrize("passes", [1, 2])
def test_a_loss_of_both_passes_has_the_norms_of_training(passes: int) -> None:
    """The whole training set is drawn, and is the audit set; training makes ``passes`` passes, the audit two."""
    data = random_data(RECORDS)[0], torch.ones(RECORDS)
    run, *_ = discriminator_run()
    invented = torch.ones(FEATURES)

    def both(model: Any, batch: Any) -> torch.Tensor:
        real, label = batch
        output = model(real)[:, 0], model(invented.expand_as(real))[:, 0]
        losses = [nn.functional.binary_cross_entropy_with_logits(output[0], label, reduction="none")]
        losses.append(nn.functional.binary_cross_entropy_with_logits(output[1], 0 * label, reduction="none"))
        return losses[0] + losses[1]

    ledger = Ledger(keep_norms=True)
    run.watch(ledger, audit=data, loss=both)
    for real, label in run.loader:
        run.optimizer.zero_grad()
        error = loss(run.model(real), label)
        if passes == 2:
            error = error + loss(run.model(invented.expand_as(real)), 0 * label)
        error.backward()
        run.optimizer.step()
    assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4) == (passes == 2)
    assert ledger.history.caveats == ["given-loss"] + ["several-passes"] * (passes == 1)


def test_a_private_step_for_generated_samples_is_refused() -> None:
    """As in loops that update the discriminator for real and for generated samples in turn."""
    run, generator, _ = discriminator_run()
    run.loss, ledger = loss, Ledger()
    run.watch(ledger)
    real, label = next(iter(run.loader))
    run.step(real, label)
    before = run.parameters
    with pytest.raises(InvalidInputError, match="data_loader='other batches': expected batches that come from"):
        run.step(generator(torch.randn(len(real), 4)).detach(), 0 * label)
    assert np.array_equal(run.parameters, before)
    assert ledger.steps == 1


def test_watching_does_not_change_it() -> None:
    results = []
    for watched in (False, True):
        run, *generator = discriminator_run()
        torch.manual_seed(1)
        if watched:
            run.watch(Ledger(), audit=(random_data(20, seed=9)[0], torch.ones(20)), loss=loss)
        train(run, *generator, fake=True)
        results.append((run.parameters.tobytes(), [p.detach().numpy().tobytes() for p in generator[0].parameters()]))
    assert results[0] == results[1]


def test_model_and_optimizer_are_left_as_they_were() -> None:
    run = private_run()
    module = run.model._module
    hooks = len(module._forward_hooks)
    watched: bayesdp.opacus.Watch = run.watch(Ledger(), audit=random_data(20, seed=9), loss=run.loss)
    copied = copy.deepcopy(run.model)
    pickled = pickle.dumps(next(reversed(module._forward_hooks.values())))
    run.train(most=2)
    passes = watched._open._passes
    assert passes is not None
    output = torch.ones(3, requires_grad=True)
    for hook in (next(reversed(copied._module._forward_hooks.values())), pickle.loads(pickled)):
        hook(module, (), output)
    output.sum().backward()
    assert passes.taken() == 0
    watched.close()
    assert len(module._forward_hooks) == hooks
    assert "zero_grad" not in vars(run.optimizer)
