"""What the steps of a run add up to: settings by stretches, totals, and the hash chain."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.chain import Step
from bayesdp.worst_case import WorstCase, worst_case_of

_MOST_SETTINGS = 64  # for the worst case; more are merged, each to a neighbour with less noise and a higher rate
_HASH = 32


@dataclass
class Stretch:
    """Consecutive steps with the same settings."""

    noise_std: float
    sample_rate: float
    clip: float | None
    planned_batch: float | None
    source: str
    first: int
    steps: int = 0

    def settings(self) -> tuple[object, ...]:
        """What its steps have in common."""
        return self.noise_std, self.sample_rate, self.clip, self.planned_batch, self.source


class History:
    """All steps so far, in little memory."""

    def __init__(self, first_hash: bytes) -> None:
        self.steps = 0
        self.bins = Bins()
        self.stretches: list[Stretch] = []
        self.audited_steps = 0
        self.audit_clipped = 0
        self.first_time: float | None = None
        self.last_time: float | None = None
        self._hashes = bytearray(first_hash)

    def add(self, step: Step, step_hash: bytes) -> None:
        """One more step."""
        self.steps = step.number
        self.bins.place(step.noise_std, step.sample_rate, step.clip)
        settings = (step.noise_std, step.sample_rate, step.clip, step.planned_batch, step.source)
        if not self.stretches or self.stretches[-1].settings() != settings:
            self.stretches.append(Stretch(*settings, first=step.number))
        self.stretches[-1].steps += 1
        self.audited_steps += step.audited > 0
        self.audit_clipped += step.audit_clipped
        self.first_time = step.time if self.first_time is None else self.first_time
        self.last_time = step.time
        self._hashes += step_hash

    def hash_at(self, step: int) -> bytes:
        """The hash of a step; of the settings for step 0."""
        return bytes(self._hashes[_HASH * step : _HASH * (step + 1)])

    @property
    def hash(self) -> bytes:
        """The hash of the last step: the head of the chain."""
        return self.hash_at(self.steps)

    def runs(self) -> list[tuple[float, float, int]] | None:
        """(noise multiplier, sampling rate, steps) for the worst case; None if a step was not clipped.

        Different settings beyond 64 are merged: noise is rounded down and rates up, to as few bits as it takes.
        """
        if any(stretch.clip is None for stretch in self.stretches):
            return None
        settings = [(s.noise_std / (s.clip or math.nan), s.sample_rate, s.steps) for s in self.stretches]
        for bits in (52, 11, 10, 9, 8, 7, 6, 5, 4):
            counts: Counter[tuple[float, float]] = Counter()
            for noise, rate, steps in settings:
                counts[_to_bits(noise, bits, up=False), _to_bits(rate, bits, up=True)] += steps
            if len(counts) <= _MOST_SETTINGS:
                break
        return [(noise, rate, steps) for (noise, rate), steps in counts.items()]

    def worst_case(self, delta: float) -> WorstCase:
        """Classic differential privacy of all steps, for everyone."""
        runs = self.runs()
        if runs is not None:
            return worst_case_of(runs, delta=delta)
        reason = "a step without a clip bound has no worst case"
        return WorstCase(
            epsilon=math.inf, delta=delta, accountant="none", rdp_epsilon=math.inf, pld_epsilon=None, reason=reason
        )


def _to_bits(value: float, bits: int, *, up: bool) -> float:
    """``value`` with so many bits in its mantissa, rounded up or down."""
    dropped = 52 - bits
    pattern = int(np.float64(value).view(np.int64)) + (((1 << dropped) - 1) if up else 0)
    return float(np.int64(pattern >> dropped << dropped).view(np.float64))
