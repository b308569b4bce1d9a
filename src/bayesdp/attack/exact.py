"""Exact adversaries: they choose the next exposure, the settings and the end of the run from the outputs.

A subject is a run that can be steered and what the software claims wherever it ends; the attacker is the best strategy
of all, by backward induction. A claim stands if the failure that the strategy reaches is at most the delta that was
claimed. Claims about events (levels, the gate) meet the best event instead, in closed form.
"""

from __future__ import annotations

from collections.abc import Iterator

from bayesdp.attack import exact_events, exact_laws, exact_printed, exact_subjects, exact_traps
from bayesdp.attack.exact_subjects import Subject
from bayesdp.attack.finding import Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.loss_walks import worst_delta

TITLE = "Exact adversaries who look before each step"
SECONDS = 120.0


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield the failure of each subject under the best strategy; the small version leaves the longest runs out."""
    subjects = exact_subjects.standing(options.small) + exact_printed.subjects(options.small, at_one_delta=False)
    subjects += exact_traps.steered(options.small) + exact_printed.subjects(options.small, at_one_delta=True)
    subjects.append(exact_printed.without_a_plan(20 if options.small else 60))
    for subject in options.track(subjects):
        yield from best_strategy(subject)
    yield from exact_events.findings()
    yield from exact_laws.findings()
    yield from exact_traps.findings()


def best_strategy(subject: Subject) -> Iterator[Finding]:
    """Yield what the best strategy reaches, in each direction that the claim speaks of."""
    for direction in subject.directions:
        reached = worst_delta(
            subject.start,
            subject.choices,
            subject.epsilon_of,
            record_in=direction == "record in",
            failure=subject.failure,
            spacing=subject.spacing,
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
            should_break=subject.should_break and direction in subject.breaks_in,
            note=subject.note,
        )
