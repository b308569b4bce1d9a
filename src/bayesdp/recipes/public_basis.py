"""Fewer features, from public images: the directions in which features of random strokes vary most.

Noise on the shape of d features has d (d + 1) / 2 numbers, and noise on the weights d for each class. Most of 3,969
scattering coefficients hardly vary in any picture of lines. Which do is found without a look at the private data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bayesdp.recipes.feature_cache import cached
from bayesdp.recipes.strokes import strokes
from bayesdp.validation import FloatArray, refuse

_IMAGES = 6000
_VERSION = 1
_ROWS_AT_ONCE = 4096

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Basis:
    """A public centre [d] and orthonormal directions [d, k]."""

    centre: Matrix
    directions: Matrix

    def project(self, features: NDArray[Any]) -> Matrix:
        """Coordinates [n, k] of features [n, d]; no row is longer than it was from the centre."""
        directions = torch.from_numpy(self.directions)
        parts = [features[start : start + _ROWS_AT_ONCE] for start in range(0, len(features), _ROWS_AT_ONCE)]
        return np.concatenate([(torch.from_numpy(part - self.centre) @ directions).numpy() for part in parts])

    def back(self, weights: FloatArray, centre: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Weights and centre for features that give the scores of these for coordinates."""
        return weights @ self.directions.T.astype(np.float64), self.centre + self.directions @ centre


def stroke_basis(features: Callable[[NDArray[Any]], Matrix], name: str, directions: int) -> Basis:
    """The first ``directions`` principal directions of ``features`` (whose name and version is ``name``) of strokes."""
    images = strokes(_IMAGES)
    key = f"basis-{directions}-{name}"
    kept = cached(key, _VERSION, images, lambda: _principal(features(images), directions), length=directions + 1)
    return Basis(kept[0], np.ascontiguousarray(kept[1:].T))


def _principal(features: Matrix, directions: int) -> Matrix:
    """The mean and the directions, one after the other, [1 + directions, d]."""
    if directions > min(features.shape):
        raise refuse("directions", directions, f"at most {min(features.shape)}")
    centre = features.mean(axis=0)
    centred = torch.from_numpy(features - centre)
    centred /= centred.norm(dim=1, keepdim=True).clamp_min(1e-6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = torch.svd_lowrank(centred, q=min(directions + 100, *features.shape), niter=4)[2][:, :directions]
    return np.concatenate([centre[None], found.T.numpy()])
