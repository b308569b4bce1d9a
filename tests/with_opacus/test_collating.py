"""Rows of a batch that several records are in: they are clipped once, so no epsilon holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run, random_data, small_model

MIXED = r"='mixed records': expected rows of one record each"


def mixup(items: list[Any]) -> Any:
    inputs, targets = default_collate(items)
    weight = float(torch.rand(())) / 2
    return weight * inputs + (1 - weight) * inputs[torch.randperm(len(inputs))], targets


def mixup_at_times(items: list[Any]) -> Any:
    return mixup(items) if np.random.random_sample() < 0.5 else default_collate(items)  # noqa: NPY002


def rolled(items: list[Any]) -> Any:
    inputs, targets = default_collate(items)
    return inputs + inputs.roll(1, 0), targets


def noisy(items: list[Any]) -> Any:
    inputs, targets = default_collate(items)
    return inputs + torch.randn_like(inputs), targets


def by_size(items: list[Any]) -> Any:
    return default_collate(sorted(items, key=lambda item: float(item[0].sum())))


def watched(collate: Any, ledger: Ledger, **options: Any) -> bayesdp.opacus.Watch:
    model = small_model()
    made: Any = PrivacyEngine().make_private(  # pyright: ignore[reportUnknownMemberType]
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(*random_data(200)), batch_size=20, collate_fn=collate),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return bayesdp.opacus.watch(*made, ledger=ledger, **options)


@pytest.mark.parametrize("collate", [mixup, mixup_at_times, rolled])
@pytest.mark.parametrize("audited", [False, True])
def test_a_collate_function_that_mixes_records_is_refused(collate: Any, audited: bool, ledger: Ledger) -> None:
    options = {"audit": random_data(30, 5), "loss": nn.CrossEntropyLoss()} if audited else {}
    with pytest.raises(InvalidInputError, match=f"collate_fn{MIXED}"):
        watched(collate, ledger, **options)


@pytest.mark.parametrize("collate", [None, noisy, by_size])
def test_what_each_record_has_for_itself_is_not(collate: Any, ledger: Ledger) -> None:
    with watched(collate, ledger) as run:
        assert not run.stopped


def mixing_losses(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    partners, weight = torch.randperm(len(inputs)), float(torch.rand(()))
    outputs = model(weight * inputs + (1 - weight) * inputs[partners])
    own = nn.functional.cross_entropy(outputs, targets, reduction="none")
    return weight * own + (1 - weight) * nn.functional.cross_entropy(outputs, targets[partners], reduction="none")


def noisy_losses(model: Any, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs + torch.randn_like(inputs)), targets, reduction="none")


def test_a_loss_that_mixes_records_at_random_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match=f"loss{MIXED}"):
        private_run().watch(ledger, audit=random_data(30, 5), loss=mixing_losses)
    with private_run().watch(ledger, audit=random_data(30, 5), loss=noisy_losses) as run:
        assert run.random_draws == ("the model or the loss",)
