"""Bins of the histograms: each stands for an exposure at a sampling rate.

Rates and clip bounds are numbered in the order of the steps that bring them, so that all readers of the same steps
agree. The first ``OWN_CLIPS`` clip bounds (over the noise) are kept exactly, under keys of their own; later ones, in
runs whose noise changes at every step, are rounded up on the grid. The first ``OWN_RATES`` sampling rates are kept
exactly; later ones are rounded up, 16 per octave.

How a bin is packed into 32 bits is known to this file only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger import norm_ratios
from bayesdp.ledger.exposure_grid import KeyArray, Keys
from bayesdp.mechanisms.float_grid import round_to_bits
from bayesdp.validation import FloatArray

OWN_CLIPS = 64
"""How many clip bounds of a run are kept exactly."""
OWN_RATES = 16
"""How many sampling rates of a run are kept exactly."""
_SCALE_UP = 1.0 + 2.0**-50  # covers the rounding of 1 / s and of the product with it
_RATE_BITS = 4

BinArray = NDArray[np.uint32]
"""Bins, [K]: the number of the rate in the upper 16 bits, the key of the exposure in the lower."""


def bins_of(rate_number: int, keys: KeyArray) -> BinArray:
    """Return the bins of keys at one rate, [K]."""
    return keys.astype(np.uint32) | np.uint32(rate_number << 16)


def keys_of(bins: BinArray) -> NDArray[np.int64]:
    """Return the key of the exposure of each bin, [K]."""
    return (bins & 0xFFFF).astype(np.int64)


def rate_numbers_of(bins: BinArray) -> NDArray[np.int64]:
    """Return the number of the sampling rate of each bin, [K]."""
    return (bins >> 16).astype(np.int64)


def without_ratios(bins: BinArray) -> BinArray:
    """Return the bins that costs are read from, [K]: all that a norm above the clip bound says is that it was there."""
    return (bins & np.uint32(0xFFFF0000)) | norm_ratios.clip_keys(keys_of(bins)).astype(np.uint32)


@dataclass(frozen=True)
class Place:
    """The place of one step: where its exposures are counted."""

    rate_number: int
    "The number of the step's sampling rate."
    scale: float
    "Norm times scale is the exposure, never below norm over noise."
    clip_key: int
    "The key of the clip bound."
    below_clip: int
    "The highest key of exposures below the clip bound."
    clip: float = math.inf
    first_ratio: int | None = None
    "The first key of the clip bound's block of ratios; None if it has none."

    def keys(self, norms: FloatArray) -> Keys:
        """Return the key of each norm, [n]; its exposure is at least min(norm, clip) / noise, at most the clip bound's.

        Norms that would be rounded up past the clip bound get its key. Norms above 0 never get the key 0, which costs
        nothing.
        """
        with np.errstate(over="ignore"):
            keys = grid.round_up(norms * self.scale)
        if not keys.all():
            keys[(keys == 0) & (norms > 0)] = 1  # an exposure that underflowed
        np.copyto(keys, np.uint16(self.clip_key), where=keys > self.below_clip)
        return keys

    def audit_keys(self, norms: FloatArray) -> Keys:
        """Return the keys of norms of audit records, [m]: as ``keys``, and at the clip bound with their ratio to it."""
        keys = self.keys(norms)
        if self.first_ratio is not None:
            at_clip = np.flatnonzero(keys == self.clip_key)
            if len(at_clip):
                with np.errstate(over="ignore"):
                    ratios = norms[at_clip] / self.clip
                keys[at_clip] = norm_ratios.rounded_up(ratios) + np.uint16(self.first_ratio)
        return keys


class Bins:
    """The sampling rates and clip bounds of a run so far, in the order of the steps that brought them."""

    def __init__(self, rates: Iterable[float] = (), own: Iterable[float] = (), *, ratios: bool = True) -> None:
        """Begin with rates and clip bounds that are known; without ``ratios``, keys are those of grid version 1."""
        self.ratios = ratios
        "Whether audit norms above the clip bound keep their ratio to it."
        self.rates = list(rates)
        "Sampling rates by their numbers."
        self.own = list(own)
        "Exposures of clip bounds with keys of their own: FIRST_OWN, FIRST_OWN + 1, ..."
        self._places: dict[tuple[float, float, float | None], Place] = {}

    def place(self, noise_std: float, sample_rate: float, clip: float | None) -> Place:
        """Return where the exposures of a step with these settings are counted.

        New rates and clip bounds are added to those of the run, so every step must be placed, once and in order.
        """
        settings = (noise_std, sample_rate, clip)
        place = self._places.get(settings)
        if place is None:
            exact = math.frexp(noise_std)[0] == 0.5  # a power of 2: nothing is rounded
            scale = (1.0 if exact else _SCALE_UP) / noise_std
            clip_key, below = self._clip_key(math.inf if clip is None else clip * scale)
            first_ratio = norm_ratios.first_key(clip_key) if self.ratios else None
            bound = math.inf if clip is None else clip
            place = Place(self.number_of_rate(sample_rate), scale, clip_key, below, bound, first_ratio)
            if len(self._places) < 4096:  # a cache: settings may differ at every step
                self._places[settings] = place
        return place

    def exposures(self, keys: KeyArray) -> FloatArray:
        """Return the exposure of each key, [K]: no exposure counted under it is larger. Infinite beyond the grid."""
        values = np.concatenate([grid.VALUES, np.array(self.own)])
        keys = norm_ratios.clip_keys(keys)
        return values[np.where(keys >= grid.FIRST_OWN, keys - grid.FIRST_OWN + len(grid.VALUES), keys)]

    def exposures_of(self, bins: BinArray) -> FloatArray:
        """Return the exposure of each bin, [K]: no exposure counted in it is larger. Infinite beyond the grid."""
        return self.exposures(keys_of(bins))

    def exposures_below(self, bins: BinArray) -> FloatArray:
        """Return for each bin an exposure below all that are counted in it, [K]; 0 for the bin of exposure 0."""
        keys = keys_of(bins)
        is_own = keys >= grid.FIRST_OWN
        keys[is_own] = np.minimum(grid.round_up(self.exposures(keys[is_own])), grid.BEYOND)
        return grid.below(keys)

    def rates_of(self, bins: BinArray, *, least: bool = False) -> FloatArray:
        """Return the sampling rate of each bin, [K]; with ``least``, the least it can have been before rounding up."""
        rates = [self.least_rate(number) for number in range(len(self.rates))] if least else self.rates
        return np.array(rates, np.float64)[rate_numbers_of(bins)]

    def moved_to(self, other: Bins, bins: BinArray) -> BinArray:
        """Translate ``bins`` [K] of this run into bins of another run, which must know all rates of this one.

        A clip bound that has no key of its own there is rounded up on the grid. Ratios of norms to a clip bound stay if
        it has a block for them there.
        """
        rates = np.array([other.rates.index(rate) for rate in self.rates], np.int64)
        own = np.array([other._clip_key(exposure)[0] for exposure in self.own], np.int64)
        first = [norm_ratios.first_key(key) if other.ratios else None for key in own.tolist()]
        blocks = np.array([-1 if key is None else key for key in first], np.int64)
        given = keys_of(bins)
        keys = norm_ratios.clip_keys(given)
        is_own = np.flatnonzero(keys >= grid.FIRST_OWN)
        number = keys[is_own] - grid.FIRST_OWN
        place = (given[is_own] - grid.FIRST_ABOVE) % norm_ratios.RATIOS
        with_ratio = (given[is_own] >= grid.FIRST_ABOVE) & (blocks[number] >= 0)
        keys[is_own] = np.where(with_ratio, blocks[number] + place, own[number])
        return (keys | rates[rate_numbers_of(bins)] << 16).astype(np.uint32)

    @staticmethod
    def union(runs: Sequence[Bins]) -> Bins:
        """Return the rates and clip bounds of several runs; clip bounds for which no key is left will be rounded up."""
        rates = dict.fromkeys(rate for run in runs for rate in run.rates)
        own = dict.fromkeys(exposure for run in runs for exposure in run.own)
        ratios = all(run.ratios for run in runs)
        return Bins(rates, list(own)[: grid.FIRST_ABOVE - grid.FIRST_OWN], ratios=ratios)

    def least_rate(self, number: int) -> float:
        """Return the least that a rate can have been before it was rounded up."""
        return self.rates[number] / (1 if number < OWN_RATES else 1 + 2.0**-_RATE_BITS)

    def number_of_rate(self, rate: float) -> int:
        """Return the number of a sampling rate; a new rate is added, rounded up if ``OWN_RATES`` are known already."""
        if rate not in self.rates and len(self.rates) >= OWN_RATES:
            rate = round_to_bits(rate, _RATE_BITS, up=True)
        if rate not in self.rates:
            self.rates.append(rate)
        return self.rates.index(rate)

    def _clip_key(self, exposure: float) -> tuple[int, int]:
        """Return the key of a clip bound, given as an exposure, and the highest key below it."""
        if math.isinf(exposure):
            return grid.BEYOND, grid.BEYOND
        ceiling = int(grid.round_up(np.array([exposure]))[0])
        if exposure not in self.own:
            if len(self.own) >= OWN_CLIPS:
                return ceiling, ceiling
            self.own.append(exposure)
        return grid.FIRST_OWN + self.own.index(exposure), ceiling - 1
