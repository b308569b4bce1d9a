"""Find out which batch a gradient comes from: watch the sampler where it draws, and the loader where it hands out.

A loader with workers draws ahead, BatchMemoryManager hands out a batch in parts, and the same loader may be iterated
twice at the same time. So each iteration knows what it has drawn and what it has handed out; a batch that was handed
out may be in a sum once, and nothing else may be in one.

Why the class of the sampler is swapped (``watched_sampler``, used by sampling.py)
    The two lines of ``watch`` must not ask for another loader in the user's loop, and a DataLoader does not let its
    ``batch_sampler`` be replaced (its ``__setattr__`` raises). Python looks up ``__iter__`` on the class, so a method
    set on the sampler itself would never be called; one set on Opacus' class would watch every sampler of the process.
    A subclass of the sampler's own class, given to this one sampler, is seen by the loader and also by the new loader
    that BatchMemoryManager builds around the same sampler. Copies and pickles get the plain class back.

Why the stack is searched for the loader (``_loader_of``)
    ``iter(sampler)`` does not say who asks: PyTorch's loader iterator keeps the result in ``_sampler_iter`` and draws
    from it in ``_next_index``, and BatchSplittingSampler of Opacus may stand between the two. The sampler alone cannot
    tell two iterations from each other, nor a batch that was drawn ahead from one that was handed out: a worker's batch
    that nobody fetched must not count as used. The frame of the iterator is the only place where sampler and iterator
    meet. A loop over the sampler itself has no such frame, and is taken as handing out.

Why the class of the loader's iterator is swapped (``_watched_loader``)
    A batch is handed out when ``__next__`` returns, and ``__next__`` too is looked up on the class. Without workers the
    sampler's generator only starts inside the first ``__next__``, which is then under way and not watched: the sampler
    hands out that first batch itself.

What would break this: a loader iterator that does not derive from PyTorch's ``_BaseDataLoaderIter`` or stands more than
eight frames above the sampler (it is then taken for a loop over the sampler itself: what is drawn ahead counts as
handed out, and the second part of a split batch is refused); another name for ``_sampler_iter`` or ``_index_sampler``
(an AttributeError); a BatchSplittingSampler that no longer splits like ``numpy.array_split`` (sizes do not fit, and
steps are refused or marked "left-out"). tests/with_opacus/test_draws.py and test_virtual_batches.py go through all of
it.
"""

from __future__ import annotations

import functools
import math
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import FrameType
from typing import Any

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from bayesdp.opacus.draw_repeats import states_before_draw
from bayesdp.opacus.handed_out import HandedOut
from bayesdp.opacus.rank_draws import Dealt, dealt_draws
from bayesdp.validation import refuse

STATE = "_bayesdp_draws"
_ITERATION = "_bayesdp_iteration"
_FOR_USED = (
    "for another epoch, loop over the loader again; for several losses of a batch (real and generated samples), make "
    "one backward pass of them, then one step"
)
_FOR_OTHERS = f"for parts of a batch, use BatchMemoryManager (signal_skip_step adds up whole batches only); {_FOR_USED}"
_FOR_LISTS = (
    "each before the loader is iterated again: for every epoch a list(loader) of its own, used up before the next"
)
_FOR_EARLIER = "loop over that loader, and call watch before list(loader) or iter(loader)"
_FRAMES = 8  # from a sampler up to the loader's __next__ or __init__ there are at most five


@dataclass(frozen=True)
class Draw:
    """A batch as the sampler drew it: whole, whatever parts the loader makes of it and whoever fetches them."""

    iteration: int
    "The number of the iteration over the loader."
    number: int
    "The number of the draw among all draws."
    records: int
    rate: float | None = None
    "The probability with which each record was drawn; None without Poisson sampling."
    dealt: Dealt | None = None
    "What ranks compare about the draw, if records are dealt out to several of them."
    states: tuple[int, ...] = ()
    "Digests of the states from which it was drawn, one for each rank (draw_repeats.py); none if they are not known."


@dataclass(frozen=True)
class Part:
    """What the loader handed out: a number of samples of one draw, and whether more of that draw will follow."""

    draw: Draw
    samples: int
    more: bool = False
    split: bool = False
    "Whether the loader hands out batches in parts, also if this batch has one part only."
    number: int = 0
    "The number of the part among all that were handed out."
    known: bool = False
    "Whether its tensors are known; those of the first batch of a loader without workers are not."


@dataclass(eq=False)
class Iteration:
    """One iteration over the loader: what was drawn for it, and what of that was handed out.

    ``loader`` is PyTorch's iterator, weakly, so that a loop that was left can be told from one that goes on; None if
    somebody iterates over the sampler itself.
    """

    number: int
    loader: weakref.ref[Any] | None
    drawn: deque[Draw] = field(default_factory=deque[Draw])
    "Draws that were not handed out yet."
    parts: deque[Part] = field(default_factory=deque[Part])
    "What is left of the draw that is being handed out."

    @property
    def goes_on(self) -> bool:
        """Whether somebody may still ask for its next batch."""
        loader = None if self.loader is None else self.loader()
        return loader is not None and loader._sampler_iter is not None


class Draws:
    """The batches that were handed out and are in no sum yet."""

    def __init__(self, *, invents: bool) -> None:
        self.invents = invents
        "Whether an empty batch is filled with one invented sample (rand_on_empty)."
        self.ended = False
        "Whether no further batch may be drawn."
        self.skipped = False
        "Whether the loop used a batch and none that it was handed out earlier, in the same iteration, and let go; or "
        "left a batch between two of its parts."
        self.at_start: Callable[[], list[torch.Tensor]] = list
        "Called when a new iteration begins; returns the gradients of batches that may be in the next sum."
        self._iterations: list[Iteration] = []
        self._unused: list[Part] = []
        "Parts in the order in which they were handed out."
        self._dropped: set[int] = set()
        "Numbers of unused parts that were dropped when another iteration began, although the loop held them."
        self._kept: list[tuple[weakref.ref[torch.Tensor], Part | None]] = []
        "Gradients that were computed before this iteration began, with the parts they come from."
        self.handed_out = HandedOut()
        self._started = self._drawn = self._parts = 0

    def start(self, loader: Any | None) -> Iteration:
        """Begin an iteration; ``loader`` is its iterator. What an abandoned iteration left unused is dropped."""
        passed = self.handed_out.taken()
        self._kept = [(weakref.ref(batch), self._take(len(batch), passed)) for batch in self.at_start()]
        self._iterations = [iteration for iteration in self._iterations if iteration.goes_on]
        over = {part.number for part in self._unused if self.is_over(part.draw)}
        self._unused = [part for part in self._unused if part.number not in over]
        self._dropped = {number for number in self._dropped | over if self.handed_out.is_held(number)}
        self._started += 1
        self._iterations.append(Iteration(self._started, None if loader is None else weakref.ref(loader)))
        return self._iterations[-1]

    def is_over(self, draw: Draw) -> bool:
        """Whether no more of a draw can come, because its iteration was abandoned."""
        return not any(iteration.number == draw.iteration and iteration.goes_on for iteration in self._iterations)

    def add(
        self,
        iteration: Iteration,
        records: int,
        rate: float | None,
        dealt: Dealt | None = None,
        states: tuple[int, ...] = (),
    ) -> None:
        """Note that the sampler drew a batch of so many ``records``, each with probability ``rate``, if it has one."""
        self._drawn += 1
        iteration.drawn.append(Draw(iteration.number, self._drawn, records, rate, dealt, states))

    def hand_out(self, iteration: Iteration, limit: int | None, batch: Any = None) -> None:
        """Note that the loader handed out the next batch, or its next part if parts have at most ``limit`` samples.

        ``batch`` is what it handed out, if that is known.
        """
        if not iteration.parts:
            iteration.parts.extend(self._split(iteration.drawn.popleft(), limit))
        self._parts += 1
        part = replace(iteration.parts.popleft(), number=self._parts, known=batch is not None)
        self._unused.append(part)
        if batch is not None:
            self.handed_out.remember(part.number, batch)

    def _split(self, draw: Draw, limit: int | None) -> Iterator[Part]:
        """Split a draw as BatchSplittingSampler does it."""
        parts = max(math.ceil(draw.records / limit), 1) if limit else 1
        each, longer = divmod(draw.records or int(self.invents), parts)
        for number in range(parts):
            yield Part(draw, each + (number < longer), more=number < parts - 1, split=limit is not None)

    def use(self, batches: list[torch.Tensor]) -> list[Part]:
        """Return the parts whose gradients are about to be added to the sum, in the order of ``batches``.

        Each part can be used once. Raises InvalidInputError if a batch cannot have come from the watched loader.
        """
        used: list[Part] = []
        passed = self.handed_out.taken()
        fresh = [part.number for part in self._unused if part.number in passed]
        if passed and not fresh:  # everything that was recognised is used already, or dropped
            if not self._dropped.isdisjoint(passed):
                raise refuse(
                    "data_loader", "a batch of an earlier iteration", f"batches of the watched one, {_FOR_LISTS}"
                )
            raise self._refusal(again=True)
        for batch in reversed(batches):
            kept = [part for gradient, part in self._kept if gradient() is batch]
            part = kept[0] if kept else self._take(len(batch), fresh)
            if part is None:
                raise self._refusal()
            used.insert(0, part)
        for number in {part.draw.iteration for part in used}:
            last = max(part.draw.number for part in used if part.draw.iteration == number)
            unused = [part for part in self._unused if part.draw.iteration == number]
            passed_over = (part for part in unused if part.known and part.draw.number < last)
            self.skipped |= any(not self.handed_out.is_held(part.number) for part in passed_over)
            if len(unused) > 1:  # a single part may still be used, in loops that fetch one batch ahead
                held = [part for part in unused if self.handed_out.is_held(part.number)]
                for part in unused:
                    may_follow = part in held or (held and not part.known)
                    if part.draw.number < last and not may_follow:
                        self._unused.remove(part)
        return used

    def next_like(self, draw: Draw) -> Draw:
        """Return a draw as the present iteration might make it next: of the size and rate of ``draw``."""
        return Draw(self._started, self._drawn + 1, draw.records, draw.rate)

    def _take(self, samples: int, recognised: Sequence[int] = ()) -> Part | None:
        """Take the part that came to the model, if it was ``recognised``.

        Otherwise a part whose tensors are not known, or any: the last that was handed out of this size, or of a larger
        size if some of it was left out.
        """
        places = range(len(self._unused))
        ours = [place for place in places if self._unused[place].number in recognised]
        unknown = [place for place in places if not self._unused[place].known]
        exact = [place for place in places if self._unused[place].samples == samples]
        larger = [place for place in places if self._unused[place].samples > samples]
        for fitting, among in product((exact, larger), [ours] if ours else [unknown, places]):
            fits = [place for place in fitting if place in among]
            if fits:
                return self._unused.pop(fits[-1])
        return None

    def _refusal(self, *, again: bool = False) -> Exception:
        if again or not self._unused:
            expected = "batches that come from the data_loader given to watch, each in one step only: "
            if again:
                return refuse("data_loader", "a batch that a step has used", expected + _FOR_USED)
            return refuse("data_loader", "other batches", expected + (_FOR_OTHERS if self._parts else _FOR_EARLIER))
        expected = "no more samples than the loader drew; each record must be one sample, once"
        return refuse("len(batch)", "too many", expected)  # no numbers: they are about training records


def drawn_rate(sampler: Any) -> float | None:
    """Return the probability with which a sampler draws a record; None if it does not draw by chance.

    Opacus compares ``torch.rand``, in float32 a multiple of 2^-24, with its rate q: a record is drawn with probability
    ceil(q 2^24) / 2^24, a little more often than q says (1.3 % at q = 1e-6). What is drawn is what is accounted.
    """
    if hasattr(sampler, "drawn_rate"):  # one of ours says it itself
        return float(sampler.drawn_rate)
    rate = getattr(sampler, "sample_rate", None)
    return None if rate is None else min(1.0, math.ceil(float(rate) * 2.0**24) * 2.0**-24)


@functools.cache
def watched_sampler(cls: type) -> type:
    """Return a subclass of a sampler's class that also notes what it draws; copies and pickles are not watched."""

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        draws: Draws = getattr(self, STATE)
        if draws.ended:
            return
        loader, asked = _loader_of(sys._getframe())
        iteration, limit = draws.start(loader), _part_limit(loader)
        only_indices = loader is None  # a loop over the sampler itself
        unwatched = asked and not hasattr(type(loader), _ITERATION)  # the batch that is about to be handed out
        if loader is not None:
            setattr(loader, _ITERATION, (draws, iteration))
            loader.__class__ = _watched_loader(type(loader))
        del loader  # an abandoned iteration is recognised by the end of its loader
        for indices, dealt, states in _drawn_by(cls, self):
            if draws.ended:
                return
            draws.add(iteration, len(indices), drawn_rate(self), dealt, states)
            if unwatched or only_indices:
                draws.hand_out(iteration, limit)
                unwatched = False
            yield indices

    def __reduce_ex__(self: Any, protocol: Any) -> Any:  # noqa: N807
        return object.__new__, (cls,), {name: value for name, value in self.__dict__.items() if name != STATE}

    members = {"__iter__": __iter__, "__reduce_ex__": __reduce_ex__, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), members)


def _drawn_by(cls: type, sampler: Any) -> Iterator[tuple[Any, Dealt | None, tuple[int, ...]]]:
    deals = issubclass(cls, DistributedUniformWithReplacementSampler)
    batches: Iterator[Any] = dealt_draws(sampler) if deals else cls.__iter__(sampler)
    while True:
        states = states_before_draw(sampler, drawn_rate(sampler))
        try:
            batch = next(batches)
        except StopIteration:
            return
        indices, dealt = batch if deals else (batch, None)
        yield indices, dealt, states


def _loader_of(frame: FrameType | None) -> tuple[Any | None, bool]:
    """Return the loader iterator that a sampler draws for, and whether it was asked for its next batch just now."""
    loader: Any | None = None
    for _ in range(_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            break
        caller = frame.f_locals.get("self")
        if isinstance(caller, _BaseDataLoaderIter):
            loader = caller
            if frame.f_code.co_name == "__next__":
                return loader, True
    return loader, False


def _part_limit(loader: Any | None) -> int | None:
    """Return how many samples a part of a batch may have; None if the loader does not split batches."""
    sampler = None if loader is None else loader._index_sampler
    return sampler.max_batch_size if isinstance(sampler, BatchSplittingSampler) else None


@functools.cache
def _watched_loader(cls: type) -> type:
    """Return a subclass of a loader iterator's class that also notes what it hands out."""
    if hasattr(cls, _ITERATION):  # persistent workers: the same iterator begins again
        return cls

    def __next__(self: Any) -> Any:  # noqa: N807
        batch = cls.__next__(self)
        draws, iteration = getattr(self, _ITERATION)
        draws.hand_out(iteration, _part_limit(self), batch)
        return batch

    return type(cls.__name__, (cls,), {"__next__": __next__, _ITERATION: None, "__module__": cls.__module__})
