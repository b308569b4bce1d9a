"""What Opacus itself fails on is refused by ``watch`` under its own name, with what works instead."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from bayesdp.opacus.unsupported import check_supported
from opacus_runs import CLASSES, FEATURES, private_run, random_data


class Sentences(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        words = torch.arange(6) + number % 3
        return {
            "input_ids": words,
            "token_type_ids": torch.zeros(6, dtype=torch.long),
            "position_ids": torch.arange(6),
            "labels": torch.tensor(number % 2),
        }


def bert(reentrant: bool | None, *, trained: bool = True) -> tuple[Any, Any, Any]:
    """Return a private BERT, with activation checkpointing if ``reentrant`` says which."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: Any = transformers.BertForSequenceClassification(config)
    model.bert.requires_grad_(trained)
    if reentrant is not None:
        warnings.filterwarnings("ignore", "`gradient_checkpointing_enable` is deprecated")
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    made: Any = PrivacyEngine().make_private(
        module=model.train(),
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1),
        data_loader=DataLoader(Sentences(), batch_size=40),  # all of them
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return made


@pytest.mark.parametrize(("reentrant", "trained"), [(None, True), (True, True), (False, False)])
def test_checkpointing_that_works_is_watched(reentrant: bool | None, trained: bool, ledger: Ledger) -> None:
    model, optimizer, loader = bert(reentrant, trained=trained)
    with bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=Sentences()):
        optimizer.zero_grad()
        model(**next(iter(loader))).loss.backward()
        optimizer.step()
    audited, drawn = ledger.private_norms(1)
    assert audited is not None
    assert drawn is not None
    assert np.allclose(np.unique(audited.round(4)), np.unique(drawn.round(4)), atol=2e-4)


@pytest.mark.parametrize("audited", [True, False])
def test_checkpointing_that_is_not_reentrant_is_refused(audited: bool, ledger: Ledger) -> None:
    model, optimizer, loader = bert(reentrant=False)
    said = r"use_reentrant=False: expected True, .*kwargs=\{'use_reentrant': True\}: Opacus does not support"
    with pytest.raises(InvalidInputError, match=said):
        bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=Sentences() if audited else None)
    optimizer.zero_grad()
    model(**next(iter(loader))).loss.backward()
    with pytest.raises(ValueError, match="Per sample gradient is not initialized"):  # as Opacus puts it
        optimizer.step()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8))
        self.outer = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(checkpoint(self.inner, x, use_reentrant=False))


def test_an_audit_names_checkpointing_that_is_called_directly(ledger: Ledger) -> None:
    run = private_run(Checkpointed())
    with pytest.raises(
        InvalidInputError, match=r"torch\.utils\.checkpoint without use_reentrant=True: Opacus does not"
    ):
        run.watch(ledger, audit=random_data(30, seed=9), loss=run.loss)


@pytest.mark.parametrize("dora", [True, False])
def test_dora_is_refused(dora: bool) -> None:
    peft = pytest.importorskip("peft")
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # between peft and transformers
        model = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["0"], use_dora=dora))
    run = private_run(adapted)
    if dora:
        with pytest.raises(InvalidInputError, match="use_dora=True: expected False: Opacus does not support DoRA"):
            run.watch(Ledger())
    else:
        run.watch(Ledger(), audit=random_data(30, seed=9), loss=run.loss)
        run.train(most=1)
    adapted.requires_grad_(False)
    check_supported(run.model)
