"""Snapshots: the costs of every audit record at about 32 points of a run, for epsilon over time at any delta and share.

Points are multiples of a power of 2 that doubles as the run grows. Costs are kept at the orders of the ledger's
mixture, which was fixed before the run, in 16 bits and rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayesdp.ledger import exposure_grid as grid
from bayesdp.ledger import packing
from bayesdp.ledger.bins import Bins, keys_of, rate_numbers_of
from bayesdp.ledger.exposure_grid import KEYS, KeyArray, distinct
from bayesdp.ledger.histograms import Entry, Histogram, Slice, stacked
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import OrderMixture
from bayesdp.validation import FloatArray

POINTS = 32
"""At most how many points the ledger of one run keeps."""
_SUM_UP = 1.0 + 2.0**-12  # covers sums of up to 2^11 single-precision numbers
_PRODUCT_UP = 1.0 + 2.0**-38  # covers sums of products in double precision


def spacing(steps: int, points: int = POINTS) -> int:
    """Return how many steps lie between two points of a run: a power of 2, so that there are at most ``points``."""
    return 1 << max(0, (steps - 1) // points).bit_length()


class _Table:
    """Log-moments [KEYS, L] by key in double and in single precision; the latter never round a positive one to 0."""

    def __init__(self, orders: int) -> None:
        self.known = np.zeros(KEYS, bool)
        self.double = np.zeros((KEYS, orders))
        self.single = np.zeros((KEYS, orders), np.float32)

    def fill(self, keys: KeyArray, moments: FloatArray) -> None:
        self.known[keys] = True
        self.double[keys] = moments
        with np.errstate(over="ignore"):
            self.single[keys] = np.where(moments > 0, np.maximum(moments, 1e-37), 0.0)


class SnapshotCosts:
    """Costs at the orders of a mixture, from log-moments that are computed once for each key and sampling rate."""

    def __init__(self, bins: Bins, mixture: OrderMixture) -> None:
        self._bins, self._mixture = bins, mixture
        self._tables: dict[int, _Table] = {}

    @property
    def orders(self) -> int:
        """How many orders there are, L."""
        return len(self._mixture.orders)

    def table(self, rate: int, keys: KeyArray) -> _Table:
        """Return the log-moments at a rate, filled in at least for ``keys``."""
        table = self._tables.setdefault(rate, _Table(self.orders))
        met = distinct(keys)
        new = met[~table.known[met]]
        if len(new):
            exposures = self._bins.exposures(new)
            moments = log_moments(self._bins.rates[rate], exposures, self._mixture.lambdas, self._mixture.direction)
            table.fill(new, moments)
        return table

    def of_histogram(self, histogram: Histogram) -> FloatArray:
        """Return the costs [n, L] of the n records of a histogram, rounded up."""
        total = np.zeros((histogram.counts.shape[1], self.orders))
        rates = rate_numbers_of(histogram.bins)
        for rate in np.unique(rates).tolist():
            of_rate = rates == rate
            keys = keys_of(histogram.bins[of_rate])
            counts = histogram.counts[of_rate]
            finite = keys != grid.BEYOND
            total += counts[finite].T.astype(np.float64) @ self.table(rate, keys).double[keys[finite]]
            total[counts[~finite].any(axis=0)] = np.inf
        return total * _PRODUCT_UP

    def of_entries(self, entries: Sequence[Entry], records: slice) -> FloatArray:
        """Return the costs [n, L] of steps of the journal for some records, rounded up; [1, L] if all are equal."""
        total = np.zeros((1, self.orders))
        for rate, keys in stacked(entries, records):
            table = self.table(rate, keys)
            if keys.shape[1] == 1:  # steps with one key for all records: there may be many of them
                total = total + table.double[keys].sum(axis=0) * _SUM_UP
            else:  # this runs while a model trains: single precision, rounded up
                single = table.single.take(keys, axis=0).sum(axis=0)
                total = total + single.astype(np.float64) * _SUM_UP
        return total


class CostTrail:
    """The costs of the records of a slice up to some step, from where it follows the journal further."""

    def __init__(self, start: Slice, histogram: Histogram, costs: SnapshotCosts) -> None:
        self._costs, self._records = costs, start.range
        self._step, self._current = start.through, costs.of_histogram(histogram)

    def advance(self, entries: Sequence[Entry]) -> FloatArray:
        """Add the costs of the next steps and return the sum, [n, L]."""
        self._current = self._current + self._costs.of_entries(entries, self._records)
        self._step += len(entries)
        return self._current

    def snapshots(
        self, before: Slice, entries: Sequence[Entry], *, at_most: int = POINTS
    ) -> tuple[tuple[int, ...], bytes]:
        """Return points and packed snapshots of a slice once ``entries``, the steps after it, are folded into it.

        Earlier points stay if they are multiples of the new distance; new ones are added along ``entries``, about
        ``at_most`` of them.
        """
        through = before.through + len(entries)
        wanted = spacing(through)
        kept = [number for number, point in enumerate(before.points) if point % wanted == 0]
        every = max(wanted, spacing(len(entries), at_most))
        points = [before.points[number] for number in kept]
        packed = [read_packed(before, self._costs.orders)[kept]]
        for point in range(before.through - before.through % every + every, through + 1, every):
            costs = self.advance(entries[self._step - before.through : point - before.through])
            packed.append(packing.pack_costs(costs)[None])
            points.append(point)
        self.advance(entries[self._step - before.through :])
        return tuple(points), np.concatenate(packed).tobytes()


def read_packed(part: Slice, orders: int) -> np.ndarray:
    """Return the snapshots of a slice, still packed, [points, records, L]."""
    return np.frombuffer(part.snapshots, np.uint16).reshape(len(part.points), part.records, orders)


def all_snapshots(slices: Sequence[Slice], orders: int) -> tuple[list[int], FloatArray]:
    """Return the points that all slices have, [P], and the costs of all audit records there, [P, m, L]."""
    points = [point for point in (slices[0].points if slices else ()) if all(point in part.points for part in slices)]
    parts = [read_packed(part, orders)[[part.points.index(point) for point in points]] for part in slices]
    if not parts:
        return points, np.zeros((0, 0, orders))
    costs = packing.unpack_costs(np.concatenate(parts, axis=1))
    return points, np.maximum.accumulate(costs, axis=0)  # rounding up could make an earlier cost the larger one
