"""In the manner of JAX Privacy's example of a logistic regression: its execution plan, its loop, its held-out users.

Its examples/dp_logistic_regression.py itself was run with these lines; docs/jax-privacy.md shows them.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_privacy import batch_selection

import bayesdp.jax_privacy  # added
from bayesdp import InvalidInputError

execution_plan = pytest.importorskip(
    "jax_privacy.experimental.execution_plan", reason="this version of JAX Privacy keeps its execution plans elsewhere"
)

USERS, HELD_OUT, FEATURES, BATCH, ITERATIONS = 900, 60, 8, 90, 20
EPSILON, DELTA = 1.0, 1e-5


def users(number, seed):
    values = np.random.default_rng(seed)
    features = values.standard_normal((number, FEATURES)).astype(np.float32)
    return jnp.asarray(features), jnp.asarray(values.random(number) < 1 / (1 + np.exp(-features.sum(axis=1))))


def logistic_loss(params, features, labels):
    logits = features @ params["weights"] + params["bias"]
    return -jnp.mean(jax.nn.log_sigmoid(jnp.where(labels, logits, -logits)))


def plan_of(bands, **settings):
    return execution_plan.BandMFExecutionPlanConfig.default(
        iterations=ITERATIONS,
        num_bands=bands,
        l2_clip_norm=1.0,
        normalize_by=BATCH,
        epsilon=EPSILON,
        delta=DELTA,
        sampling_prob=BATCH / USERS * bands,
        **settings,
    ).plan


def run(path, bands=1, **settings):
    (features, labels), held_out = users(USERS, 1), users(HELD_OUT, 2)
    plan = plan_of(bands, **settings)
    grad_fn = plan.clipped_grad(logistic_loss, batch_argnums=(1, 2), return_grad_norms=True)  # changed
    noise, draws = plan.noise_addition_transform, plan.batch_selection_strategy
    watched = bayesdp.jax_privacy.watch(grad_fn, noise, draws, ledger=path, audit=held_out, records=USERS)  # added
    optimizer = optax.sgd(0.2)

    @watched.jit  # changed
    def update_fn(params, batch, is_padding_example, noise_state, opt_state):
        x, y = batch
        clipped, _ = watched.grad_fn(params, x, y, is_padding_example=is_padding_example)  # changed
        noisy, noise_state = watched.privatizer.update(clipped, noise_state)  # changed
        updates, opt_state = optimizer.update(noisy, opt_state)
        return optax.apply_updates(params, updates), noise_state, opt_state

    params = {"weights": jnp.zeros(FEATURES), "bias": jnp.array(0.0)}
    noise_state, opt_state = noise.init(params), optimizer.init(params)
    for drawn in draws.batch_iterator(USERS):
        rows = batch_selection.pad_to_multiple_of(drawn, 32)
        batch = features[rows], labels[rows]
        params, noise_state, opt_state = update_fn(params, batch, rows == -1, noise_state, opt_state)
    return watched


@pytest.mark.parametrize("rescaled", [False, True])
def test_the_example_with_one_band(tmp_path, rescaled):
    """Its noise is calibrated to EPSILON, by JAX Privacy; the ledger has the same figure from what was done."""
    with run(tmp_path / "run.ledger", rescale_to_unit_norm=rescaled) as watched:
        assert watched.ledger.steps == ITERATIONS
        claims = watched.claims(delta=DELTA, shares=[0.5])
    assert claims.everyone.kind == "proved"
    assert claims.everyone.epsilon == pytest.approx(EPSILON, rel=0.01)
    assert claims.share(0.5).ex_post.epsilon < claims.everyone.epsilon


def test_the_example_as_it_is_correlates_its_noise_and_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"correlated noise \(BandMF\)"):
        run(tmp_path / "run.ledger", bands=4)
    assert not list(tmp_path.iterdir())
