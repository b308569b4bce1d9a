"""A batch as Poisson sampling drew it, in parts that fit into memory: one step of the Trainer.

The Trainer adds up a fixed number of batches for each step. A draw has as many parts as its size asks for, so what the
Trainer gets for a step is one ``WholeDraw``, whose parts are fetched from the loader while it is trained on.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from opacus.utils.batch_memory_manager import BatchSplittingSampler

from bayesdp.opacus.draw_parts import parts_of_draw, with_batch_sampler


class DrawSplitter(BatchSplittingSampler):
    """Opacus' splitting of draws into parts, which also notes how many parts each draw has; it counts draws."""

    def __init__(self, *, sampler: Any, max_batch_size: int, optimizer: Any) -> None:
        super().__init__(sampler=sampler, max_batch_size=max_batch_size, optimizer=optimizer)
        self.parts: deque[int] = deque()
        "How many parts the draws have that were not trained on yet."

    def __iter__(self) -> Generator[list[int]]:
        self.parts.clear()
        for drawn in self.sampler:
            parts = parts_of_draw(drawn, self.max_batch_size)
            self.parts.append(len(parts))
            yield from parts

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]


def in_parts(loader: Any, most: int, optimizer: Any) -> Any:
    """Return a loader of the same draws in parts of at most ``most`` records."""
    splitter = DrawSplitter(sampler=loader.batch_sampler, max_batch_size=most, optimizer=optimizer)
    return with_batch_sampler(loader, splitter)


class WholeDraw:
    """The parts of one draw, fetched one after the other; the first one is there already."""

    def __init__(self, first: Any, further: int, iterator: Iterator[Any]) -> None:
        self._first, self._further, self._iterator = first, further, iterator

    @classmethod
    def next_of(cls, iterator: Any, splitter: DrawSplitter) -> WholeDraw | None:
        """Return the next draw; None if there is none."""
        for first in iterator:
            return cls(first, splitter.parts.popleft() - 1, iterator)
        return None

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Yield each part, a dictionary of its own, and whether it is the last."""
        yield copy.copy(self._first), not self._further
        for number in range(self._further):
            yield copy.copy(next(self._iterator)), number == self._further - 1


def records_of(inputs: Any) -> int:
    """Return how many records a batch of the collator has."""
    return next((len(value) for value in inputs.values() if hasattr(value, "__len__")), 0) if inputs else 0
