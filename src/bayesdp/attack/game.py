"""The game: thousands of small training runs with and without a record, and attackers who guess which it was.

Subjects: a record that contributes the clip bound in a direction of its own; one whose initial weights make its
gradient as long as it can be; one drawn like all others. Attackers: the likelihood ratio of everything that was
released, for someone who knows all but the record; the loss of the final model on the record. Claims are those of the
run's ledger. The gap that remains is mostly the attack's: few runs bound small probabilities badly, and an attacker who
sees the final model only has little to see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bayesdp.attack.finding import Finding
from bayesdp.attack.lab import AttackOptions
from bayesdp.attack.lower_bounds import guessing
from bayesdp.attack.one_run import guess_most_certain, one_run_epsilon, one_run_mu
from bayesdp.attack.small_training import (
    SmallTraining,
    Target,
    log_likelihood_ratios,
    target_losses,
    two_classes,
)
from bayesdp.profiles import gaussian_epsilon
from bayesdp.validation import FloatArray

TITLE = "Games on small models"
SECONDS = 60.0
DELTA = 1e-5
ALPHA = 1e-3
"""Each bound is above the truth with at most this probability."""
_D, _RECORDS, _AT_ONCE = 12, 60, 500


def attack(options: AttackOptions) -> Iterator[Finding]:
    """Yield lower bounds of epsilon for each training, record and attacker, and from a single run with canaries."""
    runs = 400 if options.small else 20_000
    rng = np.random.default_rng([options.seed, 3])
    settings = ((1.0, 4.0), (0.25, 1.0))
    games = [(*setting, name) for setting in settings for name in ("aligned", "worst start", "typical")]
    for rate, noise, name in options.track(games):
        training, target, words = _subject(rng, rate, noise, name)
        yield from play(rng, training, target, words, runs)
    canaries = 200 if options.small else 2000
    for noise in (1.0, 2.0):
        yield from single_run(rng, noise, canaries)


def play(rng: np.random.Generator, training: SmallTraining, target: Target, words: str, runs: int) -> Iterator[Finding]:
    """Yield what both attackers show against the claim for everyone, from ``runs`` runs with the target and without."""
    claim = training.ledger().claims(DELTA).everyone
    assert claim.condition is None
    ratios: dict[bool, list[FloatArray]] = {True: [], False: []}
    losses: dict[bool, list[FloatArray]] = {True: [], False: []}
    for start in range(0, runs, _AT_ONCE):
        for included in (True, False):
            releases = training.run(rng, min(_AT_ONCE, runs - start), target, included=included)
            ratios[included].append(log_likelihood_ratios(releases, training.noise_std, training.sample_rate))
            losses[included].append(-target_losses(releases, target))
    for attacker, scores in (("likelihood ratio of all releases", ratios), ("loss of the final model", losses)):
        within, without = (np.concatenate(scores[included]) for included in (True, False))
        shown = guessing(within, without, DELTA, ALPHA)
        bounds = [("", shown.epsilon)]
        if training.sample_rate == 1:
            bounds.append((", read as a Gaussian trade-off", shown.gaussian_epsilon))
        for reading, bound in bounds:
            yield Finding(
                subject=f"{words}, {training.steps} steps, rate {training.sample_rate:g}, noise multiplier "
                f"{training.noise_multiplier:g}",
                attacker=f"{attacker} in {runs} runs each{reading}",
                claim="everyone, with a plan",
                kind=claim.kind,
                claimed=claim.epsilon,
                bound=bound,
                unit="epsilon",
                confidence=1 - ALPHA,
                note=_note(reading, attacker),
            )


def single_run(rng: np.random.Generator, noise: float, canaries: int, delta: float = 1e-7) -> Iterator[Finding]:
    """Yield what one run shows in which each of many canaries is in with probability 1/2.

    No model is trained: what is released is a Gaussian vector, at the noise and the steps of the ledger.
    Canary i contributes the clip bound along coordinate i, at every one of four steps without sampling. Its score is
    the sum of the released coordinates, the best there is. The theorem pays 2 ``delta`` for every canary, so delta must
    be far below one over their number.
    """
    steps = 4
    included = (rng.random(canaries) < 0.5).astype(np.float64)
    training = SmallTraining(
        rows=np.zeros((1, 1)),
        labels=np.ones(1),
        steps=steps,
        sample_rate=1.0,
        noise_multiplier=noise,
        learning_rate=1.0,
        start=np.zeros(1),
    )
    claim = training.ledger().claims(delta).everyone
    scores: FloatArray = np.zeros(canaries)
    for _ in range(steps):
        scores += included * training.clip + training.noise(rng, (canaries,))
    guesses = 2 * (canaries // 40)
    right = guess_most_certain(scores, included, guesses)
    mu = one_run_mu(canaries, guesses, right, ALPHA)
    for reading, bound, note in (
        ("", one_run_epsilon(canaries, guesses, right, delta, ALPHA), "treats the mechanism as randomised response"),
        (
            ", read as a Gaussian trade-off",
            float(gaussian_epsilon(mu, delta)) if mu > 0 else 0.0,
            "canaries are told apart together, by inequalities that a Gaussian does not reach",
        ),
    ):
        yield Finding(
            subject=f"one run of {steps} steps with {canaries} canaries, noise multiplier {noise:g}, delta {delta:g}",
            attacker=f"{right} of {guesses} guesses right, one-run auditing{reading}",
            claim="everyone, with a plan",
            kind=claim.kind,
            claimed=claim.epsilon,
            bound=bound,
            unit="epsilon",
            confidence=1 - ALPHA,
            note=note,
        )


def _subject(rng: np.random.Generator, rate: float, noise: float, name: str) -> tuple[SmallTraining, Target, str]:
    """Return a training, the record that is attacked, and both in words."""
    rows, labels = two_classes(rng, _RECORDS, _D)
    rows[:, -1] = 0.0  # a direction in which only the canary lies
    training = SmallTraining(
        rows=rows,
        labels=labels,
        steps=16,
        sample_rate=rate,
        noise_multiplier=noise,
        learning_rate=2.0,
        start=np.zeros(_D),
    )
    if name == "aligned":
        alone = np.eye(_D)[-1]
        return training, Target(row=alone, label=-1.0, gradient=alone), "a canary with a gradient of its own"
    if name == "typical":
        own, label = two_classes(rng, 1, _D)
        return training, Target(row=own[0], label=float(label[0])), "a record like all others"
    # Weights at which all others are classified with a large margin, and the canary is wrong: only it has a gradient.
    start = np.zeros(_D)
    start[0] = 40.0
    canary = np.zeros(_D)
    canary[0], canary[-1] = 1.0, 3.0
    return replace(training, start=start), Target(row=canary, label=-1.0), "worst-case initial weights"


def _note(reading: str, attacker: str) -> str:
    if reading:
        return "holds for mechanisms whose trade-off is Gaussian, as here without sampling"
    return "few runs bound small probabilities badly" if "ratio" in attacker else "the final model shows little"
