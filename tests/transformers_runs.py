"""Small private runs with Hugging Face: random weights, invented sentences, nothing from the network."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

WORDS, LONGEST = 50, 8
PRIVATE: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}


class Sentences(Dataset[Any]):
    """Sentences of different lengths with a label each; ``tokens``: a label for each word instead."""

    def __init__(self, records: int, seed: int = 0, *, tokens: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, LONGEST + 1, (records,), generator=generator).tolist()
        self.items = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> dict[str, Any]:
        words = self.items[number]
        return {"input_ids": words, "labels": words.clone() if self.tokens else int(words[0]) % 2}


def collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Pad sentences to the longest of a batch, as a data collator does."""
    words = [item["input_ids"] for item in items]
    batch = {
        "input_ids": torch.nn.utils.rnn.pad_sequence(words, batch_first=True),
        "attention_mask": torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in words], batch_first=True),
    }
    labels = [item["labels"] for item in items]
    if isinstance(labels[0], torch.Tensor):
        batch["labels"] = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
    else:
        batch["labels"] = torch.tensor(labels)
    return batch


def sizes(**options: Any) -> dict[str, Any]:
    """Return the settings of a tiny model without dropout."""
    return {
        "vocab_size": WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **options,
    }


def classifier(seed: int = 0, **options: Any) -> BertForSequenceClassification:
    """Return a tiny BERT whose position embeddings, which all records share, are frozen."""
    torch.manual_seed(seed)
    model = BertForSequenceClassification(BertConfig(**sizes(**options)))
    model.bert.embeddings.position_embeddings.requires_grad_(False)
    model.bert.embeddings.token_type_embeddings.requires_grad_(False)
    return model


def arguments(folder: Any, **options: Any) -> TrainingArguments:
    """Return arguments of a short run that shows nothing."""
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "save_strategy": "no", "logging_steps": 1}
    quiet |= {"per_device_train_batch_size": 8, "max_steps": 3, "dataloader_pin_memory": False}
    return TrainingArguments(output_dir=str(folder), **(quiet | options))
