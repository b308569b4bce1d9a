"""Adaptive clipping: the noisy count that is released beside the gradient is accounted."""

from __future__ import annotations

import pytest
import torch
from opacus.utils.adaptive_clipping import adaptive_clipping_utils
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from opacus_runs import ADAPTIVE, RATE, audit_norms, private_run, random_data, settings, small_model


def test_adaptive_clipping(ledger: Ledger) -> None:
    """The ledger has the noise on the gradient, the cost of the count beside it, and the bound of each step."""
    multiplier = 3.0
    run = private_run(records=2000, batch=200, noise_multiplier=multiplier, **ADAPTIVE)
    run.watch(ledger, audit=random_data(20, seed=9), loss=run.loss)
    bounds = []
    for x, y in run.loader:
        bounds.append(float(run.optimizer.max_grad_norm))
        run.step(x, y)
    assert len(set(bounds)) == 10
    for (noise_std, _, clip, _), bound in zip(settings(ledger), bounds, strict=True):
        on_gradient = (1 / multiplier**2 - 1 / (2 * 5.0) ** 2) ** -0.5  # what the count leaves of the multiplier
        assert noise_std == pytest.approx(on_gradient * bound)
        assert clip is not None
        assert noise_std / clip == pytest.approx(multiplier)  # both releases together: what Opacus accounts
    assert (audit_norms(ledger, 1) >= 0.5 / 5 * on_gradient * bounds[0] * (1 - 1e-9)).all()
    assert ledger.worst_case().epsilon == pytest.approx(
        bayesdp.worst_case_of([(multiplier, RATE, 10)]).epsilon, rel=0.02
    )
    [everyone, *_] = ledger.claims()
    assert everyone.kind == "estimate"
    assert "how many records adaptive clipping drew at each step is public" in everyone.assumptions


def test_adaptive_clipping_noise_is_what_is_measured() -> None:
    """The ledger's noise is the standard deviation of what Opacus adds to the gradient of an empty sum."""
    wide = nn.Linear(12, 4000)
    torch.nn.init.zeros_(wide.weight)
    x = torch.zeros(400, 12)
    run = private_run(wide, data=(x, torch.zeros(400, dtype=torch.long)), batch=100, **ADAPTIVE)
    with Ledger() as ledger:
        run.watch(ledger)
        run.train(most=1)
        noise = wide.weight.grad  # inputs are 0, so the gradient of the weight is noise alone
        assert noise is not None
        measured = float(noise.std()) * run.optimizer.expected_batch_size
        assert settings(ledger)[0][0] == pytest.approx(measured, rel=0.02)


def test_adaptive_clipping_with_virtual_steps_is_refused(ledger: Ledger) -> None:
    run = private_run(records=2000, batch=200, **ADAPTIVE)
    run.watch(ledger)
    manager = BatchMemoryManager(data_loader=run.loader, max_physical_batch_size=64, optimizer=run.optimizer)
    with manager as loader, pytest.raises(InvalidInputError, match=r"clipping='adaptive': .* BatchMemoryManager"):
        run.train(loader=loader)
    assert ledger.steps == 0


def test_adaptive_clipping_where_a_batch_may_be_empty_is_refused(ledger: Ledger) -> None:
    run = private_run(records=40, batch=4, **ADAPTIVE)
    with pytest.raises(InvalidInputError, match="clipping='adaptive': expected batches that are never empty"):
        run.watch(ledger)
    run = private_run(records=40, batch=4, rand_on_empty=True, **ADAPTIVE)
    run.watch(ledger)
    run.train(4)
    assert ledger.steps == 40


def test_adaptive_ghost_clipping_is_refused(ledger: Ledger) -> None:
    """Its noise depends on how many records were drawn."""
    model, (x, y) = small_model(), random_data(2000)
    engine = adaptive_clipping_utils.PrivacyEngineAdaptiveClipping()
    model, optimizer, loss, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=200),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        criterion=nn.CrossEntropyLoss(),
        grad_sample_mode="ghost",
        target_unclipped_quantile=0.5,
        min_clipbound=0.1,
        max_clipbound=10.0,
        clipbound_learning_rate=0.2,
    )
    with pytest.raises(InvalidInputError, match="loss='DPLossFastGradientAdaptiveClipping'"):
        bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, loss=loss)
    bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger)  # it cannot be seen yet
    x, y = next(iter(loader))
    loss(model(x), y).backward()
    with pytest.raises(InvalidInputError, match="clipping='adaptive ghost'"):
        optimizer.step()
    assert ledger.steps == 0
