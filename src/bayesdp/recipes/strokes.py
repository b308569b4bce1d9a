"""Images of pen strokes that nobody drew: curves through random points, the size and place of a written digit.

They are public by construction, and have the same kind of lines as writing has: what varies in their features is what
varies in those of digits, without a look at any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SIDE = 28
_POINTS = 24  # along a curve
_CURVES = 3  # at most, in an image
_AT_ONCE = 250


def strokes(count: int, seed: int = 0) -> NDArray[np.uint8]:
    """``count`` images of 28 x 28 pixels, always the same for a seed."""
    rng = np.random.default_rng(seed)
    parts = [_some(min(_AT_ONCE, count - start), rng) for start in range(0, count, _AT_ONCE)]
    return np.concatenate(parts)


def _some(count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Bézier curves, each of which begins where the one before ended or anew, drawn with a pen of some width."""
    ends = rng.uniform(5, 23, (count, 1, 2))
    nearest = np.full((count, _SIDE * _SIDE), np.inf)
    curves = rng.integers(1, _CURVES + 1, count)
    for number in range(_CURVES):
        anew = rng.random((count, 1, 1)) < 0.4
        starts = np.where(anew, rng.uniform(5, 23, (count, 1, 2)), ends)
        controls = np.concatenate([starts, rng.uniform(4, 24, (count, 3, 2))], axis=1)
        ends = controls[:, 3:]
        distances = _distances(_curve(controls))
        nearest = np.where((number < curves)[:, None], np.minimum(nearest, distances), nearest)
    width = rng.uniform(0.8, 1.9, (count, 1))
    ink = np.clip(width + 0.5 - nearest, 0, 1).reshape(count, _SIDE, _SIDE)
    return _centred(np.round(255 * ink).astype(np.uint8))


def _curve(controls: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points along cubic Bézier curves, [n, points, 2], of their control points [n, 4, 2]."""
    t = np.linspace(0, 1, _POINTS)
    weights = np.stack([(1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3], axis=1)
    return np.einsum("pc,ncx->npx", weights, controls)


def _distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each pixel from the nearest of the points, [n, pixels]."""
    places = np.arange(_SIDE)
    down = (places[None, :, None] - points[:, None, :, 0]) ** 2  # [n, rows, points]
    across = (places[None, :, None] - points[:, None, :, 1]) ** 2
    squares = (down[:, :, None] + across[:, None]).min(axis=-1)
    return np.sqrt(squares).reshape(len(points), -1)


def _centred(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The centre of mass to the centre of the image, by whole pixels."""
    mass = np.maximum(images.sum(axis=(1, 2), dtype=np.float64), 1)
    places = np.arange(_SIDE)
    for axis, ink in ((1, images.sum(axis=2)), (2, images.sum(axis=1))):
        moves = np.rint((_SIDE - 1) / 2 - ink @ places / mass).astype(int)
        images = np.stack([np.roll(image, move, axis - 1) for image, move in zip(images, moves, strict=True)])
    return images
