"""Refuse updates of the model by gradients that have no noise: by another optimizer, or of parameters left out.

A second, plain optimizer for some of the layers takes gradients as the backward pass has left them, and Opacus adds no
noise to parameters that are frozen between the backward pass and the step, although the optimizer that it wraps updates
them. What is released then is not what was recorded. So a global hook, which PyTorch calls before the step of any
optimizer, looks for such gradients. Once a step is recorded, its gradients may be used by any optimizer: that is
post-processing. A pass of the model in training mode makes them raw again.

What it cannot see: updates without an optimizer (``p.data -= p.grad``), and optimizers that do not derive from
PyTorch's.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import finalize, ref

from torch.optim.optimizer import register_optimizer_step_pre_hook

from bayesdp.opacus.handed_out import PassNote
from bayesdp.validation import refuse


class RawGradients:
    """Which parameters of a model may have a gradient without noise: they were trained when it last made a pass."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._parameters = list(model._module.parameters())
        self._raw: set[int] = set()
        self.note_pass(None)
        of_all = register_optimizer_step_pre_hook(partial(_check, ref(self)))
        finalize(self, of_all.remove)
        self.hooks = [model._module.register_forward_pre_hook(PassNote(self), with_kwargs=True), of_all]
        "Handles of the hooks, to remove them."

    def note_pass(self, inputs: Any) -> None:
        """Note a pass: gradients of all parameters that are trained now may be raw from now on."""
        self._raw.update(id(parameter) for parameter in self._parameters if parameter.requires_grad)

    def recorded(self) -> None:
        """Note that a step is recorded: the gradients of all parameters that Opacus knows have their noise."""
        self._raw.difference_update(id(parameter) for parameter in self._optimizer.params)

    def check(self, optimizer: Any) -> None:
        """Raise InvalidInputError before an optimizer updates the model by a gradient without noise."""
        own = optimizer is self._optimizer.original_optimizer
        raw = self._raw.difference(map(id, self._optimizer.params)) if own else self._raw  # it has a hook of its own
        for parameter in (parameter for group in optimizer.param_groups for parameter in group["params"] if raw):
            if parameter.grad is not None and id(parameter) in raw:
                raise _refusal(optimizer, own=own)


def _check(watching: ref[RawGradients], optimizer: Any, *_: Any) -> None:
    """Check the step of any optimizer; the hook, which is global, keeps no run alive that nobody uses any more."""
    gradients = watching()
    if gradients is not None:
        gradients.check(optimizer)


def _refusal(optimizer: Any, *, own: bool) -> Exception:
    if own:
        expected = "as it was in the backward pass: parameters that are frozen after it are updated without noise"
        return refuse("requires_grad", False, expected)
    expected = (
        "the watched optimizer alone: this one updates the model by gradients without noise. Give make_private one "
        "optimizer for all trained parameters; for steps on public records, close the watch, and watch with "
        "Ledger.open afterwards"
    )
    return refuse("optimizer", type(optimizer).__name__, expected)
