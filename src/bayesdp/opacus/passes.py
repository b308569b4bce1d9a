"""Count the passes through the model whose gradients are in a batch: an audit usually makes one, training maybe more.

The discriminator of a GAN sees a batch of real records and a batch of generated ones before it is updated. Opacus takes
the two passes for one and adds, for each record, the gradient of a generated sample to its own: what is clipped is
their sum. An audit with the loss of one pass then has other norms than an audit record would have had; a function
``loss(model, batch)`` can make both passes.

Why a hook of the module and hooks of its outputs (``PassCounter``)
    Opacus leaves no trace of a second pass in ``grad_sample``: passes with one backward are added up, row by row. A
    forward hook sees a pass begin; whether a backward pass reached it, only its output knows. Neither changes a value.
    ``zero_grad`` forgets what was counted, as it forgets gradients: the generator's own step goes through the
    discriminator too.

Why gradients are looked at after each backward pass (``PassCounter._note_gradients``)
    A loop may change ``grad_sample`` between ``backward`` and ``step``: mask it, or average it over augmented copies.
    What is clipped then is not what the audit measures. PyTorch counts changes of a tensor (``_version``), so it is
    enough to note at the end of the backward pass which tensors there are, and to compare before they are clipped.
    Hooks of the parameters tell of a backward pass, also if the ``forward`` of the model is never called, as in many
    modules of Lightning.

What would break this: a model whose parts are called without its ``forward`` (passes are not counted then, and nothing
is said). Copies and pickles of the model get a hook that does nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook


class PassCounter:
    """Passes in training mode that a backward pass has reached since gradients were last cleared or used."""

    def __init__(self, model: Any, optimizer: Any, audited: int) -> None:
        """``audited``: how many passes the audit makes for a batch."""
        self._optimizer, self._audited = optimizer, audited
        self._started = 0
        self._reached: set[int] = set()
        self._left: list[tuple[weakref.ref[torch.Tensor], int]] = []
        "The gradients by record that the last backward pass left, with their versions."
        self._zero_grad = optimizer.zero_grad
        self._handle = model._module.register_forward_hook(PassHook(self))
        followed = [each for each in optimizer.params if type(each) is nn.Parameter]
        self._end = register_multi_grad_hook(followed, self._note_later, mode="any") if followed else None
        optimizer.zero_grad = self._forget_and_zero_grad

    def detach(self) -> None:
        """Leave model and optimizer as they were."""
        self._handle.remove()
        if self._end is not None:
            self._end.remove()
        del self._optimizer.zero_grad

    def differ(self, batches: int) -> bool:
        """Return whether there were other passes for so many batches than the audit makes, and begin anew.

        If none was seen (parts of the model were called without its ``forward``), nothing is said of one pass.
        """
        taken = self.taken()
        return taken > batches * self._audited or (self._audited > 1 and taken < batches * self._audited)

    def changed(self) -> bool:
        """Return whether gradients by record are not what the last backward pass left."""
        now = self._gradients()
        if not self._left or not any(map(len, now)):  # without a pass that was seen, nothing is known
            return False  # ghost clipping has no gradients, and an empty batch none that could be changed
        as_left = [(left(), version) for left, version in self._left]
        return len(now) != len(as_left) or any(
            grad is not left or grad._version != version for grad, (left, version) in zip(now, as_left, strict=True)
        )

    def taken(self) -> int:
        """Return how many passes there were, and begin anew."""
        passes = len(self._reached)
        self._reached.clear()
        return passes

    def start(self, output: Any) -> None:
        """Count a forward pass; hooks on the tensors of its ``output`` will tell whether a backward pass reaches it."""
        self._started += 1
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._reach, self._started))

    def _reach(self, number: int, _: torch.Tensor) -> None:
        self._reached.add(number)

    def _note_later(self, _: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._note_gradients)

    def _note_gradients(self) -> None:
        self._left = [(weakref.ref(grad), grad._version) for grad in self._gradients()]

    def _gradients(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for parameter in self._optimizer.params:
            grads = getattr(parameter, "grad_sample", None)
            found += grads if isinstance(grads, list) else [] if grads is None else [grads]
        return found

    def _forget_and_zero_grad(self, *arguments: Any, **options: Any) -> None:
        self._reached.clear()
        self._zero_grad(*arguments, **options)


class PassHook:
    """The forward hook; a copy of the model gets one that does nothing."""

    def __init__(self, counter: PassCounter) -> None:
        self._counter = counter

    def __call__(self, module: nn.Module, _: Any, output: Any) -> None:
        """Note a pass, if gradients may follow it."""
        if module.training and torch.is_grad_enabled():
            self._counter.start(output)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _nothing

    def __reduce__(self) -> Any:
        return _no_hook, ()


def _no_hook() -> Any:
    return _nothing


def _nothing(*_: Any) -> None:
    """Do nothing after a pass."""


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in cast(Mapping[Any, Any], output).values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in cast(list[Any], output):
            yield from _tensors(value)
