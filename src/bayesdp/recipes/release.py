"""Noisy sums of clipped gradients: all that is ever taken from the training data, recorded before it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.randomness import Randomness, gaussian, poisson_batch
from bayesdp.recipes.descent import SgdSettings
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

SLACK = 1e-3
"""Contributions are clipped to ``clip (1 - SLACK)``, so that rounding in float32 does not carry one beyond ``clip``."""
RESTS_ON = ("records-public", "zero-out")
"""The caveats of every step of a recipe."""

LARGEST_WEIGHT = 1e38
"""Weights beyond it stop a run, which is known from what was released: scores of bounded rows stay finite below."""
LONGEST = 1e30
"""Features beyond it are taken for damage: their lengths would leave the range of float32."""
_ROWS_AT_ONCE = 4096


def bounded_rows(x: NDArray[Any]) -> NDArray[Any]:
    """Return features [n, d] in which rows that are not finite, or hold a number beyond ``LONGEST``, are 0.

    Such a row would make sums overflow, and a run that fails, or even says why, gives away that the row is there. A row
    of zeros contributes nothing to a gradient, whoever else is in the data.
    """
    with np.errstate(all="ignore"):  # a warning would give the row away too
        bad = [
            start + np.flatnonzero(~(np.abs(x[start : start + _ROWS_AT_ONCE]).max(axis=1, initial=0) <= LONGEST))
            for start in range(0, len(x), _ROWS_AT_ONCE)
        ]
    rows = np.concatenate(bad) if bad else np.zeros(0, np.int64)
    if not len(rows):
        return x
    x = x.copy()
    x[rows] = 0
    return x


def check_weights(weights: FloatArray) -> None:
    """Raise InvalidInputError for weights beyond ``LARGEST_WEIGHT``.

    Weights are known from what was released, so the error says nothing about who is in the data. Waiting for a score to
    overflow would: that depends on rows.
    """
    if not np.abs(weights).max(initial=0) <= LARGEST_WEIGHT:
        raise refuse("gradient", "not finite", "a smaller learning rate: the weights have left every range")


@dataclass(frozen=True, kw_only=True)
class NoisySums:
    """The Gaussian mechanism on sums in which no record has a norm above ``clip``.

    Formal guarantee: ``release`` returns ``total`` plus independent Gaussian noise of standard deviation
    ``noise_multiplier * clip`` in each coordinate, and has recorded it as such before. This assumes that one record
    changes ``total`` by at most ``clip``, and is in it with probability at most ``sample_rate`` (see ``draw``). The
    number of records is public: sums are divided by it, and data without a record is data in which it contributes
    nothing. ``source`` names the releases in the ledger.
    """

    ledger: Ledger
    randomness: Randomness
    clip: float
    noise_multiplier: float
    sample_rate: float
    source: str

    @classmethod
    def of(cls, settings: SgdSettings, *, ledger: Ledger, randomness: Randomness, source: str) -> NoisySums:
        """Return the noisy sums of a run with these settings."""
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
        """The standard deviation of the noise on the sum."""
        return self.noise_multiplier * self.clip

    def draw(self, records: int, *, step: int) -> NDArray[np.int64] | None:
        """Return the indices of the records in the sum of a step, ascending; None for all, without sampling."""
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
        """Record the step in the ledger, and return the sum with noise.

        ``audit`` are the norms of audit records [m], before clipping. Coordinates outside the mask stay 0. Raises
        InvalidInputError if the sum is not finite: then nothing is recorded and nothing released.
        """
        if not np.isfinite(total).all():
            raise refuse("gradient", "not finite", "finite features and a smaller learning rate")
        self.ledger.step(
            noise_std=self.noise_std,
            sample_rate=self.sample_rate,
            clip=self.clip,
            audit=audit,
            source=self.source,
            caveats=(*RESTS_ON, "seeded") if self.randomness.reproducible else RESTS_ON,
        )
        noise = gaussian(self.randomness, total.shape, self.noise_std, step=step)
        return total + noise if mask is None else (total + noise) * mask
