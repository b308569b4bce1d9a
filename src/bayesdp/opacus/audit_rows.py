"""Refuse layers that are not given one row for each record: Opacus cannot tell whose gradient is whose in them."""

from __future__ import annotations

from typing import Any, cast

from opacus.layers.dp_rnn import RNNLinear
from torch import nn

from bayesdp.validation import refuse

_WAY_OUT = (
    "one row for each record in what this layer is given (for position embeddings: pass position_ids with a row for "
    "each record), or a layer that is not trained (requires_grad_(False))"
)


def check_rows(module: nn.Module, records: int, axis: int) -> None:
    """Raise InvalidInputError if a trained layer of a hooked ``module`` was given other rows than one per record.

    Called between a forward pass of ``records`` records and its backward pass, while Opacus keeps what each layer was
    given; ``axis`` is that of records. Position embeddings are the usual case: their input is the same for all records,
    so it has one row, and Opacus fails or clips nonsense. Recurrent layers see fewer rows where sequences have ended,
    which Opacus knows.
    """
    for name, layer in module.named_modules():
        given: Any = layer.__dict__.get("activations")
        if isinstance(layer, RNNLinear) or not isinstance(given, list):
            continue
        for inputs in cast(list[list[Any]], given):
            shape = tuple(inputs[0].shape) if inputs else ()
            if len(shape) > axis and shape[axis] != records:
                raise refuse(f"model.{name}", type(layer).__name__, _WAY_OUT)
