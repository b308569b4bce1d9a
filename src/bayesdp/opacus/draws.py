"""Which batch a gradient comes from: the sampler is watched where it draws, and the loader where it hands out.

A loader with workers draws ahead, BatchMemoryManager hands out a batch in parts, and the same loader may be iterated
twice at the same time. So each iteration knows what it has drawn and what it has handed out; what was handed out may be
in a sum once, and nothing else may be.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bayesdp.validation import refuse

STATE = "_bayesdp_draws"
_ITERATION = "_bayesdp_iteration"


@dataclass(frozen=True)
class Draw:
    """One batch that the sampler drew: in which iteration over the loader, which one of all, how many records."""

    iteration: int
    number: int
    records: int
    rate: float | None = None
    "With which each record was drawn; None without Poisson sampling."


@dataclass(frozen=True)
class Part:
    """What the loader handed out: so many samples of a draw, and whether more of it will follow."""

    draw: Draw
    samples: int
    more: bool = False


@dataclass(eq=False)
class Iteration:
    """One iteration over the loader."""

    number: int
    loader: weakref.ref[Any] | None
    drawn: deque[Draw] = field(default_factory=deque[Draw])
    "Not handed out yet."
    parts: deque[Part] = field(default_factory=deque[Part])
    "Of the draw that is being handed out."

    @property
    def goes_on(self) -> bool:
        """Whether somebody may ask for its next batch."""
        loader = None if self.loader is None else self.loader()
        return loader is not None and loader._sampler_iter is not None


class Draws:
    """What was handed out and is in no sum yet."""

    def __init__(self, *, invents: bool) -> None:
        self.invents = invents
        "Whether an empty batch is filled with one invented sample (rand_on_empty)."
        self.ended = False
        "Whether no further batch may be drawn."
        self.at_start: Callable[[], list[torch.Tensor]] = list
        "Called when a new iteration begins; returns the gradients of batches that may be in the next sum."
        self._iterations: list[Iteration] = []
        self._unused: list[Part] = []
        "In the order in which they were handed out."
        self._kept: list[tuple[weakref.ref[torch.Tensor], Part | None]] = []
        self._started = 0
        self._drawn = 0

    def start(self, loader: Any | None) -> Iteration:
        """A new iteration begins; ``loader`` is its iterator. What an iteration that is over left unused is dropped."""
        self._kept = [(weakref.ref(batch), self._take(len(batch))) for batch in self.at_start()]
        self._iterations = [one for one in self._iterations if one.goes_on]
        self._unused = [part for part in self._unused if not self.is_over(part.draw)]
        self._started += 1
        self._iterations.append(Iteration(self._started, None if loader is None else weakref.ref(loader)))
        return self._iterations[-1]

    def is_over(self, draw: Draw) -> bool:
        """Whether no more of a draw can come, because its iteration was left."""
        return not any(one.number == draw.iteration and one.goes_on for one in self._iterations)

    def add(self, iteration: Iteration, records: int, rate: float | None) -> None:
        """The sampler drew a batch."""
        self._drawn += 1
        iteration.drawn.append(Draw(iteration.number, self._drawn, records, rate))

    def hand_out(self, iteration: Iteration, at_most: int | None) -> None:
        """The loader handed out the next batch, or the next part of one if parts have at most so many samples."""
        if not iteration.parts:
            iteration.parts.extend(self._split(iteration.drawn.popleft(), at_most))
        self._unused.append(iteration.parts.popleft())

    def _split(self, draw: Draw, at_most: int | None) -> Iterator[Part]:
        """As BatchSplittingSampler does it."""
        parts = max(math.ceil(draw.records / at_most), 1) if at_most else 1
        each, longer = divmod(draw.records or int(self.invents), parts)
        for number in range(parts):
            yield Part(draw, each + (number < longer), more=number < parts - 1)

    def use(self, batches: list[torch.Tensor]) -> list[Part]:
        """From which draws the gradients of batches come, that are about to be added to the sum."""
        found: list[Part] = []
        for batch in reversed(batches):
            kept = [part for one, part in self._kept if one() is batch]
            part = kept[0] if kept else self._take(len(batch))
            if part is None:
                raise self._refuse(len(batch))
            found.insert(0, part)
        for number in {part.draw.iteration for part in found}:
            last = max(part.draw.number for part in found if part.draw.iteration == number)
            left = [one for one in self._unused if one.draw.iteration == number]
            if len(left) > 1:  # one may still be used, in loops that fetch one batch ahead
                for one in left:
                    if one.draw.number < last:
                        self._unused.remove(one)
        return found

    def next_one(self, like: Draw) -> Draw:
        """Another draw, as one of the present iteration might be."""
        return Draw(self._started, self._drawn + 1, like.records, like.rate)

    def _take(self, samples: int) -> Part | None:
        """The last batch handed out of this size, or of more than this if some of it was left out."""
        exact = [number for number, part in enumerate(self._unused) if part.samples == samples]
        larger = [number for number, part in enumerate(self._unused) if part.samples > samples]
        fits = exact or larger
        return self._unused.pop(fits[-1]) if fits else None

    def _refuse(self, samples: int) -> Exception:
        if not self._unused:
            expected = "batches that come from the data_loader given to watch, each in one step only"
            return refuse("data_loader", "other batches", expected)
        most = max(part.samples for part in self._unused)
        expected = f"at most the {most} records that were drawn; each record must be one sample, once"
        return refuse("len(batch)", samples, expected)


@functools.cache
def watched_sampler(cls: type) -> type:
    """The class of a sampler that also says what it draws. Its copies and pickles are not watched."""

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        draws: Draws = getattr(self, STATE)
        if draws.ended:
            return
        loader, asked = _loader_of(sys._getframe())
        iteration, at_most = draws.start(loader), _at_most(loader)
        only_indices = loader is None  # a loop over the sampler itself
        unwatched = asked and not hasattr(type(loader), _ITERATION)  # the batch that is about to be handed out
        if loader is not None:
            setattr(loader, _ITERATION, (draws, iteration))
            loader.__class__ = _watched_loader(type(loader))
        del loader  # that it is left is seen by its end
        for indices in cls.__iter__(self):
            if draws.ended:
                return
            draws.add(iteration, len(indices), getattr(self, "sample_rate", None))
            if unwatched or only_indices:
                draws.hand_out(iteration, at_most)
                unwatched = False
            yield indices

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        return object.__new__, (cls,), {name: value for name, value in self.__dict__.items() if name != STATE}

    members = {"__iter__": __iter__, "__reduce_ex__": __reduce_ex__, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), members)


def _loader_of(frame: FrameType | None) -> tuple[Any | None, bool]:
    """The iterator of the data loader for which a sampler draws, and whether it was asked for its next batch.

    It called the sampler, or what splits the sampler's batches.
    """
    loader: Any | None = None
    for _ in range(8):
        frame = None if frame is None else frame.f_back
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, _BaseDataLoaderIter):
            loader = caller
            if frame.f_code.co_name == "__next__":
                return loader, True
    return loader, False


def _at_most(loader: Any | None) -> int | None:
    """How many samples its batches have at most; None if they are not split."""
    sampler = None if loader is None else loader._index_sampler
    return sampler.max_batch_size if isinstance(sampler, BatchSplittingSampler) else None


@functools.cache
def _watched_loader(cls: type) -> type:
    """The class of an iterator of a data loader that also says what it hands out."""
    if hasattr(cls, _ITERATION):  # its workers stay from one iteration to the next
        return cls

    def __next__(self: Any) -> Any:  # noqa: N807
        batch = cls.__next__(self)
        draws, iteration = getattr(self, _ITERATION)
        draws.hand_out(iteration, _at_most(self))
        return batch

    return type(cls.__name__, (cls,), {"__next__": __next__, _ITERATION: None, "__module__": cls.__module__})
