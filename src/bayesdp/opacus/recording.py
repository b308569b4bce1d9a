"""Turn the sums that training releases into steps of the ledger.

Poisson sampling: a sum is one step. If it holds several draws, a record may be in each of them: noise s on the sum is
the sum of k noises s / sqrt(k), so the sum costs no more than k steps with that much noise.

Any other order, each record once an epoch: no amplification by sampling. An epoch is one step with rate 1, because a
record is in only one of its batches; which of them is not known, so an audit record is charged at its largest exposure.
The step is recorded at the clip bound before the first batch is used, and amended when the epoch is over. If the noise
falls within an epoch, a further step makes up the difference: without sampling, squares of exposures add up.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from bayesdp.ledger import CheckedNorms, StepSource, checked_norms
from bayesdp.opacus.draws import Draw
from bayesdp.opacus.sampling import Sampling
from bayesdp.run_ledger import Ledger

_ROUND_UP = 1 + 1e-6  # more than float32 loses in what follows


class DeviceNorms:
    """Norms [n] on the device that computed them; they are fetched and checked once, when the ledger needs them."""

    def __init__(self, name: str, norms: torch.Tensor) -> None:
        self.tensor = norms.detach()
        self._name = name
        self._checked: CheckedNorms | None = None

    def __len__(self) -> int:
        return len(self.tensor)

    def checked(self) -> CheckedNorms:
        """Return the norms for the ledger, as float64 in memory; waits for the device if there is one.

        Raises InvalidInputError, which quotes name and value, if a norm is negative or not finite.
        """
        if self._checked is None:
            self._checked = checked_norms(self._name, self.tensor.cpu().numpy())
        return self._checked

    def check_if_on_cpu(self) -> None:
        """Check the norms now if that does not mean waiting for a device."""
        if self.tensor.device.type == "cpu":
            self.checked()


@dataclass(frozen=True)
class GradientSum:
    """A sum of clipped gradients that is about to be released with noise on it.

    All norms and ``bound`` are of everything that is released about a record with this noise: its gradient, and what
    adaptive clipping counts beside it.
    """

    noise_std: float
    bound: float
    "What one record can change at most, in the units of the noise."
    batch: Mapping[Draw, DeviceNorms]
    "Norms of the records in the sum, by the draw they come from."
    audit: DeviceNorms | None
    caveats: frozenset[str]
    noise: tuple[int, ...]
    "Digests of the states of the generators from which the noise will be drawn, as far as they are known."

    def source(self, run: StepSource, draws: Collection[Draw]) -> str:
        """Return the source of a step of the ledger that holds these draws; ``run`` says what all its steps share."""
        return replace(run, noise=self.noise, draws=tuple(state for draw in draws for state in draw.states)).text()

    @staticmethod
    def of(
        parts: Iterable[tuple[Draw, torch.Tensor]],
        audit: torch.Tensor | None,
        *,
        noise_std: float,
        clip: float,
        extra_norm: float,
        caveats: frozenset[str],
        noise: tuple[int, ...],
    ) -> GradientSum:
        """Return the sum of ``parts``, each a draw and norms [b] of gradients that were clipped with ``clip``.

        ``extra_norm`` is the norm of what else is released about each record, orthogonal to its gradient. Records that
        were drawn and are missing from the sum add the caveat "left-out".
        """

        def whole(norms: torch.Tensor) -> torch.Tensor:
            return torch.hypot(norms, torch.tensor(extra_norm, dtype=norms.dtype)) if extra_norm else norms

        by_draw: dict[Draw, list[torch.Tensor]] = {}
        for draw, norms in parts:
            by_draw.setdefault(draw, []).append(whole(norms))
        batch = {draw: DeviceNorms("batch", torch.cat(norms)) for draw, norms in by_draw.items()}
        left_out = any(len(norms) < draw.records for draw, norms in batch.items())
        return GradientSum(
            noise_std=noise_std,
            bound=math.hypot(clip, extra_norm),
            batch=batch,
            audit=None if audit is None else DeviceNorms("audit", whole(audit)),
            caveats=caveats | frozenset(["left-out"] * left_out),
            noise=noise,
        )


@dataclass(frozen=True)
class Charge:
    """The steps of the ledger that a sum is charged as: their settings, and how many they are."""

    noise_std: float
    sample_rate: float
    clip: float
    steps: int


class PoissonSteps:
    """The recorder for Poisson sampling: one step of the ledger for each draw in a sum."""

    def __init__(self, ledger: Ledger, sampling: Sampling, source: StepSource, *, late: bool) -> None:
        self._ledger, self._sampling, self._source = ledger, sampling, source
        self._late = late
        "Whether norms are given with the next step, so that no step waits for the device."
        self._pending: tuple[int, DeviceNorms | None, DeviceNorms] | None = None

    def charge(self, released: GradientSum, draws: Collection[Draw]) -> Charge:
        """Return what ``released`` costs if it holds these draws."""
        rate = max(self._sampling.accounted_rate(draw.rate) for draw in draws)
        return Charge(released.noise_std / math.sqrt(len(draws)), rate, released.bound, len(draws))

    def record(self, released: GradientSum) -> None:
        """Record a sum; its steps are on disk when this returns, and its noisy result may be used after that.

        All norms of the sum are checked before the first of its steps is recorded. Raises InvalidInputError for norms
        that are not finite, and whatever ``Ledger.step`` raises.
        """
        self.settle()
        charge = self.charge(released, released.batch)
        late = self._late and charge.steps == 1
        audit = None if late or released.audit is None else released.audit.checked()
        batch = {draw: None if late else norms.checked() for draw, norms in released.batch.items()}
        for draw, norms in batch.items():
            self._sampling.compare(draw)
            number = self._ledger.step(
                noise_std=charge.noise_std,
                sample_rate=self._sampling.accounted_rate(draw.rate),
                clip=charge.clip,
                planned_batch=self._sampling.planned_batch,
                source=released.source(self._source, [draw]),
                caveats=released.caveats | self._sampling.caveats,
                audit=audit,
                batch=norms,
            )
            if late:
                self._pending = number, released.audit, released.batch[draw]

    def settle(self) -> None:
        """Give the ledger the norms of the last step, if they are still to come."""
        if self._pending is not None:
            (number, audit, batch), self._pending = self._pending, None
            _amend(self._ledger, number, audit, [batch])


class ShuffledEpochs:
    """The recorder for shuffled loaders: one step of the ledger for each epoch."""

    def __init__(self, ledger: Ledger, sampling: Sampling, source: StepSource) -> None:
        self._ledger, self._sampling, self._source = ledger, sampling, source
        self._epoch = 0
        self._paid = 0.0
        "Square of the exposure at the clip bound that this epoch has been charged."
        self._paid_before = 0.0
        "The same without the epoch's last step in the ledger."
        self._noise_std = math.nan
        self._number = 0
        "The epoch's last step in the ledger."
        self._batch: list[DeviceNorms] = []
        self._most: torch.Tensor | None = None
        "The largest exposure of each audit record in this epoch, [m]; None if it is not known at some batch."
        self._settled = True
        self._caveats: frozenset[str] = frozenset()

    def charge(self, released: GradientSum, draws: Collection[Draw]) -> Charge:
        """Return what ``released`` costs if it holds these draws: no further step if their epoch is paid for."""
        epochs = {draw.iteration for draw in draws}
        noise_std = released.noise_std / math.sqrt(len(epochs))
        owed = (released.bound / noise_std) ** 2
        paid = self._paid if epochs == {self._epoch} else 0.0
        if owed <= paid:
            return Charge(noise_std, 1.0, released.bound, 0)
        # What is missing is rounded up, so that the epoch is paid for afterwards and not asked again.
        clip = noise_std * math.sqrt(owed - paid) * _ROUND_UP if paid else released.bound
        return Charge(noise_std, 1.0, clip, len(epochs))

    def record(self, released: GradientSum) -> None:
        """Record a sum: the step of its epoch is on disk when this returns, at the clip bound until the epoch is over.

        All norms of the sum are checked before a step is recorded, except those on a device, which are not waited for.
        Raises InvalidInputError for norms that are not finite, and whatever ``Ledger.step`` raises.
        """
        for norms in released.batch.values():
            norms.check_if_on_cpu()
        if released.audit is not None:
            released.audit.check_if_on_cpu()
        for epoch in sorted({draw.iteration for draw in released.batch}):
            if self._settled and self._ledger.steps != self._number:
                self._epoch = 0  # somebody else has recorded a step since: what was settled stays, and is paid anew
            charge = self.charge(released, released.batch)
            if epoch != self._epoch or charge.steps:
                self._begin(epoch, charge, released)
            elif self._settled:  # what the ledger says about audit records no longer holds
                self._ledger.amend(self._number)
                self._settled = False
            exposure = None if released.audit is None else released.audit.tensor / charge.noise_std
            if not self._batch:
                self._most = exposure
            elif exposure is None or self._most is None:
                self._most = None
            else:
                self._most = torch.maximum(self._most, exposure)
            self._batch += [norms for draw, norms in released.batch.items() if draw.iteration == epoch]
            self._caveats |= released.caveats

    def _begin(self, epoch: int, charge: Charge, released: GradientSum) -> None:
        """Record the step of a new epoch, or a further step of the present one."""
        if epoch != self._epoch:
            self.settle()
            self._paid_before, self._batch, self._most = 0.0, [], None
            self._caveats = frozenset()
        else:  # the earlier steps of the epoch stay at the clip bound
            if self._settled:
                self._ledger.amend(self._number)
            self._paid_before = self._paid
        self._number = self._ledger.step(
            noise_std=charge.noise_std,
            sample_rate=charge.sample_rate,
            clip=charge.clip,
            source=released.source(self._source, []),
            caveats=released.caveats | self._sampling.caveats,
        )
        self._epoch, self._noise_std, self._settled = epoch, charge.noise_std, False
        self._paid = self._paid_before + (charge.clip / charge.noise_std) ** 2

    def settle(self) -> None:
        """Give the ledger what is known of the epoch so far; a batch without audit norms leaves the clip bound."""
        if self._settled:
            return
        self._settled = True
        audit = None
        if self._most is not None:
            left = torch.clamp(self._most**2 - self._paid_before, min=0) ** 0.5
            audit = DeviceNorms("audit", left * self._noise_std * _ROUND_UP)
        _amend(self._ledger, self._number, audit, self._batch, self._caveats)


def _amend(
    ledger: Ledger,
    number: int,
    audit: DeviceNorms | None,
    batch: Sequence[DeviceNorms],
    caveats: frozenset[str] = frozenset(),
) -> None:
    """Amend a step if it is still the last; if somebody else has recorded another since, leave it as it is."""
    if not ledger.closed and ledger.steps == number:
        drawn = CheckedNorms(np.concatenate([norms.checked().values for norms in batch]))
        ledger.amend(number, audit=None if audit is None else audit.checked(), batch=drawn, caveats=caveats)


def warn_if_noise_changed(ledger: Ledger, released: GradientSum) -> None:
    """Warn at the first step of a resumed run if its noise changed: Opacus keeps it in no checkpoint."""
    before = ledger.history.stretches[-1].noise_multiplier or math.inf
    now = released.noise_std / released.bound
    if not np.isclose(before, now, rtol=1e-6):
        warnings.warn(
            f"noise_multiplier={now:g} at the first step after resuming, {before:g} at the last step before: "
            "a schedule may have fallen back to its start. What is used is what is accounted.",
            stacklevel=2,
        )
