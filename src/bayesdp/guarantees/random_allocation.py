"""The worst case of random allocation: in each epoch, each record is in exactly one of k steps, chosen independently.

Also called balls-and-bins sampling. Batches have no fixed size. A shuffled loader is something else: its batches are
full, so where the others are shows where the record is, and no amplification is proved for it.

Under add/remove of one record an epoch is dominated, also where steps depend on earlier outputs, by the pair

    P = 1/k sum_i N(e_i, z^2 I),   Q = N(0, z^2 I)   on R^k

(Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD"; Feldman & Shenfeld 2025, "Privacy amplification by random
allocation"), z the noise multiplier. Whoever has x from P or Q can make the outputs of an epoch from it: draw the steps
of all other records, which do not depend on this one, let v be the record's clipped gradient over C after the outputs
so far, |v| <= 1, and put out the sum of the others + v x_t + N(0, z^2 (I - v v^T)). The likelihood ratio is
P/Q = (W_1 + ... + W_k) / k with log W_i = x_i/z^2 - 1/(2z^2), independent under Q; under P one of them, each equally
likely, has the mean 1/(2z^2) of log W instead of -1/(2z^2).

The law of the sum is computed here by the Fourier transform on a grid, with every W rounded to the private side: up for
a record that is in (loss log P/Q under P), down for a record that is out (loss log Q/P under Q). What lies beyond the
grid, wraps around it (by Chernoff's bound), or may be lost in round-off counts as an infinite loss. Epochs compose as
privacy loss distributions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ndtr

from bayesdp import validation
from bayesdp.guarantees.bounded_pld import PLD_ROUND_OFF
from bayesdp.guarantees.pld_arrays import least_epsilon, self_composed
from bayesdp.guarantees.worst_case import WorstCase, worst_case_of
from bayesdp.validation import FloatArray, refuse

ASSUMED = "in each epoch each record was in exactly one step, chosen at random and independently of all other records"
_POINTS = 1 << 21
_BEYOND = 7.6  # standard deviations of log W, with 1.5e-14 of the mass beyond
_TILTS = np.geomspace(1e-3, 64, 24)  # of Chernoff's bound, over the largest W
_MOST_STEPS = 1 << 18  # of an epoch
_MOST_EPOCHS = 10**4  # beyond which composition takes minutes
_INTERVAL = 1e-4


def random_allocation_epsilon(
    *, noise_multiplier: float, sample_rate: float, steps: int, delta: float = 1e-5
) -> WorstCase:
    """Return the worst case of ``steps`` steps in epochs of k = 1 / ``sample_rate`` steps with random allocation.

    Formal guarantee: an upper bound of epsilon under add/remove of one record, in both directions: the smaller of the
    one in this file and that without amplification, one Gaussian an epoch. An epoch that was begun counts as whole.

    Raises InvalidInputError as ``bayesdp.epsilon`` does, and for a rate that is not one over a whole number.
    """
    noise = validation.noise_multiplier(noise_multiplier)
    rate = validation.sample_rate(sample_rate)
    steps = validation.count("steps", steps, minimum=0)
    delta = validation.probability("delta", delta)
    per_epoch = round(1 / rate)
    if abs(per_epoch * rate - 1) > 1e-9:
        raise refuse("sample_rate", sample_rate, "1 over the number of steps in an epoch")
    epochs = math.ceil(steps / per_epoch)
    plain = worst_case_of([(noise, 1.0, epochs)], delta=delta)
    found = _pld(noise, per_epoch, epochs, delta) if epochs and per_epoch > 1 else None
    better = found is not None and found < plain.epsilon
    return WorstCase(
        epsilon=found if better and found is not None else plain.epsilon,
        delta=delta,
        accountant="PLD" if better else plain.accountant,
        rdp_epsilon=plain.rdp_epsilon,
        pld_epsilon=found if better else plain.pld_epsilon,
        assumptions=(ASSUMED,),
        note=None if better else "Without amplification: one Gaussian for each epoch.",
    )


def _pld(noise: float, per_epoch: int, epochs: int, delta: float) -> float | None:
    """Return epsilon of whole epochs by privacy loss distributions; None where there is none below infinity."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    if per_epoch > _MOST_STEPS or epochs > _MOST_EPOCHS or delta <= 2 * PLD_ROUND_OFF:
        return None
    spread = 1 / noise
    if spread**2 / 2 + _BEYOND * spread > 25:  # the largest W is more than the grid can hold
        return None
    pld: Any = PrivacyLossDistribution(_losses_in(spread, per_epoch), _losses_out(spread, per_epoch))
    found = least_epsilon(self_composed(pld, epochs), delta - PLD_ROUND_OFF)
    return max(0.0, found) if math.isfinite(found) else None


class _Grid:
    """The grid of W: nodes 0, step, 2 step, ..., of which sums of k fill ``_POINTS``, and laws of W rounded onto it."""

    def __init__(self, spread: float, per_epoch: int) -> None:
        self.spread = spread
        self.largest = math.exp(spread**2 / 2 + _BEYOND * spread)
        # Sums of k have mean k, or k - 1 + e^(spread^2) with the record in them, and few are beyond the double of it.
        self.step = (2 * (per_epoch + self.largest)) / _POINTS
        self.nodes = np.arange(min(_POINTS - 1, math.ceil(self.largest / self.step)) + 1) * self.step

    def law(self, mean: float, up: bool) -> tuple[FloatArray, float]:
        """Return the masses of W at the nodes, rounded up or down, where log W has this mean; and what is beyond."""
        with np.errstate(divide="ignore"):
            below = ndtr((np.log(self.nodes) - mean) / self.spread)
            beyond = float(ndtr(-(math.log(self.nodes[-1]) - mean) / self.spread))
        inside = np.diff(below)
        masses = np.zeros(len(self.nodes))
        masses[1:] += inside if up else 0.0
        masses[:-1] += 0.0 if up else inside
        if not up:
            masses[-1] += beyond
        return masses, beyond


def _losses_in(spread: float, per_epoch: int) -> Any:
    """Return the law of log P/Q under P, rounded up: dp-accounting's pmf for a record that is removed."""
    grid = _Grid(spread, per_epoch)
    others, beyond = grid.law(-(spread**2) / 2, up=True)
    own, own_beyond = grid.law(spread**2 / 2, up=True)
    masses = _sum_law(own, others, per_epoch - 1)
    wrapped = _chernoff(own, others, per_epoch - 1, grid)
    sums = np.maximum(np.arange(len(masses)), 1) * grid.step  # with k terms that are rounded up, 0 cannot be
    infinite = own_beyond + (per_epoch - 1) * beyond + wrapped + _round_off(per_epoch)
    return _pmf(np.log(sums / per_epoch), masses, infinite)


def _losses_out(spread: float, per_epoch: int) -> Any:
    """Return the law of log Q/P under Q, rounded up: dp-accounting's pmf for a record that is added.

    Sums that wrap around the grid become smaller, and their losses larger: the private side.
    """
    grid = _Grid(spread, per_epoch)
    others, _ = grid.law(-(spread**2) / 2, up=False)
    masses = _sum_law(others, others, per_epoch - 1)
    sums = np.arange(1, len(masses)) * grid.step
    return _pmf(-np.log(sums / per_epoch), masses[1:], float(masses[0]) + _round_off(per_epoch))


def _sum_law(own: FloatArray, others: FloatArray, count: int) -> FloatArray:
    """Return the masses [_POINTS] of the sum of one value with law ``own`` and ``count`` with law ``others``."""
    transformed = np.fft.rfft(own, _POINTS) * np.fft.rfft(others, _POINTS) ** count
    return np.maximum(np.fft.irfft(transformed, _POINTS), 0.0)


def _chernoff(own: FloatArray, others: FloatArray, count: int, grid: _Grid) -> float:
    """Return an upper bound of the probability that the sum is beyond the grid."""
    top = _POINTS * grid.step
    bounds: list[float] = []
    for tilt in (_TILTS / grid.largest).tolist():
        scaled = np.exp(tilt * grid.nodes)
        one, other = float(own @ scaled), float(others @ scaled)
        bounds.append(math.log(one) + count * math.log(other) - tilt * top)
    return math.exp(min(0.0, *bounds))


def _round_off(count: int) -> float:
    """Return more than the Fourier transform can lose in all masses together."""
    return 1024 * (count + 64) * 2.0**-52


def _pmf(losses: FloatArray, masses: FloatArray, infinite: float) -> Any:
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    places = np.ceil(losses / _INTERVAL - 1e-9).astype(np.int64) + 1
    lowest = int(places.min())
    probabilities = np.bincount(places - lowest, weights=masses)
    return DensePLDPmf(_INTERVAL, lowest, probabilities, infinite, True)
