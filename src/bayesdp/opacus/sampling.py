"""Read from the data loader how records come into batches, and compare that with what is drawn.

Why the loader is asked, and not Opacus
    Opacus reports one over the number of batches of an epoch to its accountants. That is not the rate at which records
    are drawn if somebody else made the sampler, if the number of batches was rounded, or if the loader is only
    shuffled. So the rate is read from the sampler, each draw carries its own, and the number of records that were
    really drawn is compared with it. Only samplers whose law is known are accepted, by their exact class: a subclass
    might draw in any way. While it is watched the sampler has another class; draws.py says why, and ``release`` gives
    the old one back.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from opacus.accountants import IAccountant
from opacus.data_loader import CollateFnWithEmpty
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import DistributedUniformWithReplacementSampler, UniformWithReplacementSampler
from scipy.special import chdtr, ndtr
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from bayesdp.formatting import round_up
from bayesdp.guarantees.clip_bound import worst_case_of_many
from bayesdp.opacus.accountant import Accountant
from bayesdp.opacus.draws import STATE, Draw, Draws, drawn_rate, watched_sampler
from bayesdp.opacus.rank_draws import check_dealing
from bayesdp.opacus.ranks import Ranks
from bayesdp.opacus.secure import SecureSampler
from bayesdp.validation import refuse

_NEGLIGIBLE = 1e-20  # the probability of an empty batch that a million steps cannot make matter
_UNLIKELY = 1e-12  # the probability of batches like these if the rate is right, below which they are reported
_told: WeakSet[IAccountant] = WeakSet()
"""Accountants whose users were told that their epsilon assumes Poisson sampling."""

_OF_OPACUS = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


class SamplingWarning(UserWarning):
    """What was drawn does not fit the rate that is accounted, by this library or by Opacus."""


class Sampling:
    """How a data loader draws its batches.

    ``rate`` is the Poisson sampling rate as it is now, and each draw has its own; it is None if the loader goes through
    the data in some order, each record once an epoch. ``ranks`` are the processes that draw together, None for an
    optimizer that adds up no gradients over processes. Raises InvalidInputError for a loader whose sampling is not
    known, for one that is watched already, and for one whose workers hand out batches out of order.
    """

    def __init__(self, loader: Any, ranks: Ranks | None = None) -> None:
        if not isinstance(loader, DataLoader):
            raise refuse("data_loader", loader, "the data loader that make_private returned")
        sampler = _known_sampler(loader, ranks)
        if hasattr(sampler, STATE):
            raise refuse("data_loader", loader, "a data loader that is not watched already; close the other watch")
        dealt = isinstance(sampler, DistributedUniformWithReplacementSampler)
        poisson = dealt or isinstance(sampler, UniformWithReplacementSampler)
        self.records_here = int(sampler.num_samples) if poisson else len(loader.dataset)  # type: ignore[arg-type]
        "How many records batches are drawn from; of several ranks, on the rank that has fewest."
        self.records = self.records_here
        "How many records there are, on all ranks together."
        if dealt:
            self.records, self.records_here = sampler.total_size, sampler.total_size // sampler.num_replicas
        self.rate = drawn_rate(sampler) if poisson else None
        if loader.num_workers and not getattr(loader, "in_order", True):
            raise refuse("in_order", False, "True: otherwise it is not known which batch is which")
        collate = loader.collate_fn
        self.draws = Draws(invents=isinstance(collate, CollateFnWithEmpty) and collate.rand_on_empty)
        self._sampler: Any = sampler
        self._class: type = type(sampler)
        self._compared = self._drawn = 0
        self._expected = self._variance = self._spread = 0.0
        self.mismatch = False
        "Whether what was drawn does not fit the rate."

    def watch(self, at_start: Callable[[], list[torch.Tensor]]) -> None:
        """Follow what the sampler draws from now on; ``at_start`` is called when an iteration begins (``Draws``)."""
        self.draws.at_start = at_start
        self._compare_with_opacus()
        self._sampler.__class__ = watched_sampler(self._class)
        setattr(self._sampler, STATE, self.draws)

    def detach(self) -> None:
        """Leave the sampler as it was before ``watch``."""
        if hasattr(self._sampler, STATE):
            delattr(self._sampler, STATE)
            self._sampler.__class__ = self._class

    @property
    def planned_batch(self) -> float | None:
        """The expected number of records in a batch; None without Poisson sampling."""
        return None if self.rate is None else self.rate * self.records

    @property
    def empty_probability(self) -> float:
        """The probability of an empty batch if one record were absent; of several ranks, on one of them."""
        if self.rate is None:
            return 0.0
        return (1.0 - self.rate) ** max(self.records_here - 1, 0)

    @property
    def caveats(self) -> frozenset[str]:
        """Names of what the accounting rests on because of how records are drawn.

        An invented sample is in a batch only if no record is: a record that joins takes its place. That does not happen
        if "absent" means that a record contributes nothing (zero-out).
        """
        zero_out = self.rate is None or self._invents
        own = self._sampler.caveats if isinstance(self._sampler, SecureSampler) else frozenset[str]()
        skipped = ["skipped-batches"] * self.draws.skipped
        return own | frozenset(["zero-out"] * zero_out + ["sampling-mismatch"] * self.mismatch + skipped)

    @property
    def _invents(self) -> bool:
        """Whether batches are empty often enough for the samples invented then to matter."""
        return self.draws.invents and self.empty_probability > _NEGLIGIBLE

    def accounted_rate(self, drawn: float | None) -> float:
        """Return the rate at which a draw is accounted: 1 without Poisson sampling, and where samples are invented.

        An invented sample shows that nobody was drawn, so that a record is not hidden by the chance of being left out.
        """
        return 1.0 if drawn is None or self._invents else drawn

    def compare(self, draw: Draw) -> None:
        """Compare the draws so far with the rate: their mean size, and whether sizes vary as Poisson sampling has it.

        Warns once, and sets ``mismatch``, if honest sampling would give such batches with probability below 1e-12. It
        looks after 8, 16, 32, ... draws, so that all looks together rarely err. The warning has no sizes in it: they
        are about training records. That it comes at all says that the sampler is not what it is taken for; whoever
        samples honestly never sees it, whatever the records are.
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
            warnings.warn(
                f"sample_rate={draw.rate:g}: the sizes of the batches do not fit Poisson sampling at this rate. Claims "
                "are now marked as estimates.",
                SamplingWarning,
                stacklevel=2,
            )

    @property
    def nominal_rate(self) -> float | None:
        """The sampling rate that the sampler was given, which it may exceed by a little; None without sampling."""
        return None if self.rate is None else float(self._sampler.sample_rate)

    @property
    def differs_from_opacus(self) -> bool:
        """Whether the sampling rate is not what Opacus accounts: one over the number of batches of an epoch."""
        rate = self.nominal_rate
        if rate is None or self._class not in _OF_OPACUS:
            return False
        return not (1 - rate) * (1 - 1e-9) <= len(self._sampler) * rate <= 1 + 1e-9

    def compare_with_accountant(
        self, accountant: IAccountant | None, noise_multiplier: float, steps: int | None, batches: int, delta: float
    ) -> None:
        """Warn, once for an accountant of Opacus, that its epsilon assumes Poisson sampling if the loader has none.

        The warning has both epsilons at ``delta`` if the number of updates ``steps`` is known; ``batches`` is how many
        an epoch has. Opacus' is computed by an accountant of the same class, which is asked as Opacus would ask it.
        """
        if self.rate is not None or accountant is None or isinstance(accountant, Accountant) or accountant in _told:
            return
        _told.add(accountant)
        truth = "which goes through the data once an epoch, in order or shuffled"
        figures = None
        if steps is not None:
            figures = _epsilons(accountant, noise_multiplier, steps, max(batches, 1), delta)
        if figures is None:
            said = f"Opacus' epsilon assumes Poisson sampling, not this data loader, {truth}: it is too small."
        else:
            opacus, own = (round_up(figure) for figure in figures)
            said = (
                f"Opacus' epsilon after {steps} steps, {opacus} at delta={delta:g}, assumes Poisson sampling, not this "
                f"data loader, {truth}: it is {own}."
            )
        where_watch_was_called = 4
        warnings.warn(f"{said} bayesdp accounts what is drawn.", SamplingWarning, stacklevel=where_watch_was_called)

    def _compare_with_opacus(self) -> None:
        if self.differs_from_opacus:
            warnings.warn(
                f"sample_rate={self.nominal_rate:g} is how records are drawn, but Opacus accounts "
                f"1/{len(self._sampler)}: its own epsilon is for another rate. bayesdp accounts what is drawn.",
                SamplingWarning,
                stacklevel=2,
            )


def _epsilons(
    accountant: IAccountant, noise_multiplier: float, steps: int, batches: int, delta: float
) -> tuple[float, float] | None:
    """Return what an accountant of this class says after so many steps, and the epsilon without amplification.

    None if it has no figure, or one that is not smaller.
    """
    try:
        fresh = type(accountant)()
        fresh.history = [(noise_multiplier, 1 / batches, steps)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            opacus = float(fresh.get_epsilon(delta))
    except Exception:  # an accountant of somebody else may need more, and the warning does without its figure
        return None
    own = worst_case_of_many([(noise_multiplier, 1.0, -(-steps // batches))], delta).epsilon
    return (opacus, own) if opacus < own < math.inf else None


def _known_sampler(loader: Any, ranks: Ranks | None) -> Any:
    """Return what draws batches of indices; raise InvalidInputError if its law is not known."""
    sampler = loader.batch_sampler
    while isinstance(sampler, BatchSplittingSampler):
        sampler = sampler.sampler
    if sampler is not None and hasattr(sampler, STATE):
        return sampler
    if ranks is not None:
        return check_dealing(sampler, loader, ranks)
    if type(sampler) in (UniformWithReplacementSampler, SecureSampler):
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
