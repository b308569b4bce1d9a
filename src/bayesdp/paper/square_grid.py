"""The grid on which the accountant counts squared exposures u = e^2: fine near the largest sample, coarser below.

The cell of a sample and its place inside the cell are read off the bits of the number (``mechanisms.float_grid``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.mechanisms.float_grid import fractions_above_node, node_below, node_values, nodes_below
from bayesdp.validation import FloatArray

IntArray = NDArray[np.int64]

# Levels from the top down: mantissa bits (2^bits nodes per octave of u) and about how many cells.
_BITS = (12, 9, 6)
_CELLS = (256, 448, 448)
_ANCHOR = 64  # finest cells; the top is a multiple of this, so that a grid serves many steps
_NEAR = 64  # finest cells; a bound that is this close above the samples decides the top
_SPARE = 2  # cells above the highest sample, for the slopes there


def anchor(u: float, bound: float | None = None) -> int:
    """Return the number of the highest node, at the finest level, of the grid that serves samples up to u > 0.

    With a ``bound`` near above u it is that of the bound, so that steps of one clip share a grid.
    """
    node = node_below(_BITS[0], u)
    top = (node // _ANCHOR + 1) * _ANCHOR + _SPARE
    if bound is None:
        return top
    above = anchor(bound)
    return above if 0 <= above - top <= _NEAR else top


@dataclass(frozen=True)
class Level:
    """Nodes ``first`` .. ``last`` of one resolution, 2^bits per octave; ``start`` is the position of ``first``."""

    bits: int
    first: int
    last: int
    start: int


class Grid:
    """G nodes in ascending order up to node number ``top`` of the finest level; the first is 0.

    The last node of a level is the first of the next finer one.
    """

    def __init__(self, top: int) -> None:
        spans: list[tuple[int, int, int]] = []
        last = top
        for bits, coarser, cells in zip(_BITS, (*_BITS[1:], _BITS[-1]), _CELLS, strict=True):
            drop = bits - coarser
            first = (max(last - cells, 1 << drop) >> drop) << drop
            spans.append((bits, first, last))
            last = first >> drop
        levels: list[Level] = []
        values = [np.zeros(1)]
        start = 1
        for bits, low, high in reversed(spans):
            levels.append(Level(bits, low, high, start))
            values.append(node_values(bits, np.arange(low, high, dtype=np.int64)))
            start += high - low
        values.append(node_values(_BITS[0], np.array([top], dtype=np.int64)))
        self.levels = tuple(levels)
        "From coarse to fine."
        self.values = np.concatenate(values)
        "The nodes, [G]."
        self.finest = levels[-1].start
        "The position where the finest level starts."
        self.ends = np.array([level.start for level in levels[1:]] + [len(self.values)])
        "The position after the last node of each level."
        h = np.diff(self.values)
        self.wider_above, self.wider_below = h[:-1] / h[1:], h[1:] / h[:-1]
        "The width of each cell over that of the next, and of each over that of the previous, [G - 2]."
        self._bounds = self.values[[level.start for level in levels]]

    def place(self, u: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return, for each u, the position of the node below it and how far into the cell it lies, [n] each.

        u > 0 are in ascending order and not above the top; the second is in [0, 1) and exact to rounding.
        """
        position, fraction = np.zeros(len(u), dtype=np.int64), np.empty(len(u))
        ends = [*u.searchsorted(self._bounds).tolist(), len(u)]
        fraction[: ends[0]] = u[: ends[0]] / self.values[1]
        for level, begin, end in zip(self.levels, ends, ends[1:], strict=False):
            if begin < end:
                here = u[begin:end]
                position[begin:end] = nodes_below(level.bits, here) + (level.start - level.first)
                fraction[begin:end] = fractions_above_node(level.bits, here)
        return position, fraction
