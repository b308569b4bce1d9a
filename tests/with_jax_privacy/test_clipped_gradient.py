"""What is read from ``clipped_grad`` and ``clipped_fun``, against what they do."""

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import pytest
from jax_privacy import clipping

from bayesdp import InvalidInputError
from bayesdp.jax_privacy.clipped_gradient import ClippedGradient
from jax_runs import X, Y, batch, clipped, draws, loss, raw_norms, start, step_function, watched

LAYERS = {"w": 0.6, "b": 0.2}
CAN_CLIP_LAYERS = "PyTree" in str(clipping.clipped_grad.__annotations__["l2_clip_norm"])


def settings(**given):
    return pytest.param(given, id=", ".join(given) or "as they are")


@pytest.mark.parametrize(
    "given",
    [
        settings(),
        settings(l2_clip_norm=0.3),
        settings(l2_clip_norm=0.3, rescale_to_unit_norm=True),
        settings(l2_clip_norm=0.3, normalize_by=50.0),
        settings(l2_clip_norm=0.3, rescale_to_unit_norm=True, normalize_by=50.0),
        settings(microbatch_size=1),
        settings(keep_batch_dim=True, return_values=True),
    ],
)
def test_exposures_are_those_of_what_is_released(given):
    """The oracle is the callable itself: what it returns for one record, over the noise that is added to it."""
    grad_fn, stddev = clipped(**given), 0.37
    read = ClippedGradient.of(grad_fn)
    for row in range(0, 40, 4):
        one = X[row : row + 1], Y[row : row + 1]
        output = grad_fn(start(), *one)
        released = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(output[0])))
        norm = min(float(read.norms(output)[0]), read.clip)
        assert norm / read.noise_std(stddev) == pytest.approx(released / stddev, rel=1e-5)
        assert float(read.norms(output)[0]) == pytest.approx(raw_norms(start(), *one)[0], rel=1e-5)


@pytest.mark.parametrize("given", [settings(), settings(microbatch_size=32), settings(keep_batch_dim=False)])
def test_norms_of_a_batch_come_with_what_the_callable_returns(given):
    grad_fn = clipped(return_values=True, **given)
    read, padding = ClippedGradient.of(grad_fn), jnp.arange(len(X)) >= 200
    output, norms = read.of_batch(start(), X, Y, is_padding_example=padding)
    expected = grad_fn(start(), X, Y, is_padding_example=padding)
    assert jax.tree.structure(output) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(output), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, other)
    np.testing.assert_allclose(norms[:200], raw_norms(start(), X, Y)[:200], rtol=1e-5)


@pytest.mark.skipif(not CAN_CLIP_LAYERS, reason="this version of JAX Privacy clips all layers together")
@pytest.mark.parametrize("rescaled", [False, True])
def test_layers_that_are_clipped_apart(rescaled):
    grad_fn = clipped(l2_clip_norm=LAYERS, rescale_to_unit_norm=rescaled, normalize_by=3.0)
    read = ClippedGradient.of(grad_fn)
    for row in range(0, 40, 4):
        output = grad_fn(start(), X[row : row + 1], Y[row : row + 1])
        released = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(output[0])))
        assert float(read.norms(output)[0]) / read.noise_std(1.0) == pytest.approx(released, rel=1e-5)


def test_norms_of_layers_add_up_as_clipped():
    """In closed form, so that it is tested where JAX Privacy cannot clip layers yet."""
    read = ClippedGradient.of(clipped())
    for rescaled, expected, clip in ((False, np.hypot(0.5, 0.2), np.hypot(0.6, 0.2)), (True, 0.0, np.sqrt(2))):
        layers = type(read)(**{**vars(read), "clips": (0.6, 0.2), "rescaled": rescaled})
        norms = {"b": jnp.array([0.5]), "w": jnp.array([7.0])}
        expected = np.hypot(0.5 / 0.6, 1.0) if rescaled else expected
        assert float(layers.contributions(norms)[0]) == pytest.approx(expected, rel=1e-6)
        assert layers.clip == pytest.approx(clip)


@pytest.mark.parametrize("has_aux", [False, True])
def test_both_return_shapes_of_clipped_fun(has_aux):
    """Version 2.0 returns (value, ((), norms)) where 2.2 returns (value, norms)."""

    def gradient(params, x, y):
        value = jax.grad(loss)(params, x, y)
        return (value, {"any": x}) if has_aux else value

    grad_fn = jax_privacy.clipping.clipped_fun(
        gradient, has_aux, batch_argnums=(1, 2), l2_clip_norm=1.0, return_norms=True
    )
    norms = ClippedGradient.of(grad_fn).norms(grad_fn(start(), X, Y))
    np.testing.assert_allclose(norms, raw_norms(start(), X, Y), rtol=1e-5)


def test_noise_is_rounded_down():
    read = ClippedGradient.of(clipped(l2_clip_norm=0.3, normalize_by=7.0, rescale_to_unit_norm=True))
    for stddev in np.random.default_rng(0).uniform(0.01, 3, 200):
        assert read.noise_std(stddev) <= stddev * np.longdouble(7.0) * np.longdouble(0.3)
    assert ClippedGradient.of(clipped()).noise_std(1.7) == 1.7


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"return_grad_norms": False}, "return_grad_norms=False: expected clipped_grad"),
        (
            {"pre_clipping_transform": lambda tree: tree},
            "pre_clipping_transform=.* norms are of the gradient before it",
        ),
        ({"nan_safe": False}, "nan_safe=False: expected True"),
        ({"l2_clip_norm": float("inf")}, "l2_clip_norm=inf: expected a finite number above 0"),
        ({"l2_clip_norm": 0.0}, "l2_clip_norm=0.0: expected a finite number above 0"),
    ],
)
def test_what_cannot_be_accounted_is_refused(given, message):
    with pytest.raises(InvalidInputError, match=message):
        watched(grad_fn=clipped(**given))


def test_norms_before_a_transformation_would_understate():
    """Why it is refused: a transformation that scales a gradient up is released at the clip bound."""
    grad_fn = clipped(pre_clipping_transform=lambda tree: jax.tree.map(lambda leaf: 1e6 * leaf, tree))
    total, aux = grad_fn(start(), X[:1] * 0.01, Y[:1] * 0.01)
    released = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(total)))
    assert float(aux.grad_norms[0]) < 0.1 * released


def test_what_clipped_grad_did_not_return_is_refused():
    for other in (jax.grad(loss), jax.jit(clipped()), None):
        with pytest.raises(InvalidInputError, match=r"expected what jax_privacy.clipped_grad returned, before jax.jit"):
            ClippedGradient.of(other)
    unknown = clipping.BoundedSensitivityCallable(lambda *_: None, 1.0, True)
    with pytest.raises(InvalidInputError, match=r"whose settings can be read"):
        ClippedGradient.of(unknown)


def test_a_bound_that_its_settings_do_not_give_is_refused():
    """A version that keeps its settings elsewhere is refused, not misread."""
    grad_fn = clipped()
    object.__setattr__(grad_fn, "l2_norm_bound", 0.5)
    with pytest.raises(InvalidInputError, match=r"l2_norm_bound=0.5: expected 1.0"):
        ClippedGradient.of(grad_fn)


def test_a_gradient_that_is_partly_in_half_precision_is_refused():
    """The norm over all arrays is in float32, but parts of it were rounded, and so is the noise on them."""

    def mixed(params, x, y):
        return jnp.mean((x @ params["w"].astype(jnp.float32) + params["b"] - y) ** 2)

    run = watched(grad_fn=clipped(mixed))
    params = {**start(), "w": start()["w"].astype(jnp.bfloat16)}
    update = run.jit(step_function(run.grad_fn, run.privatizer))
    with pytest.raises(InvalidInputError, match=r"gradient.dtype='bfloat16': expected all gradients in float32"):
        update(params, run.privatizer.init(params), *batch(draws(1)[0]))
    assert run.ledger.steps == 0
