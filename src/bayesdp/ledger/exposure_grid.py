"""The exposure grid of the ledger: a fixed set of floats to which exposures are rounded up.

There are 256 nodes per octave where exposures are small, and up to 2048 where they are large: there epsilon may grow
like the fifteenth power of an exposure, and rounding must not add more than 1 % to it. Rounding reads the bits of the
number (``mechanisms.float_grid``): it is exact and the same on every machine.

Every node has a key that fits into 16 bits: 0 is an exposure of exactly 0, then the nodes in ascending order, then
``BEYOND`` for all that lies above the grid and costs infinity. Keys from ``FIRST_OWN`` to ``KEYS`` stand for exposures
that are kept exactly, outside the grid: clip bounds (bins.py). A file names the ``VERSION`` of its grid; within one,
the meaning of a key never changes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from bayesdp.mechanisms.float_grid import node_below, node_values, nodes_above
from bayesdp.validation import FloatArray

Keys = NDArray[np.uint16]
KeyArray = NDArray[np.integer]

VERSION = 1
RESOLUTION = {2.0**-30: 8, 0.25: 9, 0.5: 10, 2.0: 11, 4.0: 10}
"""From this exposure on, so many bits of the mantissa: 2^bits nodes per octave."""
CHORDS = {2.0**-30: 6, 0.0625: 7, 0.25: 8, 0.5: 9, 1.0: 8}
"""The same for the ends of chords: enough, because a chord errs by the square of its length only."""
SMALLEST, TOP = 2.0**-30, 8.0
FIRST_OWN, KEYS = 13 << 10, 1 << 14

_FINEST = max(RESOLUTION.values())
_FIRST = node_below(_FINEST, SMALLEST)
_LENGTH = node_below(_FINEST, TOP) - _FIRST + 1


def _steps(resolution: dict[float, int]) -> NDArray[np.int64]:
    """Return how far apart nodes are at each place of the finest grid, in its own steps, [_LENGTH]."""
    steps = np.empty(_LENGTH, np.int64)
    for start, bits in resolution.items():
        steps[node_below(_FINEST, start) - _FIRST :] = 1 << (_FINEST - bits)
    return steps


_NODES = np.flatnonzero((np.arange(_LENGTH) + _FIRST) % _steps(RESOLUTION) == 0)
_CHORD_STEPS = _steps(CHORDS)
LAST = len(_NODES)
"""The key of the highest node."""
BEYOND = LAST + 1
# The key for each place on the finest grid: 1 is the place of SMALLEST, 0 is below, the last is above the grid.
_KEY_AT = np.concatenate([[0], np.searchsorted(_NODES, np.arange(_LENGTH)) + 1, [BEYOND]]).astype(np.uint16)

VALUES: FloatArray = np.concatenate([[0.0], node_values(_FINEST, _NODES + _FIRST), [math.inf]])
"""The exposure of each key of the grid, [BEYOND + 1]."""


def round_up(exposure: FloatArray) -> Keys:
    """Return the key of the smallest node that is not below each exposure (at least 0, not NaN)."""
    place = nodes_above(_FINEST, exposure, first=_FIRST - 1)
    keys = _KEY_AT.take(place, mode="clip")
    if not keys.all():
        keys[(keys == 0) & (exposure > 0)] = 1
    return keys


def below(keys: KeyArray) -> FloatArray:
    """Return the exposure of the next lower key of the grid, [K]: all that is rounded up to a key lies above it."""
    return VALUES[np.maximum(keys.astype(np.int64) - 1, 0)]


def distinct(keys: KeyArray) -> NDArray[np.int64]:
    """Return the different keys among many, in ascending order."""
    present = np.zeros(KEYS, bool)
    present[keys] = True
    return np.flatnonzero(present)


def chords(keys: KeyArray) -> tuple[KeyArray, sparse.csr_array]:
    """Return nodes [N] and weights [K, N] that stand for ``keys`` [K] of the grid (none beyond), all ascending.

    A function that is convex in the squared exposure, as kappa is for all lambdas at once, lies at each key at or below
    the weighted mean of its values at the nodes: a chord. So a table at few nodes bounds costs at all keys.
    """
    keys = keys.astype(np.int64)
    place = _NODES[np.maximum(keys, 1) - 1]
    length = _CHORD_STEPS[place]
    part = (place + _FIRST) % length
    between = np.flatnonzero(part)
    start = place[between] - part[between]
    below = keys.copy()
    below[between] = _KEY_AT[start + 1]
    above = _KEY_AT[start + length[between] + 1].astype(np.int64)
    squares = np.square(VALUES[:-1])
    low, high = squares[below[between]], squares[above]
    upper = (squares[keys[between]] - low) / (high - low)
    nodes = np.union1d(below, above)
    weights = np.ones(len(keys))
    weights[between] -= upper
    rows = np.concatenate([np.arange(len(keys)), between])
    columns = np.searchsorted(nodes, np.concatenate([below, above]))
    cells = (np.concatenate([weights, upper]), (rows, columns))
    return nodes, sparse.csr_array(cells, shape=(len(keys), len(nodes)))
