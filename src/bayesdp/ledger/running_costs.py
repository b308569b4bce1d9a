"""Costs of audit records at one order, kept up to date while steps are recorded: a gate asks for them at every step."""

from __future__ import annotations

import numpy as np

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.exposure_grid import Keys
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.validation import FloatArray

_ROUND_UP = 1 + 2.0**-32  # more than sums of costs lose, here or in the ledger


class RunningCosts:
    """The costs K_x(order) of all audit records of a ledger that is being written.

    Formal guarantee: ``after`` is never below what ``Ledger.costs`` will say after these steps, whatever was amended
    since the last call. A call takes time in proportion to the steps recorded since the last one; after the journal was
    folded, all costs are computed once more.
    """

    def __init__(self, ledger: StoredLedger, order: float) -> None:
        """Follow the costs of ``ledger`` at one order (a whole number if batches are sampled)."""
        self._ledger, self._order = ledger, order
        self._costs: FloatArray | None = None
        self._counted = 0
        self._last_hash = b""
        "The hash of step ``_counted``; another one stands in the history if that step was amended since."

    def after(self, norms: FloatArray, *, noise_std: float, sample_rate: float, clip: float, steps: int) -> FloatArray:
        """Return the costs [m] after ``steps`` further steps with these settings and norms [m], rounded up.

        Asking changes nothing in the ledger.
        """
        known = self._ledger.history.bins
        bins = Bins(known.rates, known.own)  # a copy, because placing adds new rates and clip bounds
        place = bins.place(noise_std, sample_rate, clip)
        return (self._now() + steps * self._step_costs(bins, place.rate_number, place.keys(norms))) * _ROUND_UP

    def _now(self) -> FloatArray:
        """Return the costs of all steps in the ledger, [m].

        Steps recorded since the last call are added, except for the last one: it may still be amended, so it is added
        anew at each call. Everything is counted again if new steps were folded already, or if the hash of the last
        counted step shows that it was amended.
        """
        audit, history = self._ledger.audit, self._ledger.history
        amended = history.hash_at(self._counted) != self._last_hash
        if self._costs is None or amended or audit.steps - len(audit.journal) > self._counted:
            self._costs = self._ledger.costs([self._order])[:, 0]
            self._counted = audit.steps
        while self._counted < audit.steps - 1:
            self._costs = self._costs + self._entry_costs(self._counted)
            self._counted += 1
        self._last_hash = history.hash_at(self._counted)
        return self._costs if self._counted == audit.steps else self._costs + self._entry_costs(self._counted)

    def _entry_costs(self, before: int) -> FloatArray:
        """Return the costs [m] of step ``before`` + 1, which the journal must still hold."""
        [entry] = self._ledger.audit.entries(before, before + 1)
        assert entry.keys is not None
        keys = np.broadcast_to(np.asarray(entry.keys, np.uint16), self._ledger.audit_records)
        return self._step_costs(self._ledger.history.bins, entry.rate_number, keys)

    def _step_costs(self, bins: Bins, rate: int, keys: Keys) -> FloatArray:
        """Return the cost of one step for each audit record, [m]; infinite beyond the grid."""
        distinct, index = np.unique(keys, return_inverse=True)
        return log_moments(bins.rates[rate], bins.exposures(distinct), [self._order])[:, 0][index]
