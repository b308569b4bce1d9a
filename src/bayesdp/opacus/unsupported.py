"""Refuse what Opacus fails on with a message that does not name it, as soon as the run is watched."""

from __future__ import annotations

from typing import Any

from torch import nn

from bayesdp.validation import refuse


def check_supported(model: Any) -> None:
    """Raise InvalidInputError for DoRA and for activation checkpointing that is not reentrant, in layers that train.

    Opacus finds gradients by record in hooks of layers. It calls a layer again with its inputs, and those of DoRA need
    more than that; checkpointing with ``use_reentrant=False`` runs a layer a second time behind the hooks. Only the
    checkpointing of Hugging Face's models is seen, which note it as a setting.
    """
    module = getattr(model, "_module", None)
    if not isinstance(module, nn.Module) or "ExpandedWeights" in type(model).__name__:
        return
    for layer in module.modules():
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            continue
        if type(layer).__module__.startswith("peft.") and type(layer).__name__.lstrip("_").startswith("Dora"):
            raise refuse("use_dora", True, "False: Opacus does not support DoRA; LoRA without it works")
        if getattr(layer, "gradient_checkpointing", False) is True and _reentrant(layer) is False:
            expected = (
                "True, in Hugging Face's models gradient_checkpointing_kwargs={'use_reentrant': True}: Opacus does not "
                "support activation checkpointing that is not reentrant"
            )
            raise refuse("use_reentrant", False, expected)


def _reentrant(layer: Any) -> bool | None:
    """Return how a layer of Hugging Face's is checkpointed; None if that is not known."""
    keywords = getattr(getattr(layer, "_gradient_checkpointing_func", None), "keywords", None)
    return keywords.get("use_reentrant") if isinstance(keywords, dict) else None  # type: ignore[reportUnknownVariableType]
