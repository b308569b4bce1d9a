"""The latest results of slow functions of arrays: claims, statement and report of a run ask for the same ones again."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Result = TypeVar("Result")


class KeptResults(Generic[Result]):
    """Results by the ``fingerprint`` of their arguments, up to ``most`` bytes; the oldest make room for new ones.

    Whoever keeps or takes out arrays copies them, so that nobody can change what is kept.
    """

    def __init__(self, most: int) -> None:
        self._most, self._size = most, 0
        self._kept: OrderedDict[bytes, tuple[Result, int]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, arguments: bytes) -> Result | None:
        """Return the result that was kept for these arguments, or None."""
        with self._lock:
            if arguments not in self._kept:
                return None
            self._kept.move_to_end(arguments)
            return self._kept[arguments][0]

    def keep(self, arguments: bytes, result: Result, size: int) -> None:
        """Keep a result of ``size`` bytes, unless it would take more than an eighth of the room."""
        if size > self._most // 8:
            return
        with self._lock:
            self._size += size - self._kept.pop(arguments, (result, 0))[1]
            self._kept[arguments] = result, size
            while self._size > self._most:
                self._size -= self._kept.popitem(last=False)[1][1]

    def forget(self) -> None:
        """Forget all results; what is asked for next is computed."""
        with self._lock:
            self._kept.clear()
            self._size = 0


def fingerprint(arrays: Sequence[NDArray[Any]], *others: float | str) -> bytes:
    """Return 32 bytes that are equal only for equal arguments: arrays equal in type, shape and bits, and others."""
    digest = hashlib.blake2b(repr(others).encode(), digest_size=32)
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.digest()
