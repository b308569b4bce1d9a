"""Noise that is drawn twice from one key hides nothing: a step with it is refused."""

import jax
import numpy as np
import pytest
from jax_privacy import noise_addition

from bayesdp import InvalidInputError, Ledger
from bayesdp.jax_privacy.noise_keys import keys_of
from jax_runs import AUDIT, batch, draws, gaussian, start, step_function, watched


def update_of(run):
    return run.jit(step_function(run.grad_fn, run.privatizer))


def test_a_state_that_is_not_kept_is_refused():
    """Without the refusal the difference of two releases is that of two sums, without noise."""
    alone = jax.jit(step_function(watched().gradient.function, gaussian()))
    first, second, *_ = draws(4)
    state = gaussian().init(start())
    (one, _), (other, _) = (alone(start(), state, *batch(drawn)) for drawn in (first, first))
    assert all(np.array_equal(one[name], other[name]) for name in one)  # the same noise
    run = watched()
    update = update_of(run)
    params, kept = update(start(), run.privatizer.init(start()), *batch(first))
    with pytest.raises(InvalidInputError, match=r"noise_state='one that was used before': expected the state that"):
        update(params, run.privatizer.init(start()), *batch(second))
    assert run.ledger.steps == 1
    update(params, kept, *batch(second))
    assert run.ledger.steps == 2


def test_a_state_of_an_earlier_step_is_refused():
    run = watched()
    update = update_of(run)
    params, states = start(), [run.privatizer.init(start())]
    for drawn in draws(3):
        params, state = update(params, states[-1], *batch(drawn))
        states.append(state)
    for used in states[:3]:
        with pytest.raises(InvalidInputError, match="used before"):
            update(params, used, *batch(draws(1)[0]))
    assert run.ledger.steps == 3


def test_a_step_that_was_refused_has_used_no_noise():
    """Nothing of it was returned, so it may be tried again."""
    run = watched(audit=AUDIT)
    update = update_of(run)
    broken = jax.tree.map(lambda value: value * np.nan, start())
    state = run.privatizer.init(start())
    with pytest.raises(InvalidInputError, match="audit"):
        update(broken, state, *batch(draws(1)[0]))
    update(start(), state, *batch(draws(1)[0]))
    assert run.ledger.steps == 1


def test_without_jit_too():
    run = watched()
    total, _ = run.grad_fn(start(), *batch(draws(1)[0])[:2])
    state = run.privatizer.init(start())
    run.privatizer.update(total, state)
    total, _ = run.grad_fn(start(), *batch(draws(1)[0])[:2])
    with pytest.raises(InvalidInputError, match="used before"):
        run.privatizer.update(total, state)
    assert run.ledger.steps == 1


@pytest.mark.parametrize("lost", [0, 1])
def test_the_noise_after_a_checkpoint_is_refused_if_it_was_released(tmp_path, lost):
    """A server that died after the checkpoint has released steps with the noise that the checkpoint would repeat."""
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        run = watched(ledger=ledger)
        params, noise = update_of(run)(start(), run.privatizer.init(start()), *batch(draws(1)[0]))
        checkpoint = run.state_dict()
        for _ in range(lost):
            update_of(run)(params, noise, *batch(draws(1)[0]))
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        run = watched(ledger=ledger)
        run.load_state_dict(checkpoint)
        if not lost:
            update_of(run)(params, noise, *batch(draws(1)[0]))
            assert ledger.steps == 2
            return
        with pytest.raises(InvalidInputError, match="after a restart a privatizer with a new prng_key"):
            update_of(run)(params, noise, *batch(draws(1)[0]))
        fresh = noise_addition.gaussian_privatizer(stddev=2.0, prng_key=jax.random.key(7)).init(start())
        update_of(run)(params, fresh, *batch(draws(1)[0]))
        assert ledger.steps == 3


@pytest.mark.parametrize("key", [jax.random.key(3), jax.random.PRNGKey(3), jax.random.key(3, impl="rbg")])
def test_keys_of_every_kind_are_found(key):
    state = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=key).init(start())
    words = keys_of(state)
    assert words.dtype == np.uint32
    assert words.tolist() == jax.random.key_data(key).tolist() if words.size > 2 else words.size == 2
    assert keys_of(((), start())) is None  # weights are no keys
