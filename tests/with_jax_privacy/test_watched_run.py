"""What is recorded of a run, step by step, and what a step may not do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax_privacy import clipping

import bayesdp.jax_privacy
from bayesdp import InvalidInputError, Ledger, LedgerError
from jax_runs import (
    AUDIT,
    AUDIT_RECORDS,
    RECORDS,
    X,
    Y,
    batch,
    clipped,
    draws,
    gaussian,
    loss,
    poisson,
    raw_norms,
    start,
    step_function,
    train,
    watched,
)


def test_norms_are_those_of_the_batch_and_of_audit_records_before_the_update():
    run = watched(audit=AUDIT)
    _, before = train(run, 3)
    assert run.ledger.steps == 3
    for number, (params, drawn) in enumerate(zip(before, draws(3), strict=True), start=1):
        audit, members = run.ledger.private_norms(number)
        np.testing.assert_allclose(audit, raw_norms(params, *AUDIT), rtol=1e-5)
        np.testing.assert_allclose(np.sort(members), np.sort(raw_norms(params, X[drawn], Y[drawn])), rtol=1e-5)


def test_settings_are_read_from_the_objects():
    run = watched(privatizer=gaussian(3.0), grad_fn=clipped(l2_clip_norm=0.7), batches=poisson(0.25), records=RECORDS)
    train(run, 1)
    (stored,) = run.ledger.stored_steps()
    step = stored.step
    assert (step.noise_std, step.clip, step.sample_rate, step.planned_batch) == (3.0, 0.7, 0.25, 64.0)
    assert step.source == "jax_privacy"


def clipped_function():
    """The gradients of ``clipped``, with the norms by which they are clipped."""
    return clipping.clipped_fun(jax.grad(loss), batch_argnums=(1, 2), l2_clip_norm=1.0, return_norms=True)


@pytest.mark.parametrize("new_grad_fn", [clipped, clipped_function])
def test_training_is_the_same_to_the_last_bit(new_grad_fn):
    """Also with arguments that are donated, and with a momentum that accumulates any difference."""
    optimizer = optax.adam(0.01)

    def trained(grad_fn, privatizer, jit):
        def update(state, x, y, is_padding_example):
            params, noise_state, momenta = state
            total, _ = grad_fn(params, x, y, is_padding_example=is_padding_example)
            noisy, noise_state = privatizer.update(total, noise_state)
            changes, momenta = optimizer.update(noisy, momenta)
            return optax.apply_updates(params, changes), noise_state, momenta

        compiled = jit(update, donate_argnums=0)
        state = start(), privatizer.init(start()), optimizer.init(start())
        for drawn in draws(10):
            state = compiled(state, *batch(drawn))
        return np.concatenate([np.ravel(value) for value in jax.tree.leaves(state[0])])

    alone = trained(new_grad_fn(), gaussian(), jax.jit)
    run = watched(grad_fn=new_grad_fn(), audit=AUDIT)
    assert trained(run.grad_fn, run.privatizer, run.jit).tobytes() == alone.tobytes()
    assert run.ledger.steps == 10


def test_it_compiles_once():
    run = watched(audit=AUDIT)
    train(run, 8)
    assert run.compilations == 1
    assert run.ledger.steps == 8


def test_audit_records_in_chunks():
    """Chunks that do not divide the records, and microbatches that do not divide the chunks."""
    expected = watched(audit=AUDIT)
    train(expected, 1)
    for settings in ({}, {"microbatch_size": 4}):
        run = watched(audit=AUDIT, audit_batch=7, grad_fn=clipped(**settings))
        train(run, 1)
        np.testing.assert_allclose(run.ledger.private_norms(1)[0], expected.ledger.private_norms(1)[0], rtol=1e-6)


def test_audits_at_every_kth_step():
    run = watched(audit=AUDIT, every=2)
    train(run, 4)
    assert [stored.step.audited for stored in run.ledger.stored_steps()] == [AUDIT_RECORDS, 0, AUDIT_RECORDS, 0]
    assert run.compilations == 2


def test_a_step_without_jit_is_recorded_before_update_returns():
    run = watched(audit=AUDIT)
    params, state = start(), run.privatizer.init(start())
    for number, drawn in enumerate(draws(3), start=1):
        x, y, padding = batch(drawn)
        total, _ = run.grad_fn(params, x, y, is_padding_example=padding)
        assert run.ledger.steps == number - 1
        noisy, state = run.privatizer.update(total, state)
        assert run.ledger.steps == number
        np.testing.assert_allclose(run.ledger.private_norms(number)[0], raw_norms(params, *AUDIT), rtol=1e-5)
        params = jax.tree.map(lambda value, change: value - 0.01 * change, params, noisy)


def test_static_and_named_arguments():
    run = watched(audit=AUDIT)

    @functools.partial(run.jit, static_argnames="halved", static_argnums=4)
    def update(params, state, x, y, doubled, *, halved):
        total, _ = run.grad_fn(params, x, y)
        noisy, state = run.privatizer.update(total, state)
        return noisy, (doubled is True, halved is True), state

    _, flags, _ = update(start(), run.privatizer.init(start()), X, Y, True, halved=True)
    assert flags == (True, True)


def test_noise_of_a_sum_that_is_added_to_a_mean_is_refused():
    """google-deepmind/jax_privacy, issue 383: the sum is divided by hand before noise for the sum is added."""
    run = watched()

    def update(params, state, x, y, is_padding_example):
        total, _ = run.grad_fn(params, x, y, is_padding_example=is_padding_example)
        mean = jax.tree.map(lambda value: value / 32, total)
        return run.privatizer.update(mean, state)

    with pytest.raises(InvalidInputError, match=r"divided by hand gets the noise of another sum"):
        run.jit(update)(start(), run.privatizer.init(start()), *batch(draws(1)[0]))
    assert run.ledger.steps == 0


def test_a_noise_multiplier_that_the_objects_do_not_have_is_refused():
    """The same mistake in the objects: the noise of a sum, with a gradient that is divided by normalize_by."""
    with pytest.raises(InvalidInputError, match=r"noise_multiplier=2.0: expected 64, .* noise of a sum is added to a"):
        watched(grad_fn=clipped(normalize_by=32.0), privatizer=gaussian(2.0), noise_multiplier=2.0)
    watched(grad_fn=clipped(normalize_by=32.0), privatizer=gaussian(2.0 / 32), noise_multiplier=2.0)


def test_two_releases_in_a_step_are_refused():
    run = watched()

    def update(params, state, x, y, is_padding_example):
        total, _ = run.grad_fn(params, x, y, is_padding_example=is_padding_example)
        _, state = run.privatizer.update(total, state)
        return run.privatizer.update(total, state)

    with pytest.raises(InvalidInputError, match=r"privatizer.update='called twice'"):
        run.jit(update)(start(), run.privatizer.init(start()), *batch(draws(1)[0]))


def test_a_step_that_releases_nothing_is_refused():
    run = watched()
    with pytest.raises(InvalidInputError, match=r"function='<lambda>': expected a function that gives the sum"):
        run.jit(lambda params, x, y: run.grad_fn(params, x, y))(start(), X, Y)


def test_a_function_that_is_compiled_already_is_refused():
    run = watched()
    with pytest.raises(InvalidInputError, match=r"the function without jax.jit"):
        run.jit(jax.jit(step_function(run.grad_fn, run.privatizer)))
    with pytest.raises(InvalidInputError, match=r"out_shardings=.*place arrays with jax.device_put"):
        run.jit(step_function(run.grad_fn, run.privatizer), out_shardings=None)


def test_steps_inside_of_other_programs_are_refused():
    run = watched()
    update, state = step_function(run.grad_fn, run.privatizer), run.privatizer.init(start())
    given = batch(draws(1)[0])

    def several(params, state):
        return jax.lax.scan(lambda carry, _: (update(*carry, *given), None), (params, state), length=3)[0]

    with pytest.raises(InvalidInputError, match=r"not inside of a loop, a shard_map or another jit"):
        run.jit(several)(start(), state)
    with pytest.raises(InvalidInputError, match=r"in the same function compiled by watched.jit"):
        jax.jit(update)(start(), state, *given)
    with pytest.raises(InvalidInputError, match=r"steps of watched.jit in a loop of Python"):
        jax.jit(run.jit(update))(start(), state, *given)
    inner = jax.jit(lambda params, x, y: run.grad_fn(params, x, y)[0])
    with pytest.raises(InvalidInputError, match=r"in the same function compiled by watched.jit"):
        run.jit(lambda params, state, x, y: run.privatizer.update(inner(params, x, y), state))(start(), state, X, Y)
    assert run.ledger.steps == 0


def test_an_audit_norm_that_is_not_finite_is_refused_and_nothing_is_returned():
    spoiled = AUDIT[0].copy()
    spoiled[3] = np.nan
    run = watched(audit=(spoiled, AUDIT[1]))
    with pytest.raises(InvalidInputError, match=r"audit\[3\]=nan"):
        train(run, 1)
    assert run.ledger.steps == 0


@pytest.mark.parametrize("spoilt", [slice(0, 1), slice(0, None)])
def test_a_record_whose_gradient_is_not_finite_is_charged_for_what_is_released(spoilt):
    """Coordinates that are finite may be left; the oracle is what the callable releases of this record alone."""

    def steep(params, x, y):  # the gradient has the coordinates of x
        return jnp.sum(x * params["w"]) + 0.0 * params["b"]

    grad_fn = clipped(steep, l2_clip_norm=50.0)
    run = watched(grad_fn=grad_fn, audit=AUDIT)
    update = run.jit(step_function(run.grad_fn, run.privatizer))
    x, y, padding = batch(draws(1)[0])
    x = x.at[0, spoilt].set(jnp.inf)
    params, _ = update(start(), run.privatizer.init(start()), x, y, padding)
    released = np.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(grad_fn(start(), x[:1], y[:1])[0])))
    charged = run.ledger.private_norms(1)[1][0]
    assert charged == pytest.approx(released, rel=1e-6) or charged == 50.0
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(params))


def test_half_precision_gradients_are_refused():
    run = watched()
    update = run.jit(lambda params, state, x, y: run.privatizer.update(run.grad_fn(params, x, y)[0], state))
    half = jax.tree.map(lambda value: value.astype(jnp.bfloat16), start())
    with pytest.raises(InvalidInputError, match=r"dtype='bfloat16': expected gradients in float32 or float64"):
        update(half, run.privatizer.init(half), X.astype(jnp.bfloat16), Y.astype(jnp.bfloat16))


def test_a_sum_in_another_precision_than_its_norms_is_refused():
    run = watched(grad_fn=clipped(dtype=jnp.bfloat16))
    with pytest.raises(InvalidInputError, match=r"dtype='bfloat16': expected float32"):
        train(run, 1)


@pytest.mark.parametrize(
    "audit",
    [AUDIT[0], (AUDIT[0], AUDIT[1][:-1]), (AUDIT[0][:0], AUDIT[1][:0])],
    ids=["one array", "rows of different number", "no rows"],
)
def test_audit_records_of_another_form_are_refused(audit):
    with pytest.raises(InvalidInputError, match=r"audit="):
        watched(audit=audit)


@pytest.mark.parametrize("audit", [(AUDIT[0], AUDIT[1][:, None]), (AUDIT[0], AUDIT[1].astype(int))])
def test_audit_records_unlike_those_trained_on_are_refused(audit):
    """A target of shape (1,) would be broadcast, and give norms of another loss."""
    run = watched(audit=audit)
    with pytest.raises(InvalidInputError, match=r"audit=.* expected records like those that are trained on"):
        train(run, 1)


def noisy_loss(params, x, y, key):
    return loss(params, x * jax.random.bernoulli(key, 0.5, x.shape), y)


@pytest.mark.parametrize(("random_draws", "audited"), [("estimate", AUDIT_RECORDS), ("clip", 0)])
def test_a_loss_that_draws_random_numbers_is_found(random_draws, audited):
    run = watched(grad_fn=clipped(noisy_loss, prng_argnum=3), audit=AUDIT, random_draws=random_draws)

    @run.jit
    def update(params, state, x, y, key):
        total, _ = run.grad_fn(params, x, y, key)
        return run.privatizer.update(total, state)

    state = run.privatizer.init(start())
    for number in range(2):
        _, state = update(start(), state, X, Y, jax.random.key(number))
    assert run.random_draws is True
    assert [stored.step.audited for stored in run.ledger.stored_steps()] == [audited] * 2
    assert run.ledger.stored_steps()[1].step.caveats == ("random-draws" if audited else "")


def test_norms_without_random_numbers_give_bounds():
    run = watched(audit=AUDIT)
    train(run, 2)
    assert run.random_draws is False
    assert [stored.step.caveats for stored in run.ledger.stored_steps()] == ["", ""]
    assert run.claims(shares=[0.5]).share(0.5).ex_post.kind != "estimate"


def test_the_plan_is_that_of_the_strategy(tmp_path):
    with watched(ledger=tmp_path / "run.ledger", batches=poisson(0.125, 40), audit=AUDIT) as run:
        train(run, 2)
        assert run.ledger.plan[0].steps == 40
        assert run.claims().everyone.kind == "proved"
    assert run.ledger.closed
    with pytest.raises(LedgerError, match=r"is closed"):
        train(run, 1)


def test_checkpoints_and_the_ledger_go_on_together(tmp_path):
    with watched(ledger=tmp_path / "run.ledger") as run:
        train(run, 2)
        state = run.state_dict()
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        run = watched(ledger=ledger)
        run.load_state_dict(state)
        train(run, 1)
        assert ledger.steps == 3
    with pytest.raises(LedgerError):
        watched().load_state_dict(state)


def test_what_comes_too_late_for_a_ledger_that_exists_is_refused():
    for options in ({"steps": 3}, {"unit": "person"}):
        with pytest.raises(InvalidInputError, match=r"the path of a new ledger"):
            watched(**options)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'loss'"):
        watched(loss=loss)
    with pytest.raises(InvalidInputError, match=r"random_draws='no'"):
        watched(random_draws="no")


def test_another_number_of_audit_records_than_the_ledger_has_is_refused():
    ledger = Ledger(audit_ids=range(7))
    with pytest.raises(InvalidInputError, match=r"len\(audit\)=20: expected the 7 audit records"):
        watched(ledger=ledger, audit=AUDIT)


def test_watch_takes_the_place_of_nothing_that_it_was_given():
    grad_fn, privatizer = clipped(), gaussian()
    run = bayesdp.jax_privacy.watch(grad_fn, privatizer, poisson(), ledger=Ledger())
    grad_fn(start(), X, Y)
    privatizer.update(start(), privatizer.init(start()))
    assert run.ledger.steps == 0
    assert run.grad_fn.sensitivity() == grad_fn.sensitivity()
