"""Coverage from end to end: how often claims of whole runs are too small, on runs whose law is known.

Everybody goes through a first step; a second one is loud for those whose first output was large, so that exposures
depend on what was released, and taking part makes one's own later steps louder. Without sampling, so that costs are
sums of squares and the truth is known: the law of a person's cost for shares, the exact mean of Gaussian profiles for
the average, the person's own figure for members. A claim of confidence 1 - gamma may be too small in gamma of all runs.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from bayesdp.attack.finding import Finding, rate_at_least
from bayesdp.attack.lab import AttackOptions
from bayesdp.claims.plan import Plan
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.paper.bayesian_accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.profiles import gaussian_delta
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

TITLE = "Coverage of claims from end to end"
SECONDS = 400.0
LEVEL = 1e-4
"""The probability that one claim that holds as promised is called broken."""
DELTA, GAMMA, SHARES, MEMBER_SHARES = 1e-5, 0.05, (0.5, 0.9), (0.5, 0.8)
RUNS, SMALL_RUNS, AUDIT_RECORDS = 2000, 12, 80
_STRATA = 4001
_PUBLISHED = "as published (Student-t, gamma 1e-15)"


@dataclass(frozen=True, kw_only=True)
class Population:
    """People by their first norm, and when their second step is loud.

    ``quantile(u)`` is the first norm, at most 1, of someone at place u in (0, 1). The second norm is 1 if the first
    output along the person's own direction, N(0, 1) without the person and N(first / noise, 1) with them, passes
    ``threshold``, and a fifth of the first otherwise.
    """

    name: str
    quantile: Callable[[FloatArray], FloatArray]
    threshold: float
    noise: float = 4.0

    def norms(self, rng: np.random.Generator, people: int, *, member: bool = False) -> FloatArray:
        """Return the norms of both steps, [2, people]."""
        first = self.quantile(rng.random(people))
        output = rng.standard_normal(people) + (first / self.noise if member else 0.0)
        return np.stack([first, np.where(output > self.threshold, 1.0, first / 5)])

    def ledger(self, norms: FloatArray) -> Ledger:
        """Return the ledger of a run in which audit records have these norms, [2, m]."""
        settings: dict[str, Any] = {"noise_std": self.noise, "sample_rate": 1.0, "clip": 1.0}
        ledger = Ledger(plan=Plan(steps=2, **settings))
        for row in norms:
            ledger.step(**settings, audit=row)
        return ledger

    def everybody(self) -> tuple[FloatArray, FloatArray]:
        """Return norms [2, 2n] at evenly spaced places, quiet and loud, and the weight of each, [2n]."""
        first = self.quantile((np.arange(_STRATA) + 0.5) / _STRATA)
        loud = float(ndtr(-self.threshold))
        norms = np.concatenate([np.stack([first, first / 5]), np.stack([first, np.ones(_STRATA)])], axis=1)
        return norms, np.repeat([(1 - loud) / _STRATA, loud / _STRATA], _STRATA)


def _lognormal(median: float, deviation: float) -> Callable[[FloatArray], FloatArray]:
    return lambda u: np.minimum(1.0, median * np.exp(deviation * ndtri(u)))


def _outliers(share: float) -> Callable[[FloatArray], FloatArray]:
    return lambda u: np.where(u > 1 - share, 1.0, 0.05 + 0.01 * u)


POPULATIONS = (
    Population(name="lognormal norms", quantile=_lognormal(0.3, 0.7), threshold=1.5),
    Population(name="2 % outliers", quantile=_outliers(0.02), threshold=3.0),
    Population(name="much noise against loud people", quantile=_lognormal(0.6, 0.3), threshold=0.5, noise=12.0),
)


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield, for each population and claim, a lower bound of how often the claim is too small."""
    runs = SMALL_RUNS if options.small else RUNS
    for number, population in enumerate(POPULATIONS):
        rng = np.random.default_rng([options.seed, number])
        misses = dict.fromkeys([*_promises()], 0)
        norms, weights = population.everybody()
        costs = (norms**2).sum(axis=0) / population.noise**2
        everybody = RecordFigures(population.ledger(norms), DELTA, math.inf).ex_post
        for _ in options.track(range(runs)):
            audit = population.norms(rng, AUDIT_RECORDS)
            claims = population.ledger(audit).claims(DELTA, GAMMA, SHARES)
            for share in SHARES:
                claim = claims.share(share).ex_post
                epsilon = claim.epsilon if claim.own_epsilon is None else claim.own_epsilon
                covered = float(weights[everybody <= epsilon * (1 + 1e-12)].sum())
                misses[f"{share:.0%} of people, ex-post"] += covered + 1 / _STRATA < share
            own = population.norms(rng, 1, member=True)
            epsilon = RecordFigures(population.ledger(own), DELTA, math.inf).ex_post_in[0]
            for claim in claims.members:
                name = f"a member, with {claim.share or 0:.0%}"
                if name in misses and claim.reason is None and claim.own_epsilon is None:
                    misses[name] += bool(epsilon > claim.epsilon)
            fixed = population.ledger(audit).claims(DELTA, GAMMA, SHARES, fixed_exposures=True).average
            truth = float(weights @ gaussian_delta(np.sqrt(costs), fixed.epsilon)) if fixed.reason is None else 0.0
            misses["the average, norms fixed beforehand"] += truth > DELTA * (1 + 1e-6)
            misses[_PUBLISHED] += _published_misses(population, audit, weights, costs)
        for claim, promised in _promises().items():
            if options.small and claim == _PUBLISHED:
                continue  # whether it fails often enough takes more runs
            yield Finding(
                subject=f"{population.name}, {runs} runs, {AUDIT_RECORDS} audit records",
                attacker="counting runs in which the claim is too small",
                claim=claim,
                kind="model-based" if claim == _PUBLISHED else "ex-post",
                claimed=promised,
                bound=rate_at_least(misses[claim], runs, LEVEL),
                unit="probability",
                confidence=1 - LEVEL,
                should_break=claim == _PUBLISHED and "outliers" in population.name,
                note=f"too small in {misses[claim]} runs",
            )


def _promises() -> dict[str, float]:
    """Return how often each claim may be too small."""
    shares = {f"{share:.0%} of people, ex-post": GAMMA for share in SHARES}
    members = {f"a member, with {share:.0%}": 1 - share for share in MEMBER_SHARES}
    others = {"the average, norms fixed beforehand": GAMMA, _PUBLISHED: GAMMA}
    return {**shares, **members, **others}


def _published_misses(population: Population, audit: FloatArray, weights: FloatArray, costs: FloatArray) -> bool:
    """Return whether the paper's epsilon, from these people as if norms were fixed, is below the true average's."""
    accountant = BayesianAccountant(total_steps=2, lambdas=range(1, 65), as_published=True)
    for row in audit:
        accountant.step(row, noise_std=population.noise, sample_rate=1.0, clip=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        epsilon = accountant.epsilon(DELTA)
    return float(weights @ gaussian_delta(np.sqrt(costs), epsilon)) > DELTA * (1 + 1e-6)
