"""The balances of all records: what is left of their budgets, and the norm each is clipped to.

While neither norms nor settings change, every step costs a record equally much. So the balance is divided by that cost
once, and a step only looks for records whose number of full steps is used up; costs are charged when something changes.

Rounding: a balance is never above the budget minus the exact sum of the costs charged, because products are rounded up,
differences and quotients down. A test with exact fractions checks it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bayesdp.budgets.clip_costs import ClipCosts, Places, Setting
from bayesdp.validation import FloatArray

Flags = NDArray[np.bool_]
Records = slice | NDArray[np.intp]

HORIZON = 2**16 - 1
"""Full steps are counted up to here; then balances are divided again."""
_CHUNK = 2**15  # records worked on together, so that their numbers stay in the processor's cache
_UP, _DOWN = 1 + 2.0**-49, 1 - 2.0**-50  # each covers the two roundings of its expression


class Balances:
    """The balances of n records at L orders.

    ``remaining`` [L, n] is what was left when costs last changed, ``taken`` the number of steps since, ``norms`` [n]
    those of the last refresh (infinite before it), ``setting`` that of the last step. A record that cannot pay for a
    step in full gets the largest norm it can pay for, forfeits what is left over, and is ``exhausted`` [n] from then
    on. The arrays given are kept and changed.
    """

    def __init__(self, *, remaining: FloatArray, norms: FloatArray, exhausted: Flags) -> None:
        self.remaining, self.norms, self.exhausted = remaining, norms, exhausted
        self.setting: Setting | None = None
        self.taken = 0
        self._table: ClipCosts | None = None
        self._places: Places = np.zeros(len(norms), np.uint16)
        self._full_steps = np.zeros(len(norms), np.uint16)
        self._levels: FloatArray = np.zeros(len(norms))
        self._to_zero: list[Records] = []

    def refresh(self, norms: FloatArray) -> None:
        """Use ``norms`` [n] from the next step on."""
        self._settle()
        np.copyto(self.norms, norms)
        self.setting = self._table = None

    def step(self, setting: Setting, table: ClipCosts) -> FloatArray:
        """Charge one step to every record and return the norms [n] to which they are clipped in it.

        ``table`` is that of ``setting``. The array returned is reused by the next call.
        """
        if setting != self.setting or self.taken == HORIZON:
            self._settle()
            self.plan(setting, table)
        for records in self._to_zero:
            self._levels[records] = 0.0
        self._to_zero = []
        if (self._full_steps == self.taken).any():
            self._shorten_due(table)
        self.taken += 1
        return self._levels

    def plan(self, setting: Setting, table: ClipCosts) -> None:
        """Compute how many steps of this setting each record can pay for in full from what remains, rounded down."""
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
            # Exhausted records are never due again. A product, because assigning through irregular masks is slow.
            np.maximum(steps, self.exhausted[chunk] * float(HORIZON), out=steps)
            self._full_steps[chunk] = steps

    def _place(self, setting: Setting, table: ClipCosts) -> None:
        """Set the norms to which records would be clipped if they can pay, and their places in the table."""
        for chunk in self._chunks():
            self._places[chunk] = table.places(self.norms[chunk])
            levels = np.minimum(self.norms[chunk], setting.clip, out=self._levels[chunk])
            levels *= ~self.exhausted[chunk]
        self._to_zero = []

    def consistent(self) -> bool:
        """Return whether every record that is not exhausted can have paid for the steps taken since the last plan."""
        return bool((self._full_steps >= self.taken).all())

    def left(self) -> FloatArray:
        """Return what is left now, [n, L], rounded down; 0 for exhausted records."""
        result = np.where(self.exhausted, 0.0, self.remaining)
        self._charge(result)
        return result.T

    def _settle(self) -> None:
        self._charge(self.remaining)
        self.taken = 0

    def _charge(self, remaining: FloatArray) -> None:
        """Subtract the steps since the last plan from ``remaining`` [L, n]; it means nothing for exhausted records."""
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
        """Return what the steps since the last plan cost at each norm of the table, [L, K + 1], rounded up."""
        return table.costs * (self.taken * _UP)

    def _shorten_due(self, table: ClipCosts) -> None:
        spent = self._spent(table)
        for chunk in self._chunks():
            due = self._full_steps[chunk] == self.taken
            if due.all():
                self._shorten(chunk, table, spent)
            elif due.any():
                self._shorten(chunk.start + np.flatnonzero(due), table, spent)

    def _shorten(self, records: Records, table: ClipCosts, spent: FloatArray) -> None:
        """Clip records that cannot pay for this step in full to what they can pay for, and mark them exhausted."""
        wanted = self._places[records]
        places = wanted.copy()
        for index, used in enumerate(spent):
            left = self.remaining[index][records] - used.take(wanted)
            if left.min() < table.costs[index, -1]:
                np.minimum(places, table.payable(index, left), out=places)
        self._levels[records] = np.minimum(self._levels[records], table.norms.take(places))
        self.exhausted[records] = True
        self._to_zero.append(records)

    def _chunks(self) -> Iterator[slice]:
        records = len(self.norms)
        for start in range(0, records, _CHUNK):
            yield slice(start, min(start + _CHUNK, records))
