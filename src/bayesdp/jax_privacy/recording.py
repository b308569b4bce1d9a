"""From releases to steps of the ledger.

Poisson sampling: a release is a step.

Any other order: a record is in at most one batch of an epoch, and there is no amplification by sampling. An epoch is
one step with rate 1; which batch holds a record is not known, so an audit record is charged at its largest norm. The
step is recorded at the clip bound before the first release of the epoch, and amended when the epoch is over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bayesdp.jax_privacy.sampling import BatchSizes, Sampling
from bayesdp.ledger import JAX_PRIVACY, CheckedNorms, checked_norms
from bayesdp.run_ledger import Ledger


@dataclass(frozen=True)
class Settings:
    """What each release of a run has in common."""

    noise_std: float
    "Noise on the sum of clipped gradients, in the units of their norms."
    sample_rate: float
    clip: float


class Released:
    """Norms of one release, on the device that computed them; ``audit`` and ``batch`` wait for it."""

    def __init__(self, audit: Any, batch: Any) -> None:
        self._audit, self._batch = audit, batch

    def audit(self) -> CheckedNorms | None:
        """Return the norms of audit records, or None; raise InvalidInputError if one is not finite."""
        return None if self._audit is None else checked_norms("audit", np.asarray(self._audit))

    def batch(self) -> CheckedNorms:
        """Return the norms of the records in the batch, without padding, which has the norm -1."""
        norms = np.asarray(self._batch)
        return checked_norms("batch", norms[norms >= 0])

    @property
    def device(self) -> str:
        """The kind of device: "cpu", "gpu", "tpu"."""
        return next(iter(self._batch.devices())).platform


class PoissonSteps:
    """The recorder for Poisson sampling: one step of the ledger for each release."""

    def __init__(self, ledger: Ledger, settings: Settings, records: int | None) -> None:
        self._ledger, self._settings, self._records = ledger, settings, records
        self._sizes = BatchSizes(settings.sample_rate, records)
        self._pending: tuple[int, Released, frozenset[str]] | None = None
        "A step whose norms the device was still computing, and what they rest on."

    def record(self, released: Released, caveats: frozenset[str]) -> None:
        """Record a release: it is on disk when this returns, and may be used after that.

        On the CPU norms are recorded with it, and one that is not finite is refused before anything is recorded. No
        step waits for another device: there norms are given to the ledger with the next step.
        """
        self.settle()
        late = released.device != "cpu"
        audit, batch = (None, None) if late else (released.audit(), released.batch())
        if batch is not None:
            self._sizes.add(len(batch.values))
        number = self._ledger.step(
            noise_std=self._settings.noise_std,
            sample_rate=self._settings.sample_rate,
            clip=self._settings.clip,
            planned_batch=None if self._records is None else self._settings.sample_rate * self._records,
            source=JAX_PRIVACY,
            caveats=caveats | self._mismatch,
            audit=audit,
            batch=batch,
        )
        if late:
            self._pending = number, released, caveats

    def settle(self) -> None:
        """Give the ledger the norms of the last step, if they are still to come."""
        if self._pending is None:
            return
        (number, released, caveats), self._pending = self._pending, None
        audit, batch = released.audit(), released.batch()
        self._sizes.add(len(batch.values))
        if not self._ledger.closed and self._ledger.steps == number:
            self._ledger.amend(number, audit=audit, batch=batch, caveats=caveats | self._mismatch)

    @property
    def _mismatch(self) -> frozenset[str]:
        return frozenset(["sampling-mismatch"] if self._sizes.mismatch else [])


class EpochSteps:
    """The recorder for any other order: one step of the ledger for each epoch of ``batches`` releases."""

    def __init__(self, ledger: Ledger, settings: Settings, sampling: Sampling) -> None:
        self._ledger, self._settings, self._sampling = ledger, settings, sampling
        self._left = self._releases = 0
        "Releases that the present epoch may still have, and those of the run so far."
        self._number = 0
        "The last step of the ledger that belongs to the present epoch."
        self._settled = True
        "Whether that step has norms; without them it is charged at the clip bound."
        self._largest: Any = None
        "The largest norm of each audit record since that step began, [m]; None if it is not known at some release."
        self._batch: list[Any] = []
        "Norms of the batches since that step began."
        self._caveats: frozenset[str] = frozenset()

    def record(self, released: Released, caveats: frozenset[str]) -> None:
        """Record a release: the step of its epoch is on disk when this returns, at the clip bound for now.

        Raises InvalidInputError before anything is recorded if a norm is not finite.
        """
        audit, batch = released.audit(), released.batch()
        if not self._left or self._ledger.steps != self._number:  # a new epoch, or somebody else has recorded a step
            self.settle()
            self._number = self._ledger.step(
                noise_std=self._settings.noise_std,
                sample_rate=self._settings.sample_rate,
                clip=self._settings.clip,
                source=JAX_PRIVACY,
                caveats=caveats | self._sampling.caveats,
            )
            self._largest, self._batch, self._caveats = None if audit is None else audit.values, [], caveats
        else:
            if self._settled:  # what the ledger says about audit records no longer holds
                self._ledger.amend(self._number)
            if audit is None or self._largest is None:
                self._largest = None
            else:
                self._largest = np.maximum(self._largest, audit.values)
        self._settled = False
        self._left = (self._left or self._sampling.batches) - 1
        self._releases += 1
        if self._sampling.iterations and self._releases % self._sampling.iterations == 0:
            self._left = 0  # the strategy begins anew, and may draw at once whom it has just drawn
        self._batch.append(batch.values)
        self._caveats |= caveats

    def begin_epoch(self) -> None:
        """Let the next release begin an epoch, although the present one may not be full."""
        self.settle()
        self._left = 0

    def settle(self) -> None:
        """Give the ledger what is known of the epoch so far; a release without audit norms leaves the clip bound."""
        if self._settled:
            return
        self._settled = True
        if not self._ledger.closed and self._ledger.steps == self._number:
            audit = None if self._largest is None else CheckedNorms(self._largest)
            batch = CheckedNorms(np.concatenate(self._batch))
            self._ledger.amend(self._number, audit=audit, batch=batch, caveats=self._caveats)
