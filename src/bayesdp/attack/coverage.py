"""Coverage from end to end: how often claims of whole runs are too small, on runs whose law is known.

The runs are those of ``populations``: the truth is the law of a person's cost for shares, the exact mean of people's
profiles for the average, and the person's own figure for members. A claim of confidence 1 - gamma may be too small in
gamma of all runs. Figures are judged as they are printed: where the guarantee for everyone stands in the place of one,
it cannot be too small, as long as that guarantee holds, which other attacks are about; it is said in how many runs the
figure was its own. For shares the figure behind the cap is judged too, in all runs. What is promised before a run,
by a plan, a budget or a gate, is in ``coverage_promises``.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from bayesdp.attack import coverage_promises as promises
from bayesdp.attack.finding import Finding, rate_at_least
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.populations import POPULATIONS, STRATA, Population
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.paper.bayesian_accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.validation import FloatArray

TITLE = "Coverage of claims from end to end"
SECONDS = 900.0
LEVEL = 1e-4
"""The probability that one claim that holds as promised is called broken."""
DELTA, SHARES, MEMBER_SHARES = 1e-5, (0.5, 0.9), (0.5, 0.8)
AUDITS = ((80, 0.05), (300, 0.01))
"""Audit records, and gamma. With the first the paper's estimator is judged too, and a small attack has no other."""
_ALL_SHARES = tuple(sorted({*SHARES, *MEMBER_SHARES}))
RUNS, SMALL_RUNS = 2000, 12
_AVERAGE = "the average, norms fixed beforehand"
_PUBLISHED = "as published (Student-t, gamma 1e-15)"


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield, for each population and claim, a lower bound of how often the claim is too small; then promises."""
    runs = SMALL_RUNS if options.small else RUNS
    for number, population in enumerate(POPULATIONS):
        for records, gamma in AUDITS[:1] if options.small else AUDITS:
            rng = np.random.default_rng([options.seed, number, records])
            published = records == AUDITS[0][0] and not options.small  # whether it fails often enough takes more runs
            promised = _promises(gamma, published)
            judged, misses = _counted(population, rng, options.track(range(runs)), records, gamma, published)
            for claim, most in promised.items():
                yield Finding(
                    subject=f"{population.name}, {runs} runs, {records} audit records",
                    attacker=f"counting runs in which the claim is too small, judged in {judged[claim]} of {runs}",
                    claim=claim,
                    kind="model-based" if claim == _PUBLISHED else "ex-post",
                    claimed=most,
                    bound=rate_at_least(misses[claim], runs, LEVEL),
                    unit="probability",
                    confidence=1 - LEVEL,
                    should_break=claim == _PUBLISHED and "outliers" in population.name,
                    note=f"too small in {misses[claim]} runs",
                )
            yield from promises.gates(population, rng, runs, records, gamma, LEVEL)
    rng = np.random.default_rng([options.seed, len(POPULATIONS)])
    many = promises.SMALL_RUNS if options.small else promises.RUNS
    yield from promises.plans(rng, many, LEVEL)
    yield from promises.budgets(rng, many, LEVEL)


def _counted(
    population: Population, rng: np.random.Generator, runs: Iterable[int], records: int, gamma: float, published: bool
) -> tuple[Counter[str], Counter[str]]:
    """Return in how many runs each claim had a figure of its own, and in how many that was too small."""
    judged, misses = Counter[str](), Counter[str]()

    def judge(name: str, own: bool, missed: bool) -> None:
        judged[name] += own
        misses[name] += bool(own and missed)

    norms, weights = population.everybody()
    everybody = RecordFigures(population.ledger(norms), DELTA, math.inf).ex_post
    average_epsilon = population.average_epsilon(DELTA)
    for _ in runs:
        audit = population.norms(rng, records)
        claims = population.ledger(audit).claims(DELTA, gamma, _ALL_SHARES)
        for share in SHARES:
            claim = claims.share(share).ex_post
            capped = claim.own_epsilon is not None
            epsilon = claim.own_epsilon if claim.own_epsilon is not None else claim.epsilon
            covered = float(weights[everybody <= epsilon * (1 + 1e-12)].sum())
            judge(_printed(share), not capped, covered + 1 / STRATA < share)
            judge(_behind(share), True, covered + 1 / STRATA < share)
        own = population.norms(rng, 1, member=True)
        epsilon = RecordFigures(population.ledger(own), DELTA, math.inf).ex_post_in[0]
        for claim in claims.members:
            if claim.share in MEMBER_SHARES:
                judge(_member(claim.share), claim.reason is None and claim.own_epsilon is None, epsilon > claim.epsilon)
        average = claims.average  # with fixed_exposures=True it has the same figure, and is proved
        judge(_AVERAGE, average.reason is None, average.epsilon < average_epsilon)
        if published:
            judge(_PUBLISHED, True, _published_epsilon(population, audit) < average_epsilon)
    return judged, misses


def _promises(gamma: float, published: bool) -> dict[str, float]:
    """Return how often each claim may be too small."""
    shares = {name(share): gamma for name in (_printed, _behind) for share in SHARES}
    members = {_member(share): 1 - share for share in MEMBER_SHARES}
    return {**shares, **members, _AVERAGE: gamma, **({_PUBLISHED: gamma} if published else {})}


def _printed(share: float) -> str:
    return f"{share:.0%} of people, ex-post, as printed"


def _behind(share: float) -> str:
    return f"{share:.0%} of people, ex-post, before the cap"


def _member(share: float) -> str:
    return f"a member, with {share:.0%}"


def _published_epsilon(population: Population, audit: FloatArray) -> float:
    """Return the paper's epsilon from these people, as if norms were fixed."""
    accountant = BayesianAccountant(total_steps=2, lambdas=range(1, 65), as_published=True)
    for row in audit:
        accountant.step(row, noise_std=population.noise, sample_rate=population.sample_rate, clip=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        return accountant.epsilon(DELTA)
