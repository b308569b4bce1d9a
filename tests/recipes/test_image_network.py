"""Networks from scratch: one clipped mean over the views of a record, averaged weights, and the recipe itself."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from safetensors.numpy import load_file
from scipy import stats
from torch import nn

from bayesdp import Ledger
from bayesdp.randomness import Seeded, poisson_batch
from bayesdp.recipes import RECIPES, SgdSettings, fit_model, load, train
from bayesdp.recipes.checkpoint import Checkpoint
from bayesdp.recipes.features import EXTRACTORS
from bayesdp.recipes.image_network import VIEWS, mirrored, network, shifted
from bayesdp.recipes.record_norms import only_view
from bayesdp.recipes.standardised_convolution import StandardisedConvolution
from recipe_data import write_images

LOSS = nn.CrossEntropyLoss()


def images(n=60, seed=0, side=8):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((n, 1, side, side))), torch.from_numpy(rng.integers(0, 3, n))


def small(side=8, channels=4):
    torch.manual_seed(0)
    convolution = nn.Conv2d(1, channels, 3, padding=1)
    return nn.Sequential(convolution, nn.Tanh(), nn.Flatten(), nn.Linear(channels * side**2, 3)).double()


def settings(**changes):
    chosen = {"steps": 6, "sample_rate": 0.3, "clip": 0.4, "noise_multiplier": 1.5, "learning_rate": 0.2}
    return SgdSettings(**chosen | changes)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy()


def mean_gradients(model, inputs, targets, views):
    """Return for each record the mean of the gradients of its views, [n, parameters]: autograd, a view at a time."""
    rows = []
    for record, target in zip(inputs, targets, strict=True):
        of_views = []
        for view in views(record[None])[0]:
            parts = torch.autograd.grad(LOSS(model(view[None]), target[None]), list(model.parameters()))
            of_views.append(torch.cat([part.flatten() for part in parts]).numpy())
        rows.append(np.mean(of_views, axis=0))
    return np.array(rows)


def test_the_released_update_is_the_sum_of_clipped_means_over_views_with_noise():
    (x, y), model = images(), small(channels=8)
    before = flat(model)
    drawn = poisson_batch(Seeded(4), 60, 0.3, step=0)
    each = mean_gradients(model, x[drawn], y[drawn], mirrored)
    expected = (each * np.minimum(1, 0.4 / np.linalg.norm(each, axis=1))[:, None]).sum(axis=0)
    ledger = Ledger()
    chosen = settings(steps=1, momentum=0.0)
    fit_model(model, LOSS, x, y, chosen, ledger=ledger, randomness=Seeded(4), views=mirrored)
    noise = (before - flat(model)) / 0.2 * (0.3 * 60) - expected
    std = ledger.history.stretches[0].noise_std
    assert std == pytest.approx(0.6)
    assert stats.kstest(noise / std, "norm").pvalue > 1e-6
    assert noise.var() == pytest.approx(std**2, rel=6 * np.sqrt(2 / noise.size))


def standardised():
    torch.manual_seed(0)
    layers = StandardisedConvolution(1, 4, 3, stride=2, padding=1), nn.Tanh(), StandardisedConvolution(4, 2, 3)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8, 3)).double()


def test_filters_are_standardised_whatever_is_added_to_their_weights():
    layer, (x, _) = StandardisedConvolution(1, 4, 3).double(), images()
    filters, deviations = layer.standardised()
    np.testing.assert_allclose(filters.mean((1, 2, 3)).detach(), 0, atol=1e-12)
    np.testing.assert_allclose(filters.square().mean((1, 2, 3)).detach(), 1, rtol=1e-6)
    plain = nn.functional.conv2d(x, filters / 3, layer.bias)
    np.testing.assert_allclose(layer(x).detach(), plain.detach(), rtol=1e-12)
    with torch.no_grad():
        layer.weight.add_(5 + 3 * filters * deviations)
    np.testing.assert_allclose(layer(x).detach(), plain.detach(), atol=1e-6)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    assert torch.isfinite(layer(x)).all()


def test_gradients_by_record_through_standardised_filters():
    model, (x, y) = standardised(), images(6)
    each = mean_gradients(model, x, y, only_view)
    wrapped = GradSampleModule(model, loss_reduction="mean")
    LOSS(wrapped(x), y).backward()
    found = torch.cat([parameter.grad_sample.flatten(1) for parameter in wrapped.parameters()], dim=1)
    np.testing.assert_allclose(found.numpy(), each, rtol=1e-7, atol=1e-10)
    audit, ledger = images(12, seed=5), Ledger(keep_norms=True)
    model = standardised()
    norms = np.linalg.norm(mean_gradients(model, *audit, mirrored), axis=1)
    fit_model(model, LOSS, *images(), settings(), ledger=ledger, randomness=Seeded(1), audit=audit, views=mirrored)
    np.testing.assert_allclose(ledger.private_norms(1)[0], norms, rtol=1e-5)


@pytest.mark.parametrize("views", VIEWS.values(), ids=list(VIEWS))
def test_audit_norms_are_those_of_the_mean_that_is_clipped(views):
    model, audit, ledger = small(), images(12, seed=5), Ledger(keep_norms=True)
    norms = np.linalg.norm(mean_gradients(model, *audit, views), axis=1)
    fit_model(model, LOSS, *images(), settings(), ledger=ledger, randomness=Seeded(1), audit=audit, views=views)
    np.testing.assert_allclose(ledger.private_norms(1)[0], norms, rtol=1e-5)
    assert ledger.claims(delta=1e-5).share(0.5).ex_post.kind != "estimate"


def test_large_batches_in_parts_are_the_same_batches():
    trained = []
    for at_once in (None, 5):
        model, ledger = small(), Ledger()
        arguments = {"ledger": ledger, "randomness": Seeded(0), "views": mirrored, "at_once": at_once}
        fit_model(model, LOSS, *images(), settings(), **arguments)
        trained.append(flat(model))
        assert ledger.steps == 6
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-9)


def test_a_training_record_that_is_not_finite_contributes_nothing():
    (x, y), start = images(), small()
    broken = poisson_batch(Seeded(4), 60, 0.3, step=0)[0]
    damaged = x.clone()
    damaged[broken] = torch.nan
    trained = []
    for rows in (x, damaged):
        model, chosen = small(), settings(steps=1, momentum=0.0)
        fit_model(model, LOSS, rows, y, chosen, ledger=Ledger(), randomness=Seeded(4), views=mirrored)
        trained.append(flat(model))
    contribution = (trained[1] - trained[0]) / 0.2 * (0.3 * 60)
    [alone] = mean_gradients(start, x[[broken]], y[[broken]], mirrored)
    np.testing.assert_allclose(contribution, alone * min(1, 0.4 / np.linalg.norm(alone)), rtol=1e-5)


def test_weights_after_the_last_steps_are_averaged():
    def after(steps, average=0.0):
        model = small()
        # The same steps: those that are left out come last, and noise does not depend on their number.
        fit_model(model, LOSS, *images(), settings(steps=steps, average=average), ledger=Ledger(), randomness=Seeded(0))
        return flat(model)

    np.testing.assert_allclose(after(6, average=0.5), np.mean([after(4), after(5), after(6)], axis=0), rtol=1e-9)


def test_a_run_that_goes_on_is_the_same_run(tmp_path):
    def stop_at(last):
        def track(numbers):
            for number in numbers:
                if number == last:
                    raise KeyboardInterrupt
                yield number

        return track

    chosen = settings(average=0.6)
    arguments = {"randomness": Seeded(0), "audit": images(9, seed=2), "views": mirrored}
    whole, complete = small(), Ledger()
    fit_model(whole, LOSS, *images(), chosen, ledger=complete, **arguments)
    arguments["checkpoint"] = Checkpoint(tmp_path / "checkpoint.safetensors", chosen.to_dict())
    model = small()
    with Ledger.create(tmp_path / "l") as ledger, pytest.raises(KeyboardInterrupt):
        fit_model(model, LOSS, *images(), chosen, ledger=ledger, **arguments, track=stop_at(4))
    model = small()
    with Ledger.open(tmp_path / "l") as ledger:
        fit_model(model, LOSS, *images(), chosen, ledger=ledger, **arguments)
    np.testing.assert_array_equal(flat(model), flat(whole))
    np.testing.assert_array_equal(ledger.costs([1, 4]), complete.costs([1, 4]))


@pytest.mark.parametrize(
    ("views", "message"),
    [
        (lambda x: torch.stack([x, x + torch.rand_like(x)], 1), "views='views that differ': expected fixed views"),
        (lambda x: torch.stack([x, x - x.mean(0)], 1), "views='views that differ': expected fixed views"),
        (lambda x: x.repeat(2, 1, 1, 1)[:, None], "shape=.*: expected a row for each of 16 records"),
    ],
    ids=["random", "of other records", "rows repeated"],
)
def test_views_that_are_not_fixed_views_of_one_record_are_refused(views, message):
    ledger = Ledger()
    with pytest.raises(ValueError, match=message):
        fit_model(small(), LOSS, *images(), settings(), ledger=ledger, randomness=Seeded(0), views=views)
    assert ledger.steps == 0


def test_views_are_the_image_and_variants_of_it():
    image = torch.arange(12.0).reshape(1, 1, 3, 4)
    for views in VIEWS.values():
        assert torch.equal(views(image)[:, 0], image)
    assert torch.equal(mirrored(image)[0, 1, 0, 0], torch.tensor([3.0, 2.0, 1.0, 0.0]))
    assert torch.equal(shifted(image)[0, 2, 0], torch.stack([image[0, 0, 1], image[0, 0, 2], image[0, 0, 2]]))
    assert shifted(image).shape == (1, 5, 1, 3, 4)


def test_pixels_are_normalised_by_image():
    rng = np.random.default_rng(0)
    compute = EXTRACTORS["normalised-pixels"]
    colours = rng.integers(0, 256, (3, 32, 32, 3), np.uint8)
    found = compute(colours)
    assert found.shape == (3, 3, 32, 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.mean((1, 2, 3)), 0, atol=1e-5)
    np.testing.assert_array_equal(found[1:2], compute(colours[1:2]))
    assert not compute(np.full((1, 28, 28), 7, np.uint8)).any()


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *(("two-convolutions-grey", (1, 28, 28)), ("two-convolutions-colour", (3, 32, 32))),
        *(("standardised-grey", (1, 28, 28)), ("standardised-colour", (3, 32, 32))),
    ],
)
def test_networks_begin_with_the_same_weights(name, shape):
    first, second = network(name, 10), network(name, 10)
    assert first(torch.zeros(2, *shape)).shape == (2, 10)
    np.testing.assert_array_equal(flat(first), flat(second))


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Write a few images, and make the recipe for MNIST one of two steps; return the folder with the data."""
    recipe = RECIPES["mnist-network"]
    choice = replace(recipe.choices[0], steps=2, views="mirrored")
    monkeypatch.setitem(RECIPES, "mnist-network", replace(recipe, choices=(choice,), audit_rows=150))
    write_images(tmp_path / "data", "mnist", 120, 200)
    return tmp_path / "data"


def test_the_recipe_from_files_to_the_statement(quick, tmp_path):
    trained = train("mnist-network", data=quick, target_epsilon=1.0, output=tmp_path / "out")
    assert trained.claims.worst_case.epsilon <= 1
    assert trained.claims.worst_case.kind == "proved"
    about = trained.settings
    assert (about["audited_on"], about["tested_on"], about["trained_on"][:8]) == ("150 rows", "200 rows", "120 rows")
    assert about["views"] == "mirrored"
    assert "test rows classified correctly" in trained.statement()
    model = network(about["network"], 10)
    model.load_state_dict(
        {key: torch.from_numpy(v) for key, v in load_file(tmp_path / "out/model.safetensors").items()}
    )
    rows = load("mnist", quick).audit
    seen = mirrored(torch.from_numpy(EXTRACTORS["normalised-pixels"](rows.x)))
    scores = model(seen.flatten(0, 1)).unflatten(0, (200, 2)).mean(1)
    assert trained.accuracy == float((scores.argmax(1).numpy() == rows.y).mean())
    with Ledger.open(tmp_path / "out/run.ledger", write=False) as ledger:
        assert ledger.audit_records == 150
    assert json.loads((tmp_path / "out/run.json").read_text())["recipe"] == "mnist-network"


def test_experiments_compare_with_a_network_without_noise(quick):
    trained = train("mnist-network", data=quick, target_epsilon=1.0, reproducible=True)
    assert trained.baseline_accuracy is not None
    with pytest.raises(ValueError, match="tune=2: expected a recipe with a range of settings"):
        train("mnist-network", data=quick, tune=2)


def test_fewer_audit_rows_are_always_the_same_and_the_accuracy_is_that_of_all(quick):
    dataset = load("mnist", quick)
    fewer = dataset.with_audit_rows(50)
    assert len(fewer.audit) == 50
    assert fewer.judged is dataset.audit
    np.testing.assert_array_equal(fewer.audit.x, load("mnist", quick, seed=3).with_audit_rows(50).audit.x)
    assert dataset.with_audit_rows(None) is dataset.with_audit_rows(200) is dataset
