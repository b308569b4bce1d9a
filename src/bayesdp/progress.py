"""Progress bars: functions that wrap the items of a long task and yield them one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Progress = Callable[[Sequence[Any]], Iterable[Any]]
"""A progress bar around items; pass ``iter`` to show none."""
NamedProgress = Callable[[Sequence[Any], str | Callable[[], str]], Iterable[Any]]
"""A progress bar around items with a text beside it, or with a function that returns the current text."""


def silent(items: Sequence[Any], what: str | Callable[[], str]) -> Iterable[Any]:
    """Return the items as they are: a NamedProgress that shows no bar."""
    return items
