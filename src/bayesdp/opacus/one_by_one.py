"""Norms of audit records one at a time, from whatever loss a record has: the way out where one pass is not enough."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn

from bayesdp.opacus.audit_data import audit_data
from bayesdp.opacus.due_steps import DueSteps
from bayesdp.opacus.hidden_draws import borrowed_random_numbers, devices_of
from bayesdp.opacus.twin import Twin, modules_of
from bayesdp.validation import refuse

Gradients = Sequence[torch.Tensor]


class OneByOne(DueSteps):
    """An ``AuditNorms`` that asks your function for the loss of each audit record, and autograd for its gradient.

    ``loss(model, record)`` is given a batch with one audit record in it, as the loader would yield it, and returns one
    number: the loss whose gradient by the trained parameters is what Opacus clips for that record. It may be the mean
    over augmented copies of the record, or the sum of several passes. ``change``, if the training loop changes
    gradients before the step, gets the gradients by trained parameter, in the order of the optimizer, and returns what
    the loop makes of them.

    Formal guarantee: the norms are those of these gradients, in a copy of the model that shares its parameters; nothing
    of the run changes. Whether they are what training clips is for you to see to: a test with records of your own is
    to train on them and compare ``Ledger.private_norms``. It makes a forward and a backward pass for each record.

    ``audit`` takes what ``watch`` takes; norms are due at every ``every``-th step. Raises InvalidInputError for records
    that do not fit, and for a loss that is not one number.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        data_loader: Any,
        *,
        audit: Any,
        loss: Callable[[Any, Any], torch.Tensor],
        change: Callable[[Gradients], Gradients] | None = None,
        every: int = 1,
    ) -> None:
        super().__init__(every)
        self._model, self._optimizer = model, optimizer
        self._live: nn.Module = getattr(model._module, "_orig_mod", model._module)
        device = next(self._live.parameters()).device
        with borrowed_random_numbers(devices_of(self._live)):
            self._data = audit_data(audit, data_loader, device, 0 if model.batch_first else 1)
        self.records = self._data.records
        self._loss, self._change = loss, change
        self._twin: Twin | None = None

    def norms(self) -> torch.Tensor:
        """Return the norms of all records with the parameters as they are now, [m]."""
        twin = self._follow()
        trained = [parameter.requires_grad_() for parameter in twin.of(self._optimizer.params)]
        with torch.enable_grad():
            return torch.stack([self._norm(twin.module, trained, row) for row in range(self.records)])

    def _norm(self, twin: nn.Module, trained: Gradients, row: int) -> torch.Tensor:
        loss = self._loss(twin, self._data.take(torch.tensor([row])))
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise refuse("loss(model, record)", shape, "one number: the loss of this record")
        found = cast(Sequence[torch.Tensor | None], torch.autograd.grad(loss.sum(), trained, allow_unused=True))
        grads: Gradients = [torch.zeros_like(p) if g is None else g for g, p in zip(found, trained, strict=True)]
        if self._change is not None:
            grads = self._change(grads)
        return torch.stack([grad.norm().float() for grad in grads]).norm()

    def _follow(self) -> Twin:
        """Return the twin as the model is now."""
        if self._twin is None:
            self._twin = Twin(self._live, getattr(self._model, "autograd_grad_sample_hooks", []))
            self._twin.module.requires_grad_(False)
        modules = modules_of(self._live)
        self._twin.follow(modules, [module.training for module in modules], quiet=False)
        return self._twin
