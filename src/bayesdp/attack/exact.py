"""Exact adversaries, by backward induction: they choose the next exposure and the end of the run from the outputs.

A subject is a small menu of steps and what the software claims after each count of them; the attacker is the best
strategy of all. The claim stands if the failure that the strategy reaches is at most the delta that was claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bayesdp.attack.finding import Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.loss_walks import Kind as StepKind
from bayesdp.attack.loss_walks import worst_steering_delta
from bayesdp.claims.claim import Kind
from bayesdp.claims.plan import Plan
from bayesdp.run_ledger import Ledger

TITLE = "Exact adversaries who look before each step"
SECONDS = 60.0
_LOST = 1e-2  # of epsilon, by rounding losses down


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run that an adversary may steer, and the epsilon that is claimed after it.

    ``menu``: the kinds of steps, (sampling rate, exposure), among which the adversary chooses. ``epsilon_of`` gives
    what is claimed after so many of each.
    """

    name: str
    claim: str
    kind: Kind
    menu: tuple[StepKind, ...]
    steps: int
    delta: float
    epsilon_of: Callable[[tuple[int, ...]], float]
    should_break: bool = False


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield the failure of each subject under the best strategy, in each direction."""
    for subject in options.track(_subjects()):
        for direction in ("record in", "record out"):
            reached = worst_steering_delta(
                subject.menu,
                subject.steps,
                subject.epsilon_of,
                record_in=direction == "record in",
                spacing=_LOST / subject.steps,
                rounding="down",
            )
            yield Finding(
                subject=f"{subject.name}, {direction}",
                attacker="the best strategy of stopping and choosing, by backward induction",
                claim=subject.claim,
                kind=subject.kind,
                claimed=subject.delta,
                bound=reached,
                unit="delta",
                should_break=subject.should_break,
            )


def _subjects() -> list[Subject]:
    return [_planned(rate, exposure, steps) for rate, exposure, steps in ((1.0, 0.3, 12), (0.3, 1.0, 8))] + [
        _steps_taken(1.0, 0.1, 100)
    ]


def _planned(rate: float, exposure: float, steps: int, delta: float = 1e-5) -> Subject:
    """A plan: its epsilon holds whenever the run ends."""
    plan = Plan(steps=steps, noise_std=1 / exposure, sample_rate=rate, clip=1.0)
    epsilon = Ledger(plan=plan).claims(delta).everyone.epsilon
    return Subject(
        name=f"a plan of {steps} steps, rate {rate:g}, exposure {exposure:g}",
        claim="everyone, with a plan",
        kind="proved",
        menu=((rate, exposure),),
        steps=steps,
        delta=delta,
        epsilon_of=lambda counts: epsilon,
    )


def _steps_taken(rate: float, exposure: float, steps: int, delta: float = 1e-5) -> Subject:
    """The figure of the steps taken, read as if it held for someone who stops by looking: it must break."""

    def epsilon_of(counts: tuple[int, ...]) -> float:
        ledger = Ledger()
        for _ in range(counts[0]):
            ledger.step(noise_std=1 / exposure, sample_rate=rate, clip=1.0)
        return ledger.claims(delta).everyone.epsilon

    return Subject(
        name=f"up to {steps} steps without a plan, rate {rate:g}, exposure {exposure:g}",
        claim="everyone, stopping by looking claimed as proved",
        kind="proved",
        menu=((rate, exposure),),
        steps=steps,
        delta=delta,
        epsilon_of=epsilon_of,
        should_break=True,
    )
