"""Replay: real runs with Opacus made again with one record added; then broken copies, which must be noticed.

The idea is that of recorders of mechanisms (arXiv 2602.17454): a library is not read but run, and what it releases is
compared with what is said about it. Replays of JAX Privacy are in its tests, as it is installed apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from bayesdp.attack.finding import Detection, Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.opacus_replay import Plant, opacus_run
from bayesdp.attack.replayed_run import ReplayedRun
from bayesdp.ledger import exposure_grid
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

TITLE = "Runs replayed with one record added"
SECONDS = 240.0
MODES = ("hooks", "ghost")
_STEPS = 40
_TRIALS, _RIGHT_TRIALS = 10, 600
FALSE_ALARMS = 0.01
"""The stated false-alarm rate; the tests of a run have a twentieth of it, so that counting right runs can show it."""
_round_up = exposure_grid.round_up


class _HalfTheRate(Ledger):
    """A broken copy: it writes down half of the sampling rate."""

    def step(self, **said: Any) -> int:
        return super().step(**{**said, "sample_rate": said["sample_rate"] / 2})


class _EveryTenthMissing(Ledger):
    """A broken copy: it forgets one step in ten."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._asked = 0

    def step(self, **said: Any) -> int:
        self._asked += 1
        return self.steps if self._asked % 10 == 0 else super().step(**said)


class _WrittenLater(Ledger):
    """A broken copy: it keeps a step in memory until ``write`` is called."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._said: dict[str, Any] | None = None

    def step(self, **said: Any) -> int:
        self._said = said
        return self.steps + 1

    def write(self) -> None:
        """Write the step that was kept, if there is one."""
        said, self._said = self._said, None
        if said is not None:
            super().step(**said)


def _write_after_the_update(optimizer: Any, ledger: Ledger) -> None:
    """Write each step once the weights have moved: a process that is killed in between has released it unseen."""
    assert isinstance(ledger, _WrittenLater)

    def after(*_: Any) -> None:
        ledger.write()

    optimizer.original_optimizer.register_step_post_hook(after)


def _round_down(exposures: FloatArray) -> exposure_grid.Keys:
    return np.maximum(_round_up(exposures), 1) - np.uint16(1)


class _RoundedDown(Ledger):
    """A broken copy: exposures go to the node below them in place of the one above."""

    def step(self, **said: Any) -> int:
        with mock.patch.object(exposure_grid, "round_up", _round_down):
            return super().step(**said)


def _too_little_noise(optimizer: Any, _: Ledger) -> None:
    """Make the noise 20 % smaller than the optimizer says."""
    add_noise: Callable[[], None] = optimizer.add_noise

    def broken() -> None:
        add_noise()
        for parameter in optimizer.params:
            exact = parameter.summed_grad.view_as(parameter)
            parameter.grad = exact + 0.8 * (parameter.grad - exact)

    optimizer.add_noise = broken


def _noise_on_the_mean(optimizer: Any, _: Ledger) -> None:
    """Divide noise and sum by the batch size, and then add noise of a mean as if it were that of the sum."""
    add_noise: Callable[[], None] = optimizer.add_noise

    def broken() -> None:
        add_noise()
        for parameter in optimizer.params:
            exact = parameter.summed_grad.view_as(parameter)
            parameter.grad = exact + (parameter.grad - exact) / optimizer.expected_batch_size

    optimizer.add_noise = broken


def _same_noise_again(optimizer: Any, _: Ledger) -> None:
    """Start the noise generator from the same state at every step."""
    add_noise: Callable[[], None] = optimizer.add_noise

    def broken() -> None:
        state = optimizer.generator.get_state()
        add_noise()
        optimizer.generator.set_state(state)

    optimizer.add_noise = broken


def _drawn_batch_size(optimizer: Any, _: Ledger) -> None:
    """Divide by the size of the batch that was drawn, which reveals whether somebody was in it."""
    scale_grad: Callable[[], None] = optimizer.scale_grad
    clip: Callable[[], None] = optimizer.clip_and_accumulate
    drawn = [1]

    def clipped() -> None:
        drawn[0] = len(optimizer.params[0].grad_sample)
        clip()

    def broken() -> None:
        scale_grad()
        for parameter in optimizer.params:
            parameter.grad *= optimizer.expected_batch_size / max(drawn[0], 1)

    optimizer.clip_and_accumulate, optimizer.scale_grad = clipped, broken


def _shuffled(sampler: Any) -> Iterator[list[int]]:
    """Deal a shuffled data set out in batches of one size; the sampler still calls itself a Poisson sampler."""
    size = round(sampler.num_samples * sampler.sample_rate)
    shuffled: Any = torch.randperm(sampler.num_samples, generator=sampler.generator)
    order: list[int] = shuffled.tolist()
    for begin in range(0, sampler.steps * size, size):
        torch.rand(1, generator=sampler.generator)  # for the adapter, which refuses two draws from the same state
        yield order[begin : begin + size]


def _in_families(sampler: Any) -> Iterator[list[int]]:
    """Draw five neighbours together or not at all, each as often as the rate says."""
    for _ in range(sampler.steps):
        families: Any = torch.rand(sampler.num_samples // 5, generator=sampler.generator) < sampler.sample_rate
        yield families.repeat_interleave(5).nonzero().reshape(-1).tolist()


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A way to be wrong: in the optimizer, in the ledger, or in how batches are drawn."""

    name: str
    plant: Plant | None = None
    ledger: type[Ledger] = Ledger
    draws: Callable[[Any], Iterator[list[int]]] | None = None

    def run(self, seed: int) -> ReplayedRun:
        """Return a replayed run with this bug in it."""
        draws = self.draws or UniformWithReplacementSampler.__iter__
        with warnings.catch_warnings(), mock.patch.object(UniformWithReplacementSampler, "__iter__", draws):
            if self.draws is not None:
                warnings.simplefilter("ignore")  # the adapter, too, finds some of them
            return opacus_run(seed, steps=_STEPS, plant=self.plant, ledger=self.ledger(keep_norms=True))


BUGS = (
    Bug(name="noise 20 % too small", plant=_too_little_noise),
    Bug(name="the noise of a sum on a mean", plant=_noise_on_the_mean),
    Bug(name="the same noise at every step", plant=_same_noise_again),
    Bug(name="a denominator that is the drawn batch size", plant=_drawn_batch_size),
    Bug(name="rate reported at half", ledger=_HalfTheRate),
    Bug(name="one step in ten missing", ledger=_EveryTenthMissing),
    Bug(name="written after the update", plant=_write_after_the_update, ledger=_WrittenLater),
    Bug(name="rounding down", ledger=_RoundedDown),
    Bug(name="shuffled batches told as Poisson samples", draws=_shuffled),
    Bug(name="records that are always drawn together", draws=_in_families),
)


def attack(options: AttackOptions) -> Iterator[Finding | Detection]:
    """Yield what replays say of flat and ghost clipping, and how often each planted bug is noticed."""
    for number, mode in enumerate(MODES):
        yield from opacus_run(options.seed + number, mode=mode).findings()
    trials, right_trials = (1, 2) if options.small else (_TRIALS, _RIGHT_TRIALS)
    seeds = range(1000 + options.seed, 1000 + options.seed + right_trials)
    false_alarms = sum(alarm(seed) for seed in options.track(seeds))
    for bug in options.track(BUGS):
        caught = sum(alarm(seed + 10_000, bug) for seed in seeds[:trials])
        yield Detection(
            bug=bug.name,
            attacker="replay",
            level=FALSE_ALARMS,
            caught=caught,
            trials=trials,
            false_alarms=false_alarms,
            right_trials=right_trials,
        )


def alarm(seed: int, bug: Bug | None = None) -> bool:
    """Return whether replaying one run, with this bug in it, breaks what its ledger says."""
    run = (bug or Bug(name="none")).run(seed)
    return not all(finding.stands for finding in run.findings())
