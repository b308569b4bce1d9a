"""The loss of tokens, as a mean over records: sum over the tokens of a record, divided by their number.

Models of Hugging Face divide the loss of all tokens of a batch by their number, so that the gradient of a record
depends on how long the others are, and clipping no longer bounds what one record contributes. Here each record has a
loss of its own, and the loss of a batch is their mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

IGNORED = -100  # the label of tokens that have none, as everywhere in Hugging Face


def has_token_labels(outputs: Any, labels: Any) -> bool:
    """Return whether a model has been given labels for tokens: logits [b, n, classes] for labels [b, n]."""
    logits = getattr(outputs, "logits", None)
    if not isinstance(logits, torch.Tensor) or not isinstance(labels, torch.Tensor):
        return False
    return logits.ndim == 3 and labels.ndim == 2 and logits.shape[:2] == labels.shape


def record_losses(logits: torch.Tensor, labels: torch.Tensor, *, shifted: bool, smoothing: float) -> torch.Tensor:
    """Return the mean cross-entropy over the labelled tokens of each record, [b]; 0 for a record without labels.

    ``shifted``: the logits at a token predict the label of the next one, as in causal language models.
    """
    if shifted:
        logits, labels = logits[:, :-1], labels[:, 1:]
    each = functional.cross_entropy(
        logits.transpose(1, 2).float(), labels, ignore_index=IGNORED, reduction="none", label_smoothing=smoothing
    )
    counted = (labels != IGNORED).sum(dim=1).clamp(min=1)
    return each.sum(dim=1) / counted
