"""How tight the claims of a run are: each beside the most that is known to be lost.

The attacker knows everything but whether one person was in the data, sees every noisy sum, and decides by the
likelihood ratio: no test does better. For a person whose exposures are given, what that test reaches is known exactly,
up to the rounding of losses, which is downwards here (the optimistic privacy loss distributions of dp-accounting). For
everyone, the person is one at the clip bound in every step, which the definition allows; for a share it is the audit
record whose figure is the claim.

What the gap to the claim is made of: for everyone, rounding only. For ex-post claims, the price of exposures that may
have depended on earlier results; the attack supposes that they were fixed. An attacker who sees only the last model
does worse than this one, by how much nobody can bound from above: see the game.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.attack.finding import Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.claims.claim import Claim, Direction
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.run_ledger import Ledger

TITLE = "Each claim of a run beside the best attack"
SECONDS = 90.0
_INTERVAL = 2e-4  # of losses; rounding down loses at most half of it in each step, on average
_GRID = 1 + 1 / 256  # exposures in a ledger are rounded up by less than this factor
_ROUNDING = "rounding"
_ADAPTIVITY = "the price of exposures that may have depended on earlier results"
Steps = Iterable[tuple[float, float, int]]
"""(exposure, sampling rate, how many) of the steps that a person went through."""


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield the claims of a ledger, or of a fresh demo if none is given, each beside a lower bound."""
    if options.ledger is not None:
        with Ledger.open(options.ledger, write=False) as ledger:
            yield from tightness(ledger, options.ledger.name, options.delta)
        return
    from bayesdp.recipes.training import LEDGER, train

    with TemporaryDirectory() as folder:
        train("digits", output=Path(folder) / "demo", delta=options.delta, seed=options.seed, reproducible=True)
        with Ledger.open(Path(folder) / "demo" / LEDGER, write=False) as ledger:
            yield from tightness(ledger, "the demo", options.delta)


def tightness(ledger: Ledger, name: str, delta: float = 1e-5) -> Iterator[Finding]:
    """Yield each claim of a run that is a bound, and not that of everyone once more, beside what the best test reaches.

    Claims are those of ``Ledger.claims(delta)``. Raises InvalidInputError for a run without a clip bound.
    """
    claims = ledger.claims(delta)
    stages = ledger.plan or ledger.history.stretches
    at_clip = [
        (validation.positive("clip", stage.clip) / stage.noise_std, stage.sample_rate, stage.steps) for stage in stages
    ]
    bound = lowest_epsilon(at_clip, delta, "both")
    yield _finding(name, claims.everyone, "everyone", bound, _ROUNDING)
    if claims.left_out is not None:
        bound = lowest_epsilon(at_clip, delta, "record out")
        yield _finding(name, claims.left_out, "everyone who was left out", bound, _ROUNDING)
    figures = RecordFigures(ledger, delta, math.inf)
    shares = [share.ex_post for share in claims.shares]
    for claim, epsilons in [
        *((claim, figures.ex_post) for claim in shares),
        *((claim, figures.ex_post_in) for claim in claims.members),
    ]:
        if claim.reason is None and claim.own_epsilon is None:
            record = int(np.argmin(np.abs(epsilons - claim.epsilon)))
            bound = lowest_epsilon(_steps_of(ledger, record), delta, claim.direction)
            yield _finding(name, claim, claim.for_whom(), bound, _ADAPTIVITY)


def _finding(name: str, claim: Claim, whom: str, bound: float, gap: str) -> Finding:
    return Finding(
        subject=f"{name}, delta {claim.delta:g}",
        attacker="likelihood ratio of all noisy sums",
        claim=whom,
        kind=claim.kind,
        claimed=claim.epsilon,
        bound=bound,
        unit="epsilon",
        note=f"what lies between: {gap}",
    )


def _steps_of(ledger: Ledger, record: int) -> list[tuple[float, float, int]]:
    """Return the steps of one audit record, its exposures rounded down."""
    counts = ledger.step_counts()
    for records, kinds, counted in counts.slices():
        if records.start <= record < records.stop:
            own = counted[:, record - records.start]
            return [
                (float(counts.exposures[kind]) / _GRID, float(counts.rates[kind]), int(count))
                for kind, count in zip(kinds, own, strict=True)
                if count
            ]
    return []


def lowest_epsilon(steps: Steps, delta: float, direction: Direction) -> float:
    """Return a lower bound of the least epsilon at ``delta`` of steps whose exposures were fixed beforehand.

    By privacy loss distributions with all losses rounded down; exact but for that. 0 without steps.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    total: Any = None
    for exposure, rate, count in steps:
        step: Any = from_gaussian_mechanism(
            1 / exposure,
            sampling_prob=rate,
            pessimistic_estimate=False,
            value_discretization_interval=_INTERVAL,
            use_connect_dots=False,
        )
        step = step.self_compose(count) if count > 1 else step
        total = step if total is None else total.compose(step)
    if total is None:
        return 0.0
    inside, outside = total._pmf_remove, total._pmf_add  # the library asks for both directions only
    sides = {"both": (inside, outside), "record in": (inside,), "record out": (outside,)}[direction]
    return max(float(side.get_epsilon_for_delta(delta)) for side in sides)
