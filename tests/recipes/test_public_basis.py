"""The public basis: which directions it has, and models that go back from coordinates to features."""

import numpy as np
import pytest

from bayesdp.recipes import public_basis
from bayesdp.recipes.features import EXTRACTORS
from bayesdp.recipes.public_basis import Basis, _principal, stroke_basis, strokes


def test_strokes_are_lines_in_the_middle_and_always_the_same():
    images = strokes(600)
    assert images.shape == (600, 28, 28)
    assert np.array_equal(images[:250], strokes(250))
    assert not np.array_equal(images, strokes(600, seed=1))
    ink = (images > 127).mean(axis=(1, 2))
    assert (ink > 0.005).all()
    assert (ink < 0.5).all()
    mass = images.sum(axis=(1, 2)).astype(float)
    for axis in (1, 2):
        centres = images.sum(axis=axis) @ np.arange(28) / mass
        assert np.abs(centres - 13.5).max() < 0.51


def test_the_directions_are_the_principal_ones():
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((500, 20)) * 2.0 ** -np.arange(20)).astype(np.float32)
    rows = _principal(x, 5)
    centred = x - x.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    expected = np.linalg.svd(centred, full_matrices=False)[2][:5]
    np.testing.assert_allclose(rows[0], x.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(np.abs(rows[1:] @ expected.T), np.eye(5), atol=1e-3)
    with pytest.raises(ValueError, match="directions=21: expected at most 20"):
        _principal(x, 21)


def test_scores_are_the_same_from_features_and_from_coordinates():
    rng = np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((30, 7)))[0].astype(np.float32)
    basis = Basis(rng.standard_normal(30).astype(np.float32), directions)
    features = rng.standard_normal((11, 30)).astype(np.float32)
    weights, centre = rng.standard_normal((3, 7)), rng.standard_normal(7)
    coordinates = basis.project(features)
    assert (np.linalg.norm(coordinates, axis=1) <= np.linalg.norm(features - basis.centre, axis=1) + 1e-5).all()
    back, middle = basis.back(weights, centre)
    np.testing.assert_allclose((features - middle) @ back.T, (coordinates - centre) @ weights.T, atol=1e-4)


def test_it_is_computed_once(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path))
    monkeypatch.setattr(public_basis, "_IMAGES", 600)
    calls = []

    def features(images):
        calls.append(len(images))
        return EXTRACTORS["pixels"](images).reshape(len(images), -1)

    first, second = (stroke_basis(features, "pixels", 12) for _ in range(2))
    assert calls == [600]
    assert first.directions.shape == (784, 12)
    np.testing.assert_array_equal(first.directions, second.directions)
    np.testing.assert_allclose(first.directions.T @ first.directions, np.eye(12), atol=1e-4)
