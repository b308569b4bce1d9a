"""Refuse layers that couple the records of a batch, or that a batch changes without noise.

Why embeddings with a largest norm are refused (``_check_embeddings``)
    With ``max_norm``, a pass shortens the rows of the weight that it looks up, in place and in every mode. Noise has
    made most rows longer than that, so the weight shows which rows the last batch looked up, whoever is in it.

Why packed sequences are looked at (``refuse_unsorted_sequences``)
    ``pack_padded_sequence(enforce_sorted=False)`` sorts the records of a batch by length, and puts them back later.
    Opacus' recurrent layers keep the gradients of records in the sorted order, all other layers in the order of the
    batch: row i of the whole gradient then belongs to two people, and whoever leaves changes two clipped rows. If
    sequences are sorted before they reach the model, they are in one order everywhere.
"""

from __future__ import annotations

from typing import Any

from opacus.layers.dp_rnn import DPRNNBase
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from bayesdp.validation import refuse


def coupling_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a model that couple records while they are in training mode.

    BatchNorm normalises each record by its batch. InstanceNorm does not, but the statistics it may keep of the batch
    become part of the model without noise.
    """
    module = getattr(model, "_module", None)
    return [layer for layer in module.modules() if couples(layer)] if isinstance(module, nn.Module) else []


def check_layers(model: Any) -> None:
    """Raise if a coupling layer is in training mode or has trained parameters, and if passes change an embedding."""
    for layer in coupling_layers(model):
        if any(parameter.requires_grad for parameter in layer.parameters()):
            raise _refusal(layer)
        check_mode(layer)
    _check_embeddings(model)


def _check_embeddings(model: Any) -> None:
    """Raise InvalidInputError for an embedding whose passes change its weight."""
    module = getattr(model, "_module", None)
    for layer in module.modules() if isinstance(module, nn.Module) else ():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            expected = "None: a pass shortens the rows that its records look up, in the weight and without noise"
            raise refuse(f"{type(layer).__name__}.max_norm", layer.max_norm, expected)


def check_mode(layer: nn.Module) -> None:
    """Raise InvalidInputError if a coupling layer is in training mode."""
    if layer.training:
        raise _refusal(layer)


def couples(layer: nn.Module) -> bool:
    """Return whether a layer couples the records of a batch while it is in training mode."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
        return True
    return isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats  # pyright: ignore[reportPrivateUsage]


def refuse_unsorted_sequences(module: nn.Module) -> list[Any]:
    """Let recurrent layers raise InvalidInputError for sequences that were packed unsorted; return the hooks' handles.

    Whether the batch happened to be in order does not matter: the message must not depend on training records.
    """
    recurrent = [layer for layer in module.modules() if isinstance(layer, DPRNNBase)]
    return [layer.register_forward_pre_hook(_check_sequences) for layer in recurrent]


def _check_sequences(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    packed = inputs[0] if inputs else None
    if layer.training and isinstance(packed, PackedSequence) and packed.sorted_indices is not None:
        expected = (
            "enforce_sorted=True, and sequences that the collate function sorts by length: otherwise Opacus adds "
            "gradients of different records to each other"
        )
        raise refuse("pack_padded_sequence(enforce_sorted)", False, expected)


def _refusal(layer: nn.Module) -> Exception:
    return refuse(
        "model",
        type(layer).__name__,
        "normalisation of each record by itself: opacus.validators.ModuleValidator.fix(model) puts GroupNorm in its "
        "place; or keep it in eval mode",
    )
