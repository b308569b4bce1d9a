"""The sums behind one Hölder step: F(u) = e^{T kappa(u)} - 1 and F^2, over the samples of a step, as upper bounds.

Also bounded is what the chords of the table add to them; ``excess_table`` says why that is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesdp.paper.nodes import SMALLEST_SCALED, NodeTable
from bayesdp.paper.square_grid import IntArray
from bayesdp.validation import FloatArray

_LARGEST = 8  # samples that get a chord of their own
_NARROW = 128  # finest cells; if all others lie within this many, what splitting adds to their squares is taken off


@dataclass(frozen=True)
class GridSums:
    """Upper bounds of the sums of F (``first``) and F^2 (``second``) over the samples on the grid, [L] each.

    In units of e^{scale} and e^{2 scale}.
    """

    first: FloatArray
    second: FloatArray
    crude: NDArray[np.bool_]
    "Where a sum is only the number of samples times a ceiling, [L]."


class PlacedSamples:
    """Samples u, in ascending order, on the grid of a table.

    The largest (position >= ``cut``) are taken one by one; the others are counted at the two nodes around them.
    Overflow is expected here, and resolved; callers switch NumPy's warnings off.
    """

    def __init__(self, table: NodeTable, u: FloatArray) -> None:
        self.table = table
        self.position: IntArray
        self.fraction: FloatArray
        self.position, self.fraction = table.grid.place(u)
        # The largest samples fill whole cells of the finest level, each from its first sample on.
        first = max(len(u) - _LARGEST, 0)
        if first and self.position[first - 1] == self.position[first]:
            first = int(np.searchsorted(self.position, int(self.position[first]), side="right"))
        self.samples = max(first, int(self.position.searchsorted(table.grid.finest)))
        self.cut = max(int(self.position[self.samples - 1]) + 1 if self.samples else 0, table.grid.finest)
        self._exponent = table.chord(self.position[self.samples :], self.fraction[self.samples :])
        # The others: how many are in each cell, the sum of their fractions, and the nodes they touch.
        size, others = len(table.grid.values), self.position[: self.samples]
        self.count = np.bincount(others, minlength=size)
        self.weight = np.bincount(others, weights=self.fraction[: self.samples], minlength=size)
        self.low, self.high = max(int(self.position[0]) - 1, 0), self.cut + 2

    def highest_exponent(self) -> FloatArray:
        """Return T kappa of the largest sample, from above, [L]."""
        return self.table.chord(self.position[-1:], self.fraction[-1:])[0]

    def least_log_slope(self) -> FloatArray:
        """Return a lower bound of the slope of log F in the cells around the largest sample, [L]."""
        last, finest = int(self.position[-1]), self.table.grid.finest
        rows = self.table.log_excess[last - 2 - finest : last + 3 - finest]
        width = np.diff(self.table.grid.values[last - 2 : last + 3])[:, None]
        return (np.diff(rows, axis=0) / width).min(axis=0) * (1 - 1e-3)

    def one_by_one(self, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return sums of F and F^2 over the largest samples, [L] each, from above, in units of e^{scale}.

        By the chord of T kappa, which adds next to nothing where T kappa is large.
        """
        value = -np.expm1(-self._exponent) * np.exp(self._exponent - scale)
        return value.sum(axis=0), (value * value).sum(axis=0)

    def on_grid(self, scale: FloatArray) -> GridSums:
        """Return sums over the other samples, from above, by the chord of F between nodes."""
        table, samples, low, high = self.table, self.samples, self.low, self.high
        if not samples:
            return GridSums(0.0 * scale, 0.0 * scale, np.zeros(len(scale), dtype=bool))
        node = self.count - self.weight
        node[1:] += self.weight[:-1]
        ratio, ceiling = self._units(scale)
        sums = node[low:high] @ table.powers[low:high]
        if self.count[0]:  # F / u grows, so between 0 and the first node F^2 is at most w^2 times its value there
            w = self.fraction[: self.count[0]]
            sums[len(scale) :] -= (w - w * w).sum() * table.powers[1, len(scale) :]
        first, second = sums[: len(scale)] * ratio, sums[len(scale) :] * (ratio * ratio)
        if low >= table.grid.finest and high - low <= _NARROW:
            split = self._split(scale)
            second = np.where(split <= (1 - 1e-9) * second, second - split, np.inf)
        # Rows are rounded up to the smallest number of the table: where that shows, the ceiling is better.
        most, most_squared = 2.0 * samples * ceiling, 2.0 * samples * ceiling * ceiling
        crude = ~((first <= most) & (second <= most_squared))
        return GridSums(np.fmin(first, most), np.fmin(second, most_squared), crude)

    def _units(self, scale: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the table's unit and the largest F of any sample on the grid, in units of e^{scale}, [L] each."""
        highest = np.minimum(self.table.log_excess_at(self.cut) - scale, 0.0)
        return np.exp(self.table.shift - scale), np.exp(highest)

    def _split(self, scale: FloatArray) -> FloatArray:
        """Return what counting samples at two nodes added to the sum of squares, [L].

        It is w (1-w) (F_above - F_below)^2 for a sample a fraction w above its lower node.
        """
        finest = self.table.grid.finest
        w, lowest = self.fraction[: self.samples], int(self.position[0])
        place = self.position[: self.samples] - lowest
        within = np.bincount(place, weights=w * (1.0 - w), minlength=self.cut - lowest).astype(np.float64)
        rows = self.table.log_excess[lowest - finest : self.cut + 1 - finest]
        return within @ np.diff(np.exp(rows - scale), axis=0) ** 2

    def squared_gaps(self, scale: FloatArray, first: FloatArray) -> FloatArray:
        """Return an upper bound of the sum of (chord - F)^2 over all samples, [L].

        ``first``: the sum of F over the samples on the grid, [L].
        """
        growth = np.exp(self._exponent - scale)
        bend = self.table.chord_gap(self.position[self.samples :], self.fraction[self.samples :])
        gap = np.minimum(bend, -np.expm1(-self._exponent)) * growth  # e^b - e^a <= (b - a) e^b
        largest = (gap * gap).sum(axis=0)
        if not self.samples:
            return largest
        rows = self.table.scaled[self.low : self.high]
        total = np.maximum(self._gap_weights()[self.low : self.high] @ rows, 0.0)
        ratio, ceiling = self._units(scale)
        total = (total + SMALLEST_SCALED * self.samples) * ratio
        highest = (self._largest_gap() + SMALLEST_SCALED) * ratio
        return largest + np.fmin(total, first) * np.fmin(highest, ceiling)

    def _gap_weights(self) -> FloatArray:
        """Return weights of the nodes [G] such that their product with F bounds the sum of chord - F.

        In a cell of n samples the sum of w (1-w) is at most W - W^2 / n, W = sum of w; it is multiplied by
        h (slope of the next cell - slope of the previous cell).
        """
        grid, w = self.table.grid, self.weight
        inner = np.maximum(w - w * w / np.maximum(self.count, 1), 0.0)
        first = self.count[0] - w[0]  # the cell above 0 has no previous one: at most (1-w) (next rise - own rise)
        inner[0] = 0.0
        result = np.zeros(len(inner))
        above = inner[:-2] * grid.wider_above
        above[0] = first * grid.wider_above[0]
        result[2:] += above
        result[1:-1] -= above
        below = inner[1:-1] * grid.wider_below
        result[1:-1] -= below
        result[:-2] += below
        result[1] -= first
        result[0] += first
        return result

    def _largest_gap(self) -> FloatArray:
        """Return an upper bound of chord - F for any sample on the grid, over e^{shift}, [L].

        At most 1/4 h (next slope - previous slope), which grows with u inside a level; the factor 3 covers the first
        cell of a level, whose previous one is up to 8 times as wide.
        """
        grid, rows, cells = self.table.grid, self.table.scaled, self.count.nonzero()[0]
        last = np.searchsorted(cells, grid.ends) - 1
        c = np.maximum(cells[last[last >= 0]], 1)
        rise = (rows[c + 2] - rows[c + 1]) * grid.wider_above[c][:, None]
        rise -= (rows[c] - rows[c - 1]) * grid.wider_below[c - 1][:, None]
        result = 0.75 * rise.max(axis=0, initial=0.0)
        if cells[0] == 0:
            result = np.maximum(result, (rows[2] - rows[1]) * grid.wider_above[0] - (rows[1] - rows[0]))
        return result
