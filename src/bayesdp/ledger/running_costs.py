"""Costs of audit records at one order, kept up to date while steps are recorded: asked before every step of a gate."""

from __future__ import annotations

import numpy as np

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.exposure_grid import Keys
from bayesdp.ledger.stored_ledger import StoredLedger
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.validation import FloatArray

_ROUND_UP = 1 + 2.0**-32  # more than sums of costs lose, here or in the ledger


class RunningCosts:
    """K_x(order) of all audit records of a ledger; each question costs as much as the steps since the last one."""

    def __init__(self, ledger: StoredLedger, order: float) -> None:
        self._ledger, self._order = ledger, order
        self._costs: FloatArray | None = None
        self._counted = 0
        self._last_hash = b""
        "Of the last step that was counted: another one if that was amended since."

    def after(self, norms: FloatArray, *, noise_std: float, sample_rate: float, clip: float, steps: int) -> FloatArray:
        """Return the costs [m] after so many further steps at norms [m], never below what the ledger will count."""
        known = self._ledger.history.bins
        bins = Bins(known.rates, known.own)  # a copy: asking leaves the ledger as it is
        place = bins.place(noise_std, sample_rate, clip)
        return (self._now() + steps * self._step_costs(bins, place.rate, place.keys(norms))) * _ROUND_UP

    def _now(self) -> FloatArray:
        """Return the costs of all steps in the ledger: those recorded since are added, or all are counted again.

        The last step is added anew each time, as it may be amended.
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
        """Return what the step after so many cost each audit record, [m]."""
        [entry] = self._ledger.audit.entries(before, before + 1)
        assert entry.keys is not None
        keys = np.broadcast_to(np.asarray(entry.keys, np.uint16), self._ledger.audit_records)
        return self._step_costs(self._ledger.history.bins, entry.rate, keys)

    def _step_costs(self, bins: Bins, rate: int, keys: Keys) -> FloatArray:
        """Return what one step costs each audit record, [m]; infinite beyond the grid."""
        distinct, place = np.unique(keys, return_inverse=True)
        return log_moments(bins.rates[rate], bins.exposures(distinct), [self._order])[:, 0][place]
