"""Variational inference as the paper describes it: no noise is added, the randomness of q(theta) itself is counted.

At each step a sample theta of q = N(m, s^2) is taken to be all that is released, and m and log s follow the gradient of
the evidence bound on a batch. The accountant compares the laws that the step gives without the first, second, ...
eighth record of its batch. But m and s are released too, without noise, with every later step; and epsilon depends on
the learning rate: a slower optimiser looks more private. For reproduction only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from bayesdp.mechanisms import GaussianLaws, PoissonSubsampled, UnequalGaussians
from bayesdp.paper.bayesian_accountant import BayesianAccountant
from bayesdp.reproduce.published.accountants import GAMMA, MORE_LAMBDAS, published_accountant
from bayesdp.validation import FloatArray

_LEFT_OUT = 8
_PREDICTIONS = 50  # samples of q that classify
_FIRST, _SECOND = np.triu_indices(_LEFT_OUT, 1)


@dataclass(frozen=True, kw_only=True)
class VariationalSettings:
    """The settings of a run; those that the paper does not print have defaults of our own."""

    steps: int
    batch: int
    learning_rate: float
    prior_std: float = 1.0
    first_std: float = 0.1


@dataclass(frozen=True, kw_only=True)
class _PublishedSubsampling(PoissonSubsampled):
    """Poisson subsampling as in the authors' code: the forward formula in both roles, never the exact reverse.

    The exact reverse can be larger, so costs may come out too small.
    """

    def reverse(self, exposure: GaussianLaws, lambdas: ArrayLike | range) -> FloatArray:
        """Return the forward formula with the two laws exchanged, in coordinates in which the other is standard."""
        std = np.sqrt(exposure.spread)
        return self.forward(GaussianLaws(-exposure.mean / std, 1 / exposure.spread), lambdas)


@dataclass(frozen=True)
class Posterior:
    """Independent Gaussians over the d coefficients: means [d] and logarithms of standard deviations [d]."""

    mean: FloatArray
    log_std: FloatArray

    def accuracy(self, x: FloatArray, y: NDArray[np.int64], rng: np.random.Generator) -> float:
        """Return the mean accuracy of 50 sampled classifiers on rows x [n, d] with classes y [n]."""
        samples = self.mean + np.exp(self.log_std) * rng.standard_normal((_PREDICTIONS, len(self.mean)))
        return float(np.mean((x @ samples.T > 0) == (y[:, None] == 1)))


def fit_variational(
    x: FloatArray,
    y: NDArray[np.int64],
    settings: VariationalSettings,
    *,
    seed: int = 0,
) -> tuple[Posterior, BayesianAccountant]:
    """Fit logistic regression to rows x [n, d] with classes y [n], 0 or 1; return the posterior and its accountant.

    The accountant has seen every step as the paper describes it, at orders up to 256: further than for images, as the
    printed 0.2 is below -log(1e-10)/32. Its epsilon is not a bound.
    """
    rng = np.random.default_rng(seed)
    n, d = x.shape
    standard = UnequalGaussians(GaussianLaws(np.zeros((1, d)), np.ones((1, d))))
    mechanism = _PublishedSubsampling(mechanism=standard, sample_rate=settings.batch / n)
    accountant = published_accountant(settings.steps, MORE_LAMBDAS, GAMMA)
    mean, log_std = np.zeros(d), np.full(d, np.log(settings.first_std))
    for _ in range(settings.steps):
        rows = rng.choice(n, settings.batch, replace=False)
        noise = rng.standard_normal(d)
        std = np.exp(log_std)
        gradients = (y[rows] - expit(x[rows] @ (mean + std * noise)))[:, None] * x[rows]  # of each log-likelihood
        total = gradients.sum(axis=0)
        sums = np.vstack([n / settings.batch * total, n / (settings.batch - 1) * (total - gradients[:_LEFT_OUT])])
        means = mean + settings.learning_rate * (sums - mean / settings.prior_std**2)
        by_log_std = sums * noise * std - (std / settings.prior_std) ** 2 + 1
        log_stds = log_std + settings.learning_rate * by_log_std
        accountant.step_with(mechanism, _relative(means[1:], np.exp(log_stds[1:])))
        mean, log_std = means[0], log_stds[0]
    return Posterior(mean, log_std), accountant


def _relative(means: FloatArray, stds: FloatArray) -> GaussianLaws:
    """Return the second law of every pair in coordinates in which the first is standard."""
    shift = (means[_SECOND] - means[_FIRST]) / stds[_FIRST]
    return GaussianLaws(shift, (stds[_SECOND] / stds[_FIRST]) ** 2)
