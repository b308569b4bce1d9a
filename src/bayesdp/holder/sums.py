"""Sums of F and F^2 over the samples of one step, and of how much their chords add: all from above, by table."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.holder.nodes import SMALLEST_SCALED, NodeTable
from bayesdp.validation import FloatArray

_LARGEST = 32  # samples that get a chord of their own
_NARROW = 128  # finest cells; if all others lie within so few, what splitting adds to their squares is taken off


@dataclass(frozen=True)
class GridSums:
    """Over the samples on the grid, in units of e^{scale}, [L] each."""

    first: FloatArray
    second: FloatArray
    crude: NDArray[np.bool_]
    "Where ``first`` is only the number of samples times their ceiling."


class PlacedSamples:
    """Samples on a grid: the largest (position >= cut) one by one, the others counted at their two nodes."""

    def __init__(self, table: NodeTable, u: FloatArray) -> None:
        self.table = table
        self.position, self.fraction, self.lost = table.grid.place(u)
        finest, size = table.grid.finest, len(table.grid.values)
        self.count = np.bincount(self.position, minlength=size)
        # whole finest cells from the top, as long as they hold few samples
        cells = int(np.searchsorted(self.count[finest:][::-1].cumsum(), _LARGEST, side="right"))
        self.cut = size - cells
        largest = (self.position >= self.cut).nonzero()[0]
        self._largest = self.position[largest], self.fraction[largest]
        self._exponent = table.chord(*self._largest)

    def highest_exponent(self) -> FloatArray:
        """T kappa of the largest sample, from above, [L]."""
        if len(self._exponent):
            return self._exponent.max(axis=0)
        at = [int((self.position + self.fraction).argmax())]
        return self.table.chord(self.position[at], self.fraction[at])[0]

    def one_by_one(self, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sums of F and F^2 over the largest, by the chord of T kappa, which loses nothing where T kappa is large."""
        value = -np.expm1(-self._exponent) * np.exp(self._exponent - scale)
        return value.sum(axis=0), (value * value).sum(axis=0)

    def on_grid(self, scale: FloatArray) -> GridSums:
        """Sums over the others, by the chord of F between nodes."""
        table, cut = self.table, self.cut
        weight = np.bincount(self.position, weights=self.fraction, minlength=len(self.count))
        self.count[cut:] = weight[cut:] = 0
        self.weight = weight
        node = self.count - weight
        node[1:] += weight[:-1]
        node[0] += self.lost
        cells = self.cells = self.count.nonzero()[0]
        low = self.low = 0 if self.lost or not len(cells) else max(int(cells[0]) - 1, 0)
        high = self.high = int(cells[-1]) + 3 if len(cells) else 1
        samples = self.samples = float(node.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            ratio = self.ratio = np.exp(table.shift - scale)
            ceiling = self.ceiling = np.exp(np.minimum(table.log_excess_at(cut) - scale, 0.0))
            first = (node[low:high] @ table.scaled[low:high]) * ratio
            second = (node[low:high] @ table.squared[low:high]) * (ratio * ratio)
            if not self.lost and low >= table.grid.finest and high - low <= _NARROW:
                split = self._split(scale)
                second = np.where(split < (1 - 1e-9) * second, second - split, np.inf)
            # Rows are rounded up to the smallest number of the table: where that shows, the ceiling is better.
            crude = ~(first <= 2.0 * samples * ceiling)
            first = np.where(crude, samples * ceiling, first)
            return GridSums(first, np.fmin(second, 2.0 * samples * ceiling * ceiling), crude)

    def _split(self, scale: FloatArray) -> FloatArray:
        """What counting samples at two nodes added to the sum of squares, w (1-w) (F_above - F_below)^2 each, [L]."""
        finest = self.table.grid.finest
        kept, lowest = self.position < self.cut, int(self.position.min())
        w = self.fraction[kept]
        place = self.position[kept] - lowest
        within = np.bincount(place, weights=w * (1.0 - w), minlength=self.cut - lowest).astype(np.float64)
        rows = self.table.log_excess[lowest - finest : self.cut + 1 - finest]
        return within @ np.diff(np.exp(rows - scale), axis=0) ** 2

    def squared_gaps(self, scale: FloatArray, first: FloatArray) -> FloatArray:
        """Sum of (chord - F)^2 over all samples, [L], after ``on_grid``, whose first sum is ``first``."""
        growth = np.exp(self._exponent - scale)
        bend = self.table.chord_gap(*self._largest)
        gap = np.minimum(bend, -np.expm1(-self._exponent)) * growth  # e^b - e^a <= (b - a) e^b
        largest = (gap * gap).sum(axis=0)
        if not self.samples:
            return largest
        with np.errstate(over="ignore", invalid="ignore"):
            rows = self.table.scaled[self.low : self.high]
            total = np.maximum(self._gap_weights()[self.low : self.high] @ rows, 0.0)
            total = (total + SMALLEST_SCALED * self.samples) * self.ratio
            highest = (self._largest_gap() + SMALLEST_SCALED) * self.ratio
            return largest + np.fmin(total, first) * np.fmin(highest, self.ceiling)

    def _gap_weights(self) -> FloatArray:
        """Node weights whose sum over F bounds the sum of chord - F, [G].

        In a cell of n samples the sum of w (1-w) is at most W - W^2 / n, W = sum of w; it is multiplied by
        h (slope of the next cell - slope of the previous cell).
        """
        grid, w = self.table.grid, self.weight
        inner = np.maximum(w - w * w / np.maximum(self.count, 1), 0.0)
        result = np.zeros(len(inner))
        above = inner[:-2] * grid.wider_above
        result[2:] += above
        result[1:-1] -= above
        below = inner[1:-1] * grid.wider_below
        result[1:-1] -= below
        result[:-2] += below
        result[1] += inner[0]  # the first cell has no previous slope: at most the rise over the cell
        result[0] += self.lost
        return result

    def _largest_gap(self) -> FloatArray:
        """A bound of chord - F for any sample on the grid, over e^{shift}, [L].

        At most 1/4 h (next slope - previous slope), which grows with u inside a level; the factor 3 covers the first
        cell of a level, whose previous one is up to 4 times as wide. Below the grid the chord itself is a bound.
        """
        grid, rows, cells = self.table.grid, self.table.scaled, self.cells
        last = np.searchsorted(cells, grid.ends) - 1
        c = np.maximum(cells[last[last >= 0]], 1)
        rise = (rows[c + 2] - rows[c + 1]) * grid.wider_above[c][:, None]
        rise -= (rows[c] - rows[c - 1]) * grid.wider_below[c - 1][:, None]
        result = 0.75 * rise.max(axis=0, initial=0.0)
        return np.maximum(result, rows[1]) if self.lost or cells[0] == 0 else result
