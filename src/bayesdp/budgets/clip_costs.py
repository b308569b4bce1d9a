"""What clipping to a norm costs in one step, at a grid of norms, and which norm a given amount pays for.

The grid of a step with clip C has the norms from ``FLOOR`` C to C whose mantissa has only its ``_BITS`` leading bits
set, and C itself. Norms are rounded up to it by their bits, which is exact; norms above 0 but below the grid count as
its lowest. An amount is turned into a norm in a similar way: its bits are rounded down, and a table says for how many
norms of the grid it pays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.float_grid import node_values, nodes_above, nodes_below
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.mechanism import ROUND_UP
from bayesdp.validation import FloatArray

Places = NDArray[np.uint16]

FLOOR = 2.0**-10
"""A record that can pay only for less than this fraction of the clip is clipped to exactly 0."""
LEAST_COST = 1e-300
"""The charge for a norm of exactly 0: next to nothing, but above 0 because balances are divided by it."""

_BITS = 10  # 1024 norms per octave: rounding adds less than 0.1 % to a norm
_CHORD = 8  # costs are computed at every eighth norm
_UP = 1 + 2.0**-50  # covers one rounding


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The public settings of a step: standard deviation of the noise on the sum, sampling rate, clip."""

    noise_std: float
    sample_rate: float
    clip: float


class ClipCosts:
    """The costs of one setting at L orders: ``norms`` [K + 1] (0, then the grid) and ``costs`` [L, K + 1], ascending.

    Formal guarantee: ``costs[l, k]`` is never below kappa_lambda(norms[k] / noise_std), the exact log-moment of the
    subsampled Gaussian. kappa is convex in the squared exposure, so chords between computed values bound it from above.
    """

    def __init__(self, setting: Setting, lambdas: tuple[float, ...]) -> None:
        self._first, last = nodes_above(_BITS, np.array([FLOOR * setting.clip, setting.clip])).tolist()
        grid = node_values(_BITS, np.arange(self._first, last + 1, dtype=np.int64))
        self.norms: FloatArray = np.concatenate([[0.0], np.minimum(grid, setting.clip)])
        exposure = self.norms[1:] / setting.noise_std * _UP
        ends = np.append(np.arange(0, len(exposure) - 1, _CHORD), len(exposure) - 1)
        moments = log_moments(setting.sample_rate, exposure[ends], lambdas)
        squares = np.square(exposure)
        self.costs: FloatArray = np.full((len(lambdas), len(self.norms)), LEAST_COST)
        for row, values in zip(self.costs, moments.T, strict=True):
            row[1:] = np.interp(squares, squares[ends], values) * ROUND_UP
        np.maximum.accumulate(self.costs, axis=1, out=self.costs)
        self._payable = [_Payable(row[1:]) for row in self.costs]

    def places(self, norms: FloatArray) -> Places:
        """Return, for each norm, the place in ``self.norms`` of the smallest that is not below it; the last if above C.

        ``norms`` [n] are of at least 0 and not NaN; infinity is allowed.
        """
        place = nodes_above(_BITS, norms, first=self._first - 1)
        np.clip(place, 1, len(self.norms) - 1, out=place)
        place[norms == 0] = 0
        return place.astype(np.uint16)

    def payable(self, index: int, amounts: FloatArray) -> Places:
        """Return the place of a norm whose cost, at the lambda of this index, is at most each amount, [n]; 0 for none.

        It is the largest such norm of the grid, or one whose cost is within 2^-9 of the amount. Amounts may be too
        large by one rounding: that is allowed for. Negative ones pay for nothing.
        """
        return self._payable[index](amounts)


class _Payable:
    """Counts how many of the ascending ``costs`` are at most an amount, looking only at its leading bits."""

    def __init__(self, costs: FloatArray) -> None:
        cells = nodes_above(_BITS, costs * _UP)
        self._before = int(cells[0]) - 1
        self._counts = np.cumsum(np.bincount(cells - self._before)).astype(np.uint16)

    def __call__(self, amounts: FloatArray) -> Places:
        cells = nodes_below(_BITS, amounts)
        cells -= self._before
        return self._counts.take(cells, mode="clip")


@lru_cache(maxsize=8)
def clip_costs(setting: Setting, lambdas: tuple[float, ...]) -> ClipCosts:
    """Return the table of a setting at orders ``lambdas``; the last few tables are kept."""
    return ClipCosts(setting, lambdas)
