"""The grid on which the accountant counts squared exposures u = e^2: fine near the largest sample, coarser below.

Nodes are floats whose mantissa has only its leading bits set, so that the cell of a sample and its place inside
the cell are read off the bits of the number: exact, and the same on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.validation import FloatArray

IntArray = NDArray[np.int64]

# Levels from the top down: mantissa bits (2^bits nodes per octave of u) and about how many cells.
_BITS = (12, 10, 8, 6)
_CELLS = (256, 384, 512, 576)
_ANCHOR = 64  # the top is a multiple of so many finest cells, so that a grid serves many steps
_SPARE = 2  # cells above the highest sample, for the slopes there
_MANTISSA = 52


def node_value(bits: int, number: IntArray) -> FloatArray:
    """The float that is node ``number`` at 2^bits nodes per octave."""
    return (number << (_MANTISSA - bits)).view(np.float64)


def anchor(u: float) -> int:
    """The number of the highest (finest) node of the grid that serves u."""
    node = int(np.float64(u).view(np.int64)) >> (_MANTISSA - _BITS[0])
    return (node // _ANCHOR + 1) * _ANCHOR + _SPARE


@dataclass(frozen=True)
class Level:
    """Nodes first .. last of one resolution; the first stands at position ``start`` of the grid."""

    bits: int
    first: int
    last: int
    start: int


class Grid:
    """Nodes in ascending order; the last node of a level is the first of the next finer one."""

    def __init__(self, top: int) -> None:
        """``top``: the number of the highest node at the finest level."""
        spans: list[tuple[int, int, int]] = []
        last = top
        for bits, coarser, cells in zip(_BITS, (*_BITS[1:], _BITS[-1]), _CELLS, strict=True):
            drop = bits - coarser
            first = (max(last - cells, 1 << drop) >> drop) << drop
            spans.append((bits, first, last))
            last = first >> drop
        levels: list[Level] = []
        values: list[FloatArray] = []
        start = 0
        for bits, low, high in reversed(spans):
            levels.append(Level(bits, low, high, start))
            values.append(node_value(bits, np.arange(low, high, dtype=np.int64)))
            start += high - low
        values.append(node_value(_BITS[0], np.array([top], dtype=np.int64)))
        self.levels = tuple(levels)
        "Coarse to fine."
        self.values = np.concatenate(values)
        "Nodes, [G]."
        self.finest = levels[-1].start
        "The position where the finest level starts."
        self.ends = np.array([level.start for level in levels[1:]] + [len(self.values)])
        "The position after the last of each level."
        h = np.diff(self.values)
        self.wider_above, self.wider_below = h[:-1] / h[1:], h[1:] / h[:-1]
        "Width of a cell over that of the next, and of the previous one."
        self._bounds = [level.first << (_MANTISSA - level.bits) for level in levels]
        self._shift = np.array([_MANTISSA - level.bits for level in levels], dtype=np.int64)
        self._unit: FloatArray = np.asarray(np.ldexp(1.0, -self._shift), dtype=np.float64)
        self._offset = np.array([level.start - level.first for level in levels], dtype=np.int64)

    def place(self, u: FloatArray) -> tuple[IntArray, FloatArray, float]:
        """Position of the node below each u and the fraction of its cell, [n] each.

        Samples below all nodes are left out; third: the sum of their values over the lowest node.
        """
        pattern = u.view(np.int64)
        # A sample's level is how many of the bounds between levels lie at or below it, as bit patterns.
        level = (pattern >= self._bounds[1]).view(np.int8)
        for bound in self._bounds[2:]:
            level = level + (pattern >= bound)
        shift = self._shift[level]
        number: IntArray = pattern >> shift
        fraction: FloatArray = (pattern - (number << shift)) * self._unit[level]
        position: IntArray = number + self._offset[level]
        if position.min() >= 0:
            return position, fraction, 0.0
        kept = position >= 0
        return position[kept], fraction[kept], float((u[~kept] / self.values[0]).sum())
