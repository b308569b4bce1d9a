"""How tight the claims of a run are: each beside the most that is known to be lost.

The mechanism is taken to be as the ledger says: noise, clipping, sampling and norms. The attacker knows everything but
whether one person was in the data, sees every noisy sum, and decides by the likelihood ratio: no test does better. For
a person whose exposures are given, what that test reaches is known exactly, up to the rounding of losses, which is
downwards here (the optimistic privacy loss distributions of dp-accounting). For everyone, the person is one at the clip
bound in every step, which the definition allows; for a share or for members it is the audit record whose figure is the
claim; for a level, someone who spends it. For averages it is every audit record: the average delta of the population is
bounded from below by betting.

What the gap to a claim is made of stands beside it. For everyone and for estimates it is rounding. For ex-post claims
it is the price of exposures that may have depended on earlier results, or the attack's weakness, which supposes that
they were fixed; the two cannot be told apart by this attack. An attacker who sees only the last model does worse than
this one, by how much nobody can bound from above: see the game.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.attack.finding import BETWEEN, Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.claims.claim import Claim, Direction
from bayesdp.claims.everyone import kept_plan
from bayesdp.claims.members import LEVELS
from bayesdp.claims.plan import Plan
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.run_claims import RunClaims
from bayesdp.estimators import Betting
from bayesdp.formatting import percent
from bayesdp.ledger import Stretch
from bayesdp.profiles import gaussian_delta
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

TITLE = "Each claim of a run beside the best attack"
SECONDS = 90.0
LEVEL = 0.01
"""The probability that the lower bound of an average is above the truth."""
_INTERVAL = 2e-4  # of losses; rounding down loses at most half of it in each step, on average
_GRID = 1 + 1 / 256  # exposures in a ledger are rounded up by less than this factor
_SMALL = 1 - 1e-9  # more than the rounding of an exact profile
_ALL_SUMS = "likelihood ratio of all noisy sums"
_ROUNDING = "rounding"
_ADAPTIVITY = "the price of exposures that may have depended on earlier results, or an attack that does not use this"
_NO_BETTER = "the claim is that for everyone, who may be louder than this person"
_UNSPENT = "what the steps taken left of the budget, and what it costs that they might have been chosen by looking"
_RENYI = "levels of sampled steps are counted by Rényi divergences"
_CONFIDENCE = "what a sample of people leaves open"
_PAPER = "the safety that the paper's estimator adds, at a far smaller gamma"
Steps = Iterable[tuple[float, float, int]]
"""(exposure, sampling rate, how many) of the steps that a person went through."""


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield the claims of ledgers, or of a fresh demo if none is given, each beside a lower bound."""
    for path in options.ledgers:
        with Ledger.open(path, write=False) as ledger:
            recipe = (ledger.metadata or {}).get("recipe")
            name = f"the recipe {recipe}" if isinstance(recipe, str) else path.name
            yield from tightness(ledger, name, options.delta)
    if options.ledgers:
        return
    from bayesdp.recipes.training import LEDGER, train

    with TemporaryDirectory() as folder:
        train("digits", output=Path(folder) / "demo", delta=options.delta, seed=options.seed, reproducible=True)
        with Ledger.open(Path(folder) / "demo" / LEDGER, write=False) as ledger:
            yield from tightness(ledger, "the demo", options.delta)


def check_ledgers(paths: Iterable[Path]) -> None:
    """Raise what attacking one of these ledgers would raise, before any attack begins."""
    for path in paths:
        with Ledger.open(path, write=False) as ledger:
            _check(ledger, path.name)


def _check(ledger: Ledger, name: str) -> None:
    if ledger.selection is not None:
        raise refuse("ledger", name, "a run that was not chosen among others")
    _at_clip(ledger.history.stretches)


def _at_clip(stages: Iterable[Plan | Stretch]) -> list[tuple[float, float, int]]:
    """Return (exposure, sampling rate, count) of someone at the clip bound in every step."""
    return [
        (validation.positive("clip", stage.clip) / stage.noise_std, stage.sample_rate, stage.steps) for stage in stages
    ]


def tightness(ledger: Ledger, name: str, delta: float = 1e-5) -> Iterator[Finding]:
    """Yield every claim of a run that has a figure, beside what the best test reaches.

    Claims are those of ``Ledger.claims(delta)``: for everyone, for shares ex-post and estimated, for members and
    levels, and on average (without sampling only). Raises InvalidInputError for a run without a clip bound, and for one
    that was chosen among others: this attack sees no other run.
    """
    _check(ledger, name)
    claims, plan, taken = ledger.claims(delta), kept_plan(ledger), _at_clip(ledger.history.stretches)
    planned = taken if plan is None else _at_clip(plan.stages)
    by_budget = claims.worst_case.accountant == "budget"
    at_clip, gap = (taken, _UNSPENT) if by_budget else (planned, _ROUNDING)
    bound = lowest_epsilon(at_clip, delta, "both")
    yield _finding(name, claims.everyone, "everyone", bound, gap)
    if claims.left_out is not None:
        bound = lowest_epsilon(at_clip, delta, "record out")
        yield _finding(name, claims.left_out, "everyone who was left out", bound, gap)
    yield from _of_records(ledger, name, claims, delta)
    spent = _ROUNDING if claims.figures.unsampled else _RENYI
    for claim in claims.levels:
        level = next(level for level in LEVELS if f"{100 * level:g} %" in claim.method)
        bound = lowest_epsilon(_within(level, planned), delta, claim.direction)
        yield _finding(name, claim, f"{percent(claim.share or 0)} of members, level of {level:g}", bound, spent)
    if claims.figures.unsampled and ledger.audit_records:
        lowest = lowest_average(_exposures(ledger), at_clip, delta, claims.everyone.epsilon)
        for claim, gap in ((claims.average, _CONFIDENCE), (claims.bayesian, _PAPER)):
            if claim.reason is None and math.isfinite(claim.epsilon):
                whom = "on average" if claim is claims.average else "on average, by the paper's accountant"
                yield _finding(name, claim, whom, lowest, gap, confidence=1 - LEVEL)


def _within(level: float, at_clip: Steps) -> list[tuple[float, float, int]]:
    """Return the steps of someone who spends a level: quieter by its root, or where steps are sampled fewer of them."""
    return [
        (exposure * math.sqrt(level), rate, steps) if rate == 1 else (exposure, rate, math.floor(level * steps))
        for exposure, rate, steps in at_clip
    ]


def _of_records(ledger: Ledger, name: str, claims: RunClaims, delta: float) -> Iterator[Finding]:
    """Yield claims of shares and members, each beside the bound of the audit record whose figure it is."""
    figures = RecordFigures(ledger, delta, claims.everyone.epsilon)
    listed: list[tuple[Claim, FloatArray, float, str]] = [
        *((pair.ex_post, figures.ex_post, pair.ex_post.share or 0.0, "ex-post") for pair in claims.shares),
        *((pair.estimate, figures.estimates, pair.estimate.share or 0.0, "estimate") for pair in claims.shares),
        *((claim, figures.ex_post_in, claim.share or 0.0, "ex-post") for claim in claims.members),
    ]
    for claim, epsilons, share, figure in listed:
        if claim.reason is not None:
            continue
        own = claim.epsilon if claim.own_epsilon is None else claim.own_epsilon
        record = int(np.argmin(np.abs(epsilons - own)))
        bound = lowest_epsilon(_steps_of(ledger, record), delta, claim.direction)
        gap = _NO_BETTER if claim.own_epsilon is not None else _ROUNDING if figure == "estimate" else _ADAPTIVITY
        whom = "members" if claim.audience == "members" else "people"
        yield _finding(name, claim, f"{percent(share)} of {whom}, {figure}", bound, gap)


def _finding(name: str, claim: Claim, whom: str, bound: float, gap: str, confidence: float = 1.0) -> Finding:
    return Finding(
        subject=f"{name}, delta {claim.delta:g}",
        attacker=_ALL_SUMS,
        claim=whom,
        kind=claim.kind,
        claimed=claim.epsilon,
        bound=bound,
        unit="epsilon",
        confidence=confidence,
        note=f"{BETWEEN}{gap}",
    )


def _exposures(ledger: Ledger) -> FloatArray:
    """Return the exposure of all steps together of each audit record, [m], rounded down; for runs without sampling."""
    return np.sqrt(ledger.costs([1])[:, 0]) / _GRID * _SMALL


def lowest_average(
    exposures: FloatArray, at_clip: Sequence[tuple[float, float, int]], delta: float, top: float
) -> float:
    """Return a lower bound of the epsilon at which delta, averaged over the population, is ``delta``.

    ``exposures`` [m] are those of a sample, of all steps together, without sampling; nobody is above ``at_clip``. At
    each epsilon of a rising grid up to ``top``, betting bounds the average delta from below; the first epsilon at which
    that is not above ``delta`` ends the walk. Tests in a fixed order that end with the first failure are wrong with
    probability at most ``LEVEL``, however many there are.
    """
    most = math.sqrt(math.fsum(steps * exposure**2 for exposure, _, steps in at_clip))
    lowest = 0.0
    for epsilon in np.linspace(0.0, top, 81)[1:]:
        ceiling = float(gaussian_delta(most, epsilon))
        missing = np.maximum(ceiling - gaussian_delta(exposures, epsilon) * _SMALL, 0.0)
        if ceiling - float(Betting(gamma=LEVEL).upper(missing, bound=ceiling)) <= delta:
            break
        lowest = float(epsilon)
    return lowest


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

    By privacy loss distributions with all losses rounded down; exact but for that. Steps without sampling are one
    Gaussian whose squared exposure is the sum of theirs. 0 without steps.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    listed = [(exposure, rate, count) for exposure, rate, count in steps if exposure * count > 0]
    together = math.sqrt(math.fsum(count * exposure**2 for exposure, rate, count in listed if rate == 1))
    kinds = [(together * _SMALL, 1.0, 1)] if together else []
    kinds += [(exposure, rate, count) for exposure, rate, count in listed if rate < 1]
    total: Any = None
    for exposure, rate, count in kinds:
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
