"""Gaussians of unequal mean and variance: one sample of a fitted posterior (variational inference)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bayesdp import validation
from bayesdp.logspace import minus_log1p
from bayesdp.mechanisms.mechanism import ROUND_UP, Mechanism
from bayesdp.validation import FloatArray, refuse


@dataclass(frozen=True)
class GaussianLaws:
    """n Gaussian laws in dimension d: ``mean`` [n, d] and ``spread``, variances [n, d] or covariances [n, d, d].

    Mean and variances of a single law may be given as [d]. Shapes that do not fit, numbers that are not finite, and
    variances that are not above 0 raise InvalidInputError; covariances are checked where they are used.
    """

    mean: FloatArray
    spread: FloatArray

    def __post_init__(self) -> None:
        mean = np.atleast_2d(validation.as_floats("mean", self.mean))
        spread = validation.as_floats("spread", self.spread)
        if spread.ndim < 2:
            spread = np.atleast_2d(spread)
        if mean.ndim > 2:
            raise refuse("mean.shape", mean.shape, "(n, d), or (d,) for a single law")
        n, d = mean.shape
        if spread.shape not in ((n, d), (n, d, d)):
            raise refuse("spread.shape", spread.shape, f"{(n, d)} or {(n, d, d)}, to go with mean.shape={(n, d)}")
        if not (np.isfinite(mean).all() and np.isfinite(spread).all()):
            raise refuse("mean, spread", "not finite", "finite means, variances and covariances")
        if spread.ndim == 2 and not (spread > 0).all():
            raise refuse("variance", float(spread.min()), "variances above 0")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "spread", spread)

    def __len__(self) -> int:
        return len(self.mean)


@dataclass(frozen=True)
class UnequalGaussians(Mechanism):
    """One sample of N(mean, variance), where a record moves both mean and variance.

    ``without`` is the law without the record (one law); an exposure is the laws with it (n laws), both as
    ``GaussianLaws`` with diagonal or full covariance. In coordinates in which the law without the record is standard
    and the other is diagonal, with shift y_j and relative variance 1 + u_j,

        forward = sum_j [lambda (lambda+1) y_j^2 / (2 (1 - lambda u_j)) + (h(-lambda u_j) + lambda h(u_j)) / 2],

    h(x) = x - log(1+x) >= 0, for real lambda > 0; infinite where any 1 - lambda u_j <= 0 (Gil, Alajaji & Linder 2013,
    "Rényi divergence measures for commonly used univariate continuous distributions"). The reverse exchanges the two
    laws: u -> -u/(1+u), y^2 -> y^2/(1+u). Either direction may be the larger, and ``log_moment`` takes it.

    Where rounding leaves open whether 1 - lambda u_j is above 0, the result is infinite. Small changes of a variance
    keep their digits. Exposures that are no GaussianLaws of the right dimension, and covariances that are not symmetric
    and positive definite, raise InvalidInputError.
    """

    without: GaussianLaws

    def __post_init__(self) -> None:
        if len(self.without) != 1:
            raise refuse("len(without)", len(self.without), "a single law, that without the record")

    def forward(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return the forward log-moment as in the class, [n, L]."""
        return _log_moment(*self._relative(exposure), validation.lambdas(lambdas, whole=False))

    def reverse(self, exposure: Any, lambdas: ArrayLike | range) -> FloatArray:
        """Return the reverse log-moment as in the class, [n, L]."""
        shift, excess, ratio = self._relative(exposure)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            swapped = shift / ratio, -excess / ratio, 1 / ratio
        return _log_moment(*swapped, validation.lambdas(lambdas, whole=False))

    def _relative(self, exposure: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return y_j^2, u_j and 1 + u_j, [n, d] each, of each law relative to the law without the record."""
        if not isinstance(exposure, GaussianLaws):
            raise refuse("exposure", exposure, "GaussianLaws(mean, spread)")
        d = self.without.mean.shape[1]
        if exposure.mean.shape[1] != d:
            raise refuse("exposure.mean.shape", exposure.mean.shape, f"(n, {d}), as for the law without the record")
        shift = exposure.mean - self.without.mean
        if exposure.spread.ndim == 2 and self.without.spread.ndim == 2:
            base = self.without.spread
            with np.errstate(over="ignore"):
                return shift**2 / base, (exposure.spread - base) / base, exposure.spread / base
        base, other = _full(self.without.spread)[0], _full(exposure.spread)
        root = _cholesky("without.spread", base)
        for covariance in other:
            _cholesky("exposure.spread", covariance)
        # Diagonalise the difference, not the ratio: small changes keep their digits.
        whiten = np.linalg.inv(root)
        with np.errstate(over="ignore", invalid="ignore"):
            change, moved = whiten @ (other - base) @ whiten.T, shift @ whiten.T
        if not (np.isfinite(change).all() and np.isfinite(moved).all()):
            raise refuse("exposure", "too far from the law without", "a change that floating point can hold")
        excess, rotation = np.linalg.eigh(change)
        with np.errstate(over="ignore"):
            turned = np.einsum("nji,nj->ni", rotation, moved) ** 2
        return turned, excess, np.maximum(1.0 + excess, np.finfo(float).tiny)


def _full(spread: FloatArray) -> FloatArray:
    if spread.ndim == 3:
        return spread
    return spread[:, :, None] * np.eye(spread.shape[1])


def _cholesky(name: str, covariance: FloatArray) -> FloatArray:
    if not np.allclose(covariance, covariance.T, rtol=1e-10, atol=0.0):
        raise refuse(name, "not symmetric", "a symmetric covariance")
    try:
        return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise refuse(name, "not positive definite", "a positive definite covariance") from None


def _log_moment(shift: FloatArray, excess: FloatArray, ratio: FloatArray, lambdas: FloatArray) -> FloatArray:
    """Return log-moments [n, L] from squared shifts, relative excess variances and relative variances, [n, d] each."""
    y2, u, lam = shift[:, None, :], excess[:, None, :], lambdas[None, :, None]
    with np.errstate(over="ignore", invalid="ignore"):
        room = 1.0 - lam * u  # v* / v0
        room = np.where(room > 4 * np.finfo(float).eps * (1 + lam * np.abs(u)), room, 0.0)  # rounding only: 0
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        parts = lam * (lam + 1) * y2 / (2 * room)
        own = np.where(np.abs(u) < 0.25, minus_log1p(u), u - np.log(ratio)[:, None, :])
        parts = parts + 0.5 * (minus_log1p(-lam * u) + lam * own)
        total = parts.sum(axis=2)
    return np.where((room > 0).all(axis=2) & ~np.isnan(total), total * ROUND_UP, np.inf)
