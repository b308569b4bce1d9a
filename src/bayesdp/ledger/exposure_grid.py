"""The exposure grid of the ledger: a fixed set of floats to which exposures are rounded up.

There are 256 nodes per octave where exposures are small, and up to 2048 where they are large: there epsilon may grow
like the fifteenth power of an exposure, and rounding must not add more than 1 % to it. Rounding reads the bits of the
number (``mechanisms.float_grid``): it is exact and the same on every machine.

Every node has a key that fits into 16 bits: 0 stands for an exposure of exactly 0, 1 to ``LAST`` for the nodes in
ascending order, and ``BEYOND`` for everything above the grid, which costs infinity. Keys from ``FIRST_OWN`` up to, but
not including, ``FIRST_ABOVE`` stand for exposures that are kept exactly, outside the grid: clip bounds (bins.py). Keys
from there up to, but not including, ``KEYS`` stand for the same exposures, and also say how far above its clip bound a
norm was (norm_ratios.py). A file names the ``VERSION`` of its grid; within a version, the meaning of a key never
changes. Version 1 has no keys from ``FIRST_ABOVE`` on, and is otherwise the same.

scipy.sparse is imported inside ``chords``: importing it takes time, and ledgers that only record steps never need it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.float_grid import node_below, node_values, nodes_above
from bayesdp.validation import FloatArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Keys = NDArray[np.uint16]
"""Keys as the ledger keeps them, one for each record."""
KeyArray = NDArray[np.integer]
"""Keys in any integer type."""

VERSION = 2
KNOWN_VERSIONS = (1, VERSION)
RESOLUTION = {2.0**-30: 8, 0.25: 9, 0.5: 10, 2.0: 11, 4.0: 10}
"""Bits of the mantissa that are told apart from this exposure on: 2^bits nodes per octave."""
CHORDS = {2.0**-30: 6, 0.0625: 7, 0.25: 8, 0.5: 9, 1.0: 8}
"""Bits for the ends of chords: fewer are enough, because the error of a chord shrinks with the square of its length."""
SMALLEST, TOP = 2.0**-30, 8.0
FIRST_OWN, FIRST_ABOVE, KEYS = 13 << 10, 1 << 14, 3 << 13

_FINEST = max(RESOLUTION.values())
_FIRST = node_below(_FINEST, SMALLEST)
_LENGTH = node_below(_FINEST, TOP) - _FIRST + 1


def _steps(resolution: dict[float, int]) -> NDArray[np.int64]:
    """Return the distance between nodes around each point of the finest grid, in points of that grid, [_LENGTH]."""
    steps = np.empty(_LENGTH, np.int64)
    for start, bits in resolution.items():
        steps[node_below(_FINEST, start) - _FIRST :] = 1 << (_FINEST - bits)
    return steps


_NODES = np.flatnonzero((np.arange(_LENGTH) + _FIRST) % _steps(RESOLUTION) == 0)
_CHORD_STEPS = _steps(CHORDS)
LAST = len(_NODES)
"""The key of the highest node."""
BEYOND = LAST + 1
# The key of each point of the finest grid, shifted by one: SMALLEST is at 1, 0 is below and the last is above the grid.
_KEY_AT = np.concatenate([[0], np.searchsorted(_NODES, np.arange(_LENGTH)) + 1, [BEYOND]]).astype(np.uint16)

VALUES: FloatArray = np.concatenate([[0.0], node_values(_FINEST, _NODES + _FIRST), [math.inf]])
"""The exposure of each key of the grid, [BEYOND + 1]."""


def round_up(exposure: FloatArray) -> Keys:
    """Return for each exposure (at least 0, not NaN) the key of the smallest node that is not below it."""
    place = nodes_above(_FINEST, exposure, first=_FIRST - 1)
    keys = _KEY_AT.take(place, mode="clip")
    if not keys.all():
        keys[(keys == 0) & (exposure > 0)] = 1
    return keys


def below(keys: KeyArray) -> FloatArray:
    """Return the exposure of the next lower key of the grid, [K]: every exposure rounded up to a key lies above it."""
    return VALUES[np.maximum(keys.astype(np.int64) - 1, 0)]


def distinct(keys: KeyArray) -> NDArray[np.int64]:
    """Return the distinct keys of an array of any shape, in ascending order."""
    present = np.zeros(KEYS, bool)
    present[keys] = True
    return np.flatnonzero(present)


def chords(keys: KeyArray) -> tuple[KeyArray, csr_array]:
    """Return nodes [N] and sparse weights [K, N] that bound functions at ``keys`` [K] by their values at few nodes.

    Keys are those of the grid, in ascending order, none beyond it; so are the nodes. A function f that is convex in the
    squared exposure, as kappa is at every order, satisfies f(keys) <= weights @ f(nodes): the right side is a chord. So
    a table at few nodes bounds costs at all keys from above.
    """
    from scipy.sparse import csr_array

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
    return nodes, csr_array(cells, shape=(len(keys), len(nodes)))
