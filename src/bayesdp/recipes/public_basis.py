"""Fewer features, by public images: the directions in which features of random strokes vary most.

Noise on the shape of d features has d (d + 1) / 2 numbers, and noise on the weights d for each class. Most of 3,969
scattering coefficients hardly vary in any picture of lines. Which ones do is found without looking at private data, in
images of pen strokes that nobody drew: curves through random points, of the size and at the place of a written digit.
They are public by construction, and what varies in their features is what varies in those of digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesdp.optional import needs
from bayesdp.recipes.feature_cache import cached
from bayesdp.validation import FloatArray, refuse

with needs("recipes", "the public basis"):
    import torch

_IMAGES = 6000
_VERSION = 1
_ROWS_AT_ONCE = 4096
SIDE = 28  # pixels
_POINTS = 24  # along a curve
_CURVES = 3  # at most, in an image
_IMAGES_AT_ONCE = 250

Matrix = NDArray[np.float32]


@dataclass(frozen=True)
class Basis:
    """A public centre [d] and k orthonormal directions [d, k]."""

    centre: Matrix
    directions: Matrix

    def project(self, features: NDArray[Any]) -> Matrix:
        """Return coordinates [n, k] of features [n, d]: no row is longer than its distance from the centre."""
        directions = torch.from_numpy(self.directions)
        parts = [features[start : start + _ROWS_AT_ONCE] for start in range(0, len(features), _ROWS_AT_ONCE)]
        return np.concatenate([(torch.from_numpy(part - self.centre) @ directions).numpy() for part in parts])

    def back(self, weights: FloatArray, centre: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return weights [classes, d] and a centre [d] for features.

        They give each row the scores that the arguments, weights [classes, k] and a centre [k], give its coordinates.
        """
        return weights @ self.directions.T.astype(np.float64), self.centre + self.directions @ centre


def stroke_basis(features: Callable[[NDArray[Any]], Matrix], name: str, directions: int) -> Basis:
    """Return the basis of the first principal directions of the features of strokes, computed once and cached.

    ``name`` names the features and their version. Raises InvalidInputError for more directions than there are features.
    """
    images = strokes(_IMAGES)
    key = f"basis-{directions}-{name}"
    kept = cached(key, _VERSION, images, lambda: _principal(features(images), directions), length=directions + 1)
    return Basis(kept[0], np.ascontiguousarray(kept[1:].T))


def _principal(features: Matrix, directions: int) -> Matrix:
    """Return the mean and then the directions, [1 + directions, d]."""
    if directions > min(features.shape):
        raise refuse("directions", directions, f"at most {min(features.shape)}")
    centre = features.mean(axis=0)
    centred = torch.from_numpy(features - centre)
    centred /= centred.norm(dim=1, keepdim=True).clamp_min(1e-6)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        principal = torch.svd_lowrank(centred, q=min(directions + 100, *features.shape), niter=4)[2][:, :directions]
    return np.concatenate([centre[None], principal.T.numpy()])


def strokes(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return ``count`` images of strokes, [count, 28, 28]; always the same for a seed."""
    rng = np.random.default_rng(seed)
    parts = [_images(min(_IMAGES_AT_ONCE, count - start), rng) for start in range(0, count, _IMAGES_AT_ONCE)]
    return np.concatenate(parts)


def _images(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw Bézier curves with a pen of random width; each begins where the last one ended, or somewhere else."""
    ends = rng.uniform(5, 23, (count, 1, 2))
    nearest = np.full((count, SIDE * SIDE), np.inf)
    curves = rng.integers(1, _CURVES + 1, count)
    for number in range(_CURVES):
        elsewhere = rng.random((count, 1, 1)) < 0.4
        starts = np.where(elsewhere, rng.uniform(5, 23, (count, 1, 2)), ends)
        controls = np.concatenate([starts, rng.uniform(4, 24, (count, 3, 2))], axis=1)
        ends = controls[:, 3:]
        distances = pixel_distances(_curve(controls))
        nearest = np.where((number < curves)[:, None], np.minimum(nearest, distances), nearest)
    width = rng.uniform(0.8, 1.9, (count, 1))
    ink = np.clip(width + 0.5 - nearest, 0, 1).reshape(count, SIDE, SIDE)
    return centred(np.round(255 * ink).astype(np.uint8))


def _curve(controls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points [n, points, 2] along cubic Bézier curves with control points [n, 4, 2]."""
    t = np.linspace(0, 1, _POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], axis=1)
    return np.einsum("pc,ncx->npx", weights, controls)


def pixel_distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each pixel from the nearest of the points, [n, pixels]."""
    places = np.arange(SIDE)
    down = (places[None, :, None] - points[:, None, :, 0]) ** 2  # [n, rows, points]
    across = (places[None, :, None] - points[:, None, :, 1]) ** 2
    squares = (down[:, :, None] + across[:, None]).min(axis=-1)
    return np.sqrt(squares).reshape(len(points), -1)


def centred(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Move the centre of mass to the centre of the image, by whole pixels."""
    mass = np.maximum(images.sum(axis=(1, 2), dtype=np.float64), 1)
    places = np.arange(SIDE)
    for axis, ink in ((1, images.sum(axis=2)), (2, images.sum(axis=1))):
        moves = np.rint((SIDE - 1) / 2 - ink @ places / mass).astype(int)
        images = np.stack([np.roll(image, move, axis - 1) for image, move in zip(images, moves, strict=True)])
    return images
