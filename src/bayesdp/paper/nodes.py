"""Tables of T kappa, F = e^{T kappa} - 1 and F^2 at the nodes of a grid, for all orders, kept from step to step."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from bayesdp.logspace import log_expm1
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.mechanisms.float_grid import node_values
from bayesdp.paper.square_grid import Grid, IntArray, anchor
from bayesdp.validation import FloatArray

SMALLEST_SCALED = 1e-150  # rows are rounded up to it, so that their squares stay in range
_CHUNK = 128  # nodes whose log-moments are computed and remembered together
_REMEMBERED = 1_500_000  # numbers kept as log-moments of nodes
_TABULATED = 5_000_000  # numbers kept in tables
_BOUNDS = 64  # clip bounds whose costs are kept


@dataclass(frozen=True)
class NodeTable:
    """A grid of G nodes and what they cost at L orders."""

    grid: Grid
    powers: FloatArray
    "F over e^{shift}, at least ``SMALLEST_SCALED``, and beside it its square, [G, 2 L]."
    shift: FloatArray
    "log F of the highest node, [L]."
    exponent: FloatArray
    "T kappa at the nodes of the finest level, [finest nodes, L]."
    log_excess: FloatArray
    "log F at the nodes of the finest level, [finest nodes, L]."
    bend: FloatArray
    "h (slope of the next cell - slope of the previous cell) of T kappa, for the cell above each of these nodes."

    @property
    def scaled(self) -> FloatArray:
        """F over e^{shift}, [G, L]."""
        return self.powers[:, : len(self.shift)]

    def chord(self, position: IntArray, fraction: FloatArray) -> FloatArray:
        """Return T kappa from above, [n, L], by its chord between nodes of the finest level."""
        row = position - self.grid.finest
        below = self.exponent[row]
        return below + fraction[:, None] * (self.exponent[row + 1] - below)

    def chord_gap(self, position: IntArray, fraction: FloatArray) -> FloatArray:
        """Return an upper bound of what ``chord`` adds to T kappa, [n, L]."""
        return (fraction * (1.0 - fraction))[:, None] * self.bend[position - self.grid.finest]

    def log_excess_at(self, position: int) -> FloatArray:
        """Return log F at a node of the finest level, [L]."""
        return self.log_excess[position - self.grid.finest]


class Nodes:
    """The tables for one sampling rate, one T = ``total_steps`` and orders ``lambdas`` [L].

    What was computed is remembered; the oldest is dropped when it exceeds a fixed size.
    """

    def __init__(self, sample_rate: float, lambdas: FloatArray, total_steps: int) -> None:
        self._mechanism = SubsampledGaussian(sample_rate=sample_rate)
        self._lambdas = lambdas
        self._total_steps = total_steps
        self._chunks: OrderedDict[tuple[int, int], FloatArray] = OrderedDict()
        self._tables: OrderedDict[int, NodeTable] = OrderedDict()
        self._bounds: OrderedDict[float, tuple[FloatArray, FloatArray]] = OrderedDict()

    def at_bound(self, exposure: float) -> tuple[FloatArray, FloatArray]:
        """Return kappa and log F at an exposure, the clip bound, [L] each."""
        if exposure not in self._bounds:
            kappa = self._mechanism.log_moment([exposure], self._lambdas)[0]
            with np.errstate(over="ignore"):
                self._bounds[exposure] = kappa, log_expm1(self._total_steps * kappa)
            if len(self._bounds) > _BOUNDS:
                self._bounds.popitem(last=False)
        return self._bounds[exposure]

    def up_to(self, u: float, bound: float | None) -> NodeTable:
        """Return the table of a grid that reaches just above u, or above ``bound`` (both squared) if that is near."""
        top = anchor(u, bound)
        if top not in self._tables:
            self._tables[top] = self._build(Grid(top))
            sizes = [table.powers.size for table in self._tables.values()]
            while len(sizes) > 1 and sum(sizes) > _TABULATED:
                sizes.pop(0)
                self._tables.popitem(last=False)
        self._tables.move_to_end(top)
        return self._tables[top]

    def _build(self, grid: Grid) -> NodeTable:
        parts = [np.zeros((1, len(self._lambdas)))]
        parts += [self._exponents(level.bits, level.first, level.last) for level in grid.levels]
        level = grid.levels[-1]
        parts.append(self._exponents(level.bits, level.last, level.last + 1))
        exponent = np.concatenate(parts)
        log_f = log_expm1(exponent)
        scaled = np.maximum(np.exp(log_f - log_f[-1]), SMALLEST_SCALED)
        fine = exponent[grid.finest :]
        h = np.diff(grid.values[grid.finest - 1 :])[:, None]
        slope = np.diff(exponent[grid.finest - 1 :], axis=0) / h
        bend = np.maximum(h[1:-1] * (slope[2:] - slope[:-2]), 0.0)
        bend += 8 * np.finfo(float).eps * fine[1:-1]  # rounding of the slopes
        powers = np.concatenate([scaled, scaled * scaled], axis=1)
        return NodeTable(grid, powers, log_f[-1], fine, log_f[grid.finest :], bend)

    def _exponents(self, bits: int, first: int, last: int) -> FloatArray:
        """Return T kappa at nodes first .. last - 1 of the grid of ``bits``, [nodes, L]."""
        chunks = range(first // _CHUNK, (last - 1) // _CHUNK + 1)
        rows = np.concatenate([self._chunk(bits, number) for number in chunks])
        start = chunks[0] * _CHUNK
        return rows[first - start : last - start]

    def _chunk(self, bits: int, number: int) -> FloatArray:
        key = (bits, number)
        if key not in self._chunks:
            nodes = np.arange(number * _CHUNK, (number + 1) * _CHUNK, dtype=np.int64)
            e = np.sqrt(node_values(bits, nodes)) * (1 + 2.0**-50)  # the root may round down
            with np.errstate(over="ignore"):
                self._chunks[key] = self._total_steps * self._mechanism.log_moment(e, self._lambdas)
            if len(self._chunks) > 1 and len(self._chunks) * _CHUNK * len(self._lambdas) > _REMEMBERED:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(key)
        return self._chunks[key]
