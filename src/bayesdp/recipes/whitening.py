"""Whitening: features that vary alike in all directions, by releasing their centre and shape with noise.

A linear model learns slowly along directions in which features hardly vary, and every further step costs privacy. Two
noisy releases, the sum of the features and the sum of their outer products, take a small part of the budget and leave
features on which few steps are enough. The noise hides the shape below a level that is known beforehand, so smaller
variances are replaced by a part of that level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.recipes.checkpoint import WHITENING, read_arrays, write_arrays
from bayesdp.recipes.choices import ProbeChoice
from bayesdp.recipes.recipe_run import RecipeRun
from bayesdp.recipes.release import SLACK, NoisySums, bounded_rows
from bayesdp.recipes.stages import Stage
from bayesdp.validation import FloatArray, refuse

with needs("recipes", "whitening"):
    import torch

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Whitening:
    """A centre [d] to subtract from features, and a matrix [d, d] that then whitens them; None leaves them centred."""

    centre: FloatArray
    matrix: NDArray[np.float32] | None

    def apply(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Return whitened features [n, d] of features x [n, d].

        Each row is x - centre scaled to length 1, then multiplied by the matrix and scaled to length 1 again.
        """
        centre = torch.from_numpy(self.centre.astype(np.float32))
        matrix = None if self.matrix is None else torch.from_numpy(self.matrix)
        whitened = np.empty(x.shape, np.float32)
        for start in range(0, len(x), _ROWS_AT_ONCE):
            rows = bounded_rows(x[start : start + _ROWS_AT_ONCE])
            block = torch.from_numpy(np.ascontiguousarray(rows, np.float32))
            centred = _unit(block - centre)
            whitened[start : start + len(block)] = (centred if matrix is None else _unit(centred @ matrix)).numpy()
        return whitened

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, as they are kept in a file."""
        return {"centre": self.centre} | ({} if self.matrix is None else {"matrix": self.matrix})


def release_centre(x: NDArray[Any], sums: NoisySums, *, step: int, audit: NDArray[Any] | None) -> Whitening:
    """Release the mean of features x [n, d] with noise, and return the whitening that subtracts it.

    Rows longer than ``sums.clip`` are clipped to it, so one record changes the sum by at most ``sums.clip``. The
    lengths of the rows ``audit`` are recorded as their norms.
    """
    total = np.zeros(x.shape[1])
    for start in range(0, len(x), _ROWS_AT_ONCE):
        total += _clipped(x[start : start + _ROWS_AT_ONCE], sums.clip).sum(axis=0)
    norms = None if audit is None else np.linalg.norm(bounded_rows(audit).astype(np.float64), axis=1)
    return Whitening(sums.release(total, step=step, audit=norms) / len(x), None)


def release_shape(
    x: NDArray[Any], centred: Whitening, sums: NoisySums, *, floor: float, step: int, audit: NDArray[Any] | None
) -> Whitening:
    """Release the second moments of centred features with noise, and return the whitening with their matrix.

    The symmetric matrix of second moments is released as a vector: its diagonal, and what is above the diagonal times
    the square root of 2. The length of this vector is the Frobenius norm of the matrix. For the outer product of one
    record that norm is its squared length, 1, which is scaled to ``sums.clip``. Noise alone has eigenvalues within a
    radius of 2 sqrt(d) times its standard deviation; ``floor`` times this radius is the least variance.
    """
    total = torch.zeros((x.shape[1], x.shape[1]), dtype=torch.float64)
    for start in range(0, len(x), _ROWS_AT_ONCE):
        block = torch.from_numpy(centred.apply(x[start : start + _ROWS_AT_ONCE])).double()
        total += block.T @ block * (sums.clip * (1 - SLACK))
    norms = None if audit is None else (centred.apply(audit).astype(np.float64) ** 2).sum(axis=1) * sums.clip
    upper, root = np.triu_indices(x.shape[1]), math.sqrt(2.0)
    scale = np.where(upper[0] == upper[1], 1.0, root)
    noisy = sums.release(total.numpy()[upper] * scale, step=step, audit=norms) / scale / len(x)
    moments = np.zeros(total.shape)
    moments[upper] = noisy
    moments = np.triu(moments) + np.triu(moments, 1).T
    radius = 2 * math.sqrt(len(moments)) * sums.noise_std / root / len(x)
    values, vectors = np.linalg.eigh(moments)
    matrix = (vectors / np.sqrt(np.maximum(values, floor * radius))) @ vectors.T
    return Whitening(centred.centre, matrix.astype(np.float32))


def release_whitening(
    x: NDArray[Any], audit: NDArray[Any], choice: ProbeChoice, run: RecipeRun, releases: Sequence[Stage]
) -> Whitening:
    """Release centre and shape of features x [n, d], or go on with what a run before an interruption released.

    ``releases`` are the stages of centre and shape. In a run with a folder each release is kept in a file. A release
    that is in the ledger and was lost in a crash is not repeated: the centre is then 0, or features stay unwhitened,
    which is less accurate and equally private.

    Raises InvalidInputError if the ledger has steps of the probe and the file is missing, or if it is of another run.
    """
    ledger, path = run.ledger, None if run.folder is None else run.folder / WHITENING
    whitening = Whitening(np.zeros(x.shape[1]), None)
    if path is not None and not path.exists() and ledger.steps > choice.whitening_releases:
        raise refuse("file", str(path), "the whitening with which the steps of this run were taken; it is missing")
    if path is not None and path.exists():
        arrays, about = read_arrays(path)
        if about != {"run": ledger.run}:
            raise refuse("file", str(path), f"the whitening of run {ledger.run}")
        whitening = Whitening(arrays["centre"], arrays.get("matrix"))
    for number in range(ledger.steps, choice.whitening_releases):
        sums = NoisySums(
            ledger=ledger,
            randomness=run.randomness,
            clip=1.0,
            noise_multiplier=releases[number].noise_multiplier,
            sample_rate=1.0,
            source="shape" if number else "centre",
        )
        if number:
            whitening = release_shape(x, whitening, sums, floor=choice.floor, step=number, audit=audit)
        else:
            whitening = release_centre(x, sums, step=number, audit=audit)
        if path is not None:
            write_arrays(path, whitening.arrays(), {"run": ledger.run})
    if path is not None and not path.exists():  # lost in a crash: the steps to come are taken without it
        write_arrays(path, whitening.arrays(), {"run": ledger.run})
    return whitening


def _clipped(x: NDArray[Any], clip: float) -> FloatArray:
    rows = bounded_rows(x).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, clip * (1 - SLACK) / np.maximum(lengths, 1e-300))


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
