"""Broken copies: what software gets wrong, planted into copies of the right mechanism inside the lab.

Each copy differs from ``SmallTraining`` in one method, or from the library in one function that is replaced for a
while. Nothing of the library has an option for being wrong.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from bayesdp.attack.small_training import Draws, SmallTraining
from bayesdp.claims import shares
from bayesdp.ledger import exposure_grid
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray


class LittleNoise(SmallTraining):
    """The noise is 20 % smaller than the ledger says."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Return too little noise."""
        return 0.8 * super().noise(rng, shape)


class NoiseOfTheMean(SmallTraining):
    """The noise of the sum is divided by the batch size once more than the sum: it belongs to a mean."""

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Return noise that suits a mean, for a sum."""
        return super().noise(rng, shape) / self.batch


class HalfRate(SmallTraining):
    """The ledger is told half of the rate at which records are drawn."""

    def record(self, ledger: Ledger, step: int, norms: FloatArray | None) -> None:
        """Write a step with a rate that is too small."""
        ledger.step(noise_std=self.noise_std, sample_rate=self.sample_rate / 2, clip=self.clip, audit=norms)


class MissingSteps(SmallTraining):
    """One step in ten is not recorded."""

    def record(self, ledger: Ledger, step: int, norms: FloatArray | None) -> None:
        """Write nine of ten steps."""
        if step % 10 != 9:
            super().record(ledger, step, norms)


class EqualSeeds(SmallTraining):
    """Two ranks with half of the records each draw from the same random numbers: what both draw is the same."""

    def draws(self, rng: np.random.Generator, runs: int, records: int) -> Draws:
        """Return who is drawn: the second half of the records exactly as the first."""
        return np.tile(super().draws(rng, runs, records // 2), 2)


class OwnBatchSize(SmallTraining):
    """The noisy sum is divided by the batch size that was drawn: its scale gives the number of records away."""

    def mean(self, noisy_sum: FloatArray, drawn: FloatArray) -> FloatArray:
        """Return a mean over the records that were drawn."""
        return noisy_sum / np.maximum(drawn, 1.0)[:, None]


@contextlib.contextmanager
def replaced(place: Any, name: str, other: Callable[..., Any]) -> Generator[None]:
    """Replace an attribute of a module, and put the right one back at the end."""
    right = getattr(place, name)
    setattr(place, name, other)
    try:
        yield
    finally:
        setattr(place, name, right)


def rounding_down() -> contextlib.AbstractContextManager[None]:
    """Let ledgers round exposures down to the next node of their grid, instead of up."""

    def round_down(exposure: FloatArray) -> exposure_grid.Keys:
        keys = np.searchsorted(exposure_grid.VALUES, exposure, side="right") - 1
        return keys.astype(np.uint16)

    return replaced(exposure_grid, "round_up", round_down)


def gamma_dropped() -> contextlib.AbstractContextManager[None]:
    """Let claims about shares take the plain quantile of the audit records, as if these were the population."""

    def plain_rank(records: int, share: float, gamma: float) -> int:
        return math.ceil(share * records)

    return replaced(shares, "order_statistic_rank", plain_rank)
