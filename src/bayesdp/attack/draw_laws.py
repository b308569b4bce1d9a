"""Were records drawn independently, of each other and from step to step? Three statistics against their exact law.

A rate bounds how often a record is drawn, and not with whom: batches of a fixed size, epochs in which everybody comes
once, and records that always come together all have the right rate. The law of the statistics under Poisson sampling
comes from simulated runs of the same shape (a Monte Carlo test), so no approximation is in the false-alarm rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

STATISTICS = (
    "batch sizes vary as those of independent draws",
    "so does how often each record is drawn",
    "no records are drawn together more or less often than by chance",
)
SIMULATED = 30_000
"""Runs that the law is known from."""
LEVEL = 2 / (SIMULATED + 1)
"""The probability of an alarm from one statistic, if records are drawn independently at the rate that is told."""
_AT_ONCE = 2_000_000  # draws


def surely_correlated(drawn: Sequence[NDArray[np.int64]], records: int, rate: float) -> FloatArray:
    """Return by how much each of ``STATISTICS`` lies outside of what simulated runs show, as a correlation, [3].

    0 if it lies inside, which under Poisson sampling it does with probability ``1 - LEVEL`` or more: a run is as likely
    as each simulated one to be the smallest or the largest of all.
    """
    batches = np.zeros((1, len(drawn), records), bool)
    for step, positions in enumerate(drawn):
        batches[0, step, positions] = True
    lowest, highest = _range(len(drawn), records, rate)
    seen = _correlations(batches, rate)[0]
    return np.maximum(np.maximum(seen - highest, lowest - seen), 0.0)


@lru_cache(maxsize=8)
def _range(steps: int, records: int, rate: float) -> tuple[FloatArray, FloatArray]:
    """Return the smallest and the largest value of each statistic in simulated runs, [3] each."""
    rng, at_once = np.random.default_rng(0), max(1, _AT_ONCE // (steps * records))
    lowest, highest = np.full(3, math.inf), np.full(3, -math.inf)
    for begin in range(0, SIMULATED, at_once):
        runs = min(at_once, SIMULATED - begin)
        values = _correlations(rng.random((runs, steps, records), np.float32) < rate, rate)
        lowest, highest = np.minimum(lowest, values.min(axis=0)), np.maximum(highest, values.max(axis=0))
    return lowest, highest


def _correlations(batches: NDArray[np.bool_], rate: float) -> FloatArray:
    """Return the statistics of runs [R, steps, records] of draws, [R, 3], where z are draws, standardised.

    The mean correlation between two records in a step is the variance of batch sizes over that of independent draws,
    minus 1, over the number of other records; that between two steps of a record likewise. The last is the mean over
    pairs of records of their squared correlation along the run, sum_t z_ti z_tj / T, minus its expectation 1 / T.
    """
    _, steps, records = batches.shape
    z = (batches - np.float32(rate)) / np.float32(math.sqrt(rate * (1 - rate)))
    in_steps = np.square(z.sum(axis=2)).mean(axis=1) / records
    of_records = np.square(z.sum(axis=1)).mean(axis=1) / steps
    between_steps = np.square(z @ z.transpose(0, 2, 1)).sum(axis=(1, 2))
    own = np.square(np.square(z).sum(axis=1)).sum(axis=1)
    pairs = (between_steps - own) / (steps**2 * records * (records - 1))
    return np.stack(
        [(in_steps - 1) / (records - 1), (of_records - 1) / max(steps - 1, 1), pairs - 1 / steps], axis=1
    ).astype(np.float64)
