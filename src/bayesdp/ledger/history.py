"""What the steps of a run add up to: settings by stretches, totals, and the hash chain."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass

from bayesdp.conversion import epsilon_from_costs
from bayesdp.ledger.bins import Bins
from bayesdp.ledger.caveats import split
from bayesdp.ledger.chain import Step
from bayesdp.ledger.clip_bound import LAMBDAS, MOST_SETTINGS, ClipBound
from bayesdp.ledger.grid import to_bits
from bayesdp.worst_case import Run, WorstCase, worst_case_of

_MOST_FOR_PLD = 4  # different settings that dp-accounting composes quickly
_LEAST_NOISE = 1e-6  # the least multiplier that is accounted
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
        """One more step."""
        self.steps = step.number
        self.last = step
        self.bins.place(step.noise_std, step.sample_rate, step.clip)
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

    def runs(self, bits: int = 52, more: Run | None = None) -> dict[tuple[float, float], int]:
        """Steps by (noise multiplier, sampling rate); with fewer bits, noise is rounded down and rates up."""
        counts: Counter[tuple[float, float]] = Counter()
        taken = [(one.noise_std / (one.clip or math.inf), one.sample_rate, one.steps) for one in self.stretches]
        for noise, rate, steps in taken if more is None else [*taken, more]:
            settings = to_bits(max(noise, _LEAST_NOISE), bits, up=False), to_bits(rate, bits, up=True)
            counts[max(settings[0], _LEAST_NOISE), settings[1]] += steps
        return counts

    def worst_case(self, delta: float, more: Run | None = None) -> WorstCase:
        """Classic differential privacy of all steps, and of ``more`` to come, for everyone.

        A few settings are composed by dp-accounting. Many are one record at the clip bound, by its own profile; very
        many are merged first, each to one with less noise and a higher rate.
        """
        if not self._clipped:
            return _without_pld(math.inf, delta, "a step without a clip bound has no worst case")
        runs = self.merged(MOST_SETTINGS, more)
        if len(runs) <= _MOST_FOR_PLD:
            return worst_case_of(runs, delta=delta)
        clip_bound = ClipBound.of(runs)
        profile = clip_bound.epsilon(delta)
        rdp = epsilon_from_costs(clip_bound.costs, LAMBDAS, delta, "improved")[0]
        if rdp <= profile:
            return _without_pld(rdp, delta)
        return WorstCase(epsilon=profile, delta=delta, accountant="PLD", rdp_epsilon=rdp, pld_epsilon=profile)

    def clip_bound(self, more: Run | None = None) -> ClipBound | None:
        """A record that is always at the clip bound; None if a step had none."""
        if not self._clipped:
            return None
        return ClipBound.of(self.merged(MOST_SETTINGS, more))

    @property
    def _clipped(self) -> bool:
        return all(one.clip is not None for one in self.stretches)

    def merged(self, most: int, more: Run | None = None) -> list[Run]:
        """(noise multiplier, rate, steps) of at most so many different settings, if rounding to 1/16 and less does it.

        Noise is rounded down and rates are rounded up.
        """
        counts = self.runs(more=more)
        for bits in (11, 9, 8, 7, 6, 5, 4):
            if len(counts) <= most:
                break
            counts = self.runs(bits, more)
        return [(noise, rate, steps) for (noise, rate), steps in counts.items()]


def _without_pld(epsilon: float, delta: float, reason: str | None = None) -> WorstCase:
    return WorstCase(
        epsilon=epsilon, delta=delta, accountant="RDP", rdp_epsilon=epsilon, pld_epsilon=None, reason=reason
    )
