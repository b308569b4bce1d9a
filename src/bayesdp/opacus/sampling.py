"""How records come into batches, read from the data loader itself; and which records a sum of gradients holds.

The loader's sampler is watched where it draws, so that what is accounted is what was drawn: batches that did not come
from it, or that hold more records than it drew, are refused.
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from opacus.data_loader import CollateFnWithEmpty
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy.stats import chi2, norm
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from bayesdp.validation import refuse

_NEGLIGIBLE = 1e-30  # the probability of an empty batch below which it is not mentioned
_UNLIKELY = 1e-12  # of batches that are as they should be
_STATE = "_bayesdp_draws"


class SamplingWarning(UserWarning):
    """What was drawn does not fit the rate that is accounted, by this library or by Opacus."""


@dataclass(frozen=True)
class Draw:
    """One batch that the sampler drew: in which iteration over the loader, which one of it, and how many records."""

    iteration: int
    number: int
    records: int


class Draws:
    """What the sampler has drawn and training has not used yet."""

    def __init__(self, *, invents: bool) -> None:
        self.invents = invents
        "Whether an empty batch is filled with one invented sample (rand_on_empty)."
        self.ended = False
        "Whether no further batch may be drawn."
        self.iteration = 0
        "How often an iteration over the loader was begun."
        self._number = 0
        self._waiting: deque[Draw] = deque()
        self._begun: Draw | None = None
        self._left = 0
        self._kept: list[tuple[weakref.ref[torch.Tensor], Draw | None]] = []
        self.at_start: Callable[[], list[torch.Tensor]] = list
        "Called when a new iteration begins; returns the gradients of batches that may be in the next sum."

    def __deepcopy__(self, memo: object) -> Draws:
        raise TypeError("a data loader that is watched cannot be copied: what the copy draws would not be known")

    def start(self) -> None:
        """A new iteration over the loader begins: what else was drawn in the last one will not be used."""
        self._kept = [(weakref.ref(batch), self._find(len(batch))) for batch in self.at_start()]
        self.iteration += 1
        self._waiting.clear()
        self._begun, self._left = None, 0

    def add(self, records: int) -> None:
        """The sampler drew a batch."""
        self._number += 1
        self._waiting.append(Draw(self.iteration, self._number, records))

    def next_part(self) -> tuple[Draw, torch.Tensor]:
        """What the next batch of this iteration might be."""
        return Draw(self.iteration, self._number + 1, 0), torch.zeros(0)

    def use(self, batches: list[torch.Tensor], *, part: bool) -> list[tuple[Draw, slice]]:
        """Which rows, of the gradients of batches one after the other, come from which draw; invented ones from none.

        ``part``: it is a part of one batch, as BatchMemoryManager makes them.
        """
        used: list[tuple[Draw, slice]] = []
        first = 0
        for batch in batches:
            size = len(batch)
            kept = [draw for one, draw in self._kept if one() is batch]
            draw = kept[0] if kept else self._part(size) if part else self._find(size)
            if draw is None:
                raise self._unknown(size)
            used.append((draw, slice(first, first + (size if draw.records else 0))))
            first += size
        return used

    def _part(self, size: int) -> Draw | None:
        if self._begun is None or not self._left:
            self._begun = self._find(size)
            self._left = self._begun.records if self._begun else 0
        elif size > self._left:
            return None
        self._left = max(self._left - size, 0)
        return self._begun

    def _find(self, size: int) -> Draw | None:
        """The next draw that fits; those before it were not used."""
        exact = [self._gives(draw) == size for draw in self._waiting]
        larger = [self._gives(draw) > size for draw in self._waiting]
        fits = exact if any(exact) else larger
        if not any(fits):
            return None
        for _ in range(fits.index(True)):
            self._waiting.popleft()
        return self._waiting.popleft()

    def _gives(self, draw: Draw) -> int:
        """How many samples the loader makes of a draw."""
        return draw.records or int(self.invents)

    def _unknown(self, size: int) -> Exception:
        drawn = self._left or (self._gives(self._waiting[0]) if self._waiting else None)
        if drawn is None:
            return refuse("data_loader", "other batches", "batches that come from the data_loader given to watch")
        what = f"at most the {drawn} records that were drawn; each record must be one sample, once"
        return refuse("len(batch)", size, what)


class Sampling:
    """How a loader draws. ``rate`` is None if it goes through the data in some order, each record once an epoch."""

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, DataLoader):
            raise refuse("data_loader", loader, "the data loader that make_private returned")
        sampler = _sampler(loader)
        if hasattr(sampler, _STATE):
            raise refuse("data_loader", loader, "a data loader that is not watched already; close the other watch")
        poisson = isinstance(sampler, UniformWithReplacementSampler)
        self.records = int(sampler.num_samples) if poisson else len(loader.dataset)  # type: ignore[arg-type]
        self.rate = float(sampler.sample_rate) if poisson else None
        collate = loader.collate_fn
        self.draws = Draws(invents=isinstance(collate, CollateFnWithEmpty) and collate.rand_on_empty)
        self._sampler, self._class = sampler, type(sampler)
        self._compared = self._drawn = 0
        self._spread = 0.0
        self.mismatch = False

    def watch(self, at_start: Callable[[], list[torch.Tensor]]) -> None:
        """From now on follow what the sampler draws."""
        self.draws.at_start = at_start
        self._compare_with_opacus(len(self._sampler))
        self._sampler.__class__ = _watched(self._class)
        setattr(self._sampler, _STATE, self.draws)

    def release(self) -> None:
        """Leave the sampler as it was."""
        if hasattr(self._sampler, _STATE):
            delattr(self._sampler, _STATE)
            self._sampler.__class__ = self._class

    @property
    def planned_batch(self) -> float | None:
        """The expected number of records in a batch."""
        return None if self.rate is None else self.rate * self.records

    @property
    def empty(self) -> float:
        """The probability of an empty batch, in the absence of one record."""
        if self.rate is None:
            return 0.0
        return (1.0 - self.rate) ** max(self.records - 1, 0)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the accounting rests on because of how records are drawn.

        An invented sample stands in a batch only while nobody else does: another record would take its place. In data
        where a record contributes nothing instead of being absent, that does not happen.
        """
        invented = self.draws.invents and self.empty > _NEGLIGIBLE
        names = ["zero-out"] if self.rate is None or invented else []
        return (*names, "sampling-mismatch") if self.mismatch else tuple(names)

    def compare(self, draw: Draw) -> None:
        """What was really drawn against the rate: both how much, and how evenly, which would not be Poisson.

        Looked at after 8, 16, 32, ... draws, so that all looks together rarely err.
        """
        if self.rate is None:
            return
        mean = self.rate * self.records
        variance = mean * (1 - self.rate)
        self._compared += 1
        self._drawn += draw.records
        self._spread += (draw.records - mean) ** 2
        if self.mismatch or self._compared < 8 or self._compared & (self._compared - 1) or variance == 0:
            return
        excess = (self._drawn - mean * self._compared) / math.sqrt(variance * self._compared)
        even = float(chi2.cdf(self._spread / variance, self._compared))
        if 2 * float(norm.sf(abs(excess))) < _UNLIKELY or even < _UNLIKELY:
            self.mismatch = True
            what = "all nearly of one size, which Poisson sampling does not give"
            if even >= _UNLIKELY:
                what = f"{self._drawn / self._compared:g} records on average, not {mean:g}"
            warnings.warn(
                f"sample_rate={self.rate:g}: {self._compared} batches had {what}. Claims are now marked as "
                "estimates. (Private: this is about training members.)",
                SamplingWarning,
                stacklevel=2,
            )

    def _compare_with_opacus(self, batches: int) -> None:
        """Opacus accounts one over the number of batches of an epoch, which is a whole number."""
        if self.rate is not None and not 1 - self.rate < batches * self.rate <= 1 + 1e-9:
            warnings.warn(
                f"sample_rate={self.rate:g} is how records are drawn, but Opacus accounts 1/{batches}: its own epsilon "
                "is of another rate. bayesdp accounts what is drawn.",
                SamplingWarning,
                stacklevel=2,
            )


def _sampler(loader: Any) -> Any:
    """What draws batches of indices; refused if it is not known how it does."""
    sampler = loader.batch_sampler
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if type(sampler) is UniformWithReplacementSampler or (sampler is not None and hasattr(sampler, _STATE)):
        return sampler
    if type(sampler) is BatchSampler:
        order = sampler.sampler
        if type(order) is SequentialSampler:
            return sampler
        if type(order) is RandomSampler and not order.replacement and order.num_samples <= len(loader.dataset):
            return sampler
        sampler = order
    raise refuse(
        "data_loader",
        type(sampler).__name__,
        "Opacus' Poisson sampling (poisson_sampling=True), or a loader that goes through the data once an epoch",
    )


@functools.cache
def _watched(cls: type) -> type:
    """The class of a sampler that also says what it draws."""

    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        draws: Draws = getattr(self, _STATE)
        if draws.ended:
            return
        draws.start()
        for indices in cls.__iter__(self):
            if draws.ended:
                return
            draws.add(len(indices))
            yield indices

    return type(cls.__name__, (cls,), {"__iter__": __iter__, "__module__": cls.__module__})


def on_cpu(tensor: torch.Tensor) -> Any:
    """As NumPy sees it; waits for the device if there is one."""
    return tensor.detach().cpu().numpy()
