"""Drawn digits and the public network that was trained on them: nothing in either comes from a data set."""

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from bayesdp.recipes.digit_network import WEIGHTS, train_network
from bayesdp.recipes.drawn_digits import TEMPLATES, drawn_digits
from bayesdp.recipes.features import EXTRACTORS


def ridge(features, classes):
    """Return centre and weights of least squares on features [n, d]."""
    centre = features.mean(axis=0)
    moments = (features - centre).T @ (features - centre)
    penalty = 1e-2 * np.trace(moments) / len(moments) * np.eye(len(moments))
    return centre, np.linalg.solve(moments + penalty, (features - centre).T @ np.eye(10)[classes])


def test_digits_are_drawn_as_mnist_was_published_and_always_the_same():
    images, classes = drawn_digits(400)
    again, same = drawn_digits(400)
    assert images.shape == (400, 28, 28)
    assert images.dtype == np.uint8
    assert np.array_equal(images, again)
    assert np.array_equal(classes, same)
    assert not np.array_equal(images, drawn_digits(400, seed=1)[0])
    assert set(classes) == set(range(len(TEMPLATES))) == set(range(10))
    mass = images.sum(axis=(1, 2)).astype(float)
    assert ((images > 127).mean(axis=(1, 2)) > 0.01).all()
    for axis in (1, 2):
        centres = images.sum(axis=axis) @ np.arange(28) / mass
        assert np.abs(centres - 13.5).max() < 0.51
    heights = (images > 0).any(axis=2).sum(axis=1)
    assert 18 <= np.median(heights) <= 22  # a digit of 20 pixels in an image of 28


def test_features_are_those_of_one_image_and_have_length_1():
    network, images = EXTRACTORS["drawn-digits"], drawn_digits(6, seed=2)[0]
    together = network(images)
    assert together.shape == (6, 1152)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(network(images[4:5])[0], together[4], atol=1e-5)
    assert np.isfinite(network(np.zeros((1, 28, 28), np.uint8))).all()


def test_the_network_of_the_package_tells_drawn_digits_apart():
    """Least squares on 1,500 drawings, judged on others."""
    (images, classes), (others, truth) = drawn_digits(1500, seed=3), drawn_digits(500, seed=4)
    centre, weights = ridge(EXTRACTORS["drawn-digits"](images).astype(float), classes)
    scores = (EXTRACTORS["drawn-digits"](others) - centre) @ weights
    assert (scores.argmax(axis=1) == truth).mean() > 0.95


def test_training_writes_weights_of_the_same_form_and_leaves_the_generator_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train_network(256, 1, tmp_path / "weights.safetensors")
    assert torch.equal(torch.rand(3), expected)
    trained, kept = load_file(tmp_path / "weights.safetensors"), load_file(WEIGHTS)
    assert {name: array.shape for name, array in trained.items()} == {name: array.shape for name, array in kept.items()}
    assert {array.dtype for array in kept.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(array).all() for array in trained.values())


@pytest.mark.parametrize("features", ["drawn-digits", "scattering"])
def test_features_for_digits_do_not_depend_on_who_else_is_in_the_batch(features):
    images = drawn_digits(3, seed=6)[0]
    alone = np.concatenate([EXTRACTORS[features](image[None]) for image in images])
    np.testing.assert_allclose(EXTRACTORS[features](images), alone, atol=1e-5)
