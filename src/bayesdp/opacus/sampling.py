"""How records come into batches, read from the data loader itself, and compared with what is drawn."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from opacus.data_loader import CollateFnWithEmpty
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from scipy.special import chdtr, ndtr
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from bayesdp.opacus.draws import STATE, Draw, Draws, watched_sampler
from bayesdp.opacus.secure import SecureSampler
from bayesdp.validation import refuse

_NEGLIGIBLE = 1e-30  # the probability of an empty batch below which it is not mentioned
_UNLIKELY = 1e-12  # of batches that are as they should be


class SamplingWarning(UserWarning):
    """What was drawn does not fit the rate that is accounted, by this library or by Opacus."""


class Sampling:
    """How a loader draws. ``rate`` is None if it goes through the data in some order, each record once an epoch."""

    def __init__(self, loader: Any) -> None:
        if not isinstance(loader, DataLoader):
            raise refuse("data_loader", loader, "the data loader that make_private returned")
        sampler = _sampler(loader)
        if hasattr(sampler, STATE):
            raise refuse("data_loader", loader, "a data loader that is not watched already; close the other watch")
        poisson = isinstance(sampler, UniformWithReplacementSampler)
        self.records = int(sampler.num_samples) if poisson else len(loader.dataset)  # type: ignore[arg-type]
        self.rate = float(sampler.sample_rate) if poisson else None
        "As it is now; each draw has its own."
        if loader.num_workers and not getattr(loader, "in_order", True):
            raise refuse("in_order", False, "True: otherwise it is not known which batch is which")
        collate = loader.collate_fn
        self.draws = Draws(invents=isinstance(collate, CollateFnWithEmpty) and collate.rand_on_empty)
        self._sampler, self._class = sampler, type(sampler)
        self._compared = self._drawn = 0
        self._expected = self._variance = self._spread = 0.0
        self.mismatch = False

    def watch(self, at_start: Callable[[], list[torch.Tensor]]) -> None:
        """From now on follow what the sampler draws."""
        self.draws.at_start = at_start
        self._compare_with_opacus(len(self._sampler))
        self._sampler.__class__ = watched_sampler(self._class)
        setattr(self._sampler, STATE, self.draws)

    def release(self) -> None:
        """Leave the sampler as it was."""
        if hasattr(self._sampler, STATE):
            delattr(self._sampler, STATE)
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
    def caveats(self) -> frozenset[str]:
        """What the accounting rests on because of how records are drawn.

        An invented sample stands in a batch only while nobody else does: another record would take its place. In data
        where a record contributes nothing instead of being absent, that does not happen.
        """
        invented = self.draws.invents and self.empty > _NEGLIGIBLE
        zero_out = self.rate is None or invented
        seeded = isinstance(self._sampler, SecureSampler) and self._sampler.randomness.reproducible
        return frozenset(["zero-out"] * zero_out + ["sampling-mismatch"] * self.mismatch + ["seeded"] * seeded)

    def compare(self, draw: Draw) -> None:
        """What was really drawn against the rate: both how much, and how evenly, which would not be Poisson.

        Looked at after 8, 16, 32, ... draws, so that all looks together rarely err.
        """
        if draw.rate is None:
            return
        mean = draw.rate * self.records
        variance = mean * (1 - draw.rate)
        self._compared += 1
        self._drawn += draw.records
        self._expected += mean
        self._variance += variance
        self._spread += (draw.records - mean) ** 2 / max(variance, 1e-300)
        if self.mismatch or self._compared < 8 or self._compared & (self._compared - 1) or self._variance == 0:
            return
        excess = (self._drawn - self._expected) / math.sqrt(self._variance)
        even = float(chdtr(self._compared, self._spread))
        if 2 * float(ndtr(-abs(excess))) < _UNLIKELY or even < _UNLIKELY:
            self.mismatch = True
            what = "all nearly of one size, which Poisson sampling does not give"
            if even >= _UNLIKELY:
                what = f"{self._drawn / self._compared:g} records on average, not {self._expected / self._compared:g}"
            warnings.warn(
                f"sample_rate={draw.rate:g}: {self._compared} batches had {what}. Claims are now marked as "
                "estimates. (Private: this is about training members.)",
                SamplingWarning,
                stacklevel=2,
            )

    def _compare_with_opacus(self, batches: int) -> None:
        """Opacus accounts one over the number of batches of an epoch, which is a whole number."""
        if self._class is not UniformWithReplacementSampler:  # not one that Opacus made
            return
        if self.rate is not None and not (1 - self.rate) * (1 - 1e-9) <= batches * self.rate <= 1 + 1e-9:
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
    poisson = type(sampler) in (UniformWithReplacementSampler, SecureSampler)
    if poisson or (sampler is not None and hasattr(sampler, STATE)):
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
