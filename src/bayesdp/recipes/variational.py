"""Bayesian logistic regression by variational inference, private: noisy clipped gradients of the evidence bound.

The posterior is approximated by independent Gaussians N(m_j, s_j^2), theta = m + s * eta with eta standard normal. With
G the sum over records of their gradient of the negative log likelihood by theta, and the prior N(0, p^2), the evidence
lower bound is largest where

    E[G] + m / p^2 = 0        and        1 / s^2 = E[G * eta] / s + 1 / p^2

(the second is the gradient by log s, and E[G * eta] / s the expected curvature). m follows its gradient, the curvature
is averaged over the steps, which is the natural gradient of s (Khan et al. 2018). G, clipped record by record and with
noise, is all that is taken from the data: the rest is post-processing. What is accounted is the release of G at every
step, never the randomness of the posterior itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from bayesdp import validation
from bayesdp.claims import RunClaims
from bayesdp.claims.statement import statement
from bayesdp.guarantees.calibration import calibrate
from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, Secure, Seeded, gaussian
from bayesdp.recipes.checkpoint import Arrays, Checkpoint
from bayesdp.recipes.datasets import Rows
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.release import SLACK, NoisySums
from bayesdp.recipes.sgd import Descent, SgdSettings
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

_FIRST_CURVATURE = 0.1  # of one record, before anything is known: at most 1/4 times a squared feature


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """A private classifier of two classes, with the conventions of scikit-learn.

        model = BayesianLogisticRegression(epsilon=0.5).fit(x, y, audit=(x_audit, y_audit))
        model.predict_proba(x_new), model.statement()

    ``epsilon`` and ``delta``: the worst case, for everyone, that ``fit`` does not exceed. ``sample_rate`` 1 takes all
    records at every step. ``clip`` bounds the gradient of one record by theta; scale features by public constants so
    that most rows have a length of a few units. ``random_state`` None draws noise from a cryptographic generator; a
    number repeats the run exactly, and then it is an experiment and not for release. ``ledger`` is where to record:
    a path, or None for one in memory. ``classes``: the two that there are; without it they are taken from y, so which
    occur is not protected.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        steps: int = 20,
        sample_rate: float = 1.0,
        clip: float = 1.0,
        learning_rate: float = 3.0,
        momentum: float = 0.0,
        average: float = 0.5,
        prior_std: float = 1.0,
        fit_intercept: bool = True,
        posterior_samples: int = 200,
        random_state: int | None = None,
        ledger: str | Path | None = None,
        classes: Sequence[Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.steps = steps
        self.sample_rate = sample_rate
        self.clip = clip
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.average = average
        self.prior_std = prior_std
        self.fit_intercept = fit_intercept
        self.posterior_samples = posterior_samples
        self.random_state = random_state
        self.ledger = ledger
        self.classes = classes

    def fit(self, X: Any, y: Any, audit: tuple[Any, Any] | None = None, track: Progress = iter) -> Self:
        """Learn from rows X [n, d] and two classes y [n]; ``audit``: rows and classes that are not learnt from."""
        randomness: Randomness = Secure() if self.random_state is None else Seeded(self.random_state)

        def ledger() -> Ledger:
            return Ledger() if self.ledger is None else Ledger.create(self.ledger)

        return self.fit_into(ledger, X, y, audit, randomness=randomness, track=track)

    def fit_into(
        self,
        ledger: Ledger | Callable[[], Ledger],
        X: Any,
        y: Any,
        audit: tuple[Any, Any] | None = None,
        *,
        randomness: Randomness,
        checkpoint: Callable[[dict[str, Any]], Checkpoint | None] = lambda settings: None,
        track: Progress = iter,
    ) -> Self:
        """``fit`` with a ledger of one's own, or what makes one once all is checked.

        With ``checkpoint``, which gives the one for some settings, a run that was interrupted goes on.
        """
        settings, prior = self._settings(), validation.positive("prior_std", self.prior_std)
        data, others = self._checked(X, y, audit)
        if not isinstance(ledger, Ledger):
            ledger = ledger()
        sums = NoisySums.of(settings, ledger=ledger, randomness=randomness, source="variational inference")
        posterior = _Posterior(data.x.shape[1], len(data), prior, settings)

        def step(number: int) -> None:
            mean, scale = posterior.mean, posterior.scale
            eta = gaussian(randomness, mean.shape, 1.0, step=number, purpose="posterior")
            drawn = sums.draw(len(data), step=number)
            taken = data if drawn is None else data.take(drawn)
            theta = mean + scale * eta
            norms = None if others is None else _norms(others, theta)
            noisy = sums.release(_clipped_sum(taken, theta, settings.clip), step=number, audit=norms)
            posterior.update(noisy / settings.sample_rate, eta, sums.noise_std / settings.sample_rate, number)

        kept = checkpoint({**settings.to_dict(), "prior_std": prior})
        run_steps(step, posterior, steps=settings.steps, ledger=ledger, checkpoint=kept, track=track)
        self.ledger_ = ledger
        self.posterior_mean_, self.posterior_scale_ = posterior.result, posterior.scale
        given = data.x.shape[1] - bool(self.fit_intercept)
        self.coef_ = self.posterior_mean_[None, :given]
        self.intercept_ = self.posterior_mean_[given:] if self.fit_intercept else np.zeros(1)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """The log odds of the second class, [n]."""
        return logit(self.predict_proba(X)[:, 1])

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities of both classes [n, 2], averaged over samples of the posterior (the same at every call)."""
        check_is_fitted(self)
        rows = self._new_rows(X)
        samples = np.random.default_rng(0).standard_normal((self.posterior_samples, len(self.posterior_mean_)))
        thetas = self.posterior_mean_ + self.posterior_scale_ * samples
        second = _sigmoid(rows @ thetas.T).mean(axis=1)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """The more probable class of each row, [n]."""
        second = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[second.astype(int)]

    def claims(self, **options: Any) -> RunClaims:
        """All that may be said about the privacy of the fit; see ``Ledger.claims``."""
        check_is_fitted(self)
        if not hasattr(self, "ledger_"):
            raise refuse("ledger_", None, "the ledger of the fit, which is not in a pickle: open its file")
        return self.ledger_.claims(self.delta, **options)

    def statement(self, **options: Any) -> str:
        """The claims in words."""
        return statement(self.claims(**options))

    def __getstate__(self) -> Any:
        """For a pickle, which has the model and not the ledger."""
        return {name: value for name, value in cast(Any, super()).__getstate__().items() if name != "ledger_"}

    def __sklearn_tags__(self) -> Any:
        """Two classes only; what is learnt is noisy."""
        tags = cast(Any, super()).__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _settings(self) -> SgdSettings:
        found = calibrate(target_epsilon=self.epsilon, sample_rate=self.sample_rate, steps=self.steps, delta=self.delta)
        return SgdSettings(
            steps=self.steps,
            sample_rate=float(self.sample_rate),
            clip=self.clip,
            noise_multiplier=found.noise_multiplier,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            average=self.average,
        )

    def _checked(self, X: Any, y: Any, audit: tuple[Any, Any] | None) -> tuple[Rows, Rows | None]:
        """Rows with their constant and classes 0 and 1."""
        x, y = cast(Any, validate_data)(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if not np.isin(y, self.classes_).all():
            raise refuse("y", "another class", f"the classes {self.classes_.tolist()}")
        if len(self.classes_) != 2:
            found = f"{len(self.classes_)} class{'es' * (len(self.classes_) != 1)}"
            raise refuse("y", found, "two classes. Only binary classification is supported")
        if audit is None:
            return self._rows(x, y), None
        x_audit, y_audit = cast(Any, validate_data)(self, audit[0], audit[1], reset=False, dtype=np.float64)
        if not np.isin(y_audit, self.classes_).all():
            raise refuse("audit", "another class", f"the classes {self.classes_.tolist()} that are learnt")
        return self._rows(x, y), self._rows(x_audit, y_audit)

    def _new_rows(self, X: Any) -> FloatArray:
        return self._with_constant(cast(Any, validate_data)(self, X, reset=False, dtype=np.float64))

    def _rows(self, x: FloatArray, y: NDArray[Any]) -> Rows:
        return Rows(self._with_constant(x), (y == self.classes_[1]).astype(np.int64))

    def _with_constant(self, x: FloatArray) -> FloatArray:
        return np.c_[x, np.ones(len(x))] if self.fit_intercept else x


class _Posterior:
    """Independent Gaussians: their means by gradient descent, their widths from the curvature."""

    def __init__(self, d: int, records: int, prior: float, settings: SgdSettings) -> None:
        self._descent = Descent(np.zeros(d), settings)
        self._curvature = _Curvature(np.full(d, _FIRST_CURVATURE * records))
        self._prior, self._records = prior, records

    @property
    def mean(self) -> FloatArray:
        """Where the next gradient is taken."""
        return self._descent.weights

    @property
    def scale(self) -> FloatArray:
        """The standard deviations, never wider than the prior."""
        return self._curvature.scale(self._prior)

    @property
    def result(self) -> FloatArray:
        """The means, averaged over the last steps."""
        return self._descent.result

    def update(self, gradient: FloatArray, eta: FloatArray, noise_std: float, step: int) -> None:
        """One step along the noisy gradient of all records at mean + scale * eta."""
        scale = self.scale
        self._curvature.add(gradient * eta / scale, noise_std / scale)
        self._descent.update((gradient + self.mean / self._prior**2) / self._records, step)

    def state(self) -> Arrays:
        """For a checkpoint."""
        return {**self._descent.state(), "curvature": self._curvature.mean, "precision": self._curvature.weight}

    def restore(self, state: Arrays) -> None:
        """From a checkpoint."""
        self._descent.restore(state)
        self._curvature.mean, self._curvature.weight = state["curvature"], state["precision"]


class _Curvature:
    """The expected curvature of the negative log likelihood along each coordinate: a mean of noisy values.

    Each counts by its precision, the first guess as if it were as uncertain as it is large: where the noise swamps the
    curvature, the guess stays.
    """

    def __init__(self, first: FloatArray) -> None:
        self.weight = first**-2
        self.mean = first

    def add(self, noisy: FloatArray, std: FloatArray) -> None:
        """One more value, and the standard deviation of the noise in it."""
        weight = self.weight + std**-2
        self.mean = self.mean + (noisy - self.mean) * std**-2 / weight
        self.weight = weight

    def scale(self, prior: float) -> FloatArray:
        """The standard deviation of the posterior: never wider than the prior, whatever the noise says."""
        return 1 / np.sqrt(np.maximum(self.mean, 0.0) + prior**-2)


def _sigmoid(scores: FloatArray) -> FloatArray:
    return 0.5 * (1 + np.tanh(0.5 * scores))


def _residuals(rows: Rows, theta: FloatArray) -> FloatArray:
    """The gradient of one record by theta is its residual times its row."""
    return _sigmoid(rows.x @ theta) - rows.y


def _norms(rows: Rows, theta: FloatArray) -> FloatArray:
    return np.abs(_residuals(rows, theta)) * np.sqrt((rows.x * rows.x).sum(axis=1))


def _clipped_sum(rows: Rows, theta: FloatArray, clip: float) -> FloatArray:
    factors = np.minimum(1.0, clip * (1 - SLACK) / np.maximum(_norms(rows, theta), 1e-300))
    return (_residuals(rows, theta) * factors) @ rows.x
