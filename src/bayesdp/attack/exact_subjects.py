"""Runs that an adversary may steer, with what the software claims wherever they end; all these claims must stand.

Every claim is read from the software as a user reads it: steps are recorded in a ``Ledger``, budgets are asked before
each step, and epsilon is that of the claim. Nothing is claimed where a claim carries a condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from bayesdp.attack.loss_walks import Kind as StepKind
from bayesdp.attack.loss_walks import exceeds, hockey_stick
from bayesdp.budgets import RecordBudgets
from bayesdp.claims.budget import Budget
from bayesdp.claims.claim import Kind
from bayesdp.claims.ex_post import Form
from bayesdp.claims.plan import Plan
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.stopping import StopWhen
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

Direction = Literal["record in", "record out"]
BOTH: tuple[Direction, ...] = ("record in", "record out")
Counts = tuple[int, ...]
LOST = 4e-3  # of epsilon at most, by rounding losses down


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run that an adversary may steer, and the epsilon that is claimed wherever it ends.

    ``start``, ``choices`` and ``epsilon_of`` are those of ``loss_walks.worst_delta``. ``failure`` is what the claim
    counts as failure, ``directions`` those it speaks of.
    """

    name: str
    claim: str
    kind: Kind
    start: Any
    choices: Callable[[Any], Iterable[tuple[Hashable, StepKind]]]
    epsilon_of: Callable[[Any], float]
    delta: float
    spacing: float
    failure: Callable[[FloatArray, float], FloatArray] = hockey_stick
    directions: tuple[Direction, ...] = BOTH
    should_break: bool = False
    breaks_in: tuple[Direction, ...] = BOTH
    note: str = ""


def standing(small: bool) -> list[Subject]:
    """Return the subjects whose claims must stand; the small version has only short runs."""
    menus: list[tuple[tuple[StepKind, ...], int]] = [(((1.0, 0.2), (1.0, 0.4)), 4), (((0.3, 0.5), (0.3, 1.5)), 3)]
    subjects = [planned(rate, e, steps) for rate, e, steps in ((1.0, 0.3, 12), (0.3, 1.0, 8))]
    subjects += [anytime(menu, steps) for menu, steps in menus]
    subjects += [budget(((0.05, 0.8), (1.0, 0.12)), 6 if small else 16), budget(((1.0, 0.07), (1.0, 0.14)), 6)]
    subjects += [left_out(menu, steps, form) for menu, steps in menus for form in ("hockey-stick", "markov")]
    subjects += [member(menu, steps) for menu, steps in menus]
    subjects += [enforced(mu=0.5), enforced(epsilon=1.0)]
    if not small:
        subjects += [
            planned(0.05, 1.0, 20, quieter=False),
            anytime(((1.0, 0.1),), 60),
            left_out(((0.05, 1.0), (0.5, 0.6)), 4),
        ]
    return subjects


def counted(
    menu: Sequence[StepKind], steps: int
) -> tuple[Counts, Callable[[Counts], Iterator[tuple[Counts, StepKind]]]]:
    """Return the start and the choices of a run of up to ``steps`` steps of any kind, whose state counts each kind."""

    def choices(counts: Counts) -> Iterator[tuple[Counts, StepKind]]:
        if sum(counts) < steps:
            for number, kind in enumerate(menu):
                yield (*counts[:number], counts[number] + 1, *counts[number + 1 :]), kind

    return (0,) * len(menu), choices


def recorded(menu: Sequence[StepKind], counts: Sequence[int], audit: bool = False, **declared: Any) -> Ledger:
    """Return a ledger of so many steps of each kind; the clip bound is 1, as is the norm of an audit record."""
    ledger = Ledger(**declared)
    for (rate, exposure), count in zip(menu, counts, strict=True):
        for _ in range(count):
            ledger.step(noise_std=1 / exposure, sample_rate=rate, clip=1.0, audit=[1.0] if audit else None)
    return ledger


def in_words(menu: Sequence[StepKind], steps: int) -> str:
    """Return a menu as text."""
    kinds = " or ".join(f"(rate {rate:g}, exposure {exposure:g})" for rate, exposure in menu)
    return f"up to {steps} steps of {kinds}"


def planned(rate: float, exposure: float, steps: int, *, quieter: bool = True, delta: float = 1e-5) -> Subject:
    """A plan: its epsilon holds whenever the run ends, also if some steps are ``quieter`` than planned."""
    menu = ((rate, exposure), (rate, exposure / 2))[: 1 + quieter]
    plan = Plan(steps=steps, noise_std=1 / exposure, sample_rate=rate, clip=1.0)
    claim = recorded(menu, (1,) * len(menu), plan=plan).claims(delta).everyone
    assert claim.condition is None
    start, choices = counted(menu, steps)
    return Subject(
        name=f"a plan of {in_words(menu, steps)}",
        claim="everyone, with a plan",
        kind=claim.kind,
        start=start,
        choices=choices,
        epsilon_of=lambda counts: claim.epsilon,
        delta=delta,
        spacing=LOST / steps,
    )


def anytime(menu: tuple[StepKind, ...], steps: int, delta: float = 1e-5) -> Subject:
    """No declaration at all: the figure that holds for the run that took place."""

    @cache
    def epsilon_of(counts: Counts) -> float:
        claim = recorded(menu, counts).claims(delta).anytime
        return 0.0 if not sum(counts) else math.nan if claim is None else claim.epsilon

    start, choices = counted(menu, steps)
    return Subject(
        name=f"{in_words(menu, steps)}, chosen by looking",
        claim="everyone, anytime",
        kind="ex-post",
        start=start,
        choices=choices,
        epsilon_of=epsilon_of,
        delta=delta,
        spacing=LOST / steps,
        note="the anytime figure pays for every stopping time and every choice, not for this menu only",
    )


def budget(menu: tuple[StepKind, ...], most: int, epsilon: float = 1.0, delta: float = 1e-5) -> Subject:
    """A declared budget, asked before each step: whatever it allows may be chosen by looking.

    What is allowed depends on the first step and on the counts, so these are the state of the run.
    """

    def ledger_of(state: tuple[int, Counts]) -> Ledger:
        ledger = Ledger(budget=Budget(epsilon=epsilon, delta=delta))
        first, counts = state
        for number in sorted(range(len(menu)), key=lambda number: number != first):
            for _ in range(counts[number]):
                ledger.step(noise_std=1 / menu[number][1], sample_rate=menu[number][0], clip=1.0)
        return ledger

    def choices(state: tuple[int, Counts]) -> Iterator[tuple[tuple[int, Counts], StepKind]]:
        first, counts = state
        ledger = ledger_of(state)
        for number, (rate, exposure) in enumerate(menu):
            after = (*counts[:number], counts[number] + 1, *counts[number + 1 :])
            if sum(after) <= most and StopWhen(ledger).allows(noise_std=1 / exposure, sample_rate=rate, clip=1.0):
                yield (first if sum(counts) else number, after), (rate, exposure)

    def epsilon_of(state: tuple[int, Counts]) -> float:
        guaranteed = ledger_of(state).worst_case(delta)
        return guaranteed.epsilon if guaranteed.condition is None else math.inf

    return Subject(
        name=f"a budget of {epsilon:g}, {in_words(menu, most)}",
        claim="everyone, with a budget and adaptive settings",
        kind="proved",
        start=(0, (0,) * len(menu)),
        choices=choices,
        epsilon_of=cache(epsilon_of),
        delta=delta,
        spacing=LOST / most,
    )


def left_out(menu: tuple[StepKind, ...], steps: int, form: Form = "hockey-stick", delta: float = 1e-4) -> Subject:
    """The ex-post epsilon of an audit record whose exposures are chosen by looking: record out."""

    @cache
    def epsilon_of(counts: Counts) -> float:
        figures = RecordFigures(recorded(menu, counts, audit=True), delta, math.inf, form=form)
        return float(figures.ex_post[0]) if sum(counts) else 0.0

    start, choices = counted(menu, steps)
    return Subject(
        name=f"an audit record in {in_words(menu, steps)}",
        claim=f"ex-post, {form} form",
        kind="ex-post",
        start=start,
        choices=choices,
        epsilon_of=epsilon_of,
        delta=delta,
        spacing=LOST / steps,
        failure=hockey_stick if form == "hockey-stick" else exceeds,
        directions=("record out",),
    )


def member(menu: tuple[StepKind, ...], steps: int, delta: float = 1e-4) -> Subject:
    """The ex-post epsilon of someone who was trained on, behind the claims for members: record in."""

    @cache
    def epsilon_of(counts: Counts) -> float:
        figures = RecordFigures(recorded(menu, counts, audit=True), delta, math.inf)
        return float(figures.ex_post_in[0]) if sum(counts) else 0.0

    start, choices = counted(menu, steps)
    return Subject(
        name=f"someone trained on in {in_words(menu, steps)}",
        claim="ex-post epsilon of a member",
        kind="ex-post",
        start=start,
        choices=choices,
        epsilon_of=epsilon_of,
        delta=delta,
        spacing=LOST / steps,
        directions=("record in",),
    )


def enforced(
    *, mu: float | None = None, epsilon: float = 1.0, delta: float = 1e-5, steps: int = 6, noise: float = 4.0
) -> Subject:
    """Enforced budgets: the norm of a record is chosen by looking at every step, and clipped to what it can pay for."""
    menu, rate = (1.0, 0.5), 1.0 if mu is not None else 0.3

    def budgets() -> RecordBudgets:
        if mu is not None:
            return RecordBudgets.for_gaussian(1, mu=mu)
        return RecordBudgets.for_epsilon(1, epsilon=epsilon, delta=delta)

    noise = noise if mu is not None else 1.5

    def exposure_after(chosen: tuple[int, ...]) -> float:
        enforcing, norm = budgets(), 0.0
        for number in chosen:
            enforcing.refresh([menu[number]])
            norm = float(enforcing.step(noise_std=noise, sample_rate=rate, clip=1.0)[0])
        return norm / noise

    def choices(chosen: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], StepKind]]:
        if len(chosen) < steps:
            for number in range(len(menu)):
                yield (*chosen, number), (rate, exposure_after((*chosen, number)))

    claim = budgets().claim(delta)
    return Subject(
        name=f"enforced budgets, {steps} steps of norm 1 or 0.5, noise {noise:g}, rate {rate:g}",
        claim="everyone, enforced budgets" + (" without sampling" if mu is not None else ""),
        kind=claim.kind,
        start=(),
        choices=choices,
        epsilon_of=lambda chosen: claim.epsilon,
        delta=delta,
        spacing=LOST / steps,
    )
