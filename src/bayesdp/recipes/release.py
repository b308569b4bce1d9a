"""Noisy sums of clipped gradients: the only thing that leaves the training data, in the ledger before it is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.randomness import Randomness, gaussian, poisson_batch
from bayesdp.recipes.sgd import SgdSettings
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

SLACK = 1e-3
"""Contributions are clipped to ``clip (1 - SLACK)``, so that rounding in float32 does not carry one beyond ``clip``."""


@dataclass(frozen=True, kw_only=True)
class NoisySums:
    """The Gaussian mechanism on sums in which no record has a norm above ``clip``.

    Formal guarantee: what ``release`` returns is ``total`` plus independent Gaussian noise of standard deviation
    ``noise_multiplier * clip`` in each coordinate, and was recorded as such before. Assumes that one record changes
    ``total`` by ``clip`` at most, and is in it with probability ``sample_rate`` at most (``draw``). How many records
    there are is public: sums are divided by it, and data without a record is data in which it contributes nothing.
    """

    ledger: Ledger
    randomness: Randomness
    clip: float
    noise_multiplier: float
    sample_rate: float
    source: str

    @classmethod
    def of(cls, settings: SgdSettings, *, ledger: Ledger, randomness: Randomness, source: str) -> NoisySums:
        """Those of a run with these settings."""
        return cls(
            ledger=ledger,
            randomness=randomness,
            clip=settings.clip,
            noise_multiplier=settings.noise_multiplier,
            sample_rate=settings.sample_rate,
            source=source,
        )

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on the sum."""
        return self.noise_multiplier * self.clip

    def draw(self, records: int, *, step: int) -> NDArray[np.int64] | None:
        """Which records are in the sum of a step; None for all of them, without sampling."""
        if self.sample_rate == 1:
            return None
        return poisson_batch(self.randomness, records, self.sample_rate, step=step)

    def release(
        self,
        total: FloatArray,
        *,
        step: int,
        audit: FloatArray | None = None,
        mask: NDArray[np.bool_] | None = None,
    ) -> FloatArray:
        """The sum with noise; ``audit``: norms of audit records. With a mask, other coordinates are 0 and stay it."""
        if not np.isfinite(total).all():
            raise refuse("gradient", "not finite", "finite features and a smaller learning rate")
        self.ledger.step(
            noise_std=self.noise_std,
            sample_rate=self.sample_rate,
            clip=self.clip,
            audit=audit,
            source=self.source,
            caveats=("zero-out", "seeded") if self.randomness.reproducible else ("zero-out",),
        )
        noise = gaussian(self.randomness, total.shape, self.noise_std, step=step)
        return total + noise if mask is None else (total + noise) * mask
