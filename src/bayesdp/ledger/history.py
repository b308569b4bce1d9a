"""The history of a run in little memory: its settings by stretches, totals, and the hash of every step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from bayesdp.ledger.bins import Bins
from bayesdp.ledger.caveats import caveat_names
from bayesdp.ledger.chain import Step
from bayesdp.ledger.step_sources import program_of
from bayesdp.mechanisms.float_grid import MANTISSA, round_to_bits
from bayesdp.mechanisms.gaussian import RepeatedStep, by_setting

_LEAST_NOISE = 1e-6  # the least noise multiplier that is accounted
_ALL_BITS, _FEWER_BITS = MANTISSA, (11, 9, 8, 7, 6, 5, 4)  # of noise and rate, by which settings are told apart
_HASH = 32  # bytes of a hash


@dataclass
class Stretch:
    """Consecutive steps with equal settings: ``steps`` of them, from step ``first`` on."""

    noise_std: float
    sample_rate: float
    clip: float | None
    planned_batch: float | None
    source: str
    "The program that recorded them."
    caveats: str
    "Names between commas (``caveats.caveat_names``)."
    first: int
    steps: int = 0

    @property
    def noise_multiplier(self) -> float | None:
        """Noise over the clip bound; None without a bound."""
        return None if self.clip is None else self.noise_std / self.clip

    def settings(self) -> tuple[object, ...]:
        """Return the settings that its steps have in common, without its place in the run."""
        return self.noise_std, self.sample_rate, self.clip, self.planned_batch, self.source, self.caveats


class History:
    """Settings, totals and hashes of the steps so far. It does not count exposures: ``AuditHistograms`` does."""

    def __init__(self, first_hash: bytes, bins: Bins | None = None) -> None:
        """Begin before the first step; ``first_hash`` is the hash of the run's settings."""
        self.steps = 0
        self.bins = Bins() if bins is None else bins
        "The sampling rates and clip bounds of the steps; whoever adds a step places it there first."
        self.stretches: list[Stretch] = []
        self.audited_steps = 0
        "How many steps had norms of audit records."
        self.audit_clipped = 0
        "How many of these norms were above the clip bound."
        self.first_time: float | None = None
        self.last_time: float | None = None
        self.last: Step | None = None
        self._hashes = bytearray(first_hash)
        self._norms, self._norms_clipped = array("I"), array("I")

    def add(self, step: Step, step_hash: bytes) -> None:
        """Add a step, which ``bins.place`` has placed already: it is not placed again here."""
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
        """Add the step to the last stretch, or begin a new one."""
        program = program_of(step.source)
        settings = (step.noise_std, step.sample_rate, step.clip, step.planned_batch, program, step.caveats)
        if not self.stretches or self.stretches[-1].settings() != settings:
            self.stretches.append(Stretch(*settings, first=step.number))
        self.stretches[-1].steps += 1

    def amend(self, step: Step, step_hash: bytes) -> None:
        """Replace the last step by one that differs in norms and caveats only."""
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
        """Return the share of clipped norms among those of audit records in steps ``after`` + 1 to ``through``.

        None if no norms were given in these steps.
        """
        norms = sum(self._norms[after:through])
        return sum(self._norms_clipped[after:through]) / norms if norms else None

    @property
    def caveats(self) -> list[str]:
        """The names of the caveats of all steps so far, each once, in alphabetical order."""
        return sorted({name for stretch in self.stretches for name in caveat_names(stretch.caveats)})

    @property
    def chosen(self) -> bool:
        """Whether the last step has the mark of a run that was chosen among others (``Ledger.mark_chosen``)."""
        return self.last is not None and "chosen" in caveat_names(self.last.caveats)

    def hash_at(self, step: int) -> bytes:
        """Return the hash of a step; step 0 stands for the settings of the run."""
        return bytes(self._hashes[_HASH * step : _HASH * (step + 1)])

    @property
    def hash(self) -> bytes:
        """The hash of the last step: the head of the chain."""
        return self.hash_at(self.steps)

    @property
    def clipped(self) -> bool:
        """Whether every step had a clip bound; without one there is no worst case."""
        return all(stretch.clip is not None for stretch in self.stretches)

    def repeated_steps(
        self, at_most: int | None = None, more: RepeatedStep | None = None, *, through: int | None = None
    ) -> list[RepeatedStep]:
        """Return the steps so far, and ``more`` to come, as (noise multiplier, sampling rate, number of steps).

        ``through`` looks only at the first so many steps.

        Settings are merged if there are more than ``at_most`` of them: noise is rounded down and rates are rounded up,
        so that the result is never more private than the run. The coarsest rounding is to 1/16, and more settings than
        ``at_most`` may remain. A step without a clip bound counts as one with the least noise that is accounted.
        """
        last = self.steps if through is None else through
        taken: list[RepeatedStep] = [
            (stretch.noise_multiplier or 0.0, stretch.sample_rate, min(stretch.steps, last - stretch.first + 1))
            for stretch in self.stretches
            if stretch.first <= last
        ]
        if more is not None:
            taken.append(more)
        counts = _counts(taken, _ALL_BITS)
        for bits in _FEWER_BITS:
            if at_most is None or len(counts) <= at_most:
                break
            counts = _counts(taken, bits)
        return counts


def _counts(taken: Iterable[RepeatedStep], bits: int) -> list[RepeatedStep]:
    """Return how many steps have each noise multiplier and sampling rate, told apart by so many bits."""

    def rounded(noise: float, rate: float) -> tuple[float, float]:
        least = round_to_bits(max(noise, _LEAST_NOISE), bits, up=False)
        return max(least, _LEAST_NOISE), round_to_bits(rate, bits, up=True)

    return by_setting((*rounded(noise, rate), steps) for noise, rate, steps in taken)
