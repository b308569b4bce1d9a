"""The loss of a batch of audit records, as training computes it: one number, of which each record has its own part."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from bayesdp.opacus.audit_data import is_pair
from bayesdp.validation import refuse

AuditLoss = Callable[[Any, Any, int], torch.Tensor]
"""(model, batch, number of records) -> the loss of the batch, reduced as ``make_private`` was told."""

_MODEL_NAMES = ("model", "module", "net", "network", "self")
_WAY_OUT = "a function loss(model, batch), its first parameter called model, that returns one loss for each record, [b]"


def audit_loss(loss: Any, batch: Any, reduction: str) -> AuditLoss:
    """Return how the loss of a ``batch`` of audit records is computed.

    ``loss`` is the criterion that is trained with, for (inputs, targets); or a function (model, batch) that returns one
    loss for each record, [b]; or None for a dictionary, if the model returns its loss (``model(**batch).loss``); or a
    ``BatchLoss``. For (inputs, targets), a function of two parameters is a criterion unless the first is called
    ``model``. ``reduction``, "mean" or "sum", is what ``make_private`` was told.

    Raises InvalidInputError if they do not fit together, and for a criterion that makes the gradient of a record depend
    on the others in its batch (``separate_loss``).
    """
    if isinstance(loss, BatchLoss):
        return loss
    if takes_model(loss) or (not is_pair(batch) and len(_parameters(loss)) == 2):
        return _OfRecords(loss, reduction)
    if loss is None and isinstance(batch, Mapping):
        return _of_output
    if loss is not None and is_pair(batch):
        return _OfPairs(separate_loss(loss, reduction, batch[1]), reduction)
    given = "None" if loss is None else getattr(loss, "__name__", type(loss).__name__)
    kinds = "the criterion that is trained with, for (inputs, targets); nothing, for a dictionary and a model that "
    raise refuse("loss", given, f"{kinds}returns its loss; or {_WAY_OUT}")


def takes_model(loss: Any) -> bool:
    """Return whether ``loss`` is a function (model, batch): whether its first parameter is called so."""
    parameters = _parameters(loss)
    return len(parameters) >= 2 and parameters[0] in _MODEL_NAMES


def _parameters(loss: Any) -> list[str]:
    """Return the names of the parameters of a function; none for criteria, and where they are not known."""
    if isinstance(loss, nn.Module | DPLossFastGradientClipping) or not callable(loss):
        return []
    try:
        return list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):  # built-in functions
        return []


class BatchLoss:
    """A function (model, batch) that returns the loss of a batch as the training program itself computes it.

    Frameworks have such a function, which knows no losses of single records; the dry run of the audit refuses it if the
    records of a batch are coupled. ``model`` is the wrapper of the audit, and ``model._module`` a copy of what was
    given to ``make_private``.
    """

    def __init__(self, function: Callable[[Any, Any], torch.Tensor]) -> None:
        self._function = function

    def __call__(self, model: Any, batch: Any, records: int) -> torch.Tensor:
        loss = self._function(model, batch)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise refuse("loss", type(loss).__name__, f"one number for the batch; or loss=, {_WAY_OUT}")
        return loss


class _OfRecords:
    """The user's losses by record, reduced."""

    def __init__(self, losses: Callable[[Any, Any], Any], reduction: str) -> None:
        self._losses, self._reduction = losses, reduction

    def __call__(self, model: Any, batch: Any, records: int) -> torch.Tensor:
        losses = self._losses(model, batch)
        if not isinstance(losses, torch.Tensor) or losses.shape != (records,):
            shape = tuple(losses.shape) if isinstance(losses, torch.Tensor) else type(losses).__name__
            raise refuse("loss(model, batch).shape", shape, f"({records},): one loss for each record")
        return losses.mean() if self._reduction == "mean" else losses.sum()


class _OfPairs:
    """A criterion of (inputs, targets)."""

    def __init__(self, criterion: Any, reduction: str) -> None:
        self._criterion, self._reduction = criterion, reduction

    def __call__(self, model: Any, batch: Any, records: int) -> torch.Tensor:
        inputs, targets = batch
        outputs = _called(model, inputs)
        try:
            loss = self._criterion(outputs, targets)
        except TypeError as error:
            parameters = _parameters(self._criterion)
            if len(parameters) != 2 or "is not callable" not in str(error):
                raise
            given = f"a function of ({', '.join(parameters)})"
            raise refuse("loss", given, f"a criterion of (outputs, targets); or {_WAY_OUT}") from error
        return _one_number(loss, self._criterion, self._reduction)


def _of_output(model: Any, batch: Any, records: int) -> torch.Tensor:
    """Return the loss that a model returns, as those of Hugging Face do if they are given labels."""
    loss = returned_loss(_called(model, batch))
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        keys = ", ".join(map(str, batch))
        raise refuse(
            "model(**audit)", "no loss", f"a model that returns its loss for these keys: {keys}; or {_WAY_OUT}"
        )
    return loss


def returned_loss(output: Any) -> Any:
    """Return the loss in what a model returns, as those of Hugging Face have it; None if it is not there."""
    if isinstance(output, Mapping):
        return cast(Mapping[str, Any], output).get("loss")
    if isinstance(output, tuple):
        return next(iter(cast(tuple[Any, ...], output)), None)
    return getattr(output, "loss", None)


def _called(model: Any, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _one_number(loss: Any, criterion: Any, reduction: str) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.ndim:
        raise refuse("loss", criterion, f"a loss that is reduced to one number by {reduction!r}")
    return loss


def separate_loss(loss: Any, reduction: str, targets: Any) -> Any:
    """Return the loss that training uses, which gives each record a gradient of its own.

    ``reduction`` is what ``make_private`` was told. Raises InvalidInputError for a loss that makes the gradient of a
    record depend on the others in its batch: a mean over weights, or over targets some of which are ignored.
    """
    if isinstance(loss, DPLossFastGradientClipping):
        loss = loss.criterion
    if not callable(loss):
        raise refuse("loss", loss, "the loss that is trained with, to find the gradients of audit records")
    reduced = getattr(loss, "reduction", reduction)
    if reduced not in (reduction, "batchmean"):
        way_out = "; for one loss of each record, a function loss(model, batch) that returns them" * (reduced == "none")
        raise refuse("loss.reduction", reduced, f"{reduction!r}, as make_private was told{way_out}")
    if reduction == "mean" and isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        way_out = "use reduction='sum' here and loss_reduction='sum' in make_private"
        if loss.weight is not None:
            what = f"no weights: their mean divides by the weights of the whole batch; {way_out}"
            raise refuse("loss.weight", "a tensor", what)
        if isinstance(targets, torch.Tensor) and bool((targets == loss.ignore_index).any()):
            what = f"no targets that are ignored: the mean divides by how many others the batch has; {way_out}"
            raise refuse("loss.ignore_index", loss.ignore_index, what)
    return loss
