"""The dry run inside ``watch``: norms must not depend on how many records go through the model at once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import FEATURES, audit_norms, private_run, random_data, small_model


class Autoencoder(nn.Module):
    """A small variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(FEATURES, 8), nn.Linear(4, FEATURES)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


def elbo(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The usual loss: everything is added up."""
    decoded, mean, log_variance = output
    divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
    return nn.functional.mse_loss(decoded, target, reduction="sum") + divergence


def mean_elbo(output: Any, target: torch.Tensor) -> torch.Tensor:
    return elbo(output, target) / len(target)


def autoencoder_run(**options: Any) -> Any:
    torch.manual_seed(0)
    x, _ = random_data(200)
    run = private_run(Autoencoder(), data=(x, x), **options)
    return run


AUDIT = random_data(60, seed=9)[0], random_data(60, seed=9)[0]


@pytest.mark.parametrize("audit_batch", [1, 8, 128])
def test_a_loss_that_adds_up_where_opacus_believes_it_averages(tmp_path: Path, audit_batch: int) -> None:
    run = autoencoder_run()
    with pytest.raises(InvalidInputError, match=r"loss_reduction='mean': expected 'sum' in make_private.*\Z"):
        run.watch(tmp_path / "run.ledger", audit=AUDIT, loss=elbo, audit_batch=audit_batch)
    assert list(tmp_path.iterdir()) == []
    assert "pre_step" not in vars(run.optimizer)


@pytest.mark.parametrize("audit_batch", [1, 8, 128])
def test_a_loss_that_averages_where_opacus_believes_it_adds_up(audit_batch: int) -> None:
    run = autoencoder_run(loss_reduction="sum")
    with pytest.raises(InvalidInputError, match="loss_reduction='sum': expected 'mean' in make_private"):
        run.watch(Ledger(), audit=AUDIT, loss=mean_elbo, audit_batch=audit_batch)


@pytest.mark.parametrize(("reduction", "loss"), [("sum", elbo), ("mean", mean_elbo)])
@pytest.mark.parametrize("audit_batch", [1, 8, 128])
def test_a_loss_that_does_what_opacus_was_told(reduction: str, loss: Any, audit_batch: int) -> None:
    run, ledger = autoencoder_run(loss_reduction=reduction), Ledger(keep_norms=True)
    run.loss = loss
    run.watch(ledger, audit=AUDIT, loss=loss, audit_batch=audit_batch)
    run.train(most=1)
    assert 10 < np.median(audit_norms(ledger, 1)) < 100
    assert ledger.history.caveats == ["given-loss", "random-draws"]


@pytest.mark.parametrize("options", [{}, {"mode": "ghost"}, {"clipping": "per_layer", "max_grad_norm": [1e-3] * 4}])
def test_the_same_without_random_numbers(options: dict[str, Any]) -> None:
    """With bounds by layer far below all norms, clipped norms would all be alike."""

    def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output, target, reduction="sum")

    for records in (1, 2, 3, 60):
        run = private_run(**options)
        with pytest.raises(InvalidInputError, match="loss_reduction='mean'"):
            run.watch(Ledger(), audit=random_data(records, seed=9), loss=total)


def test_a_loss_that_couples_records_is_refused() -> None:
    def contrast(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        alike = (output @ output.T).log_softmax(dim=1)
        return -alike.diagonal().mean()

    run = private_run()
    with pytest.raises(InvalidInputError, match="loss='coupled records': expected a model and a loss that treat each"):
        run.watch(Ledger(), audit=random_data(60, seed=9), loss=contrast)


class Counting(nn.Module):
    """Keeps a count of its passes, as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_model()
        self.counter = nn.Module()
        self.counter.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counter.passes += 1
        return nn.functional.dropout(self.inner(x), 0.2, self.training)


def test_a_dry_run_leaves_everything_as_it_was() -> None:
    run = private_run(Counting())
    x, y = next(iter(run.loader))
    run.loss(run.model(x), y).backward()

    def state() -> list[Any]:
        parameters = run.optimizer.params
        return [
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            run.optimizer.generator.get_state().tolist(),
            run.loader.generator.get_state().tolist(),
            [buffer.tolist() for buffer in run.model.buffers()],
            [parameter.grad.tolist() for parameter in parameters],
            [parameter.grad_sample.tolist() for parameter in parameters],
            [parameter._version for parameter in parameters],
            [module.training for module in run.model.modules()],
        ]

    before = state()
    run.watch(Ledger(), audit=random_data(60, seed=9), loss=run.loss)
    assert state() == before


def test_gradients_that_are_all_zero_at_first_are_checked_later() -> None:
    """Nothing can be seen before the first update if all weights of the model are 0."""

    def total(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output.square().sum(dim=1) * (target >= 0)).sum()

    model = small_model()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    run, ledger = private_run(model), Ledger()
    run.watch(ledger, audit=random_data(60, seed=9), loss=total)
    run.train(most=1)
    with pytest.raises(InvalidInputError, match="loss_reduction='mean'"):
        run.train(most=1)
    assert ledger.steps == 1
