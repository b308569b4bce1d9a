"""Progress bars: functions that wrap the items of long work and give them back one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Progress = Callable[[Sequence[Any]], Iterable[Any]]
"""A progress bar around items; ``iter`` shows none."""
NamedProgress = Callable[[Sequence[Any], str | Callable[[], str]], Iterable[Any]]
"""A progress bar around items with a word beside it, or with a function that gives one as it goes on."""


def silent(items: Sequence[Any], what: str | Callable[[], str]) -> Iterable[Any]:
    """Show no bar."""
    return items
