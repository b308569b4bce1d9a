"""Small models in the structure of the scripts people train privately, with random data of the same form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import nn

from benchmarks.opacus_overhead import network as convolutional

Data = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A model, data for it, and the sizes at which it is measured."""

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[int], Data]
    batches: tuple[int, ...]
    audits: tuple[int, ...]
    limit: float
    "The most that auditing m records beside a batch of B may add, in m/B of a step."


class ReviewClassifier(nn.Module):
    """Opacus' imdb example: words, their mean, two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 16)
        self.inner, self.out = nn.Linear(16, 16), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.inner(self.words(x).mean(dim=1))))


class NameClassifier(nn.Module):
    """Opacus' char-lstm example: letters, an LSTM, a layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.lstm = nn.Embedding(128, 64), DPLSTM(64, 128, batch_first=True)
        self.out = nn.Linear(128, 18)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.letters(x))[0][:, -1])


class AttentionClassifier(nn.Module):
    """Words, attention of four heads, a layer on the mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(2_000, 64), DPMultiheadAttention(64, 4, batch_first=True)
        self.norm, self.out = nn.LayerNorm(64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x)
        return self.out(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(dim=1))


def discriminator() -> nn.Module:
    """The discriminator of Opacus' dcgan example, of a quarter of its width, for images of half the size."""
    width = 16
    return nn.Sequential(
        nn.Conv2d(1, width, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
        nn.GroupNorm(2 * width, 2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1, bias=False),
        nn.GroupNorm(4 * width, 4 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(4 * width, 2, 4, 1, 0, bias=False),
        nn.Flatten(),
    )


class Sentences(nn.Module):
    """A transformer of the shape of all-MiniLM-L6-v2 with two of its six layers, and a classifier on the mean.

    ``adapters``: only low-rank adapters of queries and values, and the classifier, are trained (LoRA, by peft);
    otherwise everything but the embeddings, as in Opacus' text tutorial.
    """

    def __init__(self, *, adapters: bool) -> None:
        super().__init__()
        from peft import LoraConfig, get_peft_model
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=2_000,
            hidden_size=384,
            num_hidden_layers=2,
            num_attention_heads=12,
            intermediate_size=1536,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        encoder: Any = BertModel(config, add_pooling_layer=False)
        for parameter in encoder.embeddings.parameters():
            parameter.requires_grad_(False)
        if adapters:
            encoder = get_peft_model(encoder, LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"]))
        self.encoder, self.out = encoder, nn.Linear(384, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.encoder(input_ids=x).last_hidden_state.mean(dim=1))


def tokens(words: int, length: int, classes: int) -> Callable[[int], Data]:
    """Return a function that draws so many records of ``length`` words each."""

    def drawn(records: int) -> Data:
        generator = torch.Generator().manual_seed(records)
        x = torch.randint(0, words, (records, length), generator=generator)
        return x, torch.randint(0, classes, (records,), generator=generator)

    return drawn


def images(size: int, classes: int) -> Callable[[int], Data]:
    """Return a function that draws so many square images."""

    def drawn(records: int) -> Data:
        generator = torch.Generator().manual_seed(records)
        x = torch.randn(records, 1, size, size, generator=generator)
        return x, torch.randint(0, classes, (records,), generator=generator)

    return drawn


_USUAL: dict[str, Any] = {"batches": (64,), "audits": (8, 16, 44, 64, 128, 256, 512), "limit": 1.0}
_LARGE: dict[str, Any] = {"batches": (16,), "audits": (8, 16, 44, 64, 128), "limit": 1.0}

SCRIPTS = (
    Script(name="imdb", model=ReviewClassifier, data=tokens(10_000, 256, 2), **_USUAL),
    Script(name="char-lstm", model=NameClassifier, data=tokens(128, 15, 18), **_USUAL),
    Script(name="attention", model=AttentionClassifier, data=tokens(2_000, 32, 4), **_USUAL),
    Script(name="dcgan", model=discriminator, data=images(32, 2), **_USUAL),
    Script(name="cnn", model=convolutional, data=images(28, 10), **(_USUAL | {"limit": 0.7})),
    Script(name="minilm-lora", model=lambda: Sentences(adapters=True), data=tokens(2_000, 32, 2), **_LARGE),
    Script(name="minilm", model=lambda: Sentences(adapters=False), data=tokens(2_000, 32, 2), **_LARGE),
)
