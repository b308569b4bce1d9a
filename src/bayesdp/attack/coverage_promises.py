"""Promises that were declared before a run, from end to end: plan, budget and gate on runs whose law is known.

What is claimed, and what a budget or a gate allows, is read from a real ``Ledger``, made once for each run that differs
in its settings: all runs of a plan share one, runs that spent a budget in the same way too, and each run of a gate has
its own. Outputs are drawn outside of it. Of each output the attacker sees the part along one person's own direction,
which is all that depends on the person: N(0, 1) without them, N(exposure, 1) with them if they were drawn. So the
likelihood ratio of a run is known, and the failure of a claim of epsilon is the mean of (1 - e^(epsilon - loss))_+ over
runs of a person in the data, or over runs without them with the loss reversed.

- Plan and budget: thousands of runs in which settings are chosen by looking at the outputs; the claim is read from the
  ledger where each run ends. The mean is bounded from below by betting, at the level of the attack.
- Gate: the ledger says in which runs it is met. Those runs would be released, and someone of the population fails in
  them with a probability that is an integral over the first output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from bayesdp.attack.finding import Finding, rate_at_least
from bayesdp.attack.populations import Population
from bayesdp.attack.small_training import step_losses
from bayesdp.attack.two_steps import DIRECTIONS, OUTPUTS, two_steps_delta
from bayesdp.claims.budget import Budget
from bayesdp.claims.claim import Claim, Direction
from bayesdp.claims.gate import Gate
from bayesdp.claims.plan import Plan
from bayesdp.claims.stopping import StopWhen
from bayesdp.estimators import Betting
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

PROMISED_DELTA = 1e-3
"""The delta of plans and budgets here: large enough to be seen by counting."""
RUNS, SMALL_RUNS = 100_000, 1_000
_ATTACKER = "the likelihood ratio of {} runs"
_PLANS = ((1.0, 0.3, 12), (0.3, 1.0, 8))
_MENUS = (((1.0, 0.1), (1.0, 0.25)), ((0.05, 0.8), (1.0, 0.12)))
_MOST_STEPS = 24
_PLACES = (np.arange(400) + 0.5) / 400


def plans(rng: np.random.Generator, runs: int, level: float) -> Iterator[Finding]:
    """Yield plans: steps are as planned, or half as loud where the person's loss is small; both directions."""
    for rate, exposure, steps in _PLANS:
        plan = Plan(steps=steps, noise_std=1 / exposure, sample_rate=rate, clip=1.0)
        ledger = Ledger(plan=plan)
        for number in range(steps):
            ledger.step(noise_std=(1 + number % 2) / exposure, sample_rate=rate, clip=1.0)
        claim = ledger.claims(PROMISED_DELTA).everyone
        for direction in DIRECTIONS:
            losses = np.zeros(runs)
            for _ in range(steps):
                exposures = np.where(losses < -claim.epsilon, exposure / 2, exposure)
                losses += _step(rng, exposures, rate, direction)
            yield _judged(
                f"a plan of {steps} steps, rate {rate:g}, exposure {exposure:g} or less, {direction}",
                claim,
                "everyone, with a plan",
                _failures(losses, np.full(runs, claim.epsilon)),
                level,
            )


def budgets(rng: np.random.Generator, runs: int, level: float) -> Iterator[Finding]:
    """Yield budgets: the next step is loud as long as the loss is below the budget, if the budget allows it."""
    for menu in _MENUS:
        account = _Spent(menu, Budget(epsilon=1.0, delta=PROMISED_DELTA))
        for direction in DIRECTIONS:
            losses, states = np.zeros(runs), np.zeros((runs, 2), np.int64)
            going = np.ones(runs, bool)
            for _ in range(_MOST_STEPS):
                loud = losses < account.budget.epsilon
                for state in {(int(first), int(second)) for first, second in states[going]}:
                    here = going & (states == state).all(axis=1)
                    for wants in (False, True):
                        taking = here & (loud == wants)
                        kind = account.allowed(state, prefer=int(wants))
                        if kind is None:
                            going[taking] = False
                            continue
                        rate, exposure = menu[kind]
                        losses[taking] += _step(rng, np.full(int(taking.sum()), exposure), rate, direction)
                        states[taking, kind] += 1
            ends = {(int(first), int(second)) for first, second in np.unique(states, axis=0)}
            epsilons = np.zeros(runs)
            for end in ends:
                epsilons[(states == end).all(axis=1)] = account.claim(end).epsilon
            kinds = " or ".join(f"(rate {rate:g}, exposure {exposure:g})" for rate, exposure in menu)
            yield _judged(
                f"a budget of 1 spent on up to {_MOST_STEPS} steps of {kinds}, chosen by looking, {direction}",
                account.claim(max(ends)),
                "everyone, with a budget",
                _failures(losses, epsilons),
                level,
            )


class _Spent:
    """A declared budget after any number of steps of two kinds, quiet ones first in the ledger."""

    def __init__(self, menu: Sequence[tuple[float, float]], budget: Budget) -> None:
        self.menu, self.budget = menu, budget
        self.allowed = cache(self._allowed)
        self.claim = cache(self._claim)

    def _ledger(self, state: tuple[int, int]) -> Ledger:
        ledger = Ledger(budget=self.budget)
        for (rate, exposure), count in zip(self.menu, state, strict=True):
            for _ in range(count):
                ledger.step(noise_std=1 / exposure, sample_rate=rate, clip=1.0)
        return ledger

    def _allowed(self, state: tuple[int, int], prefer: int) -> int | None:
        """Return the kind of the next step: the preferred one, else the other, else None."""
        may = StopWhen(self._ledger(state))
        for kind in (prefer, 1 - prefer):
            rate, exposure = self.menu[kind]
            if may.allows(noise_std=1 / exposure, sample_rate=rate, clip=1.0):
                return kind
        return None

    def _claim(self, state: tuple[int, int]) -> Claim:
        """Return the claim for everyone where the run ended; without a condition, since the budget was kept."""
        claim = self._ledger(state).claims(PROMISED_DELTA).everyone
        assert claim.condition is None
        return claim


def gates(
    population: Population, rng: np.random.Generator, runs: int, records: int, gamma: float, level: float
) -> Iterator[Finding]:
    """Yield a gate in both directions: how often it is met, times how probably someone fails, against its delta."""
    gate = population_gate(population, records, gamma)
    met = 0
    for _ in range(runs):
        ledger = population.ledger(population.norms(rng, records), gate=gate)
        claims = gate.claims(met=gate.met(ledger.costs([gate.chosen_order])[:, 0]))
        met += claims[0].reason is None
    released = rate_at_least(met, runs, level)
    for claim in gate.claims(met=True):
        yield Finding(
            subject=f"{population.name}, a gate of epsilon {gate.epsilon:.2g} for {gate.share:.0%} of people, "
            f"{records} audit records, {claim.direction}",
            attacker=f"the likelihood ratio of people in {runs} runs, those in which it is met",
            claim="the gate",
            kind=claim.kind,
            claimed=claim.delta,
            bound=released * average_failure(population, gate.epsilon, claim.direction),
            unit="delta",
            confidence=1 - level,
            note=f"met in {met} runs; its delta pays for every run that could meet it, this attack is one of them",
        )


def population_gate(population: Population, records: int, gamma: float = 0.05) -> Gate:
    """Return a gate that nine in ten people must keep to, and about as many do: met in some runs and not in others."""
    norms, weights = population.everybody()
    ledger = population.ledger(norms)

    @cache
    def typical(order: float) -> float:
        costs = ledger.costs([order])[:, 0]
        sorted_by_cost = np.argsort(costs)
        return float(costs[sorted_by_cost][np.searchsorted(np.cumsum(weights[sorted_by_cost]), 0.97)])

    low, high = 1e-3, 50.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        gate = Gate(epsilon=middle, delta=1e-5, share=0.9, gamma=gamma, records=records)
        enough = gate.budget >= typical(gate.chosen_order) * 1.01
        low, high = (low, middle) if enough else (middle, high)
    return Gate(epsilon=high, delta=1e-5, share=0.9, gamma=gamma, records=records)


def average_failure(population: Population, epsilon: float, direction: Direction) -> float:
    """Return delta at ``epsilon`` of both steps of a population, averaged over people: an integral over outputs.

    Someone's first output decides how loud their second step is. Rounded by the spacing of people and outputs, which is
    fine.
    """
    first = population.quantile(_PLACES)[:, None] / population.noise
    second = np.where(population.threshold < OUTPUTS, 1 / population.noise, first / 5)
    return float(two_steps_delta(first, second, epsilon, population.sample_rate, direction).mean())


def _step(rng: np.random.Generator, exposures: FloatArray, rate: float, direction: Direction) -> FloatArray:
    """Return the losses of one step, one for each run; of a run without the person, with the sign reversed."""
    present = direction == "record in"
    drawn = rng.random(len(exposures)) < rate if present else 0.0
    losses = step_losses(rng.standard_normal(len(exposures)) + drawn * exposures, exposures, rate)
    return losses if present else -losses


def _failures(losses: FloatArray, epsilons: FloatArray) -> FloatArray:
    return np.maximum(-np.expm1(np.minimum(epsilons - losses, 0.0)), 0.0)


def _judged(subject: str, claim: Claim, promise: str, failures: FloatArray, level: float) -> Finding:
    return Finding(
        subject=subject,
        attacker=_ATTACKER.format(len(failures)),
        claim=promise,
        kind=claim.kind,
        claimed=claim.delta,
        bound=float(max(0.0, 1 - float(Betting(gamma=level).upper(1 - failures, bound=1.0)))),
        unit="delta",
        confidence=1 - level,
        note=f"mean {failures.mean():.2g}",
    )
