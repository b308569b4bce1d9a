"""Audit records of a model that FSDP2 has sharded: their norms come from a whole copy of it on every rank.

FSDP's modules refuse to be copied, and a pass through them takes part in collectives of all ranks and leaves traces in
Opacus' hooks. So the model is copied once without FSDP (``UnshardedModel``): each module gets the class it had before,
hooks of FSDP and Opacus stay behind, and parameters are gathered from all ranks. Before each audit they are gathered
again. Every rank then holds the whole model besides its shard, and audits its share of the records on its own.

For a model that no rank can hold, pass an ``AuditNorms`` of your own as ``audit``, or no audit at all.

What would break this: FSDP keeping its state under other names in the dictionary of a module.
tests/with_opacus/test_ranks.py compares counts with those of a run of one process.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import AbstractGradSampleHooks
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from bayesdp.opacus.audit import AuditRecords
from bayesdp.opacus.passes import PassHook
from bayesdp.opacus.twin import LEFT_BY_OPACUS, Copy, modules_of

_LEFT_BY_FSDP = ("__composable_api_state_key", "_is_fsdp_managed_module", "_fsdp_use_orig_params")
_LEFT_BEHIND = _LEFT_BY_FSDP + LEFT_BY_OPACUS
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class UnshardedModel:
    """A whole copy of a sharded model, in the place of the model that ``make_private`` returned."""

    def __init__(self, model: Any) -> None:
        self.batch_first, self.loss_reduction = model.batch_first, model.loss_reduction
        sharded: nn.Module = model._module
        with _unsharded(sharded):
            self._module = copy.deepcopy(sharded)
        self._sharded = sharded
        self._copy = Copy(sharded, self._module, _LEFT_BEHIND)

    def follow(self) -> None:
        """Make it what the sharded model is now. All ranks must call this together."""
        self._copy.follow(modules_of(self._sharded), _whole)


class ShardedAuditRecords(AuditRecords):
    """Audit records of a sharded model."""

    def __init__(self, audit: Any, loss: Any, model: Any, *arguments: Any, **options: Any) -> None:
        self._whole_model = UnshardedModel(model)
        super().__init__(audit, loss, self._whole_model, *arguments, **options)

    def norms(self) -> torch.Tensor:
        """Return the norms of the records of this rank. All ranks must call this together."""
        self._whole_model.follow()
        return super().norms()


def _whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def _is_foreign(hook: Any) -> bool:
    """Return whether a hook belongs to FSDP, Opacus or this library, and not to the user."""
    owner = getattr(getattr(hook, "func", hook), "__self__", hook)  # a partial function, a method, or a plain object
    theirs = type(owner).__module__.startswith("torch.distributed.")
    return theirs or isinstance(owner, AbstractGradSampleHooks | PassHook)


@contextmanager
def _unsharded(root: nn.Module) -> Generator[None]:
    """Make all modules what they were before FSDP and Opacus, with whole parameters, for a moment."""
    aside: list[tuple[nn.Module, type, dict[str, Any]]] = []
    parameters: dict[int, nn.Parameter] = {}

    def whole(parameter: Any) -> nn.Parameter | None:
        if parameter is not None and id(parameter) not in parameters:
            parameters[id(parameter)] = nn.Parameter(_whole(parameter), requires_grad=parameter.requires_grad)
        return None if parameter is None else parameters[id(parameter)]

    try:
        for module in list(root.modules()):
            before = dict(module.__dict__)
            aside.append((module, type(module), before))
            kept = {name: value for name, value in before.items() if not name.startswith(_LEFT_BEHIND)}
            for name in _HOOKS:
                hooks = before[name].items()
                kept[name] = OrderedDict((number, hook) for number, hook in hooks if not _is_foreign(hook))
            kept["_parameters"] = {name: whole(parameter) for name, parameter in before["_parameters"].items()}
            module.__dict__.clear()
            module.__dict__.update(kept)
            if isinstance(module, FSDPModule):
                module.__class__ = type(module).__bases__[1]  # as Opacus finds it
        yield
    finally:
        for module, own_class, before in aside:
            module.__class__ = own_class
            module.__dict__.clear()
            module.__dict__.update(before)
