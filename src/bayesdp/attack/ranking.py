"""Do people with a larger claimed epsilon leak more? The ranks of claims beside the ranks of what attackers achieve.

For each of many records, runs with and without it are told apart, by the likelihood ratio of everything released or by
the final model's loss; the area under the attacker's ROC curve is how well. The claimed epsilons come from ledgers of
the same training: for audit records, of runs without them; for members, of runs with them.

Claims are about everything that was released. So they must go together with what the likelihood ratio achieves, among
all people and also within each half of them, those with the smaller and those with the larger figures: a claim about a
share is about who is in it. The final model may have forgotten what early steps showed, and need not agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.stats import rankdata

from bayesdp.attack.finding import Ranking
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.small_training import SmallTraining, Target, log_likelihood_ratios, target_losses, two_classes
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.validation import FloatArray

TITLE = "Ranks of claims and of leaks"
SECONDS = 60.0
DELTA = 1e-5
ALL_RELEASES, FINAL_MODEL = "likelihood ratio of all releases", "loss of the final model"
_LEDGERS = 5
_RESAMPLES = 2000


def attack(options: AttackOptions) -> Iterator[Ranking]:
    """Yield rankings for each figure, for audit records and for members and halves of them, under both attackers."""
    rng = np.random.default_rng([options.seed, 4])
    records, runs = (12, 200) if options.small else (80, 2000)
    rows, labels = two_classes(rng, 60 + records, 12)
    people = [Target(row=row, label=float(label)) for row, label in zip(rows[60:], labels[60:], strict=True)]
    outside = SmallTraining(
        rows=rows[:60],
        labels=labels[:60],
        steps=16,
        sample_rate=0.5,
        noise_multiplier=1.0,
        learning_rate=2.0,
        start=np.zeros(12),
    )
    inside = replace(outside, rows=rows, labels=labels)
    for audience, members in (("audit records", False), ("members", True)):
        figures = claimed_epsilons(rng, inside if members else outside, people, members=members)
        leaks: dict[str, list[float]] = {ALL_RELEASES: [], FINAL_MODEL: []}
        for number, person in enumerate(options.track(people)):
            training = inside.without(60 + number) if members else outside
            for attacker, area in areas(rng, training, person, runs).items():
                leaks[attacker].append(area)
        for attacker, found in leaks.items():
            for figure, epsilons in figures.items():
                yield from ranked_by_share(rng, audience, attacker, figure, epsilons, np.array(found))


def claimed_epsilons(
    rng: np.random.Generator, training: SmallTraining, people: list[Target], *, members: bool
) -> dict[str, FloatArray]:
    """Return the figures of each person [k], as the mean over a few runs of the training.

    For someone left out: the estimate and the ex-post epsilon. For members, who are in the data: their own ex-post
    epsilon, record in, which is private and stays in the lab, and the estimate.
    """
    rows, labels = np.stack([person.row for person in people]), np.array([person.label for person in people])
    names = ("estimate", "ex-post of a member") if members else ("estimate", "ex-post")
    kept: dict[str, list[FloatArray]] = {name: [] for name in names}
    norms = training.norms(training.run(rng, _LEDGERS), rows, labels)
    for one_run in norms:
        ledger = training.ledger(one_run)
        figures = RecordFigures(ledger, DELTA, ledger.worst_case(DELTA).epsilon)
        kept["estimate"].append(figures.estimates)
        kept[names[1]].append(figures.ex_post_in if members else figures.ex_post)
    return {name: np.mean(values, axis=0) for name, values in kept.items()}


def areas(rng: np.random.Generator, training: SmallTraining, person: Target, runs: int) -> dict[str, float]:
    """Return the area under the ROC curve of each attacker, from ``runs`` runs with the person and as many without."""
    scores = [
        (log_likelihood_ratios(releases, training.noise_std, training.sample_rate), -target_losses(releases, person))
        for included in (True, False)
        for releases in (training.run(rng, runs, person, included=included),)
    ]
    ratio, loss = (area_under_curve(scores[0][place], scores[1][place]) for place in range(2))
    return {ALL_RELEASES: ratio, FINAL_MODEL: loss}


def area_under_curve(within: FloatArray, without: FloatArray) -> float:
    """Return the probability that a score of ``within`` exceeds one of ``without``, ties counted half."""
    ranks = rankdata(np.concatenate([within, without]))[: len(within)]
    return float((ranks.sum() - len(within) * (len(within) + 1) / 2) / (len(within) * len(without)))


def spearman(first: FloatArray, second: FloatArray) -> float:
    """Return Spearman's rank correlation; NaN if all values of one are equal."""
    return float(_correlations(first[None], second[None])[0])


def _correlations(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return Spearman's rank correlation of each pair of rows, [R] for arrays [R, n]."""
    middle = (first.shape[1] + 1) / 2
    ranks, others = rankdata(first, axis=1) - middle, rankdata(second, axis=1) - middle
    sizes = np.sqrt(np.sum(ranks**2, axis=1) * np.sum(others**2, axis=1))
    return np.sum(ranks * others, axis=1) / np.where(sizes > 0, sizes, math.nan)


def ranked_by_share(
    rng: np.random.Generator, audience: str, attacker: str, figure: str, epsilons: FloatArray, leaks: FloatArray
) -> Iterator[Ranking]:
    """Yield the ranking of all people, and those within the half with the smaller and with the larger figures."""
    smaller, larger = np.array_split(np.argsort(epsilons, kind="stable"), 2)
    for part, share in ((slice(None), ""), (smaller, ", the half with less"), (larger, ", the half with more")):
        yield ranked(rng, audience + share, attacker, figure, epsilons[part], leaks[part])


def ranked(
    rng: np.random.Generator, audience: str, attacker: str, figure: str, epsilons: FloatArray, leaks: FloatArray
) -> Ranking:
    """Return the rank correlation with a 95 % bootstrap interval over records."""
    people = len(epsilons)
    drawn = rng.integers(people, size=(_RESAMPLES, people))
    resampled = _correlations(epsilons[drawn], leaks[drawn])
    low, high = np.nanquantile(resampled, [0.025, 0.975]).tolist()
    return Ranking(
        subject=audience,
        attacker=attacker,
        figure=figure,
        records=people,
        correlation=spearman(epsilons, leaks),
        low=low,
        high=high,
        must_agree=attacker == ALL_RELEASES,
    )
