"""Norms that held-out records would have had: the gradients of a twin of the model, which shares its parameters.

The twin has its own hooks and gradients, so that nothing of the training run is touched; Opacus finds the norms in one
forward and one backward pass, as in its ghost clipping.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from bayesdp.opacus.clipping import Flat, Ghost
from bayesdp.validation import count, refuse

_AT_ONCE = 512  # records in one pass
_LEFT_BY_OPACUS = ("activations", "max_batch_len", "ft_compute_sample_grad", "autograd_grad_sample_hooks")


class AuditRecords:
    """Records that are not trained on, and the norms their gradients have now."""

    def __init__(self, audit: Any, loss: Any, model: Any, clipping: Flat, every: int) -> None:
        inputs, targets = _pair(audit)
        self._loss = _reduced(loss, model.loss_reduction)
        self._live: nn.Module = model._module
        self._clipping = clipping
        self._every = count("every", every, minimum=1)
        device = next(self._live.parameters()).device
        self._inputs = [one.to(device) for one in inputs]
        self._targets = targets.to(device)
        self._axis = 0 if model.batch_first else 1
        self.records = len(targets)
        for one in self._inputs:
            if one.ndim <= self._axis or one.shape[self._axis] != self.records:
                raise refuse("audit", [tuple(one.shape), tuple(targets.shape)], "as many inputs as targets")
        if not self.records:
            raise refuse("audit", [], "at least one record")
        self._model = model
        self._twin = self._new_twin(ghost=True)
        self._asked = 0

    def due(self) -> bool:
        """Whether the norms are to be computed at this step: at the first, and then at every so many."""
        self._asked += 1
        return (self._asked - 1) % self._every == 0

    def norms(self) -> torch.Tensor:
        """Of all records, with the parameters as they are now, [m]."""
        self._follow()
        devices = sorted({one.get_device() for one in self._inputs if one.is_cuda})
        with torch.random.fork_rng(devices), torch.enable_grad():  # dropout here leaves the run's as it would be
            try:
                return self._all()
            except NotImplementedError:  # ghost norms of tied parameters
                self._twin = self._new_twin(ghost=False)
                self._follow()
                return self._all()

    def _all(self) -> torch.Tensor:
        found = [self._some(slice(first, first + _AT_ONCE)) for first in range(0, self.records, _AT_ONCE)]
        return torch.cat(found)

    def _some(self, some: slice) -> torch.Tensor:
        inputs = [one[some] if self._axis == 0 else one[:, some] for one in self._inputs]
        targets = self._targets[some]
        loss = self._loss(self._twin(*inputs), targets)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise refuse("loss", self._loss, f"a loss that is reduced to one number by {self._model.loss_reduction!r}")
        loss.backward()
        parameters: list[Any] = [self._twins[id(one)] for one in self._measured()]
        norms = self._clipping.together([one._norm_sample.reshape(len(targets)) for one in parameters])
        for one in self._twins.values():
            one.grad = None
        return norms.detach()

    def _measured(self) -> list[nn.Parameter]:
        """The parameters whose gradients are clipped together: those of the optimizer; in ghost mode of the module."""
        if isinstance(self._clipping, Ghost):
            return [one for one in self._live.parameters() if one.requires_grad]
        return self._clipping.optimizer.params

    def _new_twin(self, *, ghost: bool) -> nn.Module:
        with _without_opacus_hooks(self._live):
            twin = copy.deepcopy(self._live)
        self._twins = dict(zip(map(id, self._live.parameters()), twin.parameters(), strict=True))
        measured = {id(one) for one in self._measured()}
        for one in self._live.parameters():
            self._twins[id(one)].requires_grad_(id(one) in measured)
        return GradSampleModuleFastGradientClipping(
            twin,
            batch_first=self._model.batch_first,
            loss_reduction=self._model.loss_reduction,
            strict=False,
            force_functorch=getattr(self._model, "force_functorch", False),
            use_ghost_clipping=ghost,
        )

    def _follow(self) -> None:
        """The twin is as the model is now, without a copy."""
        twin: Any = self._twin._module
        for live, ours in zip(self._live.modules(), twin.modules(), strict=True):
            ours.training = live.training
        for one in self._live.parameters():
            self._twins[id(one)].data = one.data
        for live, ours in zip(self._live.buffers(), twin.buffers(), strict=True):
            ours.data = live.data


def _pair(audit: Any) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    expected = "(inputs, targets): tensors with one row for each record"
    if not isinstance(audit, tuple | list) or len(audit) != 2:
        raise refuse("audit", type(audit).__name__, expected)
    inputs, targets = audit
    inputs = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    for one in (*inputs, targets):
        if not isinstance(one, torch.Tensor) or not one.ndim:
            raise refuse("audit", type(one).__name__, expected)
    return inputs, targets


def _reduced(loss: Any, reduction: str) -> Any:
    """The loss that training uses, if it makes the gradient of a record depend on that record only."""
    if isinstance(loss, DPLossFastGradientClipping):
        loss = loss.criterion
    if not callable(loss):
        raise refuse("loss", loss, "the loss that is trained with, to find the gradients of audit records")
    reduced = getattr(loss, "reduction", reduction)
    if reduced != reduction:
        raise refuse("loss.reduction", reduced, f"{reduction!r}, as make_private was told")
    if reduction == "mean" and getattr(loss, "weight", None) is not None:
        raise refuse("loss.weight", "a tensor", "no weights: their mean divides by the weights of the whole batch")
    return loss


@contextmanager
def _without_opacus_hooks(module: nn.Module) -> Generator[None]:
    """For the time of copying, the hooks and the leftovers of Opacus are put aside."""
    hooks = {handle.id for handle in getattr(module, "autograd_grad_sample_hooks", [])}
    aside: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for one in module.modules():
        before = dict(one.__dict__)
        aside.append((one.__dict__, before))
        for name in ("_forward_hooks", "_backward_hooks"):
            one.__dict__[name] = OrderedDict((id_, hook) for id_, hook in before[name].items() if id_ not in hooks)
        for name in _LEFT_BY_OPACUS:
            one.__dict__.pop(name, None)
    try:
        yield
    finally:
        for now, before in aside:
            now.clear()
            now.update(before)
