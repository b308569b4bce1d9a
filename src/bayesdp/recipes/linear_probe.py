"""The linear probe: softmax regression on fixed features by DP-SGD, with gradient norms in closed form.

The gradient of one record is the outer product of its residual r = p - y and its features x. Its norm is |r| |x|, so
clipping it means scaling r, and the sum of clipped gradients is one product of two matrices: the gradient of a single
record is never formed. There is no bias. For one, add a constant feature, and a small one, as it takes its part of the
clipped norm.

``fit_probe`` trains a probe; ``fit_recipe`` is the recipe around it: features are whitened by two noisy releases, and
the probe is trained on them, all in one ledger.
"""

from __future__ import annotations

import itertools
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, random_mask
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.choices import ProbeChoice
from bayesdp.recipes.descent import Descent, SgdSettings
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.recipe_run import Fitted, RecipeRun
from bayesdp.recipes.release import SLACK, NoisySums, bounded_rows, check_weights
from bayesdp.recipes.stages import stages
from bayesdp.recipes.whitening import Whitening, release_whitening
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

with needs("recipes", "the linear probe"):
    import torch

_ROWS_AT_ONCE = 256  # drawn rows of one block: what is gathered stays in the processor's cache


class ProbeRows:
    """Rows of data in a form in which the gradients of a linear probe are computed quickly.

    ``x`` are features [n, d], kept in float32, ``y`` the class of each row [n], from 0 to ``classes - 1``. Rows are
    summed in blocks whose bounds depend on nothing drawn, and blocks are summed in float64: a record affects the
    rounding of its own block only.

    Rows that are not finite, or absurdly long, count as rows of zeros and contribute nothing (``bounded_rows``). Raises
    InvalidInputError for shapes that do not fit together and for unknown classes.
    """

    def __init__(self, x: NDArray[Any], y: NDArray[np.int64], classes: int) -> None:
        if x.ndim != 2 or len(x) != len(y):
            raise refuse("x.shape", x.shape, f"features [{len(y)}, d], one row for each class label")
        if len(y) and not (y.min() >= 0 and y.max() < classes):
            raise refuse("y", int(y.max() if y.max() >= classes else y.min()), f"classes from 0 to {classes - 1}")
        self.classes = classes
        self._x = torch.from_numpy(np.ascontiguousarray(bounded_rows(x), np.float32))
        self._y = torch.from_numpy(np.asarray(y, np.int64))
        squares = torch.cat([(rows.double() ** 2).sum(1) for rows in self._x.split(4096)]) if len(y) else torch.zeros(0)
        self._lengths = squares.sqrt().float()
        self._gathered = torch.empty(0)

    def __len__(self) -> int:
        return len(self._y)

    @property
    def features(self) -> int:
        """The number of features of a row."""
        return self._x.shape[1]

    def norms(self, weights: FloatArray, mask: NDArray[np.bool_] | None = None) -> FloatArray:
        """Return the gradient norm of every row, [n], before clipping; with a mask that of the masked gradient.

        ``weights`` and ``mask`` are [classes, d].
        """
        model = _Model(weights, mask)
        norms = [model.norms(x, model.residuals(x, y), lengths) for x, y, lengths in self._blocks(None, 1.0)]
        return torch.cat(norms).numpy()

    def clipped_sum(
        self,
        weights: FloatArray,
        clip: float,
        rows: NDArray[np.int64] | None = None,
        mask: NDArray[np.bool_] | None = None,
        sample_rate: float = 1.0,
    ) -> FloatArray:
        """Return the sum of clipped gradients of ``rows``, [classes, d].

        ``rows`` are indices in ascending order; None takes all rows. ``sample_rate`` is the rate at which they were
        drawn. It decides how large blocks are; the rows themselves must not, or one record would change the rounding of
        all blocks.

        Formal guarantee: adding or removing one record changes the sum by at most ``clip``.
        """
        model = _Model(weights, mask)
        total = torch.zeros(weights.shape, dtype=torch.float64)
        for x, y, lengths in self._blocks(rows, sample_rate):
            residuals = model.residuals(x, y)
            norms = model.norms(x, residuals, lengths)
            residuals *= (clip * (1 - SLACK) / norms).clamp_(max=1.0)
            if not torch.isfinite(norms).all():  # weights so large that a score overflows: nothing of that row
                residuals = torch.where(torch.isfinite(norms), residuals, 0.0)
            total += residuals @ x
        return (total if mask is None else total * torch.from_numpy(mask)).numpy()

    def scores(self, weights: FloatArray) -> FloatArray:
        """Return the score of each class for each row, [n, classes]; the highest score is the prediction."""
        model = _Model(weights, None)
        return torch.cat([model.scores(block) for block in self._x.split(_ROWS_AT_ONCE)], dim=1).T.double().numpy()

    def hits(self, weights: FloatArray) -> NDArray[np.bool_]:
        """Return for each row whether its class has the highest score, [n]."""
        return self.scores(weights).argmax(axis=1) == self._y.numpy()

    def accuracy(self, weights: FloatArray) -> float:
        """Return the share of rows whose class has the highest score."""
        return float(self.hits(weights).mean())

    def _blocks(self, rows: NDArray[np.int64] | None, sample_rate: float) -> Any:
        """Yield features, classes and lengths of rows, block by block."""
        if rows is None:
            parts = (array.split(_ROWS_AT_ONCE) for array in (self._x, self._y, self._lengths))
            yield from zip(*parts, strict=True)
            return
        if not len(rows):
            return
        size = round(_ROWS_AT_ONCE / sample_rate)
        bounds = np.searchsorted(rows, np.arange(0, len(self) + size, size))
        for first, last in itertools.pairwise(bounds.tolist()):
            if first == last:
                continue
            block = torch.from_numpy(rows[first:last])
            if len(self._gathered) < len(block):
                self._gathered = torch.empty((len(block) + _ROWS_AT_ONCE // 8, self.features))
            x = torch.index_select(self._x, 0, block, out=self._gathered[: len(block)])
            yield x, self._y[block], self._lengths[block]


class _Model:
    """Weights and mask of a step; results are [classes, n], the faster layout."""

    def __init__(self, weights: FloatArray, mask: NDArray[np.bool_] | None) -> None:
        self._weights = torch.from_numpy(weights.astype(np.float32))
        self._mask = None if mask is None else torch.from_numpy(mask.astype(np.float32))

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        return self._weights @ x.T

    def residuals(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return probabilities minus one-hot classes, [classes, n]."""
        residuals, places = torch.softmax(self.scores(x), dim=0), (y, torch.arange(len(y)))
        residuals[places] = 0.0
        residuals[places] = -residuals.sum(0)  # p - 1, without losing the digits of a p close to 1
        return residuals

    def norms(self, x: torch.Tensor, residuals: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return gradient norms [n]; the square of a masked one is sum_k r_k^2 sum_j m_kj x_j^2."""
        exact = residuals.double()  # squares of small residuals are not 0 in it
        if self._mask is None:
            return exact.norm(dim=0) * lengths
        return (exact.square() * (self._mask @ (x * x).T)).sum(0).sqrt()


def new_weights(features: int, classes: int) -> FloatArray:
    """Return weights of 0 to start from, [classes, features]: they know nothing and need no seed."""
    return np.zeros((classes, features))


def fit_probe(
    rows: ProbeRows,
    settings: SgdSettings,
    *,
    ledger: Ledger,
    randomness: Randomness,
    audit: ProbeRows | None = None,
    after: int = 0,
    checkpoint: Checkpoint | None = None,
    track: Progress = iter,
) -> FloatArray:
    """Train a linear probe by DP-SGD, and return its weights [classes, features].

    Each step draws records at ``settings.sample_rate``, releases the sum of their clipped gradients with noise, and
    records that in ``ledger`` before it uses the sum. Sums are divided by the expected number of drawn records,
    whatever is drawn. ``audit`` are people from the same population who are not trained on; the norms they would have
    had go into the ledger. ``after`` is the number of steps that the ledger has from something else; if it has more,
    the run is continued from ``checkpoint``, and ends as it would have without the interruption.

    Raises InvalidInputError if gradients are not finite, or if the ledger and the checkpoint do not belong together.
    """
    sums = NoisySums.of(settings, ledger=ledger, randomness=randomness, source="linear probe")
    descent = Descent(new_weights(rows.features, rows.classes), settings)
    denominator = settings.sample_rate * len(rows)

    def step(number: int) -> None:
        weights, mask = descent.weights, None
        check_weights(weights)
        if settings.mask is not None:
            mask = random_mask(randomness, weights.shape, settings.mask, step=number)
        drawn = sums.draw(len(rows), step=number)
        total = rows.clipped_sum(weights, settings.clip, drawn, mask, settings.sample_rate)
        norms = None if audit is None else audit.norms(weights, mask)
        noisy = sums.release(total, step=number, audit=norms, mask=mask)
        descent.update(noisy / denominator, number - after)

    run_steps(step, descent, steps=settings.steps, ledger=ledger, checkpoint=checkpoint, after=after, track=track)
    return descent.result


def fit_recipe(run: RecipeRun, choice: ProbeChoice) -> Fitted:
    """Train a probe on development rows whose features have length 1, within ``run.target_epsilon`` for everyone.

    Centre, shape and steps are releases of one run and share its budget (``stages``). Raises InvalidInputError if
    whitening takes all of it.
    """
    *whitening_stages, training = stages(choice, run.target_epsilon, run.delta)
    settings = SgdSettings(
        steps=choice.steps,
        sample_rate=1.0,
        clip=choice.clip,
        noise_multiplier=training.noise_multiplier,
        learning_rate=choice.learning_rate,
        momentum=choice.momentum,
        average=choice.average,
    )
    checkpoint = run.checkpoint({**asdict(choice), **settings.to_dict()})
    dataset = run.dataset
    train, audit = dataset.development, dataset.audit
    whitening = release_whitening(train.x, audit.x, choice, run, whitening_stages)
    train_rows = ProbeRows(whitening.apply(train.x), train.y, dataset.classes)
    audit_rows = ProbeRows(whitening.apply(audit.x), audit.y, dataset.classes)
    judged_rows = audit_rows
    if dataset.test is not None:
        judged_rows = ProbeRows(whitening.apply(dataset.test.x), dataset.test.y, dataset.classes)
    weights = fit_probe(
        train_rows,
        settings,
        ledger=run.ledger,
        randomness=run.randomness,
        audit=audit_rows,
        after=choice.whitening_releases,
        checkpoint=checkpoint,
        track=run.track,
    )
    return Fitted(
        arrays=_folded(weights, whitening),
        accuracy=judged_rows.accuracy(weights),
        classify="argmax over classes of weights @ (features - centre)",
        baseline=lambda: _baseline(train_rows, judged_rows, settings),
        hits=lambda: (train_rows.hits(weights), audit_rows.hits(weights)),
    )


def _folded(weights: FloatArray, whitening: Whitening) -> dict[str, FloatArray]:
    """Fold whitening into the weights: scaling a row does not change which of its scores is highest."""
    whole = weights if whitening.matrix is None else weights @ whitening.matrix.T
    return {"weights": whole, "centre": whitening.centre}


def _baseline(rows: ProbeRows, judged: ProbeRows, settings: SgdSettings) -> float:
    """Return the accuracy on ``judged`` without noise, clipped alike, after four times the steps. Not private."""
    settings = replace(settings, steps=4 * settings.steps, average=0.0)
    descent = Descent(new_weights(rows.features, rows.classes), settings)
    for number in range(settings.steps):
        descent.update(rows.clipped_sum(descent.weights, settings.clip) / len(rows), number)
    return judged.accuracy(descent.result)
