"""Fuzzed ledgers that declare a budget or a gate, asked before each step; and runs that are composed."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from bayesdp import Budget, Gate, InvalidInputError, Ledger, Plan, StopWhen, compose
from benchmarks.fuzz_judge import is_figure, require
from benchmarks.fuzz_ledgers import RECORDS, SETTINGS, check_claims, random_ledger, random_step
from benchmarks.fuzz_values import Values


def declared_ledger(values: Values) -> str | None:
    """Steps that a budget and a gate allow keep both; a question changes nothing."""
    noise, rate, clip = values.one_of(SETTINGS)
    declared: dict[str, Any] = {}
    if values.chance(0.7):
        declared["budget"] = Budget(
            epsilon=values.positive(0.1, 10), delta=1e-5, for_changes=values.scalar(values.rng.random)
        )
    if values.chance(0.4):
        declared["gate"] = Gate(epsilon=values.positive(0.5, 10), delta=1e-5, share=0.5, gamma=0.05, records=RECORDS)
    if values.chance(0.3):
        declared["plan"] = Plan(steps=int(values.rng.integers(1, 6)), noise_std=noise, sample_rate=rate, clip=clip)
    if values.chance(0.03):
        declared[values.one_of(("budget", "gate", "plan"))] = values.one_of((3, "x", (1, 2), object()))
    ledger, gated = Ledger(**declared), "gate" in declared
    given = values.positive(0.1, 10) if values.chance(0.2) else None
    allowing = StopWhen(ledger, epsilon=given, gate=gated or values.chance(0.02))
    for _ in range(int(values.rng.integers(1, 6))):
        changed = values.chance(0.3)
        step = {
            "noise_std": values.positive(0.5, 100) if changed else noise,
            "sample_rate": values.rate() if changed else rate,
            "clip": clip,
        }
        norms = values.rng.exponential(clip / 2, RECORDS)
        before = ledger.steps, ledger.history.hash
        allowed = allowing.allows(**step, audit=norms, steps=1 if values.chance(0.9) else values.count(3))
        require(isinstance(allowed, bool), "an answer that is no bool", allowed)
        require((ledger.steps, ledger.history.hash) == before, "asking changed the ledger", before)
        if not allowed:
            break
        ledger.step(**step, audit=norms)
    if not ledger.steps:
        return "value"
    claims = ledger.claims(shares=(0.5,))
    check_claims(claims)
    if "budget" in declared:
        most = declared["budget"].epsilon
        require(is_figure(claims.everyone.epsilon) <= most, "allowed steps exceed the budget", claims.everyone, most)
        require(claims.everyone.kind == "proved", "a budget that was kept is not proved", claims.everyone)
    if gated:
        costs = ledger.costs([declared["gate"].chosen_order])[:, 0]
        require(declared["gate"].met(costs), "allowed steps failed the gate", costs)
    return None


def composition(values: Values) -> None:
    """Composed runs have all steps and all costs, and cost nobody less than any of them alone."""
    ids: Any = list(range(RECORDS)) if values.chance(0.8) else None
    runs = []
    for _ in range(int(values.rng.integers(2, 5)) if values.chance(0.95) else int(values.rng.integers(2))):
        noise, rate, clip = values.one_of(SETTINGS)
        plan = Plan(steps=3, noise_std=noise, sample_rate=rate, clip=clip) if values.chance(0.4) else None
        ledger = Ledger(plan=plan, audit_ids=ids) if values.chance(0.9) else random_ledger(values)
        for _ in range(int(values.rng.integers(0, 4))):
            with suppress(InvalidInputError):
                random_step(ledger, values)
        runs.append(ledger)
    if values.chance(0.1) and runs:
        runs.append(values.one_of((runs[0], None, "a.ledger")))
    whole = compose(values.one_of((runs, tuple(runs))))
    require(whole.steps == sum(run.steps for run in runs), "steps are lost", whole.steps)
    costs = whole.costs([1, 8])
    if ids is not None and all(run.audit_ids == ids for run in runs) and all(run.steps for run in runs):
        parts = [run.costs([1, 8]) for run in runs]
        if all(part.shape == costs.shape for part in parts):
            with np.errstate(invalid="ignore"):
                near = np.isclose(costs, sum(parts), rtol=1e-9, atol=0.0)
            require(near.all(), "costs do not add up", costs, parts)
    claims = whole.claims(shares=(0.5,))
    check_claims(claims)
    for run in runs:
        alone = run.claims(shares=(0.5,)).everyone.epsilon if run.declared_plan is None else 0.0
        require(claims.everyone.epsilon >= alone * (1 - 3e-3) - 2e-4, "composing made a run cheaper", claims, alone)
