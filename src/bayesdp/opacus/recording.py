"""From the sums that training releases to steps of the ledger.

Poisson sampling: a sum is one step. If it holds several draws, a record may be in each of them: noise s on the sum is
the sum of k noises s / sqrt(k), so that the sum costs no more than k steps with that much noise.

Any other order, each record once an epoch: no amplification by sampling. An epoch is one step with rate 1, as a record
is in one of its batches only; which one is not known, so an audit record is charged at its largest exposure. It is
recorded at the clip bound before the first batch is used, and amended when the epoch is over. If noise falls within an
epoch, a further step makes up the difference: without sampling, squares of exposures add up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bayesdp.opacus.draws import Draw
from bayesdp.opacus.sampling import Sampling
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, non_negative_array

SOURCE = "opacus"
_ROUND_UP = 1 + 1e-6  # more than float32 loses in what follows


@dataclass(frozen=True)
class Sum:
    """A sum of clipped gradients with noise on it, about to be released."""

    noise_std: float
    clip: float
    beside: float
    "What else is released about each record with this noise, as a norm."
    parts: Sequence[tuple[Draw, torch.Tensor]]
    "Norms of the records in it, by the draw they come from."
    audit: torch.Tensor | None
    caveats: frozenset[str]

    @property
    def bound(self) -> float:
        """What one record can change at most, in the units of the noise."""
        return math.hypot(self.clip, self.beside)

    def whole(self, norms: torch.Tensor) -> torch.Tensor:
        """Norms of all that is released about each record."""
        return torch.hypot(norms, torch.tensor(self.beside, dtype=norms.dtype)) if self.beside else norms

    @property
    def by_draw(self) -> dict[Draw, torch.Tensor]:
        """Norms of all that is released about the records of each draw."""
        found: dict[Draw, list[torch.Tensor]] = {}
        for draw, norms in self.parts:
            found.setdefault(draw, []).append(self.whole(norms))
        return {draw: torch.cat(norms) for draw, norms in found.items()}


@dataclass(frozen=True)
class Costs:
    """So many steps of the ledger with these settings."""

    noise_std: float
    sample_rate: float
    clip: float
    steps: int


def numbers(name: str, tensor: torch.Tensor | None) -> FloatArray | None:
    """As NumPy sees it, checked; waits for the device if there is one."""
    return None if tensor is None else non_negative_array(name, tensor.detach().cpu().numpy())


class PoissonSteps:
    """One step of the ledger for each draw in a sum."""

    def __init__(self, ledger: Ledger, sampling: Sampling, *, late: bool) -> None:
        self._ledger, self._sampling = ledger, sampling
        self._late = late
        "Norms are given with the next step, so that none waits for the device."
        self._pending: tuple[int, torch.Tensor | None, torch.Tensor] | None = None

    def costs(self, released: Sum) -> Costs:
        """What a sum costs."""
        draws = {draw for draw, _ in released.parts}
        rate = max(draw.rate or 1.0 for draw in draws)
        return Costs(released.noise_std / math.sqrt(len(draws)), rate, released.bound, len(draws))

    def record(self, released: Sum) -> None:
        """Before the result is used."""
        self.settle()
        costs = self.costs(released)
        late = self._late and costs.steps == 1
        audit = None if released.audit is None else released.whole(released.audit)
        norms_of_audit = None if late else numbers("audit", audit)
        by_draw = released.by_draw
        norms_of_draws = {draw: None if late else numbers("batch", norms) for draw, norms in by_draw.items()}
        for draw, norms in norms_of_draws.items():
            self._sampling.compare(draw)
            number = self._ledger.step(
                noise_std=costs.noise_std,
                sample_rate=draw.rate or 1.0,
                clip=costs.clip,
                planned_batch=self._sampling.planned_batch,
                source=SOURCE,
                caveats=released.caveats | self._sampling.caveats,
                audit=norms_of_audit,
                batch=norms,
            )
            if late:
                self._pending = number, audit, by_draw[draw]

    def settle(self) -> None:
        """Give the norms that are pending."""
        if self._pending is not None:
            (number, audit, batch), self._pending = self._pending, None
            _amend(self._ledger, number, audit, batch)


class ShuffledEpochs:
    """One step of the ledger for each epoch."""

    def __init__(self, ledger: Ledger, sampling: Sampling) -> None:
        self._ledger, self._sampling = ledger, sampling
        self._epoch = 0
        self._paid = 0.0
        "Square of the exposure at the clip bound that this epoch has been charged."
        self._paid_before = 0.0
        "The same without the last step of the ledger for it."
        self._noise_std = math.nan
        self._number = 0
        "The last step of the ledger for it."
        self._batch: list[torch.Tensor] = []
        self._most: torch.Tensor | None = None
        "The largest exposure of each audit record in this epoch, [m]; None if it is not known at some batch."
        self._settled = True
        self._rests_on: frozenset[str] = frozenset()

    def costs(self, released: Sum) -> Costs:
        """What a sum costs: nothing more if its epoch is paid for."""
        epochs = {draw.iteration for draw, _ in released.parts}
        noise_std = released.noise_std / math.sqrt(len(epochs))
        owed = (released.bound / noise_std) ** 2
        paid = self._paid if epochs == {self._epoch} else 0.0
        if owed <= paid * _ROUND_UP:
            return Costs(noise_std, 1.0, released.bound, 0)
        return Costs(noise_std, 1.0, noise_std * math.sqrt(owed - paid), len(epochs))

    def record(self, released: Sum) -> None:
        """Before the result is used."""
        batch = {draw: self._checked("batch", norms) for draw, norms in released.by_draw.items()}
        audit = None if released.audit is None else self._checked("audit", released.whole(released.audit))
        epochs = sorted({draw.iteration for draw in batch})
        for epoch in epochs:
            if self._settled and self._ledger.steps != self._number:
                self._epoch = 0  # somebody else has recorded a step since: what was settled stays, and is paid anew
            costs = self.costs(released)
            if epoch != self._epoch or costs.steps:
                self._begin(epoch, costs, released)
            elif self._settled:  # what it says about audit records no longer holds
                self._ledger.amend(self._number)
                self._settled = False
            exposure = None if audit is None else audit / costs.noise_std
            if not self._batch:
                self._most = exposure
            elif exposure is None or self._most is None:
                self._most = None
            else:
                self._most = torch.maximum(self._most, exposure)
            self._batch += [norms for draw, norms in batch.items() if draw.iteration == epoch]
            self._rests_on |= released.caveats

    def _begin(self, epoch: int, costs: Costs, released: Sum) -> None:
        """A step of the ledger for an epoch, or one more."""
        if epoch != self._epoch:
            self.settle()
            self._paid_before, self._batch, self._most = 0.0, [], None
            self._rests_on = frozenset()
        else:  # further steps are needed; the earlier ones stay at the clip bound
            if self._settled:
                self._ledger.amend(self._number)
            self._paid_before = self._paid
        self._number = self._ledger.step(
            noise_std=costs.noise_std,
            sample_rate=costs.sample_rate,
            clip=costs.clip,
            source=SOURCE,
            caveats=released.caveats | self._sampling.caveats,
        )
        self._epoch, self._noise_std, self._settled = epoch, costs.noise_std, False
        self._paid = self._paid_before + (costs.clip / costs.noise_std) ** 2

    def settle(self) -> None:
        """Give what is known of the epoch so far; a batch without audit norms leaves them at the clip bound."""
        if self._settled:
            return
        self._settled = True
        audit = None
        if self._most is not None:
            left = torch.clamp(self._most**2 - self._paid_before, min=0) ** 0.5
            audit = left * self._noise_std * _ROUND_UP
        _amend(self._ledger, self._number, audit, torch.cat(self._batch), self._rests_on)

    def _checked(self, name: str, norms: torch.Tensor) -> torch.Tensor:
        if norms.device.type == "cpu":
            numbers(name, norms)
        return norms


def _amend(ledger: Ledger, number: int, audit: Any, batch: torch.Tensor, caveats: frozenset[str] = frozenset()) -> None:
    """If it is still the last step: somebody else may have recorded another one, and then it stays as it is."""
    if not ledger.closed and ledger.steps == number:
        ledger.amend(number, audit=numbers("audit", audit), batch=numbers("batch", batch), caveats=caveats)
