"""Settings of a module that its copy has to follow: what a schedule, or the user's loop, changes during training.

Numbers and strings that a module keeps are copied at each step, and so are those in a dictionary, a list or an object
that it keeps (``self.hparams.beta``, ``self.config.temperature``), one level deep.

Why tensors are copied only while the copy leaves them alone (``Settings._follow_tensor``)
    A pass may keep tensors in its module, the hidden state of a recurrent network for instance, as many rows as there
    are records. The copy's own pass keeps its own, and they must stay. A tensor that the copy's passes do not touch,
    but that has changed in the live module, was changed by somebody else, and is a setting.

What this does not see: what is deeper than one level, in long dictionaries and lists, or in objects without a
``__dict__``.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from enum import Enum
from typing import Any, cast

import numpy as np
import torch
from torch import nn

_OF_EVERY_MODULE = frozenset(nn.Module().__dict__)
_PLAIN = frozenset([bool, int, float, str])
_VALUES = (bool, int, float, complex, str, bytes, np.generic, Enum, torch.dtype, torch.device, type(None))
_LONGEST = 1000  # entries; a vocabulary is not a setting


class Settings:
    """What a copy of a module follows; ``left``: what names in a module that are not copied begin with."""

    def __init__(self, modules: Sequence[nn.Module], copies: Sequence[nn.Module], left: tuple[str, ...]) -> None:
        self._left = left
        self._tensors: dict[tuple[int, str], tuple[weakref.ref[torch.Tensor], int, torch.Tensor, int]] = {}
        "By the copy's dictionary and the name: the live tensor and the copy's, with their versions when last copied."
        for live, module in zip(modules, copies, strict=True):
            self._note_tensors(live.__dict__, module.__dict__)
            for name, value in live.__dict__.items():
                inside, own = _contents(value, module.__dict__.get(name))
                self._note_tensors(inside, own)

    def follow(self, modules: Sequence[nn.Module], copies: Sequence[nn.Module]) -> None:
        """Give the copies the settings that the modules have now."""
        seen: set[int] = set()
        for live, module in zip(modules, copies, strict=True):
            own = module.__dict__
            for name, value in live.__dict__.items():
                if name in _OF_EVERY_MODULE:
                    continue
                if type(value) in _PLAIN:
                    if own.get(name) is not value and not name.startswith(self._left):
                        own[name] = value
                elif value is not own.get(name) and not name.startswith(self._left):
                    self._follow(value, own, name, seen)

    def _follow(self, value: Any, own: dict[str, Any], name: str, seen: set[int]) -> None:
        """Follow a setting that is no plain value; ``seen``: what has been followed in this step already."""
        if _is_value(value):
            own[name] = value
        elif type(value) is torch.Tensor:
            self._follow_tensor(value, own, name)
        elif id(value) not in seen:  # the modules of Hugging Face share one configuration
            seen.add(id(value))
            copied = own.get(name)
            if type(value) is list and type(copied) is list:
                if len(value) <= _LONGEST and all(map(_is_value, value)):
                    copied[:] = value
                return
            inside, owned = _contents(value, copied)
            for key, each in list(inside.items()):
                if _is_value(each):
                    if owned.get(key) is not each:
                        owned[key] = each
                elif type(each) is torch.Tensor:
                    self._follow_tensor(each, owned, key)

    def _follow_tensor(self, value: torch.Tensor, own: dict[str, Any], name: str) -> None:
        copied, noted = own.get(name), self._tensors.get((id(own), name))
        if noted is None and copied is not None:
            return  # the copy's own pass has made it
        if noted is not None:
            live, version, last, own_version = noted
            if copied is not last or last._version != own_version or (live() is value and version == value._version):
                return
        own[name] = value.detach().clone()
        self._note(value, own, name)

    def _note(self, value: torch.Tensor, own: dict[str, Any], name: str) -> None:
        copied = own[name]
        self._tensors[id(own), name] = weakref.ref(value), value._version, copied, copied._version

    def _note_tensors(self, live: dict[str, Any], own: dict[str, Any]) -> None:
        for name, value in live.items():
            if type(value) is torch.Tensor and type(own.get(name)) is torch.Tensor and own[name] is not value:
                self._note(value, own, name)


def _is_value(value: Any) -> bool:
    """Return whether a value cannot be changed, and is no tensor of a pass."""
    return isinstance(value, _VALUES) or (type(value) is tuple and all(map(_is_value, value)))


def _contents(live: Any, copied: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries of a dictionary or of an object, live and copied; nothing of what is not copied."""
    none: dict[str, Any] = {}
    if live is copied or type(live) is not type(copied) or isinstance(live, nn.Module | torch.Tensor | type):
        return none, {}
    if isinstance(live, dict):
        return (cast(dict[str, Any], live), copied) if len(cast(dict[str, Any], live)) <= _LONGEST else (none, {})
    if callable(live) or not hasattr(live, "__dict__"):
        return none, {}
    return vars(live), vars(copied)
