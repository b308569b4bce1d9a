"""Attackers that look at one copy of a mechanism, right or broken, and return a p-value under what its ledger says.

A p-value is uniform, or larger, on the right mechanism. Exact attackers return 0 if the claim broke, and 1 if it stood:
no false alarm is possible.
"""

from __future__ import annotations

import contextlib

import numpy as np
from scipy.stats import binom, chi2, fisher_exact, mannwhitneyu, norm

from bayesdp.attack import exact_subjects, exact_traps, planted
from bayesdp.attack.exact import best_strategy
from bayesdp.attack.small_training import SmallTraining, Target, two_classes
from bayesdp.claims.everyone import everyone_claim
from bayesdp.claims.shares import RecordEpsilons, share_claims
from bayesdp.guarantees.worst_case import worst_case_of
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray


def little_noise(rng: np.random.Generator, broken: bool) -> float:
    """Compare the variance of the released sums, around what is known of them, with that in the ledger."""
    return _residual_p(rng, planted.LittleNoise if broken else SmallTraining)


def mean_noise(rng: np.random.Generator, broken: bool) -> float:
    """Compare the variance of the released sums, around what is known of them, with that in the ledger."""
    return _residual_p(rng, planted.NoiseOfTheMean if broken else SmallTraining)


def _residual_p(rng: np.random.Generator, kind: type[SmallTraining]) -> float:
    """All records are known and nothing is sampled, so sums are N(known, s^2 I): small chi-squares are suspicious."""
    rows, labels = two_classes(rng, 20, 6)
    training = kind(
        rows=rows,
        labels=labels,
        steps=50,
        sample_rate=1.0,
        noise_multiplier=2.0,
        learning_rate=1.0,
        start=np.zeros(6),
    )
    releases, noise_std = training.run(rng, 1), training.ledger().history.stretches[0].noise_std
    rest = (releases.sums - releases.known) / noise_std
    return float(chi2.cdf(np.sum(rest**2), rest.size))


def half_rate(rng: np.random.Generator, broken: bool) -> float:
    """Count in how many steps a canary that nobody resembles seems to be drawn: binomial under the ledger's rate."""
    steps, clip, direction = 400, 1.0, np.eye(6)[5]
    rows, labels = two_classes(rng, 20, 6)
    rows[:, 5] = 0.0
    training = (planted.HalfRate if broken else SmallTraining)(
        rows=rows,
        labels=labels,
        steps=steps,
        sample_rate=0.3,
        noise_multiplier=0.4,
        learning_rate=0.1,
        start=np.zeros(6),
    )
    canary = Target(row=direction, label=1.0, gradient=direction)
    releases = training.run(rng, 1, canary, included=True)
    seen = int(np.count_nonzero((releases.sums - releases.known)[0, :, 5] > clip / 2))
    recorded = training.ledger().history.stretches[0]
    half = clip / 2 / recorded.noise_std
    chance = recorded.sample_rate * norm.cdf(half) + (1 - recorded.sample_rate) * norm.cdf(-half)
    return float(binom.sf(seen - 1, steps, chance))


def _silent(kind: type[SmallTraining], records: int, d: int, steps: int, rate: float) -> SmallTraining:
    """Return a training whose records contribute nothing: all that is released is noise."""
    return kind(
        rows=np.zeros((records, d)),
        labels=np.ones(records),
        steps=steps,
        sample_rate=rate,
        noise_multiplier=1.0,
        learning_rate=1.0,
        start=np.zeros(d),
    )


def missing_steps(rng: np.random.Generator, broken: bool) -> float:
    """Compare the length of the final model of a run that only adds noise with the steps of the ledger."""
    training = _silent(planted.MissingSteps if broken else SmallTraining, 8, 10_000, 20, 1.0)
    moved = training.run(rng, 1).weights * training.batch / training.learning_rate
    variance = sum(stretch.steps * stretch.noise_std**2 for stretch in training.ledger().history.stretches)
    return float(chi2.sf(np.sum(moved**2) / variance, moved.size))


def own_batch_size(rng: np.random.Generator, broken: bool) -> float:
    """Compare the variance of each step with the ledger's: if it changes, it tells how many records were drawn."""
    training = _silent(planted.OwnBatchSize if broken else SmallTraining, 64, 2000, 20, 0.25)
    squares: FloatArray = (
        np.sum(training.run(rng, 1).sums[0] ** 2, axis=1) / training.ledger().history.stretches[0].noise_std ** 2
    )
    below: FloatArray = chi2.cdf(squares, 2000)
    above: FloatArray = chi2.sf(squares, 2000)
    return min(1.0, 2 * len(squares) * float(np.minimum(below, above).min()))


def rounded_down(rng: np.random.Generator, broken: bool) -> float:
    """Compare the costs that a ledger keeps with exact ones: lambda (lambda + 1) / 2 times the squared exposures."""
    exposures, order = rng.uniform(0.01, 1.0, (5, 20)), 4.0
    with planted.rounding_down() if broken else contextlib.nullcontext():
        ledger = Ledger()
        for norms in exposures:
            ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=norms)
        costs = ledger.costs([order])[:, 0]
    exact = order * (order + 1) / 2 * np.sum(exposures**2, axis=0)
    return 0.0 if (costs < exact * (1 - 1e-12)).any() else 1.0


def no_gamma(rng: np.random.Generator, broken: bool) -> float:
    """Count how often the epsilon of a share is below the true quantile of people whose epsilons are uniform."""
    records, share, gamma, draws = 60, 0.5, 0.05, 60
    worst_case = everyone_claim(worst_case_of([(1.0, 1.0, 1)]))
    missed = 0
    with planted.gamma_dropped() if broken else contextlib.nullcontext():
        for _ in range(draws):
            people: FloatArray = rng.random(records)
            claims = share_claims(
                RecordEpsilons(people, people, "none"),
                (share,),
                delta=1e-5,
                gamma=gamma,
                note="",
                group=None,
                worst_case=worst_case,
            )
            missed += claims[0].ex_post.epsilon < share
    return float(binom.sf(missed - 1, draws, gamma))


def audit_trained_on(rng: np.random.Generator, broken: bool) -> float:
    """Compare costs of audit records with those of people nobody saw: a model that fits its data flatters the data."""
    people, d = 30, 60
    rows, labels = rng.standard_normal((3 * people, d)) / np.sqrt(d), rng.choice([-1.0, 1.0], 3 * people)
    training = SmallTraining(
        rows=rows[:people],
        labels=labels[:people],
        steps=60,
        sample_rate=1.0,
        noise_multiplier=0.2,
        learning_rate=20.0,
        start=np.zeros(d),
    )
    releases = training.run(rng, 1)
    audit = np.arange(people) if broken else np.arange(people, 2 * people)
    chosen = np.concatenate([audit, np.arange(2 * people, 3 * people)])
    costs = training.ledger(training.norms(releases, rows[chosen], labels[chosen])[0]).costs([8.0])[:, 0]
    return float(mannwhitneyu(costs[:people], costs[people:], alternative="less", method="exact").pvalue)


def equal_seeds(rng: np.random.Generator, broken: bool) -> float:
    """Look whether two canaries, one on each of two ranks, show in the same steps: Fisher's exact test.

    No guard of an adapter is asked; what is released is all that is seen. Each canary has a direction that no other
    record has. Under Poisson sampling whether one of them shows says nothing about the other.
    """
    rows, labels = two_classes(rng, 20, 6)
    rows[:, 4:] = 0.0
    for number, (canary, direction) in enumerate(((0, 4), (10, 5))):  # at the same place on both ranks
        rows[canary] = 0.0
        rows[canary, direction] = 50.0
        labels[canary] = (1.0, -1.0)[number]
    training = (planted.EqualSeeds if broken else SmallTraining)(
        rows=rows,
        labels=labels,
        steps=200,
        sample_rate=0.2,
        noise_multiplier=0.3,
        learning_rate=1e-4,
        start=np.zeros(6),
    )
    shown = np.abs(training.run(rng, 1).sums[0, :, 4:]) > training.clip / 2
    table = np.array([[int(np.sum((shown == (a, b)).all(axis=1))) for b in (True, False)] for a in (True, False)])
    return float(fisher_exact(table, alternative="greater").pvalue)


def stopping(rng: np.random.Generator, broken: bool) -> float:
    """Let the best strategy attack the figure of the steps taken, or that of a plan, at a random exposure."""
    exposure = float(rng.uniform(0.05, 0.3))
    if broken:
        return _p(exact_traps.steps_taken(exposure, 10))
    return _p(exact_subjects.planned(1.0, exposure, 10, quieter=False))


def dropout(rng: np.random.Generator, broken: bool) -> float:
    """Compare the charge for one draw of dropout, or for all, with the law of the mixture, at random settings."""
    exposure, kept = float(rng.uniform(0.3, 0.8)), float(rng.uniform(0.3, 0.7))
    finding = exact_traps.dropout_at_one_draw(4, exposure, kept, charge_all=not broken)
    return 1.0 if finding.stands else 0.0


def budget_by_pld(rng: np.random.Generator, broken: bool) -> float:
    """Let the best strategy attack a budget that is asked by PLD, or the declared one, at a random epsilon."""
    epsilon = float(rng.uniform(0.9, 1.2))
    if broken:
        return _p(exact_traps.budget_by_pld(epsilon, most=10))
    return _p(exact_subjects.budget(((0.05, 0.8), (1.0, 0.12)), 10, epsilon))


def _p(subject: exact_subjects.Subject) -> float:
    return 1.0 if all(finding.stands for finding in best_strategy(subject)) else 0.0
