"""A lock around the methods of a ledger, so that several threads can use it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Lockable(Protocol):
    """An object with a re-entrant lock, which its methods hold while they run."""

    lock: threading.RLock


_Self = TypeVar("_Self", bound=Lockable)


def locked(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Decorate a method to hold the object's lock: what it reads is of one moment, and steps never overlap."""

    @functools.wraps(method)
    def with_lock(self: _Self, /, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        with self.lock:
            return method(self, *args, **kwargs)

    return with_lock
