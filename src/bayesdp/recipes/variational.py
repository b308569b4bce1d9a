"""Private Bayesian logistic regression: variational inference on noisy clipped gradients of the evidence bound.

The posterior is approximated by independent Gaussians N(m_j, s_j^2): theta = m + s * eta with eta standard normal. Let
G be the gradient by theta of the negative log likelihood, summed over records, and N(0, p^2) the prior. The evidence
lower bound is largest where

    E[G] + m / p^2 = 0        and        1 / s^2 = E[G * eta] / s + 1 / p^2

(the second is the gradient by log s, and E[G * eta] / s the expected curvature). m follows its gradient; the curvature
is averaged over the steps, which is the natural gradient of s (Khan et al., 2018). G, clipped record by record and with
noise, is all that is taken from the data: the rest is post-processing. What is accounted is the release of G at every
step, never the randomness of the posterior itself.

``BayesianLogisticRegression`` is the classifier; ``fit_recipe`` is the recipe around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from bayesdp import validation
from bayesdp.claims import RunClaims
from bayesdp.claims.plan import Plan
from bayesdp.guarantees.calibration import calibrate
from bayesdp.optional import needs
from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, Secure, Seeded, gaussian
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.choices import VariationalChoice
from bayesdp.recipes.datasets import Dataset, Rows
from bayesdp.recipes.descent import GaussianPosterior, SgdSettings
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.release import SLACK, NoisySums, bounded_rows, check_weights
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

with needs("recipes", "Bayesian logistic regression"):
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """A private classifier for two classes, which follows the conventions of scikit-learn.

        model = BayesianLogisticRegression(epsilon=0.5).fit(x, y, audit=(x_audit, y_audit))
        model.predict_proba(x_new), model.statement()

    Formal guarantee: ``fit`` is (``epsilon``, ``delta``)-differentially private for everyone, if all other arguments
    were chosen without looking at the data. ``claims`` says what holds for most people besides.

    ``sample_rate`` 1 takes all records at every step. ``clip`` bounds the gradient of one record by theta: scale
    features by public constants so that most rows have a length of a few units. ``random_state`` None draws noise from
    a cryptographic generator; a number repeats the run exactly, which makes it an experiment and not for release.
    ``ledger`` is the path of the file to record in; None records in memory. ``classes`` are the two classes; without
    them they are taken from y, and which classes occur is not protected.

    Fitted models have ``posterior_mean_`` and ``posterior_scale_`` [d], with the intercept last; ``coef_`` [1, d],
    ``intercept_`` [1], ``classes_`` [2] and ``ledger_``.
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

    def fit(
        self,
        X: Any,
        y: Any,
        audit: tuple[Any, Any] | None = None,
        track: Progress = iter,
        *,
        audit_used_for: str | None = None,
    ) -> Self:
        """Learn from rows X [n, d] and their classes y [n], and return the model.

        ``audit`` are rows and classes of people from the same population who are not learnt from: claims about most
        people rest on them. If they were used to choose settings, ``audit_used_for`` says so, as in ``Ledger.create``.
        Raises InvalidInputError for bad input, before a ledger is made.
        """
        randomness: Randomness = Secure() if self.random_state is None else Seeded(self.random_state)

        def new_ledger(plan: Plan) -> Ledger:
            if self.ledger is None:
                return Ledger(plan=plan, audit_used_for=audit_used_for)
            return Ledger.create(self.ledger, plan=plan, audit_used_for=audit_used_for)

        return self.fit_into(new_ledger, X, y, audit, randomness=randomness, track=track)

    def fit_into(
        self,
        ledger: Ledger | Callable[[Plan], Ledger],
        X: Any,
        y: Any,
        audit: tuple[Any, Any] | None = None,
        *,
        randomness: Randomness,
        checkpoint: Callable[[dict[str, Any]], Checkpoint | None] = lambda settings: None,
        track: Progress = iter,
    ) -> Self:
        """Do what ``fit`` does, with a given ledger, or with a function that makes one for the plan of the run.

        The function is called once the input is checked.
        ``checkpoint`` is a function from settings to the checkpoint of the run, with which a run that was interrupted
        goes on; by default there is none.
        """
        settings, prior = self._settings(), validation.positive("prior_std", self.prior_std)
        rows, audit_rows = self._checked(X, y, audit)
        if not isinstance(ledger, Ledger):
            noise_std = settings.noise_multiplier * settings.clip
            plan = Plan(steps=settings.steps, noise_std=noise_std, sample_rate=settings.sample_rate, clip=settings.clip)
            ledger = ledger(plan)
        sums = NoisySums.of(settings, ledger=ledger, randomness=randomness, source="variational inference")
        posterior = GaussianPosterior(rows.x.shape[1], len(rows), prior, settings)

        def step(number: int) -> None:
            mean, scale = posterior.mean, posterior.scale
            eta = gaussian(randomness, mean.shape, 1.0, step=number, purpose="posterior")
            drawn = sums.draw(len(rows), step=number)
            batch = rows if drawn is None else rows.take(drawn)
            theta = mean + scale * eta
            check_weights(theta)
            norms = None if audit_rows is None else _norms(audit_rows, theta)
            noisy = sums.release(_clipped_sum(batch, theta, settings.clip), step=number, audit=norms)
            posterior.update(noisy / settings.sample_rate, eta, sums.noise_std / settings.sample_rate, number)

        kept = checkpoint({**settings.to_dict(), "prior_std": prior})
        run_steps(step, posterior, steps=settings.steps, ledger=ledger, checkpoint=kept, track=track)
        self.ledger_ = ledger
        self.posterior_mean_, self.posterior_scale_ = posterior.result, posterior.scale
        features = rows.x.shape[1] - bool(self.fit_intercept)
        self.coef_ = self.posterior_mean_[None, :features]
        self.intercept_ = self.posterior_mean_[features:] if self.fit_intercept else np.zeros(1)
        return self

    def decision_function(self, X: Any) -> FloatArray:
        """Return the log odds of the second class for each row, [n]."""
        return logit(self.predict_proba(X)[:, 1])

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probabilities of both classes, [n, 2], averaged over samples of the posterior.

        The ``posterior_samples`` samples are the same at every call.
        """
        check_is_fitted(self)
        x = self._with_constant(cast(Any, validate_data)(self, X, reset=False, dtype=np.float64))
        samples = np.random.default_rng(0).standard_normal((self.posterior_samples, len(self.posterior_mean_)))
        thetas = self.posterior_mean_ + self.posterior_scale_ * samples
        second = _sigmoid(x @ thetas.T).mean(axis=1)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the more probable class of each row, [n]."""
        second = self.predict_proba(X)[:, 1] > 0.5
        return self.classes_[second.astype(int)]

    def claims(self, **options: Any) -> RunClaims:
        """Return all that may be said about the privacy of the fit, at ``delta``; see ``Ledger.claims``.

        Raises InvalidInputError for a model from a pickle, which has no ledger.
        """
        check_is_fitted(self)
        if not hasattr(self, "ledger_"):
            raise refuse("ledger_", None, "the ledger of the fit, which is not in a pickle: open its file")
        return self.ledger_.claims(self.delta, **options)

    def statement(self, **options: Any) -> str:
        """Return the claims in words; takes the options of ``claims``."""
        return self.claims(**options).statement()

    def __getstate__(self) -> Any:
        """Return what a pickle keeps: the model without the ledger."""
        return {name: value for name, value in cast(Any, super()).__getstate__().items() if name != "ledger_"}

    def __sklearn_tags__(self) -> Any:
        tags = cast(Any, super()).__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        tags.non_deterministic = self.random_state is None
        return tags

    def _settings(self) -> SgdSettings:
        noise = calibrate(target_epsilon=self.epsilon, sample_rate=self.sample_rate, steps=self.steps, delta=self.delta)
        return SgdSettings(
            steps=self.steps,
            sample_rate=float(self.sample_rate),
            clip=self.clip,
            noise_multiplier=noise.noise_multiplier,
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            average=self.average,
        )

    @np.errstate(all="ignore")  # what is not finite is refused below, in one line
    def _checked(self, X: Any, y: Any, audit: tuple[Any, Any] | None) -> tuple[Rows, Rows | None]:
        """Return training and audit rows with the constant feature and classes 0 and 1."""
        x, y = cast(Any, validate_data)(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_ = np.unique(y if self.classes is None else np.asarray(self.classes))
        if not np.isin(y, self.classes_).all():
            raise refuse("y", "another class", f"the classes {self.classes_.tolist()}")
        if len(self.classes_) != 2:
            number = f"{len(self.classes_)} class{'es' * (len(self.classes_) != 1)}"
            raise refuse("y", number, "two classes. Only binary classification is supported")
        if audit is None:
            return self._rows(x, y), None
        x_audit, y_audit = cast(Any, validate_data)(self, audit[0], audit[1], reset=False, dtype=np.float64)
        if not np.isin(y_audit, self.classes_).all():
            raise refuse("audit", "another class", f"the classes {self.classes_.tolist()} of the training rows")
        return self._rows(x, y), self._rows(x_audit, y_audit)

    def _rows(self, x: FloatArray, y: NDArray[Any]) -> Rows:
        return Rows(bounded_rows(self._with_constant(x)), (y == self.classes_[1]).astype(np.int64))

    def _with_constant(self, x: FloatArray) -> FloatArray:
        return np.c_[x, np.ones(len(x))] if self.fit_intercept else x


def _sigmoid(scores: FloatArray) -> FloatArray:
    return 0.5 * (1 + np.tanh(0.5 * scores))


def _residuals(rows: Rows, theta: FloatArray) -> FloatArray:
    """Return residuals [n]: the gradient of a record by theta is its residual times its row."""
    return _sigmoid(rows.x @ theta) - rows.y


def _norms(rows: Rows, theta: FloatArray) -> FloatArray:
    return np.abs(_residuals(rows, theta)) * np.sqrt((rows.x * rows.x).sum(axis=1))


def _clipped_sum(rows: Rows, theta: FloatArray, clip: float) -> FloatArray:
    with np.errstate(over="ignore"):  # a row of zeros, a large clip: a warning would be about that row
        factors = np.minimum(1.0, clip * (1 - SLACK) / np.maximum(_norms(rows, theta), 1e-300))
    return (_residuals(rows, theta) * factors) @ rows.x


def fit_recipe(run: RecipeRun, choice: VariationalChoice) -> Fitted:
    """Train on the development rows of a table, within ``run.target_epsilon`` for everyone."""
    train, audit = run.dataset.development, run.dataset.audit
    model = BayesianLogisticRegression(
        epsilon=run.target_epsilon,
        delta=run.delta,
        steps=choice.steps,
        clip=choice.clip,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=choice.average,
        classes=(0, 1),
    )
    model.fit_into(
        run.ledger,
        train.x,
        train.y,
        (audit.x, audit.y),
        randomness=run.randomness,
        checkpoint=run.checkpoint,
        track=run.track,
    )
    return Fitted(
        arrays={"mean": model.posterior_mean_, "scale": model.posterior_scale_},
        classify="the second class where sigmoid([features, 1] @ theta), averaged over the posterior, is above 1/2",
        accuracy=float(model.score(audit.x, audit.y)),
        baseline=lambda: _baseline(run.dataset),
        hits=lambda: (model.predict(bounded_rows(train.x)) == train.y, model.predict(audit.x) == audit.y),
    )


def _baseline(dataset: Dataset) -> float:
    """Return the accuracy on audit rows of logistic regression without noise. Not private."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=1000).fit(dataset.development.x, dataset.development.y)
    return float(model.score(dataset.audit.x, dataset.audit.y))
