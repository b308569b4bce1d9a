"""Proved claims about a known law: several rows, runs composed or chosen, other ways to draw batches, guesses.

Whatever event of the outputs somebody chooses, its probability with and without the record bounds delta from below:
delta >= P(A) - e^epsilon Q(A). Events here are that an output lies above, or below, a threshold; the best of a grid is
shown. Outputs are in units of the clip bound. Nothing of the accountant is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.stats import binom, norm

from bayesdp.attack.finding import Finding
from bayesdp.claims.plan import Plan
from bayesdp.guarantees.sampling_laws import epsilon as epsilon_of_draws
from bayesdp.guarantees.selection import Selection
from bayesdp.run_ledger import Ledger, compose
from bayesdp.validation import FloatArray

DELTA = 1e-5
_THRESHOLDS = np.linspace(-30.0, 30.0, 60_001)
_ATTACKER = "the best threshold of the output, in closed form"
Below = Callable[[FloatArray], FloatArray]
"""The probability that an output lies below each of some thresholds."""


def findings() -> Iterator[Finding]:
    """Yield each claim beside what the best threshold reaches."""
    for rows, rate, noise in ((3, 1.0, 8.0), (3, 0.1, 2.0)):
        yield several_rows(rows, rate, noise)
    yield composed(noises=(8.0, 5.0), steps=10)
    for mean in (3.0, 20.0):
        yield best_of(mean, steps=10, noise=10.0)
    for rate in (0.5, 0.1):
        yield from fixed_size(rate, noise=2.0)
    yield random_allocation(noise=2.0)
    for rate, noise, steps in ((1.0, 8.0, 20), (0.2, 1.0, 1)):
        yield from guesses(rate, noise, steps)


def reached(present: tuple[Below, Below], absent: tuple[Below, Below], epsilon: float) -> float:
    """Return the largest P(A) - e^epsilon Q(A) over thresholds, of both laws as P; each is (below, above)."""
    most = 0.0
    for p, q in ((present, absent), (absent, present)):
        for p_side, q_side in zip(p, q, strict=True):
            most = max(most, float(np.max(p_side(_THRESHOLDS) - math.exp(epsilon) * q_side(_THRESHOLDS))))
    return most


def mixture(
    weights: Sequence[float] | FloatArray, means: Sequence[float] | FloatArray, noise: float
) -> tuple[Below, Below]:
    """Return the distribution function of a mixture of Gaussians, and its complement."""

    def side(function: Callable[..., FloatArray]) -> Below:
        return lambda t: np.sum([w * function((t - m) / noise) for w, m in zip(weights, means, strict=True)], axis=0)

    return side(norm.cdf), side(norm.sf)


def several_rows(rows: int, rate: float, noise: float) -> Finding:
    """One step in which each row of a person is drawn by itself, and all rows point in one direction."""
    ledger = Ledger(plan=Plan(steps=1, noise_std=noise, sample_rate=rate, clip=1.0))
    ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    claim = ledger.claims(DELTA, rows=rows).for_rows
    assert claim is not None
    drawn = np.arange(rows + 1)
    within = mixture(binom.pmf(drawn, rows, rate), drawn.astype(np.float64), noise)
    return _finding(
        f"a step of rate {rate:g}, noise {noise:g}",
        f"a person with {rows} rows",
        claim.epsilon,
        reached(within, mixture([1.0], [0.0], noise), claim.epsilon),
    )


def composed(noises: Sequence[float], steps: int) -> Finding:
    """Several runs on the same people, with different noise: all their outputs together are one Gaussian."""
    ledgers: list[Ledger] = []
    for noise in noises:
        ledgers.append(Ledger(plan=Plan(steps=steps, noise_std=noise, sample_rate=1.0, clip=1.0)))
        for _ in range(steps):
            ledgers[-1].step(noise_std=noise, sample_rate=1.0, clip=1.0)
    claim = compose(ledgers).claims(DELTA).everyone
    mu = math.sqrt(sum(steps / noise**2 for noise in noises))
    return _finding(
        f"{len(noises)} runs of {steps} steps, noise {' and '.join(f'{noise:g}' for noise in noises)}",
        "everyone, runs composed",
        claim.epsilon,
        reached(mixture([1.0], [mu], 1.0), mixture([1.0], [0.0], 1.0), claim.epsilon),
    )


def best_of(mean: float, steps: int, noise: float) -> Finding:
    """Of a geometric number of runs the best by a hostile score is released; each run is one Gaussian of exposure mu.

    Somebody waits for outputs y > t. The score ranks outputs between s and t lowest, those above t next, and all others
    highest, so that what ranks below y > t is as different with and without the record as can be. E[F^K] is
    p F / (1 - (1 - p) F). In the other direction the same holds with all signs reversed.
    """
    ledger = Ledger(plan=Plan(steps=steps, noise_std=noise, sample_rate=1.0, clip=1.0), selection=Selection(mean=mean))
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0)
    ledger.mark_chosen()
    epsilon, mu, last = ledger.claims(DELTA).everyone.epsilon, math.sqrt(steps) / noise, 1 / mean
    t, s = np.linspace(-2.0, 10.0, 601)[:, None], np.linspace(-6.0, 10.0, 801)

    def released(centre: float) -> FloatArray:
        """Return the probability that an output above t is released, for every t and s."""
        above = norm.sf(t - centre)
        lower = np.maximum(norm.sf(s - centre) - above, 0.0)
        return last * above / ((1 - (1 - last) * lower) * (1 - (1 - last) * (lower + above)))

    return _finding(
        f"the best of a random number of runs, {mean:g} on average, each of {steps} steps of noise {noise:g}",
        "everyone, the best of several runs",
        epsilon,
        float(np.max(released(mu) - math.exp(epsilon) * released(0.0))),
    )


def fixed_size(rate: float, noise: float) -> Iterator[Finding]:
    """One step with batches of a fixed size: another record at -1 takes the place of one that was not drawn."""
    for law, drawn, otherwise, instead in (("fixed-size", 1.0, -1.0, -1.0), ("fixed-size, zero-out", 2.0, 1.0, 0.0)):
        epsilon = epsilon_of_draws(noise_multiplier=noise, sample_rate=rate, steps=1, delta=DELTA, sampling=law).epsilon
        laws = (mixture([rate, 1 - rate], [mean, instead], noise) for mean in (drawn, otherwise))
        yield _finding(
            f"a step of noise multiplier {noise:g}, batches of {rate:g} of all records",
            f"everyone, sampling {law}",
            epsilon,
            reached(next(laws), next(laws), epsilon),
        )


def random_allocation(noise: float) -> Finding:
    """An epoch of two steps, the record in one of them: the likelihood ratio is (e^a + e^b) / 2, an integral over a."""
    epsilon = epsilon_of_draws(
        noise_multiplier=noise, sample_rate=0.5, steps=2, delta=DELTA, sampling="random-allocation"
    ).epsilon
    first, width = np.linspace(-9 * noise, 9 * noise + 1, 100_001, retstep=True)
    half = 1 / (2 * noise**2)
    most = 0.0
    for sign in (1, -1):  # record in: the ratio is above e^epsilon; record out: below e^-epsilon
        left = 2 * math.exp(sign * epsilon) - np.exp(first / noise**2 - half)
        with np.errstate(divide="ignore", invalid="ignore"):
            edge = np.where(left > 0, noise**2 * (np.log(np.maximum(left, 1e-300)) + half), -np.inf)
        tail = norm.sf if sign == 1 else norm.cdf
        alone, other = norm.pdf(first / noise) / noise, norm.pdf((first - 1) / noise) / noise
        absent = float(np.sum(alone * tail(edge / noise)) * width)
        present = float(np.sum(other * tail(edge / noise) + alone * tail((edge - 1) / noise)) * width / 2)
        p, q = (present, absent) if sign == 1 else (absent, present)
        most = max(most, p - math.exp(epsilon) * q)
    return _finding(
        f"an epoch of two steps of noise multiplier {noise:g}", "everyone, sampling random-allocation", epsilon, most
    )


def guesses(rate: float, noise: float, steps: int) -> Iterator[Finding]:
    """What somebody gets who guesses by a threshold: one step, or several without sampling, which are one Gaussian."""
    ledger = Ledger(plan=Plan(steps=steps, noise_std=noise, sample_rate=rate, clip=1.0))
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    claims = ledger.claims(DELTA)
    risk, mu = claims.risk.everyone.risk, math.sqrt(steps) / noise
    assert risk is not None
    _, above = mixture([1 - rate, rate], [0.0, mu], 1.0)
    subject = "a step" if steps == 1 else f"{steps} steps"
    shown = [("the advantage over guessing", risk.advantage, float(np.max(above(_THRESHOLDS) - norm.sf(_THRESHOLDS))))]
    for fpr, tpr in zip(risk.fpr, risk.tpr, strict=True):
        shown.append((f"true positives at {fpr:g} false positives", tpr, float(above(np.array([norm.isf(fpr)]))[0])))
    for claim, claimed, bound in shown:
        yield Finding(
            subject=f"{subject} of rate {rate:g}, noise {noise:g}",
            attacker=_ATTACKER,
            claim=claim,
            kind=claims.risk.everyone.kind,
            claimed=claimed,
            bound=bound,
            unit="probability",
        )


def _finding(subject: str, whom: str, epsilon: float, bound: float) -> Finding:
    return Finding(
        subject=f"{subject}, epsilon {epsilon:.3g}",
        attacker=_ATTACKER,
        claim=whom,
        kind="proved",
        claimed=DELTA,
        bound=bound,
        unit="delta",
    )
