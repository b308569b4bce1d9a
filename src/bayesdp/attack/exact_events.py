"""Members, levels and the gate: claims about an event that the run decides, against the best event, in closed form.

All people are alike and independent, each in a direction of their own; nothing is sampled. A person's first step spends
the level or the budget exactly. Whoever's first output y passes a threshold h then takes a step that gives them away,
and so exceeds it; everybody else is done. Without a person y ~ N(0, 1), with them y ~ N(e, 1). Every h gives a lower
bound of what the best adversary reaches; the best of a grid is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import binom, norm

from bayesdp.attack.finding import Finding
from bayesdp.claims.gate import Gate
from bayesdp.claims.members import LEVELS
from bayesdp.claims.plan import Plan
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.run_ledger import Ledger

DELTA = 1e-5
THRESHOLDS = np.linspace(-4.0, 8.0, 1201)
_ATTACKER = "everyone who exceeds it does so because their own output was large, in closed form"


def findings() -> Iterator[Finding]:
    """Yield shares of members, levels with few and many audit records beyond them, and the gate in both directions."""
    for steps, noise in ((20, 40.0), (20, 8.0)):
        yield from shares(steps, noise, records=400)
    for steps, noise in ((20, 8.0), (20, 4.0)):
        for loud in (0, 3):
            yield from levels(steps, noise, records=400, loud=loud)
    for epsilon, share, records in ((1.0, 0.9, 100), (4.0, 0.99, 1000)):
        yield from gate(Gate(epsilon=epsilon, delta=1e-5, share=share, gamma=0.01, records=records))


def shares(steps: int, noise: float, *, records: int) -> Iterator[Finding]:
    """Yield each share of members: how probably a member's own epsilon exceeds the figure that stands for it.

    All steps but the last have a norm of 0.9; the last is loud for those whose output so far passed a threshold. The
    figure is the epsilon of the audit record of some rank: a member exceeds it if they are loud, and no more audit
    records are than lie above that rank. Which rank that is shows in a run in which all audit records differ.
    """
    quiet = 0.9
    plan = Plan(steps=steps, noise_std=noise, sample_rate=1.0, clip=1.0)
    ledger = Ledger(plan=plan)
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0, audit=np.linspace(0.1, quiet, records))
    own = np.sort(RecordFigures(ledger, DELTA, math.inf).ex_post_in)
    exposure = quiet * math.sqrt(steps - 1) / noise
    for claim in ledger.claims(DELTA, shares=(0.5, 0.8, 0.9)).members:
        if claim.reason is not None or claim.share is None:
            continue
        figure = claim.epsilon if claim.own_epsilon is None else claim.own_epsilon
        above = records - 1 - int(np.argmin(np.abs(own - figure)))
        reached = norm.sf(THRESHOLDS - exposure) * binom.cdf(above, records, norm.sf(THRESHOLDS))
        yield Finding(
            subject=f"{steps} steps of noise {noise:g}, {records} audit records",
            attacker=_ATTACKER,
            claim=f"members, {claim.share:g}",
            kind="ex-post",
            claimed=1 - claim.share,
            bound=float(reached.max()),
            unit="probability",
            note="audit records that are loud by chance raise the figure",
        )


def levels(steps: int, noise: float, *, records: int, loud: int) -> Iterator[Finding]:
    """Yield each level: how probably a member exceeds it while at most ``loud`` of the audit records do."""
    ledger = Ledger(plan=Plan(steps=steps, noise_std=noise, sample_rate=1.0, clip=1.0))
    norms = np.where(np.arange(records) < loud, 1.0, 0.05)
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0, audit=norms)
    for claim in ledger.claims().levels:
        level = next(level for level in LEVELS if f"{100 * level:g} %" in claim.method)
        assert claim.share is not None
        exposure = math.sqrt(level * steps) / noise
        reached = norm.sf(THRESHOLDS - exposure) * binom.cdf(loud, records, norm.sf(THRESHOLDS))
        yield Finding(
            subject=f"{steps} steps of noise {noise:g}, {loud} of {records} audit records beyond the level",
            attacker=_ATTACKER,
            claim=f"members, level of {level:g}",
            kind=claim.kind,
            claimed=1 - claim.share,
            bound=float(reached.max()),
            unit="probability",
            note="audit records that exceed it by chance make the run useless for the adversary",
        )


def gate(declared: Gate) -> Iterator[Finding]:
    """Yield the delta that the best threshold reaches on average, if the gate is met, in each direction."""
    order = declared.chosen_order
    exposure = math.sqrt(2 * declared.budget / (order * (order + 1)))
    released = binom.cdf(declared.allowed, declared.records, norm.sf(THRESHOLDS))
    y, width = np.linspace(-12.0, 12.0 + exposure, 24_001, retstep=True)
    for claim in declared.claims(met=True):
        sign, mean = (1, exposure) if claim.direction == "record in" else (-1, 0.0)
        loss = sign * (exposure * y - exposure**2 / 2)
        density = norm.pdf(y - mean) * np.maximum(-np.expm1(np.minimum(declared.epsilon - loss, 0.0)), 0.0) * width
        below = np.interp(THRESHOLDS, y + width / 2, np.cumsum(density))  # failures of those who take one step only
        reached = released * (norm.sf(THRESHOLDS - mean) + below)
        yield Finding(
            subject=f"a gate of epsilon {declared.epsilon:g} for {declared.share:g} of people, "
            f"{declared.records} audit records, {claim.direction}",
            attacker=_ATTACKER,
            claim="the gate",
            kind=claim.kind,
            claimed=claim.delta,
            bound=float(reached.max()),
            unit="delta",
        )
