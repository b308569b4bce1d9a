"""Refuse layers that couple the records of a batch: the gradient of a record would depend on the others."""

from __future__ import annotations

from typing import Any

from torch import nn

from bayesdp.validation import refuse


def coupling_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a model that couple records while they are in training mode.

    BatchNorm normalises each record by its batch. InstanceNorm does not, but the statistics it may keep of the batch
    become part of the model without noise.
    """
    module = getattr(model, "_module", None)
    return [layer for layer in module.modules() if couples(layer)] if isinstance(module, nn.Module) else []


def check_layers(model: Any) -> None:
    """Raise InvalidInputError if a coupling layer is in training mode, or has parameters that are trained."""
    for layer in coupling_layers(model):
        if any(parameter.requires_grad for parameter in layer.parameters()):
            raise _refusal(layer)
        check_mode(layer)


def check_mode(layer: nn.Module) -> None:
    """Raise InvalidInputError if a coupling layer is in training mode."""
    if layer.training:
        raise _refusal(layer)


def couples(layer: nn.Module) -> bool:
    """Return whether a layer couples the records of a batch while it is in training mode."""
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):  # pyright: ignore[reportPrivateUsage]
        return True
    return isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats  # pyright: ignore[reportPrivateUsage]


def _refusal(layer: nn.Module) -> Exception:
    return refuse(
        "model",
        type(layer).__name__,
        "normalisation of each record by itself: opacus.validators.ModuleValidator.fix(model) puts GroupNorm in its "
        "place; or keep it in eval mode",
    )
