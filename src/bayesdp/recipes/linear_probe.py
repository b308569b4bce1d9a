"""A linear classifier on fixed features, whose gradients need not be looked at one by one.

For softmax regression the gradient of one record is the outer product of its residual r = p - y and its features x. Its
norm is |r| |x|, so clipping it is scaling r, and the sum of clipped gradients is one product of two matrices: no
gradient of a single record is ever made. There is no bias; who wants one adds a constant feature, a small one, as it
takes its part of the clipped norm.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesdp.progress import Progress
from bayesdp.randomness import Randomness, random_mask
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.loop import run_steps
from bayesdp.recipes.release import SLACK, NoisySums
from bayesdp.recipes.sgd import Descent, SgdSettings
from bayesdp.run_ledger import Ledger
from bayesdp.validation import FloatArray, refuse

_ROWS_AT_ONCE = 256  # drawn rows of one block: what is gathered stays in the processor's cache


class ProbeRows:
    """Rows to compute gradients of; features [n, d] in float32 and the class of each row.

    Rows are summed in blocks of fixed places, and blocks in float64: a record touches the rounding of its own block
    only.
    """

    def __init__(self, x: NDArray[Any], y: NDArray[np.int64], classes: int) -> None:
        if x.ndim != 2 or len(x) != len(y):
            raise refuse("x.shape", x.shape, f"features [{len(y)}, d], one row for each class label")
        if len(y) and not (y.min() >= 0 and y.max() < classes):
            raise refuse("y", int(y.max() if y.max() >= classes else y.min()), f"classes from 0 to {classes - 1}")
        self.classes = classes
        self._x = torch.from_numpy(np.ascontiguousarray(x, np.float32))
        self._y = torch.from_numpy(np.asarray(y, np.int64))
        squares = torch.cat([(some.double() ** 2).sum(1) for some in self._x.split(4096)]) if len(y) else torch.zeros(0)
        self._lengths = squares.sqrt().float()
        if not torch.isfinite(self._lengths).all():
            raise refuse("x", "not finite", "finite features")
        self._gathered = torch.empty(0)

    def __len__(self) -> int:
        return len(self._y)

    @property
    def features(self) -> int:
        """How many features a row has."""
        return self._x.shape[1]

    def norms(self, weights: FloatArray, mask: NDArray[np.bool_] | None = None) -> FloatArray:
        """The gradient norm of every row, [n], before clipping; with a mask that of the masked gradient."""
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
        """The sum of clipped gradients of ``rows`` (in ascending order; None: all), [classes, d].

        Formal guarantee: one record more or less changes it by ``clip`` at most. ``sample_rate``, with which rows are
        drawn, decides how large blocks are: what was drawn must not, or one record would change the rounding of all.
        """
        model = _Model(weights, mask)
        total = torch.zeros(weights.shape, dtype=torch.float64)
        for x, y, lengths in self._blocks(rows, sample_rate):
            residuals = model.residuals(x, y)
            residuals *= (clip * (1 - SLACK) / model.norms(x, residuals, lengths)).clamp_(max=1.0)
            total += residuals @ x
        return (total if mask is None else total * torch.from_numpy(mask)).numpy()

    def scores(self, weights: FloatArray) -> FloatArray:
        """Scores of the classes, [n, classes]."""
        model = _Model(weights, None)
        return torch.cat([model.scores(some) for some in self._x.split(_ROWS_AT_ONCE)], dim=1).T.double().numpy()

    def accuracy(self, weights: FloatArray) -> float:
        """The share of rows whose class has the highest score."""
        return float((self.scores(weights).argmax(axis=1) == self._y.numpy()).mean())

    def _blocks(self, rows: NDArray[np.int64] | None, sample_rate: float) -> Any:
        """Features, classes and lengths of drawn rows, block by block."""
        if rows is None:
            parts = (one.split(_ROWS_AT_ONCE) for one in (self._x, self._y, self._lengths))
            yield from zip(*parts, strict=True)
            return
        if not len(rows):
            return
        size = round(_ROWS_AT_ONCE / sample_rate)
        bounds = np.searchsorted(rows, np.arange(0, len(self) + size, size))
        for first, last in itertools.pairwise(bounds.tolist()):
            if first == last:
                continue
            some = torch.from_numpy(rows[first:last])
            if len(self._gathered) < len(some):
                self._gathered = torch.empty((len(some) + _ROWS_AT_ONCE // 8, self.features))
            x = torch.index_select(self._x, 0, some, out=self._gathered[: len(some)])
            yield x, self._y[some], self._lengths[some]


class _Model:
    """Weights as they are used in a step; what it computes has a row for each class, which is the faster layout."""

    def __init__(self, weights: FloatArray, mask: NDArray[np.bool_] | None) -> None:
        self._weights = torch.from_numpy(weights.astype(np.float32))
        self._mask = None if mask is None else torch.from_numpy(mask.astype(np.float32))

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Of rows x [n, d], [classes, n]."""
        return self._weights @ x.T

    def residuals(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Probabilities minus what is true, [classes, n]."""
        residuals, places = torch.softmax(self.scores(x), dim=0), (y, torch.arange(len(y)))
        residuals[places] = 0.0
        residuals[places] = -residuals.sum(0)  # p - 1, without losing the digits of a p close to 1
        return residuals

    def norms(self, x: torch.Tensor, residuals: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Gradient norms [n]; of the masked gradient the square is sum_k r_k^2 sum_j m_kj x_j^2."""
        exact = residuals.double()  # squares of small residuals are not 0 in it
        if self._mask is None:
            return exact.norm(dim=0) * lengths
        return (exact.square() * (self._mask @ (x * x).T)).sum(0).sqrt()


def new_weights(features: int, classes: int) -> FloatArray:
    """All weights 0: the start knows nothing, and needs no seed."""
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
    """Train by DP-SGD; the weights [classes, features].

    ``audit``: people from the same population who are not trained on, whose norms go into the ledger. A ledger that has
    more than ``after`` steps already is continued, from the checkpoint.
    """
    sums = NoisySums.of(settings, ledger=ledger, randomness=randomness, source="linear probe")
    descent = Descent(new_weights(rows.features, rows.classes), settings)
    denominator = settings.sample_rate * len(rows)  # fixed beforehand, whatever is drawn

    def step(number: int) -> None:
        weights, mask = descent.weights, None
        if settings.mask is not None:
            mask = random_mask(randomness, weights.shape, settings.mask, step=number)
        drawn = sums.draw(len(rows), step=number)
        total = rows.clipped_sum(weights, settings.clip, drawn, mask, settings.sample_rate)
        norms = None if audit is None else audit.norms(weights, mask)
        noisy = sums.release(total, step=number, audit=norms, mask=mask)
        descent.update(noisy / denominator, number - after)

    run_steps(step, descent, steps=settings.steps, ledger=ledger, checkpoint=checkpoint, after=after, track=track)
    return descent.result
