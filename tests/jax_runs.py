"""A small regression with JAX Privacy, and the loop that a user would write around it."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
from jax_privacy import batch_selection, noise_addition

import bayesdp.jax_privacy
from bayesdp import Ledger

RECORDS, AUDIT_RECORDS, FEATURES = 256, 20, 6
PADDING = 64
_noise_states: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The state of the privatizer at the end of each run, so that no noise comes twice."""
_values = np.random.default_rng(0)
X = (_values.standard_normal((RECORDS, FEATURES)) * _values.uniform(0.05, 2, (RECORDS, 1))).astype(np.float32)
Y = (X @ _values.standard_normal(FEATURES)).astype(np.float32)
AUDIT = X[:AUDIT_RECORDS] * 0.5, Y[:AUDIT_RECORDS]


def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return 0.5 * jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


def raw_norms(params: Any, x: Any, y: Any) -> np.ndarray:
    """The norm of each record's gradient, in closed form: |x w + b - y| |(x, 1)|."""
    residual = x @ np.asarray(params["w"], np.float64) + float(params["b"]) - y
    return np.abs(residual) * np.hypot(np.linalg.norm(x.astype(np.float64), axis=1), 1.0)


def start() -> dict[str, jax.Array]:
    return {"w": jnp.zeros(FEATURES), "b": jnp.zeros(())}


def clipped(function: Any = loss, **settings: Any) -> Any:
    return jax_privacy.clipped_grad(
        function, **{"l2_clip_norm": 1.0, "batch_argnums": (1, 2), "return_grad_norms": True} | settings
    )


def gaussian(stddev: float = 2.0) -> Any:
    return noise_addition.gaussian_privatizer(stddev=stddev, prng_key=jax.random.key(1))


def poisson(rate: float = 0.125, iterations: int = 100) -> Any:
    return batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=iterations)


def watched(*, grad_fn: Any = None, privatizer: Any = None, batches: Any = None, **options: Any) -> Any:
    """A watch with the settings of this file, unless others are given."""
    return bayesdp.jax_privacy.watch(
        grad_fn or clipped(),
        privatizer or gaussian(),
        batches or poisson(),
        **{"ledger": Ledger(keep_norms=True)} | options,
    )


def step_function(grad_fn: Any, privatizer: Any) -> Any:
    def update(params: Any, state: Any, x: Any, y: Any, is_padding_example: Any) -> Any:
        total, _ = grad_fn(params, x, y, is_padding_example=is_padding_example)
        noisy, state = privatizer.update(total, state)
        return jax.tree.map(lambda value, change: value - 0.01 * change, params, noisy), state

    return update


def draws(steps: int, rate: float = 0.125) -> list[np.ndarray]:
    return list(poisson(rate, steps).batch_iterator(RECORDS, rng=0))


def batch(drawn: np.ndarray, padding: int = PADDING) -> tuple[Any, Any, Any]:
    """The rows of a draw, filled up with others that padding marks."""
    indices = batch_selection.pad_to_multiple_of(drawn, padding)
    return jnp.asarray(X[indices]), jnp.asarray(Y[indices]), jnp.asarray(indices == -1)


def train(run: Any, steps: int = 3, **options: Any) -> tuple[Any, list[Any]]:
    """Train for some steps, from new parameters; return those at the end, and those before each step."""
    update = run.jit(step_function(run.grad_fn, run.privatizer), **options)
    params, state, before = start(), _noise_states.get(run, run.privatizer.init(start())), []
    for drawn in draws(steps):
        before.append(jax.tree.map(np.asarray, params))
        params, state = update(params, state, *batch(drawn))
        _noise_states[run] = jax.tree.map(jnp.copy, state)  # it may be donated
    return jax.tree.map(np.asarray, params), before
