"""Experimental: one sample of a tempered posterior is released, and how far one record moves its law is measured.

Logistic regression with the prior N(0, p^2 I) has nearly a Gaussian posterior N(m, H^-1), m the most probable weights
and H the curvature there (Laplace's approximation). At temperature t its law is N(m, t H^-1): the higher, the less a
sample says about anyone. With a record more, or one less, m and H are others, and the Rényi divergences of the two laws
are known in closed form (``UnequalGaussians``).

This is not differential privacy. Nothing is clipped, so there is no worst case; the divergences are those of this data
set, so they may be larger for another; and they are computed from training rows without noise, so the figures
themselves are private. For a guarantee use ``BayesianLogisticRegression``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bayesdp import validation
from bayesdp.claims.claim import Claim
from bayesdp.claims.shares import SAMPLED
from bayesdp.estimators import order_statistic_rank, records_needed
from bayesdp.mechanisms import GaussianLaws, UnequalGaussians
from bayesdp.profiles.conversion import record_epsilons
from bayesdp.randomness import gaussian, source
from bayesdp.validation import FloatArray, InvalidInputError, refuse

_LAMBDAS = np.concatenate([np.geomspace(0.25, 16, 25), np.geomspace(20, 4096, 32)])
_NEWTON = 100
_AT_ONCE = 256  # records whose laws are found together
_PRIVATE = ("_x", "_y", "_mode", "_curvature")

EXPERIMENTAL = "EXPERIMENTAL: divergences of this data set, for another they may be larger; not a bound"


class TemperedLogisticRegression(ClassifierMixin, BaseEstimator):
    """Experimental. Two classes; ``coef_`` and ``intercept_`` are one sample of the posterior at ``temperature``.

    model = TemperedLogisticRegression(temperature=100.0).fit(x, y)
    model.claims((x_audit, y_audit), delta=1e-5)
    """

    def __init__(
        self,
        *,
        temperature: float = 100.0,
        prior_std: float = 1.0,
        fit_intercept: bool = True,
        random_state: int | None = None,
    ) -> None:
        self.temperature = temperature
        self.prior_std = prior_std
        self.fit_intercept = fit_intercept
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Find the posterior of rows X [n, d] with classes y [n], and draw the sample."""
        temperature = validation.positive("temperature", self.temperature)
        validation.positive("prior_std", self.prior_std)
        x, y = cast(Any, validate_data)(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y)
        if len(self.classes_) != 2:
            found = f"{len(self.classes_)} class{'es' * (len(self.classes_) != 1)}"
            raise refuse("y", found, "two classes. Only binary classification is supported")
        self._x, self._y = self._with_constant(x), (y == self.classes_[1]).astype(np.float64)
        none = np.zeros((1, self._x.shape[1]))
        self._mode, self._curvature = self._laplace(np.zeros_like(none), none, np.zeros(1), weight=0.0)
        randomness = source(self.random_state or 0, reproducible=self.random_state is not None)
        noise = gaussian(randomness, self._mode[0].shape, 1.0, step=0)
        root = np.linalg.cholesky(_spread(self._curvature, temperature)[0])
        sample = self._mode[0] + root @ noise
        given = x.shape[1]
        self.coef_ = sample[None, :given]
        self.intercept_ = sample[given:] if self.fit_intercept else np.zeros(1)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """The log odds of the second class, [n], by the released sample."""
        check_is_fitted(self)
        x = cast(Any, validate_data)(self, X, reset=False, dtype=np.float64)
        return x @ self.coef_[0] + self.intercept_[0]

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of both classes, [n, 2]."""
        second = expit(self.decision_function(X))
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable class of each row, [n]."""
        check_is_fitted(self)
        return self.classes_[(self.decision_function(X) > 0).astype(int)]

    def record_epsilons(self, X: Any, y: Any, *, delta: float = 1e-5) -> FloatArray:
        """Of people who are not in the data, [m]: how far adding each would move the law. Private."""
        x, second = self._records(X, y)
        return self._epsilons(x, second, 1.0, delta)

    def leave_one_out(self, *, delta: float = 1e-5) -> FloatArray:
        """Of the training rows, [n]: how far leaving each out would move the law. Private."""
        self._check_rows()
        return self._epsilons(self._x, self._y, -1.0, delta)

    def claims(
        self,
        audit: tuple[Any, Any],
        *,
        delta: float = 1e-5,
        gamma: float = 0.01,
        shares: Iterable[float] = (0.5, 0.9, 0.99),
    ) -> list[Claim]:
        """For shares of the population, from audit records that were not learnt from: estimates, private."""
        epsilons = np.sort(self.record_epsilons(*audit, delta=delta))
        everyone = Claim(
            epsilon=math.inf,
            delta=delta,
            audience="everyone",
            direction="both",
            kind="proved",
            method="none",
            reason="a sample of a posterior has no worst case, as nothing is clipped",
        )
        found = [everyone]
        for share in shares:
            rank = order_statistic_rank(len(epsilons), share, gamma)
            common = Claim(
                epsilon=math.inf,
                delta=delta,
                audience="share",
                share=share,
                samples=len(epsilons),
                gamma=gamma,
                direction="both",
                kind="estimate",
                method="Rényi divergences with one record more, order statistics",
                assumptions=(SAMPLED, "the posterior is nearly Gaussian", EXPERIMENTAL),
                private=True,
                worst_case=everyone,
            )
            if rank is None:
                needed = records_needed(share, gamma)
                found.append(common.without(f"this share needs {needed} audit records, there are {len(epsilons)}"))
            else:
                found.append(common.with_figure(float(epsilons[rank - 1])))
        return found

    def __getstate__(self) -> Any:
        """For a pickle, which has what was released and not the training rows."""
        return {name: value for name, value in cast(Any, super()).__getstate__().items() if name not in _PRIVATE}

    def __sklearn_tags__(self) -> Any:
        """Two classes only; what is released is one noisy sample."""
        tags = cast(Any, super()).__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _records(self, X: Any, y: Any) -> tuple[FloatArray, FloatArray]:
        self._check_rows()
        x, labels = cast(Any, validate_data)(self, X, y, reset=False, dtype=np.float64)
        if not np.isin(labels, self.classes_).all():
            raise refuse("y", "another class", f"the classes {self.classes_.tolist()} that were learnt")
        return self._with_constant(x), (labels == self.classes_[1]).astype(np.float64)

    def _check_rows(self) -> None:
        check_is_fitted(self)
        if not hasattr(self, "_x"):
            raise refuse("model", "from a pickle", "the fitted model itself: a pickle has no training rows")

    def _with_constant(self, x: FloatArray) -> FloatArray:
        return np.c_[x, np.ones(len(x))] if self.fit_intercept else x

    def _epsilons(self, x: FloatArray, y: FloatArray, weight: float, delta: float) -> FloatArray:
        """Of each record the least epsilon over the orders, in the worse direction."""
        delta = validation.probability("delta", delta)
        temperature = float(self.temperature)
        mechanism = UnequalGaussians(GaussianLaws(self._mode, _spread(self._curvature, temperature)))
        found: list[FloatArray] = []
        for start in range(0, len(x), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            mode, curvature = self._laplace(np.repeat(self._mode, len(x[some]), axis=0), x[some], y[some], weight)
            laws = GaussianLaws(mode, _spread(curvature, temperature))
            found.append(record_epsilons(mechanism.log_moment(laws, _LAMBDAS), _LAMBDAS, delta))
        return np.concatenate(found)

    def _laplace(self, start: FloatArray, x: FloatArray, y: FloatArray, weight: float) -> tuple[FloatArray, FloatArray]:
        """Modes [m, d] and curvatures [m, d, d] of posteriors, each with a record x [m, d] counted ``weight`` more."""
        prior = np.eye(x.shape[1]) / self.prior_std**2
        theta = start
        for _ in range(_NEWTON):
            p, own = expit(theta @ self._x.T), expit((theta * x).sum(axis=1))  # [m, n], [m]
            gradient = (p - self._y) @ self._x + theta @ prior + weight * (own - y)[:, None] * x
            curvature = np.einsum("mn,ni,nj->mij", p * (1 - p), self._x, self._x, optimize=True) + prior
            curvature += weight * (own * (1 - own))[:, None, None] * x[:, :, None] * x[:, None]
            step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
            if np.abs(step).max() < 1e-12 * (1 + np.abs(theta).max()):
                return theta, curvature
            lengths = np.linalg.norm(step, axis=1, keepdims=True)
            theta = theta - step * np.minimum(1.0, 5.0 / np.maximum(lengths, 1e-300))
        raise InvalidInputError(
            f"prior_std={self.prior_std}: expected one with which the most probable weights are found."
        )


def _spread(curvature: FloatArray, temperature: float) -> FloatArray:
    """Covariances [m, d, d], symmetric to the last digit."""
    found = temperature * np.asarray(np.linalg.inv(curvature), np.float64)
    return (found + found.swapaxes(1, 2)) / 2
