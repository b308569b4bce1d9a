"""Digits that nobody wrote: the strokes of which digits are made, deformed at random.

Everyone knows what digits look like, so drawings of them are public: no row of a data set is in them. Each digit has a
few templates of strokes, each stroke a smooth curve through points. A random smooth deformation of the plane, random
shifts of points, slant, rotation, proportions and a pen of random width make an image of each. Images have the form in
which MNIST was published: a digit of 20 pixels, its centre of mass in the middle of 28 x 28.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Stroke = list[tuple[float, float]]

SIDE = 28  # pixels
_AT_ONCE = 250  # images
_POINTS = 12  # drawn between two points of a template
_FREQUENCIES = np.array([1.5, 3.0, 4.5, 6.0])  # of the deformation, in radians over the height of a digit
_AMPLITUDES = np.array([1.0, 0.7, 0.7, 0.5])
_JITTER = 0.05  # of points, in heights of a digit
_HEIGHT = 20.0  # pixels


def _oval(x: float, y: float, across: float, down: float, first: float, points: int = 10) -> Stroke:
    angles = np.linspace(math.radians(first), math.radians(first + 360), points)
    return [(x + across * math.cos(angle), y + down * math.sin(angle)) for angle in angles]


_DOWN: Stroke = [(0.5, 0), (0.5, 0.5), (0.5, 1)]
_FLAG: Stroke = [(0.3, 0.2), (0.4, 0.12), (0.5, 0)]
_ROOF: Stroke = [(0.08, 0.03), (0.5, 0.02), (0.9, 0.02)]
TEMPLATES: tuple[list[list[Stroke]], ...] = (
    [[_oval(0.5, 0.5, 0.45, 0.5, -100)], [_oval(0.5, 0.5, 0.35, 0.5, -60)], [_oval(0.5, 0.5, 0.5, 0.45, -140)]],
    [[_DOWN], [_DOWN], [_FLAG, _DOWN], [_FLAG, _DOWN, [(0.2, 1), (0.5, 1), (0.8, 1)]]],
    [
        [
            [(0.1, 0.25), (0.3, 0.03), (0.7, 0.03), (0.88, 0.3), (0.6, 0.62), (0.1, 1)],
            [(0.1, 1), (0.5, 1), (0.9, 1)],
        ],
        [
            [
                (0.1, 0.2),
                (0.4, 0),
                (0.8, 0.2),
                (0.65, 0.6),
                (0.25, 0.97),
                (0.05, 0.88),
                (0.25, 0.75),
                (0.6, 0.93),
                (0.98, 0.92),
            ]
        ],
        [
            [(0.1, 0.2), (0.45, 0), (0.8, 0.2), (0.6, 0.6), (0.15, 0.97)],
            [(0.15, 0.97), (0.45, 0.85), (0.7, 0.97), (1, 0.88)],
        ],
    ],
    [
        [
            [(0.1, 0.12), (0.45, 0), (0.82, 0.2), (0.4, 0.47)],
            [(0.4, 0.47), (0.85, 0.6), (0.75, 0.92), (0.4, 1), (0.05, 0.88)],
        ],
        [
            [(0.1, 0.02), (0.5, 0.02), (0.85, 0.02)],
            [(0.85, 0.02), (0.6, 0.25), (0.42, 0.42)],
            [(0.42, 0.42), (0.88, 0.58), (0.75, 0.92), (0.4, 1), (0.08, 0.9)],
        ],
        [
            [
                (0.15, 0.15),
                (0.5, 0),
                (0.8, 0.18),
                (0.65, 0.42),
                (0.45, 0.47),
                (0.75, 0.55),
                (0.88, 0.78),
                (0.5, 1),
                (0.1, 0.9),
            ]
        ],
    ],
    [
        [
            [(0.65, 0), (0.35, 0.35), (0.05, 0.65)],
            [(0.05, 0.65), (0.5, 0.65), (0.95, 0.65)],
            [(0.65, 0), (0.65, 0.5), (0.65, 1)],
        ],
        [
            [(0.15, 0), (0.1, 0.3), (0.1, 0.5)],
            [(0.1, 0.5), (0.5, 0.52), (0.9, 0.48)],
            [(0.8, 0), (0.75, 0.5), (0.7, 1)],
        ],
        [[(0.2, 0), (0.08, 0.35), (0.25, 0.55), (0.8, 0.42)], [(0.85, 0.02), (0.75, 0.5), (0.62, 1)]],
    ],
    [
        [
            [(0.85, 0), (0.55, 0.01), (0.25, 0.02)],
            [(0.25, 0.02), (0.22, 0.25), (0.2, 0.42)],
            [(0.2, 0.42), (0.55, 0.36), (0.88, 0.62), (0.7, 0.93), (0.4, 1), (0.06, 0.9)],
        ],
        [[(0.9, 0.02), (0.5, 0), (0.28, 0.12), (0.25, 0.38), (0.6, 0.48), (0.8, 0.7), (0.55, 0.97), (0.1, 0.92)]],
        [
            [(0.3, 0.05), (0.25, 0.25), (0.25, 0.4)],
            [(0.25, 0.4), (0.6, 0.4), (0.8, 0.68), (0.55, 0.97), (0.12, 0.92)],
            [(0.3, 0.05), (0.65, 0.04), (0.98, 0)],
        ],
    ],
    [
        [
            [
                (0.7, 0),
                (0.35, 0.25),
                (0.13, 0.65),
                (0.3, 0.97),
                (0.7, 0.95),
                (0.85, 0.7),
                (0.6, 0.52),
                (0.3, 0.62),
                (0.16, 0.8),
            ]
        ],
        [[(0.5, 0), (0.25, 0.35), (0.15, 0.7), (0.4, 1), (0.75, 0.88), (0.7, 0.62), (0.4, 0.6), (0.2, 0.8)]],
        [[(0.85, 0.05), (0.45, 0.15), (0.15, 0.55), (0.2, 0.9), (0.55, 1), (0.8, 0.8), (0.6, 0.6), (0.2, 0.72)]],
    ],
    [
        [_ROOF, [(0.9, 0.02), (0.65, 0.45), (0.45, 1)]],
        [_ROOF, [(0.9, 0.02), (0.65, 0.45), (0.4, 1)], [(0.3, 0.5), (0.55, 0.5), (0.85, 0.48)]],
        [[(0.08, 0.18), (0.12, 0.04), (0.5, 0.05), (0.9, 0.02)], [(0.9, 0.02), (0.7, 0.4), (0.6, 1)]],
        [[(0.05, 0.12), (0.45, 0.06), (0.85, 0.05), (0.75, 0.4), (0.6, 0.7), (0.5, 1)]],
    ],
    [
        [
            [
                (0.5, 0.48),
                (0.2, 0.25),
                (0.5, 0),
                (0.8, 0.25),
                (0.5, 0.48),
                (0.15, 0.75),
                (0.5, 1),
                (0.85, 0.75),
                (0.5, 0.48),
            ]
        ],
        [
            [
                (0.8, 0.12),
                (0.5, 0),
                (0.2, 0.2),
                (0.5, 0.47),
                (0.82, 0.75),
                (0.5, 1),
                (0.18, 0.77),
                (0.5, 0.5),
                (0.8, 0.15),
            ]
        ],
        [_oval(0.5, 0.25, 0.28, 0.25, -90, 8), _oval(0.5, 0.75, 0.35, 0.25, -90, 8)],
    ],
    [
        [
            [(0.8, 0.25), (0.5, 0.5), (0.18, 0.3), (0.45, 0.02), (0.8, 0.2)],
            [(0.8, 0.2), (0.78, 0.6), (0.62, 1)],
        ],
        [
            [(0.8, 0.2), (0.45, 0.48), (0.15, 0.28), (0.5, 0), (0.8, 0.12)],
            [(0.8, 0.12), (0.8, 0.55), (0.8, 1)],
        ],
        [[(0.82, 0.22), (0.5, 0.5), (0.18, 0.28), (0.5, 0.02), (0.82, 0.2), (0.8, 0.7), (0.55, 1), (0.2, 0.93)]],
    ],
)
"""For each digit its templates: strokes as points (x, y) in the unit square, y downwards."""


def drawn_digits(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return ``count`` images of digits [count, 28, 28] and the digit of each; always the same for a seed."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, len(TEMPLATES), count)
    variants = rng.integers(0, np.array([len(TEMPLATES[digit]) for digit in classes]))
    images = np.zeros((count, SIDE, SIDE), np.uint8)
    for digit, templates in enumerate(TEMPLATES):
        for variant, strokes in enumerate(templates):
            places = np.flatnonzero((classes == digit) & (variants == variant))
            for start in range(0, len(places), _AT_ONCE):
                part = places[start : start + _AT_ONCE]
                images[part] = _draw(strokes, 0.6 if digit == 1 else 0.7, len(part), rng)
    return images, classes


def _draw(strokes: list[Stroke], width: float, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a template ``count`` times; ``width`` is its usual width over its height."""
    deformation = _Deformation(count, rng)
    curves: list[Points] = []
    for stroke in strokes:
        shifts = rng.normal(size=(count, len(stroke), 2)) * _JITTER * rng.uniform(0.3, 1.2, (count, 1, 1))
        shifts[:, [0, -1]] /= 2  # strokes that meet still do, about
        curves.append(deformation.of(_smooth(np.array(stroke) + shifts)))
    pen = np.exp(rng.normal(math.log(1.15), 0.3, (count, 1)))
    placed = _placed(curves, width, pen, rng)
    nearest = np.min([_pixel_distances(curve) for curve in placed], axis=0)
    ink = np.clip(pen + 0.5 - nearest, 0, 1).reshape(count, SIDE, SIDE)
    return _centred(np.round(255 * ink).astype(np.uint8))


class _Deformation:
    """A smooth deformation of the plane for each image: sums of waves along both axes."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._size = _JITTER * rng.uniform(0.5, 1.5, (count, 1))
        self._heights = rng.normal(size=(2, 2, count, 1, 4)) * _AMPLITUDES
        self._phases = rng.uniform(0, 2 * math.pi, (2, 2, count, 1, 4))

    def of(self, points: Points) -> Points:
        """Return points [n, k, 2] where the deformations have moved them."""
        moves = np.zeros_like(points)
        for moved in range(2):
            for along in range(2):
                waves = np.sin(_FREQUENCIES * points[:, :, along, None] + self._phases[moved, along])
                moves[:, :, moved] += self._size * (self._heights[moved, along] * waves).sum(-1)
        return points + moves


def _smooth(points: Points) -> Points:
    """Return points along Catmull-Rom curves through points [n, k, 2]."""
    last = points.shape[1] - 1
    around = np.concatenate([2 * points[:, :1] - points[:, 1:2], points, 2 * points[:, -1:] - points[:, -2:-1]], axis=1)
    places = np.linspace(0, last, _POINTS * last)
    first = np.minimum(places.astype(int), last - 1)
    t = (places - first)[None, :, None]
    a, b, c, d = (around[:, first + number] for number in range(4))
    return (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t**2 + (3 * b - a - 3 * c + d) * t**3) / 2


def _placed(curves: list[Points], width: float, pen: Points, rng: np.random.Generator) -> list[Points]:
    """Give digits their proportions, slant, rotation and size in pixels; return points as (row, column)."""
    count = len(pen)
    points = np.concatenate(curves, axis=1) - 0.5
    slant, angle = rng.normal(0.12, 0.28, (count, 1)), rng.normal(0, 0.12, (count, 1))
    down = points[:, :, 1]
    across = points[:, :, 0] * np.exp(rng.normal(math.log(width), 0.22, (count, 1))) - slant * down
    turned = np.stack(
        [across * np.sin(angle) + down * np.cos(angle), across * np.cos(angle) - down * np.sin(angle)], axis=-1
    )
    least, most = turned.min(axis=1, keepdims=True), turned.max(axis=1, keepdims=True)
    extent = np.maximum((most - least).max(axis=2, keepdims=True), 0.2)
    scale = (_HEIGHT - 2 * np.minimum(pen, 2.5))[:, :, None] / extent
    pixels = (turned - (least + most) / 2) * scale + (SIDE - 1) / 2
    return np.split(pixels, np.cumsum([curve.shape[1] for curve in curves])[:-1], axis=1)


def _pixel_distances(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the distance of each pixel from the nearest of the points, [n, pixels]."""
    places = np.arange(SIDE)
    down = (places[None, :, None] - points[:, None, :, 0]) ** 2  # [n, rows, points]
    across = (places[None, :, None] - points[:, None, :, 1]) ** 2
    squares = (down[:, :, None] + across[:, None]).min(axis=-1)
    return np.sqrt(squares).reshape(len(points), -1)


def _centred(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Move the centre of mass to the centre of the image, by whole pixels."""
    mass = np.maximum(images.sum(axis=(1, 2), dtype=np.float64), 1)
    places = np.arange(SIDE)
    for axis, ink in ((1, images.sum(axis=2)), (2, images.sum(axis=1))):
        moves = np.rint((SIDE - 1) / 2 - ink @ places / mass).astype(int)
        images = np.stack([np.roll(image, move, axis - 1) for image, move in zip(images, moves, strict=True)])
    return images
