"""Random numbers in the gradient of a record, where they are easily overlooked."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jax_runs import AUDIT, X, Y, clipped, loss, start, watched


def test_dropout_that_is_switched_on_later_is_found():
    """The first program draws nothing, the second does: norms of one draw must not become bounds."""

    def maybe_dropout(params, x, y, key, training):
        kept = x * jax.random.bernoulli(key, 0.5, x.shape) if training else x
        return loss(params, kept, y)

    run = watched(grad_fn=clipped(maybe_dropout, prng_argnum=3), audit=AUDIT)

    @functools.partial(run.jit, static_argnums=5)
    def update(params, state, x, y, key, training):
        total, _ = run.grad_fn(params, x, y, key, training)
        return run.privatizer.update(total, state)

    _, state = update(start(), run.privatizer.init(start()), X, Y, jax.random.key(0), False)
    assert run.random_draws is False
    update(start(), state, X, Y, jax.random.key(1), True)
    assert run.random_draws is True
    assert [stored.step.caveats for stored in run.ledger.stored_steps()] == ["", "random-draws"]


def test_a_loss_that_calls_python_may_draw_anything():
    def calls_python(params, x, y):
        factor = jax.pure_callback(
            lambda value: np.float32(np.random.default_rng().uniform(0.5, 1)),
            jax.ShapeDtypeStruct((), jnp.float32),
            y.sum(),
            vmap_method="sequential",
        )
        return factor * loss(params, x, y)

    run = watched(grad_fn=clipped(calls_python), audit=AUDIT)

    @run.jit
    def update(params, state, x, y):
        total, _ = run.grad_fn(params, x, y)
        return run.privatizer.update(total, state)

    update(start(), run.privatizer.init(start()), X, Y)
    assert run.random_draws is True
