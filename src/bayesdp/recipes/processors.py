"""Calls on all processors at once, for work that one call is too small to spread over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Given = TypeVar("Given")
Result = TypeVar("Result")


def on_all_processors(function: Callable[[Given], Result], items: Iterable[Given]) -> Generator[Result]:
    """Yield ``function(item)`` for each item, in order, as ``map`` does; several calls run at once.

    There are as many at once as PyTorch has threads, and each has one thread to itself: a small batch gains next to
    nothing from a second one. ``function`` must be safe to call from several threads. The first call is made alone, so
    what it loads is loaded once. Few items are taken ahead of what was yielded, and no call begins after the generator
    is closed. Afterwards PyTorch has as many threads as before.
    """
    import torch

    threads, waiting = torch.get_num_threads(), iter(items)
    for first in waiting:
        yield function(first)
        break
    ahead: deque[Future[Any]] = deque()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for item in waiting:
                    ahead.append(pool.submit(function, item))
                    if len(ahead) > threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for call in ahead:
                    call.cancel()
    finally:
        torch.set_num_threads(threads)
