"""LoRA whose weights never move, as opacus#820 tells of it: a language model that is trained for nothing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, Dataset

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger

RECORDS, LENGTH, WORDS = 40, 6, 40
NOTHING_TRAINED = r"optimizer\.param_groups='no trained parameters': expected at least one with requires_grad=True"
NO_GRADIENT = r"loss='without a gradient': expected .* \(adapters that are merged or switched off train nothing\)"


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random sentences of equal length, each of which is to be predicted word by word."""

    def __init__(self) -> None:
        self.words = torch.randint(1, WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        words = self.words[number]
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words}


def adapted() -> Any:
    """A small GPT-2 with adapters beside its attention, which alone are trained."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.manual_seed(0)
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"vocab_size": WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 1, "eos_token_id": 1}
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # between peft and transformers
        return peft.get_peft_model(
            transformers.GPT2LMHeadModel(transformers.GPT2Config(**size, **quiet)).train(),
            peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True),
        )


def made_private(change: Callable[[Any], Any] = lambda model: None) -> tuple[Any, Any, Any]:
    """Return what make_private returns; ``change`` is made after the optimizer has got its parameters."""
    model = adapted()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    change(model)
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(Sentences(), batch_size=10),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    return made


def test_adapters_of_a_language_model_are_trained() -> None:
    """The script of the report as it is: every adapter moves, and nothing is said."""
    model, optimizer, loader = made_private()
    before = {name: each.clone() for name, each in model.named_parameters() if each.requires_grad}
    with bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger(), audit=Sentences()) as watched:
        for batch in loader:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
        assert watched.ledger.steps == len(loader)
    after = dict(model.named_parameters())
    assert len(before) == 2
    assert not any(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        (lambda model: model.merge_adapter(), NO_GRADIENT),
        (lambda model: model.base_model.disable_adapter_layers(), NOTHING_TRAINED),
        (lambda model: model.requires_grad_(False), NOTHING_TRAINED),
    ],
    ids=["merged", "switched off", "frozen"],
)
def test_adapters_that_cannot_be_trained_are_refused_before_training(change: Any, refusal: str) -> None:
    model, optimizer, loader = made_private(change)
    with pytest.raises(InvalidInputError, match=refusal):
        bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger(), audit=Sentences())
