"""Progress bars: functions that wrap the items of a long task and yield them one by one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

Progress = Callable[[Sequence[Any]], Iterable[Any]]
"""A progress bar around items; pass ``iter`` to show none."""


class LiveText(Protocol):
    """A text that changes while work goes on."""

    def line(self, *, last: bool = False) -> str:
        """Return the text for now; ``last`` asks for the one that stays when the work has ended."""
        ...

    def advice(self) -> str:
        """Return what is to be said once, above the text; empty if there is nothing."""
        ...


NamedProgress = Callable[[Sequence[Any], str | LiveText], Iterable[Any]]
"""A progress bar around items with a text beside it."""


def silent(items: Sequence[Any], what: str | LiveText) -> Iterable[Any]:
    """Return the items as they are: a NamedProgress that shows no bar."""
    return items


def showing(track: Progress, items: Sequence[Any]) -> AbstractContextManager[Iterable[Any]]:
    """Yield the items inside a progress bar, which ends with the block, also if an error or Ctrl-C ends it."""
    return ended(track(items))


@contextmanager
def ended(items: Iterable[Any]) -> Generator[Iterable[Any]]:
    """Yield the items; a generator is closed with the block, and not only when an error has been handled."""
    try:
        yield items
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()
