"""A run with JAX Privacy made again with one record added: its ledger says no less than what was released."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_privacy import batch_selection

from bayesdp import Ledger
from bayesdp.attack.replayed_run import ReplayedRun, ReplayedStep
from jax_runs import RECORDS, X, Y, clipped, gaussian, poisson, start, watched

PADDING, RATE = 96, 0.125
AUDIT = np.concatenate([X[:1] * 0.3, X[1:2] * 50]).astype(np.float64), np.array([0.7, -3.0])
"""A record that is seldom clipped, and one that always is."""


def release(grad_fn, privatizer):
    def update(params, state, x, y, padding):
        total, _ = grad_fn(params, x, y, is_padding_example=padding)
        noisy, state = privatizer.update(total, state)
        return jax.tree.map(lambda value, change: value - 0.01 * change, params, noisy), state, noisy

    return update


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(np.float64)


def jax_run(*, steps=40, privatizer=None, ledger=None):
    """Train watched; replay each step with functions that nobody watches, and with an audit record among the padding.

    ``privatizer`` is what really adds noise, while the ledger is told of ``gaussian()``.
    """
    ledger = ledger or Ledger(keep_norms=True)
    run = watched(ledger=ledger, audit=AUDIT)
    real = privatizer or gaussian()
    if privatizer is not None:
        run._noise = real.update
    watched_step = run.jit(release(run.grad_fn, run.privatizer))
    plain_step = jax.jit(release(clipped(), real))
    params, state = start(), run.privatizer.init(start())
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), params)
    others = jax.random.split(jax.random.key(7), steps)
    seen = []
    for drawn, other in zip(poisson(RATE, steps).batch_iterator(RECORDS, rng=0), others, strict=True):
        places = batch_selection.pad_to_multiple_of(drawn, PADDING)
        batch = jnp.asarray(X[places], jnp.float64), jnp.asarray(Y[places], jnp.float64), jnp.asarray(places == -1)
        after, later, noisy = watched_step(params, state, *batch)
        recorded = ledger.steps  # when the update becomes known, before anything else is done
        added = []
        for row, target in zip(*AUDIT, strict=True):
            x, y, padding = (np.array(part) for part in batch)
            x[-1], y[-1], padding[-1] = row, target, False
            added.append(flat(plain_step(params, state, x, y, padding)[2]))
        seen.append(
            ReplayedStep(
                drawn=np.asarray(drawn, np.int64),
                released=flat(noisy),
                repeated=flat(plain_step(params, state, *batch)[2]),
                with_record=np.array(added),
                other_noise=flat(plain_step(params, _with_key(state, other), *batch)[2]),
                recorded=recorded,
            )
        )
        params, state = after, later
    run.settle()
    return ReplayedRun(engine="JAX Privacy", ledger=ledger, records=RECORDS, steps=tuple(seen), round_off=1e-9)


def _with_key(state, key):
    """The state of the privatizer with another key."""
    leaves, form = jax.tree.flatten(state)
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    assert sum(keys) == 1
    return form.unflatten([key if is_key else leaf for leaf, is_key in zip(leaves, keys, strict=True)])


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def test_a_right_run_stands():
    findings = {finding.claim: finding for finding in jax_run().findings()}
    assert [finding.line() for finding in findings.values() if not finding.stands] == []
    influence = findings["an audit record's norm is what the record changes"]
    assert influence.bound == pytest.approx(influence.claimed, rel=1e-6)


def test_noise_that_is_too_small_is_noticed():
    broken = {finding.claim for finding in jax_run(privatizer=gaussian(1.6)).findings() if not finding.stands}
    assert broken == {"the noise is what the ledger says"}


def test_a_step_that_is_not_recorded_is_noticed():
    class Forgets(Ledger):
        def step(self, **said):
            return self.steps if self.steps == 10 else super().step(**said)

    broken = {
        finding.claim for finding in jax_run(steps=15, ledger=Forgets(keep_norms=True)).findings() if not finding.stands
    }
    assert "every update is recorded before it is applied" in broken
