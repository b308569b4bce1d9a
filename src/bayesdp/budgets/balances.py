"""The accounts of all records: what is left of their budgets, and the norm each is clipped to.

While neither norms nor settings change, every step costs a record the same. So what is left is divided once by that
cost, and a step only looks for records whose number of full steps is used up; the rest is charged when it is needed.

Rounding: what is left is never above the budget minus the exact sum of the costs charged, because products are rounded
up, differences and quotients down. A test with exact fractions says so.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bayesdp.budgets.clip_costs import ClipCosts, Places, Setting
from bayesdp.validation import FloatArray

Flags = NDArray[np.bool_]
Rows = slice | NDArray[np.intp]

HORIZON = 2**16 - 1
"""Full steps are counted up to here; then what is left is divided again."""
_CHUNK = 2**15  # records at a time: their numbers stay in the processor's cache
_UP, _DOWN = 1 + 2.0**-49, 1 - 2.0**-50  # each covers the two roundings of its expression


class Balances:
    """Arrays over n records and L orders.

    ``remaining`` [L, n] is what was left when costs last changed, ``taken`` the number of steps since, ``norms`` [n]
    those of the last refresh (infinite before it). A record that cannot pay a step in full gets the largest norm it can
    pay, forfeits what rounding leaves, and is ``exhausted`` [n] from then on.
    """

    def __init__(self, *, remaining: FloatArray, norms: FloatArray, exhausted: Flags) -> None:
        self.remaining, self.norms, self.exhausted = remaining, norms, exhausted
        self.setting: Setting | None = None
        self.taken = 0
        self._table: ClipCosts | None = None
        self._places: Places = np.zeros(len(norms), np.uint16)
        self._full_steps = np.zeros(len(norms), np.uint16)
        self._levels: FloatArray = np.zeros(len(norms))
        self._to_zero: list[Rows] = []

    def refresh(self, norms: FloatArray) -> None:
        """Take ``norms`` [n] from the next step on."""
        self._settle()
        np.copyto(self.norms, norms)
        self.setting = self._table = None

    def step(self, setting: Setting, table: ClipCosts) -> FloatArray:
        """Charge one step to every record; the norms that they are clipped to, [n]."""
        if setting != self.setting or self.taken == HORIZON:
            self._settle()
            self.plan(setting, table)
        for rows in self._to_zero:
            self._levels[rows] = 0.0
        self._to_zero = []
        if (self._full_steps == self.taken).any():
            self._shorten_due(table)
        self.taken += 1
        return self._levels

    def plan(self, setting: Setting, table: ClipCosts) -> None:
        """Find out how many steps of this setting each record can pay in full from what remains."""
        if self.setting is None or setting.clip != self.setting.clip:
            self._place(setting, table)
        self.setting, self._table = setting, table
        for chunk in self._chunks():
            places = self._places[chunk]
            steps = np.full(len(places), np.inf)
            for remaining, costs in zip(self.remaining, table.costs, strict=True):
                cost = costs.take(places)
                with np.errstate(over="ignore"):
                    np.minimum(steps, np.divide(remaining[chunk], cost, out=cost), out=steps)
            steps *= _DOWN
            np.minimum(steps, HORIZON, out=steps)
            # The exhausted are never due again. A product, because assignments through irregular masks are slow.
            np.maximum(steps, self.exhausted[chunk] * float(HORIZON), out=steps)
            self._full_steps[chunk] = steps

    def _place(self, setting: Setting, table: ClipCosts) -> None:
        """Find the norms that records want, and their places in the table."""
        for chunk in self._chunks():
            self._places[chunk] = table.places(self.norms[chunk])
            levels = np.minimum(self.norms[chunk], setting.clip, out=self._levels[chunk])
            levels *= ~self.exhausted[chunk]
        self._to_zero = []

    def consistent(self) -> bool:
        """Whether every record that is not exhausted can have paid the steps taken since the last plan."""
        return bool((self._full_steps >= self.taken).all())

    def left(self) -> FloatArray:
        """What is left now, [n, L]; 0 for exhausted records."""
        result = np.where(self.exhausted, 0.0, self.remaining)
        self._charge(result)
        return result.T

    def _settle(self) -> None:
        self._charge(self.remaining)
        self.taken = 0

    def _charge(self, remaining: FloatArray) -> None:
        """Take the steps since the last plan off ``remaining`` [L, n]; for exhausted records it has no meaning."""
        if self._table is None or not self.taken:
            return
        spent = self._spent(self._table)
        for chunk in self._chunks():
            places = self._places[chunk]
            for row, used in zip(remaining, spent, strict=True):
                left = row[chunk]
                left -= used.take(places)
                np.maximum(left, 0.0, out=left)
                left *= _DOWN

    def _spent(self, table: ClipCosts) -> FloatArray:
        """What the steps since the last plan cost at each norm of the table, [L, K + 1], rounded up."""
        return table.costs * (self.taken * _UP)

    def _shorten_due(self, table: ClipCosts) -> None:
        spent = self._spent(table)
        for chunk in self._chunks():
            due = self._full_steps[chunk] == self.taken
            if due.all():
                self._shorten(chunk, table, spent)
            elif due.any():
                self._shorten(chunk.start + np.flatnonzero(due), table, spent)

    def _shorten(self, rows: Rows, table: ClipCosts, spent: FloatArray) -> None:
        """Clip these records, which cannot pay this step in full, to what they can pay, and close their accounts."""
        wanted = self._places[rows]
        places = wanted.copy()
        for order, used in enumerate(spent):
            left = self.remaining[order][rows] - used.take(wanted)
            if left.min() < table.costs[order, -1]:
                np.minimum(places, table.payable(order, left), out=places)
        self._levels[rows] = np.minimum(self._levels[rows], table.norms.take(places))
        self.exhausted[rows] = True
        self._to_zero.append(rows)

    def _chunks(self) -> Iterator[slice]:
        records = len(self.norms)
        for start in range(0, records, _CHUNK):
            yield slice(start, min(start + _CHUNK, records))
