"""The problem of ``adapter_runs.py`` with JAX Privacy, in float64, watched by ``bayesdp.jax_privacy.watch``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax
from jax_privacy import batch_selection, clipping, noise_addition

import bayesdp.jax_privacy
from bayesdp import Ledger
from contracts.adapter_runs import AdapterRun, FloatArray, Problem

PADDING = 40  # so that one shape is compiled, and there is padding to be left out


def loss(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    w1, b1, w2, b2 = parameters
    logits = w2 @ jnp.tanh(w1 @ x + b1) + b2
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


class JaxPrivacyRun(AdapterRun):
    """A run with JAX Privacy whose noise is not drawn, but that of the problem."""

    closeness = 1e-5  # it clips by clip / norm, the others by clip / (norm + 1e-6)
    # since 2.3 the norm of a broken gradient is not finite, and before that what is left of it has one
    broken_norm = "zero" if "nan_safe" in inspect.signature(clipping.clip_pytree).parameters else "clip"

    def __init__(self, problem: Problem, ledger: Ledger | None, at_update: Callable[[], None]) -> None:
        self._problem, self._at_update, self._taken = problem, at_update, 0
        with jax.enable_x64(True):
            self._parameters: Any = tuple(jnp.asarray(parameter) for parameter in problem.parameters)
            self._watched = None
            grad_fn: Any = jax_privacy.clipped_grad(
                loss, l2_clip_norm=problem.clip, batch_argnums=(1, 2), keep_batch_dim=False, return_grad_norms=True
            )
            privatizer: Any = noise_addition.gaussian_privatizer(stddev=problem.noise_std, prng_key=jax.random.key(0))
            jit: Any = jax.jit
            if ledger is not None:
                self._watched = bayesdp.jax_privacy.watch(
                    grad_fn,
                    privatizer,
                    batch_selection.CyclicPoissonSampling(
                        sampling_prob=problem.sample_rate, iterations=len(problem.batches)
                    ),
                    ledger=ledger,
                    audit=(problem.audit_inputs, problem.audit_targets),
                )
                grad_fn, privatizer, jit = self._watched.grad_fn, self._watched.privatizer, self._watched.jit
            self._noise_state = privatizer.init(self._parameters)

            def update(parameters: Any, state: Any, noise: Any, x: Any, y: Any, is_padding_example: Any) -> Any:
                total, _ = grad_fn(parameters, x, y, is_padding_example=is_padding_example)
                with patch.object(noise_addition, "_iid_normal_noise", lambda *_: noise):
                    noisy, state = privatizer.update(total, state)
                factor = problem.learning_rate / problem.expected_batch
                return jax.tree.map(lambda value, change: value - factor * change, parameters, noisy), state

            self._update = jit(update)

    def train(self, steps: int) -> None:
        with jax.enable_x64(True):
            for _ in range(steps):
                self._step()
                self._taken += 1

    def _step(self) -> None:
        problem = self._problem
        indices = batch_selection.pad_to_multiple_of(problem.batches[self._taken], PADDING)
        parameters, self._noise_state = self._update(
            self._parameters,
            self._noise_state,
            tuple(jnp.asarray(noise) for noise in problem.noise[self._taken]),
            jnp.asarray(problem.inputs[indices]),
            jnp.asarray(problem.targets[indices]),
            jnp.asarray(indices == -1),
        )
        self._at_update()
        self._parameters = parameters

    @property
    def parameters(self) -> FloatArray:
        return np.concatenate([np.asarray(parameter).ravel() for parameter in self._parameters])

    def close(self) -> None:
        if self._watched is not None:
            self._watched.close()
