"""Recognise a batch that was handed out when it comes to the model, by the memory of its tensors.

A loop may hold batches that it was handed out earlier: ``list(loader)``, a queue of batches fetched ahead, a shuffle of
batches. Sizes do not tell such batches apart. A tensor that the loop still holds keeps its memory to itself, so the
input of the model that begins at the same address is that batch, or a view of it. What was moved to a device or
computed anew is not recognised; ``Draws`` then goes by sizes, and by the order in which batches were handed out.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import torch
from torch import nn

from bayesdp.opacus.audit_data import tensors_of


class HandedOut:
    """Batches that were handed out, each under a number, as long as the loop holds them."""

    def __init__(self) -> None:
        self._tensors: dict[int, list[weakref.ref[torch.Tensor]]] = {}
        self._passed: list[int] = []
        "Numbers of the batches that have come to the model since ``taken`` was called last."

    def remember(self, number: int, batch: Any) -> None:
        """Remember the tensors of a batch; those of batches that nobody holds any more are forgotten."""
        self._tensors = {known: refs for known, refs in self._tensors.items() if self.is_held(known)}
        self._tensors[number] = [weakref.ref(tensor) for tensor in tensors_of(batch) if tensor.numel()]

    def is_held(self, number: int) -> bool:
        """Return whether the loop still holds a tensor of this batch."""
        return any(tensor() is not None for tensor in self._tensors.get(number, ()))

    def note_pass(self, inputs: Any) -> None:
        """Note which batch the inputs of a pass through the model are; nothing if that is not clear."""
        addresses = {tensor.data_ptr() for tensor in tensors_of(inputs) if tensor.numel()}
        shared: dict[int, int] = {}
        for number, refs in self._tensors.items():
            held = [tensor for ref in refs if (tensor := ref()) is not None]
            shared[number] = sum(tensor.data_ptr() in addresses for tensor in held)
        most = max(shared.values(), default=0)
        found = [number for number in shared if most and shared[number] == most]
        if len(found) == 1:
            self._passed.append(found[0])

    def taken(self) -> list[int]:
        """Return the numbers of the batches that have come to the model, each once and in order, and begin anew."""
        passed, self._passed = list(dict.fromkeys(self._passed)), []
        return passed


class NotesPasses(Protocol):
    """Whoever wants to know of passes through the model."""

    def note_pass(self, inputs: Any) -> None:
        """Note the inputs of a pass."""
        ...


class PassNote:
    """The hook before a pass in training mode; a copy of the model gets one that does nothing."""

    def __init__(self, told: NotesPasses | None) -> None:
        self._told = told

    def __call__(self, module: nn.Module, inputs: Any, keywords: Any) -> None:
        """Note a pass, if gradients may follow it."""
        if self._told is not None and module.training and torch.is_grad_enabled():
            self._told.note_pass((inputs, keywords))

    def __deepcopy__(self, memo: dict[int, Any]) -> PassNote:
        return PassNote(None)

    def __reduce__(self) -> Any:
        return PassNote, (None,)
