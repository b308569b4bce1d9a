"""A small training run with DP-SGD, made many times at once: the subject of games and of planted bugs.

Logistic regression: each record, drawn with probability q, adds its gradient, clipped to norm C; the sum gets Gaussian
noise of standard deviation z C and is divided by the expected batch size. Thousands of runs with fresh random numbers
are one array, so that an attacker can count. What software would get wrong stands in methods of its own, which
``planted.py`` replaces to make broken copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from bayesdp.claims.plan import Plan
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray

Draws = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The record whose presence is the secret: a row with its label, or a gradient of the attacker's own choice.

    ``gradient`` [d], if given, is what it contributes at every step, whatever the weights are.
    """

    row: FloatArray
    label: float
    gradient: FloatArray | None = None


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What R runs released, and what an attacker knows who knows everything but whether the target was in the data.

    ``sums`` [R, T, d]: the released noisy sums. ``known`` [R, T, d]: the sums of all other records that were drawn, at
    the weights of that step. ``own`` [R, T, d]: what the target contributes if it is drawn. ``weights`` [R, d]: the
    final models.
    """

    sums: FloatArray
    known: FloatArray
    own: FloatArray
    weights: FloatArray


@dataclass(frozen=True, kw_only=True)
class SmallTraining:
    """Data [n, d] with labels of -1 and 1, and the settings of the run; ``start`` [d] are the initial weights."""

    rows: FloatArray
    labels: FloatArray
    steps: int
    sample_rate: float
    noise_multiplier: float
    learning_rate: float
    start: FloatArray
    clip: float = 1.0

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on the sum, as it is accounted for."""
        return self.noise_multiplier * self.clip

    @property
    def batch(self) -> float:
        """The expected batch size, by which sums are divided."""
        return self.sample_rate * max(len(self.rows), 1)

    def plan(self) -> Plan:
        """Return the plan that is declared before the run."""
        return Plan(steps=self.steps, noise_std=self.noise_std, sample_rate=self.sample_rate, clip=self.clip)

    def ledger(self, audit: FloatArray | None = None) -> Ledger:
        """Return the ledger of a run; ``audit`` [T, m] are norms of audit records."""
        ledger = Ledger(plan=self.plan())
        for step in range(self.steps):
            self.record(ledger, step, None if audit is None else audit[step])
        return ledger

    def record(self, ledger: Ledger, step: int, norms: FloatArray | None) -> None:
        """Write one step into the ledger."""
        ledger.step(noise_std=self.noise_std, sample_rate=self.sample_rate, clip=self.clip, audit=norms)

    def without(self, number: int) -> SmallTraining:
        """Return the same run on data that lacks one record."""
        return replace(self, rows=np.delete(self.rows, number, 0), labels=np.delete(self.labels, number))

    # What is drawn and released

    def draws(self, rng: np.random.Generator, runs: int, records: int) -> Draws:
        """Return who is drawn, [R, records]."""
        return rng.random((runs, records)) < self.sample_rate

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
        """Return the noise on the sum."""
        return rng.normal(0.0, self.noise_std, shape)

    def mean(self, noisy_sum: FloatArray, drawn: FloatArray) -> FloatArray:
        """Return the released mean gradient [R, d]; ``drawn`` [R] are the batch sizes, which must not be used."""
        return noisy_sum / self.batch

    def run(
        self, rng: np.random.Generator, runs: int, target: Target | None = None, *, included: bool = False
    ) -> Releases:
        """Train ``runs`` times, with the target in the data if it is ``included``."""
        d = self.rows.shape[1]
        weights: FloatArray = np.tile(self.start, (runs, 1))
        sums, known, own = (np.zeros((runs, self.steps, d)) for _ in range(3))
        for step in range(self.steps):
            drawn = self.draws(rng, runs, len(self.rows))
            known[:, step] = (drawn * clipped_factors(weights, self.rows, self.labels, self.clip)) @ self.rows
            total, sizes = known[:, step].copy(), drawn.sum(axis=1).astype(np.float64)
            if target is not None:
                own[:, step] = target_gradients(weights, target, self.clip)
                if included:
                    taken = self.draws(rng, runs, 1)
                    total += taken * own[:, step]
                    sizes += taken[:, 0]
            mean = self.mean(total + self.noise(rng, total.shape), sizes)
            sums[:, step] = mean * self.batch
            weights = weights - self.learning_rate * mean
        return Releases(sums=sums, known=known, own=own, weights=weights)

    def norms(self, releases: Releases, rows: FloatArray, labels: FloatArray) -> FloatArray:
        """Return the gradient norms of records along the runs, [R, T, m], before clipping."""
        moves = self.learning_rate * releases.sums / self.batch
        weights = self.start - np.cumsum(moves, axis=1) + moves  # before each step
        margins = labels * (weights @ rows.T)
        return expit(-margins) * np.linalg.norm(rows, axis=1)


def clipped_factors(weights: FloatArray, rows: FloatArray, labels: FloatArray, clip: float) -> FloatArray:
    """Return f [R, n] such that the clipped gradient of record i at the weights of run r is f[r, i] rows[i]."""
    factors = -labels * expit(-labels * (weights @ rows.T))
    norms = np.abs(factors) * np.linalg.norm(rows, axis=1)
    return factors * np.minimum(1.0, clip / np.maximum(norms, 1e-300))


def target_gradients(weights: FloatArray, target: Target, clip: float) -> FloatArray:
    """Return the clipped gradient of the target at the weights [R, d] of each run, [R, d]."""
    if target.gradient is not None:
        return np.broadcast_to(target.gradient * min(1.0, clip / float(np.linalg.norm(target.gradient))), weights.shape)
    row = target.row[None]
    return clipped_factors(weights, row, np.array([target.label]), clip) * row


def log_likelihood_ratios(releases: Releases, noise_std: float, sample_rate: float) -> FloatArray:
    """Return log p_in / p_out of each run, [R], for who knows all but the target: the sum over steps of its losses.

    One step shows r = released sum - known sum, which is N(0, s^2 I), or with probability q N(c, s^2 I): the loss is
    log(1 - q + q exp((r c - |c|^2 / 2) / s^2)). Whom else was drawn is known to this attacker, which only helps.
    """
    rest = releases.sums - releases.known
    exponents = ((rest * releases.own).sum(axis=2) - (releases.own**2).sum(axis=2) / 2) / noise_std**2
    return _sampled(exponents, sample_rate).sum(axis=1)


def step_losses(outputs: FloatArray, exposures: FloatArray, sample_rate: float) -> FloatArray:
    """Return log p_in / p_out of outputs along a person's own direction, in units of the noise, for their exposures."""
    return _sampled(exposures * outputs - exposures**2 / 2, sample_rate)


def _sampled(exponents: FloatArray, sample_rate: float) -> FloatArray:
    """Return log(1 - q + q e^x) for exponents x."""
    return np.logaddexp(np.log1p(-sample_rate) if sample_rate < 1 else -np.inf, np.log(sample_rate) + exponents)


def target_losses(releases: Releases, target: Target) -> FloatArray:
    """Return the loss of the final models on the target, [R]: all that a black-box attacker asks for."""
    return np.logaddexp(0.0, -target.label * (releases.weights @ target.row))


def two_classes(rng: np.random.Generator, records: int, d: int, spread: float = 1.0) -> tuple[FloatArray, FloatArray]:
    """Return rows [n, d] around two opposite centres, and their labels; lengths differ between records."""
    labels = np.where(np.arange(records) % 2 == 0, 1.0, -1.0)
    centre = np.zeros(d)
    centre[0] = 1.0
    rows = labels[:, None] * centre + spread * rng.standard_normal((records, d)) / np.sqrt(d)
    return rows * np.exp(0.7 * rng.standard_normal((records, 1)) - 0.5), labels
