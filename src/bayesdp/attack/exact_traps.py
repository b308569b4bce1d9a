"""What theory says is no bound, claimed as if it were one: the lab is right only if these break.

Stopping by looking, PLD as a budget for adaptive settings, the cheaper direction for somebody who was in, dropout
charged at a single draw, the average over one trajectory, and the best of several models at the price of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from scipy.stats import binom, norm

from bayesdp.attack.exact_subjects import Counts, Subject, counted, in_words, left_out, recorded
from bayesdp.attack.finding import Finding
from bayesdp.attack.loss_walks import Kind as StepKind
from bayesdp.attack.loss_walks import worst_delta
from bayesdp.attack.two_steps import step_delta
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

TRAPS = ((0.3, 1.0, 3.0), (0.5, 1.0, 4.0), (0.7, 1.5, 4.5))
"""First exposure, second exposure, and the first output from which on there is a second step."""


def steered(small: bool) -> list[Subject]:
    """Return the subjects that the best strategy must break."""
    return [steps_taken(0.1, 30 if small else 100), budget_by_pld(), cheaper_direction()]


def findings() -> Iterator[Finding]:
    """Yield what needs no strategy: one event, or one average, shows that the claim is none."""
    yield dropout_at_one_draw(steps=6, exposure=0.5, kept=0.5)
    for first, second, threshold in TRAPS:
        yield average_of_a_trajectory(first, second, threshold)
    yield best_of_several(runs=10)


def steps_taken(exposure: float, steps: int, delta: float = 1e-5) -> Subject:
    """The figure of the steps taken, read as if it held for someone who stops by looking."""
    menu = ((1.0, exposure),)

    @cache
    def epsilon_of(counts: Counts) -> float:
        return recorded(menu, counts).worst_case(delta).epsilon if sum(counts) else 0.0

    start, choices = counted(menu, steps)
    return Subject(
        name=f"{in_words(menu, steps)}, no plan",
        claim="everyone, stopping by looking claimed as proved",
        kind="proved",
        start=start,
        choices=choices,
        epsilon_of=epsilon_of,
        delta=delta,
        spacing=1e-2 / steps,
        should_break=True,
        note="the software names the condition that nobody looked, and shows the anytime figure beside it",
    )


def budget_by_pld(epsilon: float = 1.0, delta: float = 1e-5, most: int = 12) -> Subject:
    """A budget that is kept by asking PLD after each step, while settings are chosen by looking."""
    menu: tuple[StepKind, ...] = ((0.05, 0.8), (1.0, 0.12))

    @cache
    def spent(counts: Counts) -> float:
        steps = [(1 / exposure, rate, count) for (rate, exposure), count in zip(menu, counts, strict=True) if count]
        return worst_case_of(steps, delta=delta).epsilon if steps else 0.0

    start, every = counted(menu, most)

    def choices(counts: Counts) -> Iterator[tuple[Counts, StepKind]]:
        return ((after, kind) for after, kind in every(counts) if spent(after) <= epsilon)

    return Subject(
        name=f"a budget of {epsilon:g} asked by PLD, {in_words(menu, most)}",
        claim="everyone, a budget by PLD with adaptive settings",
        kind="proved",
        start=start,
        choices=choices,
        epsilon_of=lambda counts: epsilon,
        delta=delta,
        spacing=1e-3 / most,
        directions=("record in",),
        should_break=True,
        note="StopWhen uses a filter that is proved for such choices instead",
    )


def cheaper_direction() -> Subject:
    """The ex-post epsilon of someone left out, told to somebody who was in."""
    subject = left_out(((0.05, 2.0),), 3, delta=1e-2)
    return replace(
        subject,
        claim="ex-post of record out, claimed for record in",
        directions=("record in",),
        should_break=True,
        note="members have an epsilon of their own, in their direction",
    )


def dropout_at_one_draw(
    steps: int, exposure: float, kept: float, *, charge_all: bool = False, delta: float = 1e-4
) -> Finding:
    """An audit record whose gradient dropout switches off in half of the steps, charged for the draw it saw.

    Its exposure is ``exposure`` in a step with probability ``kept`` and 0 otherwise; the draw is not released, so the
    release compares Q with the mixture (1 - kept) Q + kept P: a walk of rate ``kept``. What the audit saw, N ~ Bin, is
    independent of it. The failure at each N is that of a constant epsilon: exact, and averaged over N. ``charge_all``
    charges every step, whatever the draw: that must stand.
    """

    def claimed(number: int) -> float:
        if not number:
            return 0.0
        ledger = recorded(((1.0, exposure),), (number,), audit=True)
        return float(RecordFigures(ledger, delta, math.inf).ex_post[0])

    def failure_at(epsilon: float) -> float:
        start, choices = counted(((kept, exposure),), steps)
        return worst_delta(
            start,
            choices,
            lambda counts: epsilon if counts[0] == steps else math.inf,
            record_in=False,
            spacing=1e-3,
            rounding="down",
        )

    failures = [failure_at(claimed(steps if charge_all else number)) for number in range(steps + 1)]
    chances = binom.pmf(np.arange(steps + 1), steps, kept)
    return Finding(
        subject=f"{steps} steps of exposure {exposure:g}, kept by dropout with probability {kept:g}",
        attacker="the exact law of the mixture over draws",
        claim=f"ex-post, dropout charged at {'all draws' if charge_all else 'one draw'}",
        kind="ex-post",
        claimed=delta,
        bound=float(chances @ np.array(failures)),
        unit="delta",
        should_break=not charge_all,
        note="watch finds such randomness and then makes estimates of the shares, or charges the clip bound",
    )


def average_of_a_trajectory(first: float, second: float, threshold: float, people: int = 40_000) -> Finding:
    """The average over people of one trajectory, as if exposures had been fixed, in the traps of docs/theory.md.

    The first step has exposure ``first`` for all; those whose own output passed ``threshold`` have a second one. There
    must be many ``people``: a small sample supports no small average, which hides the trap.
    """
    delta = true_delta(first, second, threshold, 4.0) / 2
    loud = round(norm.sf(threshold) * people)  # as many as are to be expected: the claim is not too small by bad luck
    ledger = Ledger()
    for norms in (np.full(people, first), np.where(np.arange(people) < loud, second, 0.0)):
        ledger.step(noise_std=1.0, sample_rate=1.0, clip=second, audit=norms)
    claim = ledger.claims(delta, shares=(0.5,)).average
    return Finding(
        subject=f"a second step of exposure {second:g} if the first, of {first:g}, had an output above {threshold:g}",
        attacker="quadrature over the first output",
        claim="the average, read as a bound",
        kind=claim.kind,
        claimed=delta,
        bound=true_delta(first, second, threshold, claim.epsilon),
        unit="delta",
        should_break=True,
        note="the software calls it an estimate",
    )


def true_delta(first: float, second: float, threshold: float, epsilon: float) -> float:
    """Return delta of both steps, record in: E over the first output y of the second step's profile, exact in y."""
    width = 1e-4
    y: FloatArray = threshold + width * (np.arange(-180_000, 120_000, dtype=np.float64) + 0.5)  # none at the threshold
    left = epsilon - (first * y - first**2 / 2)
    value = np.where(y > threshold, step_delta(second, left), np.maximum(-np.expm1(left), 0.0))
    return float(np.sum(norm.pdf(y - first) * value) * width)


def best_of_several(runs: int, delta: float = 1e-5) -> Finding:
    """Of several runs of exposure 1, the one whose output lies furthest towards the record is published.

    Of R outputs N(a, 1) the largest has density R phi(y - a) Phi(y - a)^{R-1}: its hockey-stick divergence.
    """
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0)
    epsilon = ledger.claims(delta).everyone.epsilon
    y, width = np.linspace(-12.0, 13.0, 250_001, retstep=True)
    within, without = (
        math.log(runs) + norm.logpdf(y - mean) + (runs - 1) * norm.logcdf(y - mean) for mean in (1.0, 0.0)
    )
    reached = float(np.sum(np.exp(within) * -np.expm1(np.minimum(epsilon + without - within, 0.0))) * width)
    return Finding(
        subject=f"the best of {runs} models, each of one step of exposure 1",
        attacker="the exact law of the largest output",
        claim="everyone, the best of several runs at the epsilon of one",
        kind="proved",
        claimed=delta,
        bound=reached,
        unit="delta",
        should_break=True,
        note="compose all runs; each ledger by itself knows of one",
    )
