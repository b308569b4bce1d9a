"""The loss of audit records from ``training_step``, as Lightning would call it for a batch of the training loader."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import torch

from bayesdp.opacus.audit_loss import BatchLoss
from bayesdp.validation import refuse


def training_loss(trainer: Any, module: Any) -> BatchLoss:
    """Return the loss of ``module.training_step``, computed by the audit's copy of the module.

    The batch goes through the hooks of the module or data module for batches (``on_before_batch_transfer``,
    ``on_after_batch_transfer``), the step is taken in the precision of the trainer, and nothing that it logs is kept.
    Raises InvalidInputError if the module optimizes by hand: its ``training_step`` would take a step.
    """
    if not module.automatic_optimization:
        expected = "True; or loss=, a function loss(model, batch) that returns one loss for each audit record"
        raise refuse("automatic_optimization", False, expected)

    def loss(model: Any, batch: Any) -> torch.Tensor:
        copied = model._module
        if copied.__dict__.get("_trainer") is None:  # a copy comes without its trainer
            for name in getattr(copied, "_compiler_ctx", None) or ():  # compiled methods are those of the original
                copied.__dict__.pop(name.removeprefix("original_"), None)
            copied.__dict__.update(_trainer=trainer, log=_not_logged, log_dict=_not_logged)
        batch = module._on_before_batch_transfer(batch, dataloader_idx=0)
        batch = trainer.strategy.batch_to_device(batch, dataloader_idx=0)
        with trainer.precision_plugin.train_step_context():
            output = copied.training_step(*_arguments(copied, batch, trainer.fit_loop.batch_idx))
        return cast(Mapping[str, Any], output)["loss"] if isinstance(output, Mapping) else output

    return BatchLoss(loss)


def _arguments(module: Any, batch: Any, number: int) -> tuple[Any, ...]:
    """Return the arguments of a ``training_step``, decorated or not, which may ask for a number."""
    wanted = inspect.signature(module.training_step).parameters.values()
    positional = [each for each in wanted if each.kind is not each.KEYWORD_ONLY and each.kind is not each.VAR_KEYWORD]
    several = len(positional) > 1 or any(each.kind is each.VAR_POSITIONAL for each in positional)
    return (batch, max(number, 0)) if several else (batch,)


def _not_logged(*_: Any, **__: Any) -> None:
    """Take the place of ``log`` in the copy of a module: audit records leave no trace in the user's metrics."""
