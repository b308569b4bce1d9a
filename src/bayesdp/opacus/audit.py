"""Norms that held-out records would have had: the gradients of a twin of the model, which shares its parameters.

The twin has its own hooks and gradients, so that nothing of the training run is touched; Opacus finds the norms in one
forward and one backward pass, as in its ghost clipping.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import nn

from bayesdp.opacus.clipping import Flat, Ghost, passes_are_mixed
from bayesdp.validation import count, refuse

_LEFT_BY_OPACUS = ("activations", "max_batch_len", "ft_compute_sample_grad", "autograd_grad_sample_hooks")


@runtime_checkable
class AuditNorms(Protocol):
    """What ``watch`` asks at each step about records that are not trained on."""

    records: int

    def due(self) -> bool:
        """Whether norms are to be computed at this step."""
        ...

    def norms(self) -> torch.Tensor:
        """Of the gradients that the records would have now, as they would be clipped, [m]."""
        ...


class AuditRecords:
    """Records that are not trained on, and the norms their gradients have now."""

    def __init__(self, audit: Any, loss: Any, model: Any, clipping: Flat, *, every: int, at_once: int) -> None:
        inputs, targets = _pair(audit)
        self._loss = separate_loss(loss, model.loss_reduction, targets)
        self._live: nn.Module = getattr(model._module, "_orig_mod", model._module)  # past torch.compile
        self._clipping = clipping
        self._every = count("every", every, minimum=1)
        self._at_once = count("audit_batch", at_once, minimum=1)
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
        self._ghost = True
        self._twin: Any = None
        self._trained: list[int] = []
        self._modes = self._modes_now()
        self._asked = 0

    def due(self) -> bool:
        """Whether the norms are to be computed at this step: at the first, and then at every so many."""
        self._asked += 1
        return (self._asked - 1) % self._every == 0

    def norms(self) -> torch.Tensor:
        """Of all records, with the parameters as they are now, [m]."""
        devices = sorted({one.get_device() for one in self._inputs if one.is_cuda})
        with _same_random_numbers(devices), torch.enable_grad():
            try:
                return self._all()
            except (NotImplementedError, AttributeError, ValueError):
                if not self._ghost or isinstance(self._clipping, Ghost):
                    raise
                self._ghost = False  # tied parameters, or other layers of which Opacus has no ghost norms
                return self._all()

    def _all(self) -> torch.Tensor:
        self._follow()
        try:
            starts = range(0, self.records, self._at_once)
            return torch.cat([self._some(slice(first, first + self._at_once)) for first in starts])
        except BaseException:
            self._twin = None  # hooks that were interrupted would mix up the next pass
            raise

    def _some(self, some: slice) -> torch.Tensor:
        inputs = [one[some] if self._axis == 0 else one[:, some] for one in self._inputs]
        targets = self._targets[some]
        loss = self._loss(self._twin(*inputs), targets)
        if not isinstance(loss, torch.Tensor) or loss.ndim:
            raise refuse("loss", self._loss, f"a loss that is reduced to one number by {self._model.loss_reduction!r}")
        with quiet_hooks():
            loss.backward()
        parameters: list[Any] = [self._twins[id(one)] for one in self._measured()]
        if passes_are_mixed(parameters):
            raise NotImplementedError("a weight is used outside its layer")
        norms = self._clipping.together([one._norm_sample.reshape(len(targets)) for one in parameters])
        for one in self._twins.values():
            one.grad = None
        return norms.detach()

    def _measured(self) -> list[nn.Parameter]:
        """The parameters whose gradients are clipped together: those of the optimizer; in ghost mode of the module."""
        if isinstance(self._clipping, Ghost):
            return [one for one in self._live.parameters() if one.requires_grad]
        return self._clipping.optimizer.params

    def _new_twin(self) -> nn.Module:
        with _without_opacus_hooks(self._live, getattr(self._model, "autograd_grad_sample_hooks", [])):
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
            use_ghost_clipping=self._ghost,
        )

    def _modes_now(self) -> list[bool]:
        return [one.training for one in self._live.modules()]

    def _follow(self) -> None:
        """The twin is as the model is now; parameters are shared, buffers copied, as a forward pass may change them."""
        trained = [id(one) for one in self._measured()]
        if self._twin is None or trained != self._trained:
            self._trained = trained
            self._twin = self._new_twin()
        if self._live.training:  # it may be in evaluation mode for a while
            self._modes = self._modes_now()
        twin = self._twin._module
        for mode, ours in zip(self._modes, twin.modules(), strict=True):
            ours.training = mode
        for one in self._live.parameters():
            self._twins[id(one)].data = one.data
        for live, ours in zip(self._live.buffers(), twin.buffers(), strict=True):
            ours.data = live.data.clone()


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


def separate_loss(loss: Any, reduction: str, targets: torch.Tensor) -> Any:
    """The loss that training uses; refused if it makes the gradient of a record depend on others in its batch."""
    if isinstance(loss, DPLossFastGradientClipping):
        loss = loss.criterion
    if not callable(loss):
        raise refuse("loss", loss, "the loss that is trained with, to find the gradients of audit records")
    reduced = getattr(loss, "reduction", reduction)
    if reduced not in (reduction, "batchmean"):
        raise refuse("loss.reduction", reduced, f"{reduction!r}, as make_private was told")
    if reduction == "mean" and isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        if loss.weight is not None:
            raise refuse("loss.weight", "a tensor", "no weights: their mean divides by the weights of the whole batch")
        if bool((targets == loss.ignore_index).any()):
            what = "no targets that are ignored: the mean divides by how many others the batch has"
            raise refuse("loss.ignore_index", loss.ignore_index, what)
    return loss


@contextmanager
def quiet_hooks() -> Generator[None]:
    """PyTorch warns that inputs of Opacus' hooks need no gradients; Opacus does not use those."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")
        yield


@contextmanager
def _same_random_numbers(devices: list[int]) -> Generator[None]:
    """Dropout and the like in here leave the random numbers of the run as they would be."""
    drawn_by_numpy, drawn_by_python = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        np.random.set_state(drawn_by_numpy)  # noqa: NPY002
        random.setstate(drawn_by_python)


@contextmanager
def _without_opacus_hooks(module: nn.Module, handles: Sequence[Any]) -> Generator[None]:
    """For the time of copying, the hooks and the leftovers of Opacus are put aside."""
    hooks = {handle.id for handle in handles}
    aside: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for one in module.modules():
        before = dict(one.__dict__)
        aside.append((one.__dict__, before))
        for name in ("_forward_hooks", "_backward_hooks"):
            one.__dict__[name] = OrderedDict((id_, hook) for id_, hook in before[name].items() if id_ not in hooks)
        if one is module or len(one._forward_hooks) < len(before["_forward_hooks"]):
            for name in _LEFT_BY_OPACUS:
                one.__dict__.pop(name, None)
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:  # kept from a forward pass
                one.__dict__[name] = value.detach()
    try:
        yield
    finally:
        for now, before in aside:
            now.clear()
            now.update(before)
