"""From the sums that training releases to steps of the ledger.

Poisson sampling: a sum is one step. If it holds several draws (a batch that was left unfinished and then went into the
next sum, or gradient accumulation), a record may be in each of them: noise s on the sum is the sum of k noises
s / sqrt(k), so that the sum costs no more than k steps with that much noise.

Any other order, each record once an epoch: no amplification by sampling. An epoch is one step with rate 1, as a record
is in one of its batches only; which one is not known, so an audit record is charged at its largest exposure. It is
recorded at the clip bound before the first batch is used, and amended when the epoch is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bayesdp.ledger import Ledger
from bayesdp.opacus.sampling import Draw, Sampling, on_cpu
from bayesdp.validation import FloatArray

SOURCE = "opacus"


@dataclass
class Sum:
    """A sum of clipped gradients with noise on it, about to be released."""

    noise_std: float
    clip: float
    beside: float
    "What else is released about each record with this noise, as a norm."
    parts: list[tuple[Draw, torch.Tensor]]
    "Norms of the records in it, by the draw they come from."
    audit: torch.Tensor | None
    caveats: tuple[str, ...]

    @property
    def bound(self) -> float:
        """What one record can change at most, in the units of the noise."""
        return math.hypot(self.clip, self.beside)

    def whole(self, norms: torch.Tensor | None) -> FloatArray | None:
        """Norms of all that is released about each record."""
        if norms is None:
            return None
        return np.hypot(on_cpu(norms).astype(np.float64), self.beside)


@dataclass(frozen=True)
class Costs:
    """So many steps of the ledger with these settings."""

    noise_std: float
    sample_rate: float
    clip: float
    steps: int


class PoissonSteps:
    """One step of the ledger for each draw in a sum."""

    def __init__(self, ledger: Ledger, sampling: Sampling, *, late: bool) -> None:
        assert sampling.rate is not None
        self._ledger, self._sampling, self._rate = ledger, sampling, sampling.rate
        self._late = late
        "Norms are given with the next step, so that none waits for the device."
        self._pending: Sum | None = None

    def costs(self, released: Sum) -> Costs:
        """What a sum costs."""
        draws = len({draw for draw, _ in released.parts})
        return Costs(released.noise_std / math.sqrt(draws), self._rate, released.bound, draws)

    def record(self, released: Sum) -> None:
        """Before the result is used."""
        self.settle()
        drawn = _by_draw(released)
        costs = self.costs(released)
        late = self._late and costs.steps == 1
        for draw, norms in drawn.items():
            self._sampling.compare(draw)
            self._ledger.step(
                noise_std=costs.noise_std,
                sample_rate=costs.sample_rate,
                clip=costs.clip,
                planned_batch=self._sampling.planned_batch,
                source=SOURCE,
                caveats={*released.caveats, *self._sampling.caveats},
                audit=None if late else released.whole(released.audit),
                batch=None if late else released.whole(norms),
            )
        if late:
            self._pending = released

    def settle(self) -> None:
        """Give the norms that are pending."""
        if self._pending is not None:
            released, self._pending = self._pending, None
            norms = next(iter(_by_draw(released).values()))
            self._ledger.amend(audit=released.whole(released.audit), batch=released.whole(norms))


class ShuffledEpochs:
    """One step of the ledger for each epoch, or more if noise or bound change within it."""

    def __init__(self, ledger: Ledger, sampling: Sampling) -> None:
        self._ledger, self._sampling = ledger, sampling
        self._epoch: tuple[int, float, float] | None = None
        self._last: Sum | None = None
        self._batch: list[torch.Tensor] = []
        self._most: torch.Tensor | None = None
        "The largest norm of each audit record in this epoch, [m]; None if it is not known at some batch."

    def costs(self, released: Sum) -> Costs:
        """What a sum costs: nothing more if its epoch is paid for."""
        epochs = sorted({draw.iteration for draw, _ in released.parts})
        noise_std = released.noise_std / math.sqrt(len(epochs))
        paid = [self._epoch] == [(number, noise_std, released.bound) for number in epochs]
        return Costs(noise_std, 1.0, released.bound, 0 if paid else len(epochs))

    def record(self, released: Sum) -> None:
        """Before the result is used."""
        costs = self.costs(released)
        for number in sorted({draw.iteration for draw, _ in released.parts}):
            epoch = (number, costs.noise_std, costs.clip)
            if epoch != self._epoch:
                self.settle()
                self._ledger.step(
                    noise_std=costs.noise_std,
                    sample_rate=costs.sample_rate,
                    clip=costs.clip,
                    source=SOURCE,
                    caveats={*released.caveats, *self._sampling.caveats},
                )
                self._epoch, self._batch, self._most = epoch, [], released.audit
            elif released.audit is None or self._most is None:
                self._most = None
            else:
                self._most = torch.maximum(self._most, released.audit)
            self._batch += [norms for draw, norms in released.parts if draw.iteration == number]
            self._last = released

    def settle(self) -> None:
        """Give what is known of the epoch so far; a batch without audit norms leaves them at the clip bound."""
        if self._last is not None:
            batch = self._last.whole(torch.cat(self._batch))
            self._ledger.amend(audit=self._last.whole(self._most), batch=batch)


def _by_draw(released: Sum) -> dict[Draw, torch.Tensor]:
    found: dict[Draw, Any] = {}
    for draw, norms in released.parts:
        found.setdefault(draw, []).append(norms)
    return {draw: torch.cat(norms) for draw, norms in found.items()}
