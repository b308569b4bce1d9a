"""What the steps of a run add up to: settings by stretches, totals, and the hash chain."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.caveats import split
from bayesdp.ledger.chain import Step
from bayesdp.mechanisms.float_grid import MANTISSA, round_to_bits
from bayesdp.mechanisms.gaussian import RepeatedStep

_LEAST_NOISE = 1e-6  # the least multiplier that is accounted
_ALL_BITS, _FEWER_BITS = MANTISSA, (11, 9, 8, 7, 6, 5, 4)  # of noise and rate, to tell settings apart
_HASH = 32


@dataclass
class Stretch:
    """Consecutive steps with the same settings."""

    noise_std: float
    sample_rate: float
    clip: float | None
    planned_batch: float | None
    source: str
    caveats: str
    first: int
    steps: int = 0

    def settings(self) -> tuple[object, ...]:
        """What its steps have in common."""
        return self.noise_std, self.sample_rate, self.clip, self.planned_batch, self.source, self.caveats


class History:
    """All steps so far, in little memory."""

    def __init__(self, first_hash: bytes, bins: Bins | None = None) -> None:
        self.steps = 0
        self.bins = Bins() if bins is None else bins
        self.stretches: list[Stretch] = []
        self.audited_steps = 0
        self.audit_clipped = 0
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.last: Step | None = None
        self._hashes = bytearray(first_hash)
        self._norms, self._norms_clipped = array("I"), array("I")

    def add(self, step: Step, step_hash: bytes) -> None:
        """Add a step, whose place among the bins was asked for before."""
        self.steps = step.number
        self.last = step
        self._lengthen(step)
        self.audited_steps += step.audited > 0
        self.audit_clipped += step.audit_clipped
        self.first_time = step.time if self.first_time is None else self.first_time
        self.last_time = step.time
        self._hashes += step_hash
        self._norms.append(step.audited)
        self._norms_clipped.append(step.audit_clipped)

    def _lengthen(self, step: Step) -> None:
        """The last stretch, or a new one."""
        settings = (step.noise_std, step.sample_rate, step.clip, step.planned_batch, step.source, step.caveats)
        if not self.stretches or self.stretches[-1].settings() != settings:
            self.stretches.append(Stretch(*settings, first=step.number))
        self.stretches[-1].steps += 1

    def amend(self, step: Step, step_hash: bytes) -> None:
        """Another record of the last step, with the same settings but for its caveats."""
        assert self.last is not None
        self.stretches[-1].steps -= 1
        if not self.stretches[-1].steps:
            self.stretches.pop()
        self._lengthen(step)
        self.audited_steps += (step.audited > 0) - (self.last.audited > 0)
        self.audit_clipped += step.audit_clipped - self.last.audit_clipped
        self.last = step
        self._hashes[-_HASH:] = step_hash
        self._norms[-1], self._norms_clipped[-1] = step.audited, step.audit_clipped

    def share_clipped(self, after: int, through: int) -> float | None:
        """Of the norms that were given for audit records in these steps; None if there were none."""
        norms = sum(self._norms[after:through])
        return sum(self._norms_clipped[after:through]) / norms if norms else None

    @property
    def caveats(self) -> list[str]:
        """Names of what the steps so far rest on, each once."""
        return sorted({name for one in self.stretches for name in split(one.caveats)})

    def hash_at(self, step: int) -> bytes:
        """The hash of a step; of the settings for step 0."""
        return bytes(self._hashes[_HASH * step : _HASH * (step + 1)])

    @property
    def hash(self) -> bytes:
        """The hash of the last step: the head of the chain."""
        return self.hash_at(self.steps)

    @property
    def clipped(self) -> bool:
        """Whether every step had a clip bound; without one there is no worst case."""
        return all(stretch.clip is not None for stretch in self.stretches)

    def repeated_steps(self, at_most: int | None = None, more: RepeatedStep | None = None) -> list[RepeatedStep]:
        """Return the steps so far, and ``more`` to come, by (noise multiplier, sampling rate), with their numbers.

        ``at_most`` limits how many different settings are told apart: beyond it they are merged, noise rounded down and
        rates rounded up, to 1/16 at the coarsest (more settings may remain). A step without a clip bound counts as one
        with the least noise that is accounted.
        """
        counts = self._counts(_ALL_BITS, more)
        for bits in _FEWER_BITS:
            if at_most is None or len(counts) <= at_most:
                break
            counts = self._counts(bits, more)
        return [(noise, rate, steps) for (noise, rate), steps in counts.items()]

    def _counts(self, bits: int, more: RepeatedStep | None) -> dict[tuple[float, float], int]:
        counts: Counter[tuple[float, float]] = Counter()
        taken = [(part.noise_std / (part.clip or math.inf), part.sample_rate, part.steps) for part in self.stretches]
        for noise, rate, steps in taken if more is None else [*taken, more]:
            least = round_to_bits(max(noise, _LEAST_NOISE), bits, up=False)
            counts[max(least, _LEAST_NOISE), round_to_bits(rate, bits, up=True)] += steps
        return counts
