"""Keras models that JAX Privacy made private."""

import warnings

import keras
import numpy as np
import pytest
from jax_privacy import keras_api

from bayesdp import InvalidInputError, Ledger
from bayesdp.jax_privacy import Epochs, SamplingWarning, watch_keras

RECORDS, BATCH, STEPS = 320, 64, 30
_values = np.random.default_rng(0)
X = _values.standard_normal((RECORDS, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
AUDIT = X[:24] * 0.3, Y[:24]


def private_model(*, dropout=False, poisson=True, **settings):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dropout(0.5)] if dropout else []
    model = keras.Sequential([keras.Input((5,)), *layers, keras.layers.Dense(2)])
    config = {
        "epsilon": 1000.0,
        "delta": 1e-5,
        "clipping_norm": 0.8,
        "batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "train_steps": STEPS,
        "train_size": RECORDS,
        "noise_multiplier": 1.5,
        "poisson_sampling_in_fit": poisson,
        "seed": 1,
    }
    model = keras_api.make_private(model, keras_api.DPKerasConfig(**config | settings))
    accumulated = settings.get("gradient_accumulation_steps")
    model.compile(
        optimizer=keras.optimizers.SGD(0.5, gradient_accumulation_steps=accumulated),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def watched(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        return watch_keras(model, **{"ledger": Ledger(keep_norms=True), "audit": AUDIT} | options)


def fit(model, epochs=2, **options):
    return model.fit(X, Y, batch_size=BATCH, epochs=epochs, verbose=0, **options)


def audit_norms(kernel, bias):
    """The norm of each audit record's gradient in closed form: |softmax - target| |(x, 1)|."""
    logits = AUDIT[0] @ kernel + bias
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return np.linalg.norm(shares - np.eye(2)[AUDIT[1]], axis=1) * np.hypot(np.linalg.norm(AUDIT[0], axis=1), 1)


@pytest.mark.parametrize("poisson", [True, False])
def test_fit_is_the_same_to_the_last_bit(poisson):
    alone, model = private_model(poisson=poisson), private_model(poisson=poisson)
    run = watched(model)
    histories = []
    for each in (alone, model):
        keras.utils.set_random_seed(3)  # of the order of the data
        histories.append(fit(each).history)
    assert histories[0] == histories[1]
    assert [w.tobytes() for w in alone.get_weights()] == [w.tobytes() for w in model.get_weights()]
    assert run.ledger.steps == (10 if poisson else 2)


def test_poisson_sampling_in_fit_is_accounted_at_its_rate():
    model = private_model()
    kernel, bias = (np.array(weight) for weight in model.layers[-1].get_weights())
    run = watched(model)
    fit(model, 1)
    steps = [stored.step for stored in run.ledger.stored_steps()]
    assert len(steps) == 5
    for step in steps:
        assert (step.sample_rate, step.clip, step.audited, step.caveats) == (0.2, 0.8, 24, "")
        assert step.noise_std == pytest.approx(1.5 * 0.8, rel=1e-12)
    np.testing.assert_allclose(run.ledger.private_norms(1)[0], audit_norms(kernel, bias), rtol=1e-4)
    sizes = [len(run.ledger.private_norms(number)[1]) for number in range(1, 6)]
    assert sum(sizes) != 5 * BATCH  # padding is left out
    assert all(20 < size < 120 for size in sizes)


def test_data_that_fit_does_not_sample_get_no_amplification():
    """google-deepmind/jax_privacy, pull request 272: Poisson sampling is accounted for, the default does not sample."""
    model = private_model(poisson=False)
    with pytest.warns(SamplingWarning, match=r"poisson_sampling_in_fit=False: JAX Privacy accounts for"):
        run = watch_keras(model, ledger=Ledger(), audit=AUDIT)
    fit(model, 3)
    assert [(s.step.sample_rate, s.step.caveats) for s in run.ledger.stored_steps()] == [(1.0, "zero-out")] * 3


def test_accumulated_gradients_are_a_step_for_each_batch():
    model = private_model(gradient_accumulation_steps=2)
    run = watched(model)
    fit(model, 1)
    assert run.ledger.steps == 5
    assert run.ledger.stored_steps()[0].step.noise_std == pytest.approx(1.5 * 0.8 / np.sqrt(2), rel=1e-12)


def test_dropout_is_found():
    model = private_model(dropout=True)
    run = watched(model)
    fit(model, 1)
    assert run.random_draws is True
    assert run.ledger.stored_steps()[0].step.caveats == "random-draws"


def test_the_plan_is_that_of_the_config(tmp_path):
    model = private_model()
    with watched(model, ledger=tmp_path / "run.ledger") as run:
        fit(model, 1, callbacks=keras.callbacks.CallbackList([], add_history=True, model=model))
        assert run.ledger.plan[0].steps == STEPS
        assert run.claims().everyone.kind == "proved"
    fit(model, 1)  # not watched any more
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.steps == 5


def test_an_audit_norm_that_is_not_finite_is_refused():
    spoiled = AUDIT[0].copy()
    spoiled[2] = np.inf
    model = private_model()
    run = watched(model, audit=(spoiled, AUDIT[1]))
    with pytest.raises(InvalidInputError, match=r"audit\[2\]=nan"):
        fit(model, 1)
    assert run.ledger.steps == 0


def test_what_cannot_be_accounted_is_refused():
    with pytest.raises(InvalidInputError, match=r"the model that keras_api.make_private returned"):
        watched(keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)]))
    several = private_model()
    several.compile(optimizer="sgd", loss="mse", steps_per_execution=2)
    with pytest.raises(InvalidInputError, match=r"steps_per_execution=2"):
        watched(several)
    with pytest.raises(InvalidInputError, match=r"batches=.* expected none with poisson_sampling_in_fit=True"):
        watched(private_model(), batches=Epochs(5))
    with pytest.raises(InvalidInputError, match=r"audit='ndarray': expected \(x, y\)"):
        watched(private_model(), audit=AUDIT[0])


def test_data_of_which_the_order_is_not_known_are_refused():
    def batches():
        while True:
            yield X[:BATCH], Y[:BATCH]

    model = private_model(poisson=False)
    run = watched(model)
    with pytest.raises(InvalidInputError, match=r"x='generator': expected arrays"):
        model.fit(batches(), steps_per_epoch=5, shuffle=False, verbose=0)
    with pytest.raises(InvalidInputError, match=r"steps_per_epoch=7"):
        fit(model, 1, steps_per_epoch=7)
    assert run.ledger.steps == 0
    declared = private_model(poisson=False)
    run = watched(declared, batches=Epochs(1))
    declared.fit(batches(), steps_per_epoch=3, shuffle=False, verbose=0)
    assert run.ledger.steps == 3


@pytest.mark.parametrize("poisson", [True, False])
def test_batches_of_your_own_are_refused(poisson):
    """train_on_batch neither samples nor goes through the data once: the same batch may come again and again."""
    model = private_model(poisson=poisson)
    run = watched(model)
    with pytest.raises(InvalidInputError, match=r"train_on_batch='a batch of your own': expected model.fit"):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert run.ledger.steps == 0


def test_batches_of_your_own_are_accounted_as_declared():
    model = private_model(poisson=False)
    run = watched(model, batches=Epochs(1), audit=None)
    for _ in range(3):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
    assert run.ledger.steps == 3
