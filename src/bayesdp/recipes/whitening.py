"""Features whose directions vary alike: centre and shape of the data are released with noise first.

A linear model learns slowly along directions in which features hardly vary, and every further step costs privacy. Two
noisy releases, the sum of the features and the sum of their outer products, take a small part of the budget and leave
features on which few steps are enough. The noise hides the shape below a level that is known beforehand; variances
below a part of that level are taken for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesdp.recipes.release import SLACK, NoisySums
from bayesdp.validation import FloatArray

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Whitening:
    """``apply`` gives rows of length 1: (x - centre) brought to length 1, times the matrix, brought to length 1."""

    centre: FloatArray
    matrix: NDArray[np.float32] | None

    def apply(self, x: NDArray[Any]) -> NDArray[np.float32]:
        """Whitened features [n, d] of features [n, d]."""
        centre = torch.from_numpy(self.centre.astype(np.float32))
        matrix = None if self.matrix is None else torch.from_numpy(self.matrix)
        whitened = np.empty(x.shape, np.float32)
        for start in range(0, len(x), _ROWS_AT_ONCE):
            some = _unit(torch.from_numpy(np.ascontiguousarray(x[start : start + _ROWS_AT_ONCE], np.float32)) - centre)
            whitened[start : start + len(some)] = (some if matrix is None else _unit(some @ matrix)).numpy()
        return whitened

    def arrays(self) -> dict[str, NDArray[Any]]:
        """To be kept."""
        return {"centre": self.centre} | ({} if self.matrix is None else {"matrix": self.matrix})


def release_centre(x: NDArray[Any], sums: NoisySums, *, step: int, audit: NDArray[Any] | None) -> Whitening:
    """The noisy mean of the features; one record adds a vector of length ``sums.clip`` at most to their sum."""
    total = np.zeros(x.shape[1])
    for start in range(0, len(x), _ROWS_AT_ONCE):
        total += _clipped(x[start : start + _ROWS_AT_ONCE], sums.clip).sum(axis=0)
    norms = None if audit is None else np.linalg.norm(audit.astype(np.float64), axis=1)
    return Whitening(sums.release(total, step=step, audit=norms) / len(x), None)


def release_shape(
    x: NDArray[Any], centred: Whitening, sums: NoisySums, *, floor: float, step: int, audit: NDArray[Any] | None
) -> Whitening:
    """The noisy second moments of the centred features, and the matrix that whitens them.

    A symmetric matrix is released as the vector of its diagonal and, times the square root of 2, what is above it: the
    length of that vector is the Frobenius norm, which for the outer product of a record is its squared length, 1.
    ``floor``: the least variance, as a part of the radius 2 sqrt(d) within which noise alone has its eigenvalues.
    """
    total = torch.zeros((x.shape[1], x.shape[1]), dtype=torch.float64)
    for start in range(0, len(x), _ROWS_AT_ONCE):
        some = torch.from_numpy(centred.apply(x[start : start + _ROWS_AT_ONCE])).double()
        total += some.T @ some * (sums.clip * (1 - SLACK))
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


def _clipped(x: NDArray[Any], clip: float) -> FloatArray:
    rows = x.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1.0, clip * (1 - SLACK) / np.maximum(lengths, 1e-300))


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-6)
