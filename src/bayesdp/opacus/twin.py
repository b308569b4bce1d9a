"""A copy of the model that shares its parameters, for passes that must leave no trace in the training run.

Why a twin of the model is used
    Opacus' hooks sit on the modules of the live model: a pass with audit records through it would leave their
    activations and gradients among those of the batch (``grad_sample``, ``_forward_counter``), count as a backward pass
    of its own in ghost mode, change buffers, and advance random numbers. Switching the hooks off for a while is not
    enough, because the norms we need come from just such hooks. So the model is copied once. The twin has its own hooks
    and its own ``grad``; its parameters share their memory with the live ones, so it follows training for free, and
    buffers are copied at each step, as a forward pass may change them.

Why Opacus' hooks are put aside while the model is copied (``without_opacus_hooks``)
    ``copy.deepcopy`` of a hooked module copies the hooks as well, and with these bound methods the wrapper they belong
    to: the twin would have a second set of hooks, and Opacus refuses to add its own ("Trying to add hooks twice").
    Tensors that a module kept from a forward pass carry a graph, and cannot be copied at all. Only the hooks of Opacus
    go, by their handles: those of the user stay, and also see the audit records. Afterwards the dictionaries of the
    modules are put back as they were.

What would break this: Opacus keeping its hooks or leftovers under other names (``autograd_grad_sample_hooks``,
``LEFT_BY_OPACUS``).
"""

from __future__ import annotations

import copy
import re
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn

from bayesdp.opacus.hidden_draws import draws_at_random
from bayesdp.opacus.passes import PassHook
from bayesdp.opacus.twin_settings import Settings

LEFT_BY_OPACUS = (
    "activations",
    "max_batch_len",
    "norm_sample",
    "_forward_counter",
    "ft_compute_sample_grad",
    "autograd_grad_sample_hooks",
)
"""Names under which Opacus keeps things of its own in the dictionary of a module."""


class Copy:
    """A copy of a module that is made what the module is, again and again.

    ``left``: what names of settings that are not copied begin with.
    """

    twins: dict[int, nn.Parameter]
    "The parameters of the copy, by the ids of the live ones."

    def __init__(self, live: nn.Module, module: nn.Module, left: tuple[str, ...]) -> None:
        self.modules = modules_of(module)
        self._parameters, self._buffers = parameters_of(self.modules), buffers_of(self.modules)
        modules = modules_of(live)
        self._settings = Settings(modules, self.modules, left)
        self._pair(parameters_of(modules))

    def follow(self, modules: Sequence[nn.Module], whole: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Copy settings and buffers, and set parameters.

        ``modules`` are those of the live module now, and ``whole`` returns the data of a live tensor.
        """
        self._settings.follow(modules, self.modules)
        parameters = parameters_of(modules)
        for live, parameter in zip(parameters, self._parameters, strict=True):
            parameter.data = whole(live)
        self._pair(parameters)
        for live, buffer in zip(buffers_of(modules), self._buffers, strict=True):
            buffer.data = whole(live).clone()

    def _pair(self, parameters: Sequence[nn.Parameter]) -> None:
        self.twins = dict(zip(map(id, parameters), self._parameters, strict=True))


class Twin:
    """A copy of a module that shares its parameters. ``handles`` are those of the hooks that Opacus put on it."""

    def __init__(self, live: nn.Module, handles: Sequence[Any]) -> None:
        with without_opacus_hooks(live, handles):
            self.module = copy.deepcopy(live)
        self._copy = Copy(live, self.module, LEFT_BY_OPACUS)

    def of(self, parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """Return the twins of live parameters."""
        return [self._copy.twins[id(parameter)] for parameter in parameters]

    def follow(self, modules: Sequence[nn.Module], modes: Sequence[bool], *, quiet: bool) -> None:
        """Become what the model is now: parameters are shared; buffers, settings and the modes are copied.

        ``modules`` are those of the model, and ``modes`` says which of them are in training mode; with ``quiet``,
        random layers without parameters are not.
        """
        self._copy.follow(modules, lambda tensor: tensor.data)
        for mode, module in zip(modes, self._copy.modules, strict=True):
            silent = quiet and draws_at_random(module) and not any(True for _ in module.parameters())
            module.__dict__["training"] = mode and not silent


def modules_of(root: nn.Module) -> list[nn.Module]:
    """Return what ``root.modules()`` yields, in its order; it is faster for modules that are nested deeply."""
    found: dict[nn.Module, None] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            waiting += [child for child in reversed(module._modules.values()) if child is not None]
    return list(found)


def parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters that modules have themselves, each once, in their order."""
    own = [parameter for module in modules for parameter in module._parameters.values()]
    return [parameter for parameter in dict.fromkeys(own) if parameter is not None]


def buffers_of(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Return the buffers that modules have themselves, each once, in their order."""
    own = [buffer for module in modules for buffer in module._buffers.values()]
    return [buffer for buffer in dict.fromkeys(own) if buffer is not None]


def replaced_methods(modules: Iterable[nn.Module]) -> list[MethodType]:
    """Return the ``forward`` methods that modules have of their own: Accelerate replaces them, to enter autocast.

    Only those that a copy of the module would have as well, bound to the copy.
    """
    own = [(module, module.__dict__.get("forward")) for module in modules]
    return [method for module, method in own if isinstance(method, MethodType) and method.__self__ is module]


_QUIET = ("ignore", re.compile("Full backward hook is firing"), Warning, None, 0)  # as warnings.filterwarnings has it


@contextmanager
def quiet_hooks() -> Generator[None]:
    """Silence PyTorch's warning that inputs of Opacus' hooks need no gradients; Opacus does not use those.

    The filter is put into the list by hand: ``catch_warnings`` makes Python forget which warnings it has shown, and the
    user's own training would then show this one at every step instead of once.
    """
    filters: list[Any] = warnings.filters  # pyright: ignore[reportAssignmentType]
    filters.insert(0, _QUIET)
    try:
        yield
    finally:
        filters.remove(_QUIET)


@contextmanager
def without_opacus_hooks(module: nn.Module, handles: Sequence[Any]) -> Generator[None]:
    """Put the hooks of Opacus, by their handles, and what they left on modules aside."""
    hooks = {handle.id for handle in handles}
    aside: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for part in module.modules():
        before = dict(part.__dict__)
        aside.append((part.__dict__, before))
        for name in ("_forward_hooks", "_backward_hooks"):
            kept = {id_: hook for id_, hook in before[name].items() if id_ not in hooks}
            part.__dict__[name] = OrderedDict((id_, kept[id_]) for id_ in kept if not isinstance(kept[id_], PassHook))
        if part is module or len(part._forward_hooks) < len(before["_forward_hooks"]):
            for name in LEFT_BY_OPACUS:
                part.__dict__.pop(name, None)
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and value.grad_fn is not None:  # kept from a forward pass
                part.__dict__[name] = value.detach()
    try:
        yield
    finally:
        for now, before in aside:
            now.clear()
            now.update(before)
