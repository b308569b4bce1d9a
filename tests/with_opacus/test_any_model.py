"""Layers and models of all kinds: audit records have the norms that they have in a batch, and alone."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule, PrivacyEngine
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, Dataset

import bayesdp.opacus
from bayesdp import InvalidInputError, Ledger
from opacus_runs import CLASSES, audit_norms, batch_norms

RECORDS, LENGTH, WORDS = 12, 6, 40


def sentences() -> dict[str, torch.Tensor]:
    """Sentences of different lengths, padded with 0."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, LENGTH + 1, (RECORDS,), generator=generator)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    words = torch.randint(1, WORDS, (RECORDS, LENGTH), generator=generator)
    labels = torch.randint(0, CLASSES, (RECORDS,), generator=generator)
    return {"input_ids": words * mask, "attention_mask": mask, "labels": labels}


class Rows(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return {name: values[number] for name, values in self.batch.items()}


class Reader(nn.Module):
    """Embedded words through some layers; with labels, a model that returns its loss."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.words, self.layers, self.out = nn.Embedding(WORDS, 8, padding_idx=0), layers, nn.Linear(8, CLASSES)

    def read(self, embedded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.out(self.read(self.words(input_ids), attention_mask.sum(1)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Padded(Reader):
    def read(self, embedded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states, _ = self.layers(embedded)
        return states[torch.arange(len(lengths)), lengths - 1]


class Packed(Reader):
    ordered = True

    def read(self, embedded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=self.ordered)
        _, state = self.layers(packed)
        return (state[0] if isinstance(state, tuple) else state)[-1]


class Attending(Reader):
    def read(self, embedded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden = torch.arange(embedded.shape[1]) >= lengths[:, None]
        attended, _ = self.layers(embedded, embedded, embedded, key_padding_mask=hidden)
        return attended[:, 0]


def transformer(name: str, **settings: Any) -> Any:
    """A small model of the library transformers with random weights and no dropout."""
    transformers = pytest.importorskip("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    configuration = getattr(transformers, f"{name.split('For')[0].removesuffix('LMHeadModel')}Config")(
        vocab_size=WORDS, num_labels=CLASSES, pad_token_id=0, bos_token_id=1, eos_token_id=1, **settings
    )
    return getattr(transformers, name)(configuration).train()


def bert(**settings: Any) -> Any:
    size = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    quiet = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return transformer("BertForSequenceClassification", **size, **quiet, **settings)


def distil() -> Any:
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    return transformer("DistilBertForSequenceClassification", dim=8, n_layers=1, n_heads=2, hidden_dim=16, **quiet)


def gpt2(name: str = "GPT2ForSequenceClassification") -> Any:
    """Its layers are Conv1D of transformers, for which Opacus has no rule of its own: torch.func finds gradients."""
    quiet = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return transformer(name, n_embd=8, n_layer=1, n_head=2, **quiet)


def frozen(model: nn.Module, *parts: str) -> nn.Module:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(part in name for part in parts))
    return model


def last_layer_of_bert() -> nn.Module:
    """As in Opacus' tutorial on text: the last layer, the pooler and the classifier are trained."""
    return frozen(bert(), "embeddings", "layer.0")


def with_lora(model: nn.Module, *layers: str, turned: bool = False) -> nn.Module:
    peft = pytest.importorskip("peft")
    settings = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=2, lora_dropout=0.0, target_modules=[*layers], fan_in_fan_out=turned
    )
    with warnings.catch_warnings(category=FutureWarning, action="ignore"):  # between peft and transformers
        return peft.get_peft_model(model, settings)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "LSTM, padded": lambda: Padded(DPLSTM(8, 8, batch_first=True)),
    "GRU, padded": lambda: Padded(DPGRU(8, 8, batch_first=True)),
    "LSTM, packed": lambda: Packed(DPLSTM(8, 8, batch_first=True)),
    "attention": lambda: Attending(DPMultiheadAttention(8, 2, batch_first=True)),
    "BERT, last layer": last_layer_of_bert,
    "BERT, position embeddings frozen": lambda: frozen(bert(), "position_embeddings", "token_type_embeddings"),
    "DistilBERT": lambda: frozen(distil(), "position_embeddings"),
    "GPT-2": lambda: frozen(gpt2(), "wpe"),
    "BERT with LoRA": lambda: with_lora(bert(), "query", "value"),
    "GPT-2 with LoRA": lambda: with_lora(gpt2(), "c_attn", turned=True),
}


def sorted_sentences() -> dict[str, torch.Tensor]:
    batch = sentences()
    order = batch["attention_mask"].sum(1).argsort(descending=True)
    return {name: values[order] for name, values in batch.items()}


def norms_alone(model: Any, batch: dict[str, torch.Tensor]) -> np.ndarray:
    """Return the gradient norm of each record by itself, with nothing but autograd."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    norms = []
    for row in range(RECORDS):
        loss = model(**{name: values[row : row + 1] for name, values in batch.items()})["loss"]
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        norms.append(torch.cat([grad.reshape(-1) for grad in grads if grad is not None]).norm().item())
    return np.array(norms)


def longest_first(items: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A collate function for packed sequences."""
    ordered = sorted(items, key=lambda item: -int(item["attention_mask"].sum()))
    return {name: torch.stack([item[name] for item in ordered]) for name in items[0]}


def watched_norms(model: Any, batch: dict[str, torch.Tensor], mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Take a step with all records, which are the audit records too; return norms of audit and batch."""
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1),
        data_loader=DataLoader(Rows(batch), batch_size=RECORDS, collate_fn=longest_first),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        criterion=nn.CrossEntropyLoss(),
    )
    model, optimizer, *criterion, loader = made
    ledger = Ledger(keep_norms=True)
    with bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=Rows(batch)):
        for drawn in loader:
            optimizer.zero_grad()
            output = model(**drawn)
            loss: Any = criterion[0](output["logits"], drawn["labels"]) if criterion else output["loss"]
            loss.backward()
            optimizer.step()
    assert ledger.history.caveats == ["given-loss"] * (mode == "ghost")  # which takes a criterion of its own
    return audit_norms(ledger, 1), batch_norms(ledger, 1)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("model", MODELS)
def test_the_norms_are_those_of_the_batch_and_of_each_record_alone(model: str, mode: str) -> None:
    torch.manual_seed(0)
    trained, batch = MODELS[model](), sorted_sentences()
    alone = norms_alone(trained, batch)
    audit, drawn = watched_norms(trained, batch, mode)
    assert np.allclose(audit, alone, rtol=1e-4)
    assert np.allclose(drawn, alone, rtol=1e-4)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_position_embeddings_can_be_trained_if_each_record_brings_its_positions(mode: str) -> None:
    torch.manual_seed(0)
    trained = bert()
    positions = torch.arange(LENGTH).repeat(RECORDS, 1)
    batch = sorted_sentences() | {"position_ids": positions, "token_type_ids": torch.zeros_like(positions)}
    alone = norms_alone(trained, batch)
    assert np.allclose(watched_norms(trained, batch, mode)[0], alone, rtol=1e-4)


def test_language_models_with_tied_weights() -> None:
    """Embedding and output share a weight, which the gradient of a record reaches by both."""
    torch.manual_seed(0)
    trained = frozen(gpt2("GPT2LMHeadModel"), "wpe")
    words = torch.randint(1, WORDS, (RECORDS, LENGTH))
    batch = {"input_ids": words, "labels": words, "attention_mask": torch.ones_like(words)}
    alone = norms_alone(trained, batch)
    assert np.allclose(watched_norms(trained, batch, "hooks")[0], alone, rtol=1e-4)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_layer_that_sees_no_records_is_refused_by_watch(mode: str) -> None:
    """Position embeddings of transformers get one row for all records: Opacus fails at the first step."""
    expected = "model.bert.embeddings.position_embeddings='Embedding': expected one row for each record .* position_ids"
    with pytest.raises(InvalidInputError, match=expected):
        watched_norms(bert(), sentences(), mode)


@pytest.mark.parametrize("audited", [True, False])
def test_sequences_that_are_packed_unsorted_are_refused(audited: bool) -> None:
    """Opacus would add gradients of different records to each other, as the first lines show."""
    torch.manual_seed(0)
    model, batch = Packed(DPLSTM(8, 8, batch_first=True)), sentences()
    model.ordered = False
    alone = norms_alone(model, batch)
    hooked = GradSampleModule(copy.deepcopy(model))
    hooked(**batch)["loss"].backward()
    mixed = torch.cat([parameter.grad_sample.flatten(1) for parameter in hooked.parameters()], dim=1).norm(dim=1)
    assert np.allclose(np.sum(alone**2), mixed.square().sum().item(), rtol=0.2)
    assert not np.allclose(alone, mixed.numpy(), rtol=0.01)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Rows(batch), batch_size=RECORDS),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    expected = r"pack_padded_sequence\(enforce_sorted\)=False: expected enforce_sorted=True, and sequences"
    if audited:
        with pytest.raises(InvalidInputError, match=expected):
            bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger(), audit=batch)
        return
    with bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger()):
        with pytest.raises(InvalidInputError, match=expected):
            model(**next(iter(loader)))
        model.eval()
        model(**batch)
    model.train()
    model(**batch)["loss"].backward()


def test_audit_records_that_the_collate_function_reorders_are_refused() -> None:
    """Their norms would be those of other records."""
    torch.manual_seed(0)
    with pytest.raises(InvalidInputError, match="audit='reordered': expected audit records in the order in which"):
        watched_norms(Packed(DPLSTM(8, 8, batch_first=True)), sentences(), "hooks")
