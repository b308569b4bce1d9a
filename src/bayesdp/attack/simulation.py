"""Simulated runs of real size: sampled batches, hundreds of steps, populations of known law, all through a ``Ledger``.

The attacker knows everything but the record, so its loss is all that matters. Failures of one in 100,000 are reached by
importance sampling (tilted.py) with confidence bounds that hold for every law. The paper's accountant as published is
attacked beside this project's own claims, where theory says that it is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bayesdp.attack import published
from bayesdp.attack.finding import Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.loss_walks import Kind, exceeds, hockey_stick
from bayesdp.attack.lower_bounds import at_least
from bayesdp.attack.tilted import Runs, best_tilt, draw_runs, mean_at_least
from bayesdp.claims.claim import Claim
from bayesdp.claims.ex_post import FORMS, Form
from bayesdp.claims.plan import Plan
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

TITLE = "Simulated runs of real size"
SECONDS = 120.0
ALPHA = 1e-3
"""Each bound is above the truth with at most this probability."""
_LARGEST_WEIGHT = 1.0  # of delta; more is cut off


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield runs with a plan, ex-post figures of steered people, members, and the paper's accountant as published."""
    few = options.small
    runs = [(0.01, 1.0, 300), (0.05, 2.0, 200), (0.2, 4.0, 100)]
    for number, (rate, noise, steps) in enumerate(options.track(runs[: 1 if few else None])):
        rng = np.random.default_rng([options.seed, 5, number])
        yield from planned(rng, rate, noise, steps, 2000 if few else 40_000)
    for number, form in enumerate(FORMS):
        rng = np.random.default_rng([options.seed, 6, number])
        yield steered_people(rng, form, 500 if few else 10_000)
    yield from members(np.random.default_rng([options.seed, 7]), 60 if few else 1000)
    yield from published.findings(options.seed, 20 if few else 100)


def planned(rng: np.random.Generator, rate: float, noise: float, steps: int, count: int) -> Iterator[Finding]:
    """Yield the delta at the claimed epsilon, in each direction; also at that for someone left out, in theirs."""
    delta = 1e-5
    ledger = Ledger(plan=Plan(steps=steps, noise_std=noise, sample_rate=rate, clip=1.0))
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=np.ones(20))
    claims = ledger.claims(delta, shares=(0.5,))
    told: list[tuple[Claim, bool]] = [(claims.everyone, True), (claims.everyone, False)]
    if claims.left_out is not None:
        told.append((claims.left_out, False))
    for claim, record_in in told:
        kind = (rate, 1 / noise)
        theta, most = best_tilt(kind, steps, claim.epsilon, record_in=record_in)
        runs = draw_runs(rng, [kind], steps, np.zeros_like, theta=theta, count=count, record_in=record_in)
        values = runs.weighted(hockey_stick(runs.losses, claim.epsilon))
        direction = "record in" if record_in else "record out"
        yield Finding(
            subject=f"{steps} steps, rate {rate:g}, noise multiplier {noise:g}, {direction}",
            attacker=f"likelihood ratio in {count} tilted runs",
            claim="left out" if claim is claims.left_out else "everyone, with a plan",
            kind=claim.kind,
            claimed=delta,
            bound=mean_at_least(values, most, ALPHA),
            unit="delta",
            confidence=1 - ALPHA,
        )


def steered_people(rng: np.random.Generator, form: Form, count: int, delta: float = 1e-4) -> Finding:
    """Return the failure of ex-post epsilons of people whose steps get loud once the release says "was left out".

    Everybody has a direction of their own; exposure rises from a quarter to the whole of the clip bound after a step
    with a large loss. All are audit records of one ledger, from which their epsilons are read.
    """
    rate, noise, steps = 0.2, 1.0, 60
    menu: list[Kind] = [(rate, 0.25 / noise), (rate, 1 / noise)]

    def policy(last: FloatArray) -> FloatArray:
        return (last > 0.04).astype(np.float64)

    def weighted(theta: float, people: int) -> FloatArray:
        runs = draw_runs(rng, menu, steps, policy, theta=theta, count=people, record_in=False)
        failure = hockey_stick if form == "hockey-stick" else exceeds
        epsilons = _ex_post(runs, menu, noise, delta, form)
        failures = np.array([failure(loss, epsilon) for loss, epsilon in zip(runs.losses, epsilons, strict=True)])
        return runs.weighted(failures)

    most = _LARGEST_WEIGHT * delta
    pilots = {theta: np.minimum(weighted(theta, max(count // 10, 50)), most).mean() for theta in (2.0, 4.0, 8.0, 12.0)}
    theta = max(pilots, key=pilots.__getitem__)
    return Finding(
        subject=f"people whose steps get loud by what was released: {steps} steps, rate {rate:g}, noise {noise:g}",
        attacker=f"likelihood ratio in {count} tilted runs",
        claim=f"ex-post, {form} form",
        kind="ex-post",
        claimed=delta,
        bound=mean_at_least(weighted(theta, count), most, ALPHA),
        unit="delta",
        confidence=1 - ALPHA,
        note="this population does not steer as the best adversary would",
    )


def _ex_post(runs: Runs, menu: list[Kind], noise: float, delta: float, form: Form) -> FloatArray:
    """Return the ex-post epsilons [n] of people who went through these steps, from one ledger."""
    rate, norms = menu[0][0], np.array([exposure * noise for _, exposure in menu])
    ledger = Ledger(plan=Plan(steps=len(runs.kinds), noise_std=noise, sample_rate=rate, clip=1.0))
    for chosen in runs.kinds:
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=norms[chosen.astype(np.int64)])
    return RecordFigures(ledger, delta, math.inf, form=form).ex_post


def members(rng: np.random.Generator, runs: int) -> Iterator[Finding]:
    """Yield how often a member's own epsilon exceeds the one claimed, in a run that memorises.

    A first step for all; the second is loud for those whose first output was large, which is likelier for members.
    """
    noise, threshold, records, shares = 4.0, 1.5, 199, (0.5, 0.9)
    exceeding = dict.fromkeys(shares, 0)
    for _ in range(runs):
        first = np.minimum(1.0, rng.lognormal(-1.0, 0.7, records + 1))
        outputs = rng.standard_normal(records + 1)
        outputs[-1] += first[-1] / noise  # the last is the member
        ledgers = [Ledger(plan=Plan(steps=2, noise_std=noise, sample_rate=1.0, clip=1.0)) for _ in range(2)]
        for norms in (first, np.where(outputs > threshold, 1.0, 0.2 * first)):
            for ledger, audit in zip(ledgers, (norms[:-1], norms[-1:]), strict=True):
                ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0, audit=audit)
        own = float(RecordFigures(ledgers[1], 1e-5, math.inf).ex_post_in[0])
        for claim in ledgers[0].claims(shares=shares).members:
            if claim.share is not None:
                exceeding[claim.share] += own > claim.epsilon and claim.own_epsilon is None
    for share, count in exceeding.items():
        yield Finding(
            subject=f"two steps of noise {noise:g}, the second loud for whom the first speaks",
            attacker=f"{count} of {runs} members exceeded it",
            claim=f"members, {share:g}",
            kind="ex-post",
            claimed=1 - share,
            bound=float(at_least(count, runs, ALPHA)),
            unit="probability",
            confidence=1 - ALPHA,
        )
