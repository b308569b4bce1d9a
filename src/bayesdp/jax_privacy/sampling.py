"""How records come into batches: what a batch selection strategy promises, and whether batches look like it."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

from jax_privacy import batch_selection
from scipy.special import chdtr, ndtr

from bayesdp.validation import count, refuse, sample_rate

_UNLIKELY = 1e-12


class SamplingWarning(UserWarning):
    """Records are not drawn as JAX Privacy, or the caller, accounts for them."""


@dataclass(frozen=True)
class Epochs:
    """Batches without Poisson sampling: a record is in at most one of each ``batches`` batches in turn.

    That is what a loader does that goes through the data once an epoch, shuffled or not: ``batches`` is then the number
    of batches of an epoch. ``Epochs(1)`` promises nothing: a record may be in every batch. There is no amplification by
    sampling: an epoch is one step at rate 1, under the zero-out relation.

    Batches are counted from the first step on. If a pass ends early (a ``break``, a last batch that is sometimes kept),
    the next one no longer begins where the count begins: call ``Watch.begin_epoch`` before every pass then.

    Raises InvalidInputError unless ``batches`` is a whole number of at least 1.
    """

    batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", count("batches", self.batches, minimum=1))


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The law by which records come into batches."""

    rate: float | None
    "The rate of Poisson sampling; None without it."
    batches: int
    "A record is in at most one of this many batches; 1 for Poisson sampling."
    iterations: int | None
    "The number of batches that the strategy draws, if it says so."

    @staticmethod
    def of(selection: Any) -> Sampling:
        """Return the law of a batch selection strategy of JAX Privacy, or of ``Epochs``.

        Poisson sampling is ``CyclicPoissonSampling`` without truncation and with one group. Of any other strategy only
        the number of batches between two appearances of a record is used. Raises InvalidInputError for a strategy that
        may put a record into a batch twice, and for any that is not known.
        """
        if isinstance(selection, Epochs):
            return Sampling(rate=None, batches=selection.batches, iterations=None)
        if type(selection) is batch_selection.UserSelectionStrategy:  # a row of a batch is then a user
            return Sampling.of(selection.base_strategy)
        apart = _APART.get(type(selection).__name__)
        if apart is None or not isinstance(selection, batch_selection.BatchSelectionStrategy):
            expected = "a batch selection strategy of jax_privacy, or bayesdp.jax_privacy.Epochs(batches per epoch)"
            raise refuse("batches", selection, expected)
        if getattr(selection, "replace", False):
            raise refuse("replace", True, "False: a record that is twice in a batch counts twice in its sum")
        rate = None
        if type(selection) is batch_selection.CyclicPoissonSampling:
            poisson = selection.cycle_length == 1 and selection.truncated_batch_size is None
            rate = sample_rate(selection.sampling_prob) if poisson else None
        batches = 1 if apart == "" else int(getattr(selection, apart))
        return Sampling(rate=rate, batches=batches, iterations=int(selection.iterations))

    @property
    def caveats(self) -> frozenset[str]:
        """Names of what the accounting rests on because of how records are drawn."""
        return frozenset(["zero-out"] if self.rate is None else [])


_APART = {
    "CyclicPoissonSampling": "cycle_length",
    "BallsInBinsSampling": "cycle_length",
    "BMinSepSampling": "min_sep",
    "FixedBatchSampling": "",
    "RandomAllocationSampling": "",
}
"""For each strategy, its field that says in how many batches a record appears at most once; "" if there is none."""


class BatchSizes:
    """Compares the sizes of batches with Poisson sampling at a rate.

    ``records`` is the number of training records; if it is not known, only whether sizes vary as they should is
    compared. Honest sampling is taken for something else with probability below 1e-12 at each of the looks, which come
    after 8, 16, 32, ... batches.
    """

    def __init__(self, rate: float, records: int | None) -> None:
        self._rate, self._records = rate, records
        self._compared = self._total = self._squares = 0
        self.mismatch = False
        "Whether the sizes do not fit the rate."

    def add(self, size: int) -> None:
        """Note the size of a batch. Warns once, without any size in the message, if the sizes do not fit."""
        self._compared += 1
        self._total += size
        self._squares += size * size
        if self.mismatch or self._compared < 8 or self._compared & (self._compared - 1) or self._rate == 1:
            return
        if self._unlikely():
            self.mismatch = True
            warnings.warn(
                f"sample_rate={self._rate:g}: the sizes of the batches do not fit Poisson sampling at this rate. "
                "Claims are now marked as estimates.",
                SamplingWarning,
                stacklevel=2,
            )

    def _unlikely(self) -> bool:
        known = self._records is not None
        mean = self._rate * self._records if self._records is not None else self._total / self._compared
        variance = mean * (1 - self._rate)
        if variance == 0:
            return False
        spread = (self._squares - 2 * mean * self._total + self._compared * mean**2) / variance
        excess = (self._total - self._compared * mean) / math.sqrt(self._compared * variance)
        even = float(chdtr(self._compared - (not known), max(spread, 0.0)))
        return 2 * float(ndtr(-abs(excess))) < _UNLIKELY or even < _UNLIKELY


def checked_records(records: Any) -> int | None:
    """Return a number of training records, or None; raise InvalidInputError if it is no whole number above 0."""
    return None if records is None else count("records", records, minimum=1)
