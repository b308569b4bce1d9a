"""The paper's accountant as published, where theory says that it is no bound: it must fail here, visibly.

Rare outliers that no sample of 28 shows, skewed costs, and pairwise distances together with sampling (docs/theory.md).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import numpy as np
from scipy.stats import binom, norm

from bayesdp.attack.finding import Finding
from bayesdp.attack.loss_walks import hockey_stick
from bayesdp.attack.lower_bounds import at_least
from bayesdp.attack.tilted import best_tilt, draw_runs, mean_at_least
from bayesdp.estimators import StudentT
from bayesdp.mechanisms import SubsampledGaussian
from bayesdp.paper.bayesian_accountant import BayesianAccountant, LastLambdaWarning
from bayesdp.profiles import gaussian_delta
from bayesdp.validation import FloatArray

DELTA = 1e-5
_GAMMA = 1e-15
_ALPHA = 1e-3
_RATE, _SAMPLES = 0.01, 28


def findings(seed: int, runs: int) -> Iterator[Finding]:
    """Yield how often it under-reports on outliers and on skewed costs, and what pairwise distances hide."""
    yield outliers(np.random.default_rng([seed, 8]), runs, 100 * runs)
    yield easy(np.random.default_rng([seed, 9]), runs)
    yield pairwise_distances()


def outliers(rng: np.random.Generator, runs: int, count: int, steps: int = 300) -> Finding:
    """One person in a thousand is at the clip bound, all others at a twentieth of it; 28 people are sampled per run.

    The average delta is at least that of the outliers times their share, at the median of the claimed epsilons: if that
    is above the claimed delta, at least half of the claims are too small.
    """
    share, noise = 1e-3, 0.5
    claimed: list[float] = []
    for _ in range(runs):
        accountant = _accountant(steps)
        people = np.where(rng.random(_SAMPLES) < share, 1.0, 0.05 * (1 + 1e-3 * rng.random(_SAMPLES)))
        for _ in range(steps):
            accountant.step(people, noise_std=noise, sample_rate=_RATE)
        claimed.append(_epsilon(accountant))
    epsilon, kind = float(np.median(claimed)), (_RATE, 1 / noise)
    theta, most = best_tilt(kind, steps, epsilon, record_in=True)
    drawn = draw_runs(rng, [kind], steps, np.zeros_like, theta=theta, count=count, record_in=True)
    reached = mean_at_least(drawn.weighted(hockey_stick(drawn.losses, epsilon)), most, _ALPHA)
    return Finding(
        subject=f"0.1 % outliers, {steps} steps of noise {noise:g}, {_SAMPLES} people sampled",
        attacker=f"likelihood ratio in {count} tilted runs, at the median epsilon {epsilon:.3g} of {runs} claims",
        claim="the paper's accountant as published",
        kind="model-based",
        claimed=DELTA,
        bound=share * reached,
        unit="delta",
        confidence=1 - _ALPHA,
        should_break=True,
        note="28 people hardly ever show an outlier",
    )


def easy(rng: np.random.Generator, runs: int, steps: int = 1000) -> Finding:
    """The "easy" population of docs/theory.md: lognormal norms, clipped at 1; the same 28 people at all steps.

    How often its epsilon is below the one that its own formula has with the true mean of e^{T kappa} in place of the
    estimate. Norms of a step are lognormal and clipped: the true mean is an integral over one normal variable.
    """
    lambdas = np.arange(1.0, 65.0)
    z, width = np.linspace(-9.0, 9.0, 3601, retstep=True)
    norms = np.minimum(1.0, 0.1 * np.exp(math.hypot(0.75, 0.3) * z))
    moments = steps * SubsampledGaussian(sample_rate=_RATE).log_moment(norms, lambdas)
    logs = moments + (norm.logpdf(z) + math.log(width))[:, None]
    truth = float(np.min((np.logaddexp.reduce(logs, axis=0) - math.log(DELTA)) / lambdas))
    below = 0
    for _ in range(runs):
        accountant = _accountant(steps)
        for sampled in _easy_norms(rng, _SAMPLES, steps):
            accountant.step(sampled, noise_std=1.0, sample_rate=_RATE)
        below += _epsilon(accountant) < truth * (1 - 1e-3)
    return Finding(
        subject=f"the easy population, {steps} steps of noise 1, {_SAMPLES} people sampled",
        attacker=f"{below} of {runs} claims below its own formula with the true mean",
        claim="the paper's accountant as published, its estimate",
        kind="model-based",
        claimed=steps * _GAMMA,
        bound=float(at_least(below, runs, _ALPHA)),
        unit="probability",
        confidence=1 - _ALPHA,
        should_break=True,
        note="claimed: at most the gamma of all steps; the slack of Hölder and Chernoff may still cover it",
    )


def pairwise_distances(steps: int = 100, exposure: float = 1.0) -> Finding:
    """Two people far from everyone, at distance 1 from each other in units of the noise, exchanged for one another.

    Whoever is drawn is seen to be drawn, so a step shows which of the two it was as if nothing had been sampled: the
    loss is that of k steps, k ~ Bin(steps, rate), each Gaussian. The accountant is told the distance and the rate.
    """
    accountant = _accountant(steps)
    for _ in range(steps):
        accountant.step(np.full(_SAMPLES, exposure), noise_std=1.0, sample_rate=_RATE)
    epsilon = _epsilon(accountant)
    times = np.arange(1, steps + 1)
    deltas = np.array([float(gaussian_delta(exposure * math.sqrt(drawn), epsilon)) for drawn in times.tolist()])
    return Finding(
        subject=f"{steps} steps, rate {_RATE:g}, two people far from all others",
        attacker="exact: a mixture of Gaussian profiles",
        claim="the paper's accountant as published, pairwise distances with sampling",
        kind="model-based",
        claimed=DELTA,
        bound=float(binom.pmf(times, steps, _RATE) @ deltas),
        unit="delta",
        should_break=True,
        note="distances of pairs are exact without sampling only; pass |clip(g(x))|",
    )


def _accountant(steps: int) -> BayesianAccountant:
    return BayesianAccountant(steps, estimator=StudentT(gamma=_GAMMA), conversion="chernoff", as_published=True)


def _easy_norms(rng: np.random.Generator, people: int, steps: int) -> FloatArray:
    """Return norms [steps, people]: median .1, log-sd .75 between people and .3 between steps."""
    level = 0.1 * np.exp(0.75 * rng.standard_normal(people))
    return np.minimum(1.0, level * np.exp(0.3 * rng.standard_normal((steps, people))))


def _epsilon(accountant: BayesianAccountant) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LastLambdaWarning)
        return accountant.epsilon(DELTA)
