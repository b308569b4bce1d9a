"""Coverage from end to end: how often claims of whole runs are too small, on runs whose law is known.

The runs are those of ``populations``: the truth is the law of a person's cost for shares, the exact mean of Gaussian
profiles for the average, and the person's own figure for members. A claim of confidence 1 - gamma may be too small in
gamma of all runs. Figures are judged as they are printed: where the guarantee for everyone stands in the place of one,
it cannot be too small, as long as that guarantee holds, which other attacks are about; it is said in how many runs the
figure was its own. For shares the figure behind the cap is judged too, in all runs. What is promised before a run,
by a plan, a budget or a gate, is in ``coverage_promises``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np

from bayesdp.attack import coverage_promises as promises
from bayesdp.attack.finding import Finding, rate_at_least
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.populations import POPULATIONS, STRATA, Population
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.paper.bayesian_accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.profiles import gaussian_delta
from bayesdp.validation import FloatArray

TITLE = "Coverage of claims from end to end"
SECONDS = 400.0
LEVEL = 1e-4
"""The probability that one claim that holds as promised is called broken."""
DELTA, GAMMA, SHARES, MEMBER_SHARES = 1e-5, 0.05, (0.5, 0.9), (0.5, 0.8)
_ALL_SHARES = tuple(sorted({*SHARES, *MEMBER_SHARES}))
RUNS, SMALL_RUNS, AUDIT_RECORDS = 2000, 12, 80
_AVERAGE = "the average, norms fixed beforehand"
_PUBLISHED = "as published (Student-t, gamma 1e-15)"


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield, for each population and claim, a lower bound of how often the claim is too small; then promises."""
    runs = SMALL_RUNS if options.small else RUNS
    for number, population in enumerate(POPULATIONS):
        rng = np.random.default_rng([options.seed, number])
        misses = dict.fromkeys([*_promises()], 0)
        judged = dict.fromkeys([*_promises()], 0)
        norms, weights = population.everybody()
        costs = (norms**2).sum(axis=0) / population.noise**2
        everybody = RecordFigures(population.ledger(norms), DELTA, math.inf).ex_post
        for _ in options.track(range(runs)):
            audit = population.norms(rng, AUDIT_RECORDS)
            claims = population.ledger(audit).claims(DELTA, GAMMA, _ALL_SHARES)
            for share in SHARES:
                claim = claims.share(share).ex_post
                capped = claim.own_epsilon is not None
                epsilon = claim.own_epsilon if claim.own_epsilon is not None else claim.epsilon
                covered = float(weights[everybody <= epsilon * (1 + 1e-12)].sum())
                missed = covered + 1 / STRATA < share
                for name, counted in ((_printed(share), not capped), (_behind(share), True)):
                    judged[name] += counted
                    misses[name] += counted and missed
            own = population.norms(rng, 1, member=True)
            epsilon = RecordFigures(population.ledger(own), DELTA, math.inf).ex_post_in[0]
            for claim in claims.members:
                name = f"a member, with {claim.share or 0:.0%}"
                if name in misses and claim.reason is None and claim.own_epsilon is None:
                    judged[name] += 1
                    misses[name] += bool(epsilon > claim.epsilon)
            average = claims.average  # with fixed_exposures=True it has the same figure, and is proved
            truth = float(weights @ gaussian_delta(np.sqrt(costs), average.epsilon)) if average.reason is None else 0.0
            judged[_AVERAGE] += average.reason is None
            misses[_AVERAGE] += truth > DELTA * (1 + 1e-6)
            judged[_PUBLISHED] += 1
            misses[_PUBLISHED] += _published_misses(population, audit, weights, costs)
        for claim, promised in _promises().items():
            if options.small and claim == _PUBLISHED:
                continue  # whether it fails often enough takes more runs
            yield Finding(
                subject=f"{population.name}, {runs} runs, {AUDIT_RECORDS} audit records",
                attacker=f"counting runs in which the claim is too small, judged in {judged[claim]} of {runs}",
                claim=claim,
                kind="model-based" if claim == _PUBLISHED else "ex-post",
                claimed=promised,
                bound=rate_at_least(misses[claim], runs, LEVEL),
                unit="probability",
                confidence=1 - LEVEL,
                should_break=claim == _PUBLISHED and "outliers" in population.name,
                note=f"too small in {misses[claim]} runs",
            )
        yield from promises.gates(population, rng, runs, AUDIT_RECORDS, LEVEL)
    rng = np.random.default_rng([options.seed, len(POPULATIONS)])
    many = promises.SMALL_RUNS if options.small else promises.RUNS
    yield from promises.plans(rng, many, LEVEL)
    yield from promises.budgets(rng, many, LEVEL)


def _promises() -> dict[str, float]:
    """Return how often each claim may be too small."""
    shares = {name(share): GAMMA for name in (_printed, _behind) for share in SHARES}
    members = {f"a member, with {share:.0%}": 1 - share for share in MEMBER_SHARES}
    return {**shares, **members, _AVERAGE: GAMMA, _PUBLISHED: GAMMA}


def _printed(share: float) -> str:
    return f"{share:.0%} of people, ex-post, as printed"


def _behind(share: float) -> str:
    return f"{share:.0%} of people, ex-post, before the cap"


def _published_misses(population: Population, audit: FloatArray, weights: FloatArray, costs: FloatArray) -> bool:
    """Return whether the paper's epsilon, from these people as if norms were fixed, is below the true average's."""
    accountant = BayesianAccountant(total_steps=2, lambdas=range(1, 65), as_published=True)
    for row in audit:
        accountant.step(row, noise_std=population.noise, sample_rate=1.0, clip=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        epsilon = accountant.epsilon(DELTA)
    return float(weights @ gaussian_delta(np.sqrt(costs), epsilon)) > DELTA * (1 + 1e-6)
