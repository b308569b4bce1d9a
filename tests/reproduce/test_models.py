"""Table 1 and the check for leakage from end to end, on a few made-up records; the models that both keep and share."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bayesdp.profiles.gaussian_profile import gaussian_epsilon
from bayesdp.recipes.datasets import Rows
from bayesdp.reproduce import recipes, reproduce, table1
from bayesdp.reproduce.document import story
from bayesdp.reproduce.experiment import ExperimentOptions
from bayesdp.reproduce.printed_table import PRINTED
from bayesdp.reproduce.published.images import MODELS, _read_kept, _train, accuracy
from recipe_data import write_abalone, write_adult, write_images


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")
    write_abalone(data)
    write_adult(data)
    write_images(data, "mnist", train=60, test=40)
    rng = np.random.default_rng(0)
    (data / "cifar10").mkdir()
    arrays = {f"x_{part}": rng.integers(0, 256, (n, 32, 32, 3), np.uint8) for part, n in (("train", 48), ("test", 24))}
    labels = {f"y_{part}": np.arange(n) % 10 for part, n in (("train", 48), ("test", 24))}
    np.savez(data / "cifar10" / "cifar10.npz", **arrays, **labels)
    return data


def test_the_table_and_the_leakage_use_the_same_models(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path / "cache"))
    table = reproduce("table1", tmp_path, small=True, data=folder)["table1"]
    assert table["as_published"].keys() == PRINTED.keys()
    for name, figures in table["as_published"].items():
        assert 0 <= figures["accuracy"] <= 1
        assert figures["epsilon"] >= figures["floor"] - 1e-9, name
    mnist, cifar = table["as_published"]["mnist"], table["as_published"]["cifar10"]
    assert mnist["worst_case"] == pytest.approx(gaussian_epsilon(2 / 0.1, 1e-5), rel=1e-6)  # one epoch
    assert cifar["worst_case"] == pytest.approx(gaussian_epsilon(2 * math.sqrt(2 * 1281) / 16 / 0.8, 1e-5), rel=1e-3)
    assert mnist["worst_case_if_records_were_clipped"] == pytest.approx(gaussian_epsilon(1 / 1.6, 1e-5), rel=1e-6)
    assert mnist["and_batches_poisson_samples"] < mnist["worst_case_if_records_were_clipped"]
    assert "0.95 (0.721)" in story("table1", table)
    models = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()}
    leakage = reproduce("leakage", tmp_path, small=True, data=folder)["leakage"]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()} == models
    for panel in leakage["panels"]:
        assert sum(panel["members"]) == sum(panel["others"]) == 10
        assert panel["accuracy"] == table["as_published"][panel["name"]]["accuracy"]
        assert 0 <= panel["auc"] <= 1
    assert "95 % interval" in story("leakage", leakage)
    assert json.loads((tmp_path / "leakage-small.json").read_text()) == leakage
    assert not table["verdicts"]


def test_a_trial_trains_the_recipes_of_the_small_data_sets(folder, tmp_path):
    result = reproduce("recipes", tmp_path, small=True, data=folder)["recipes"]
    assert result["ours"].keys() == {"abalone", "adult"}
    for name, target in (("abalone", 0.12), ("adult", 0.06)):
        assert 0.9 * target < result["ours"][name]["worst_case"] <= target
    assert not result["verdicts"]
    assert "everyone, proved" in story("recipes", result)
    assert not (tmp_path / "models").exists()


def test_a_kept_model_is_of_the_same_rows_and_settings(folder, tmp_path):
    model, options = MODELS["mnist"], ExperimentOptions(small=True, data=folder, folder=tmp_path)
    dataset = model.dataset(options)
    trained = _train(model, dataset, options)
    kept = _read_kept(model, dataset, options)
    assert kept is not None
    np.testing.assert_array_equal(kept.distances.pairs, trained.distances.pairs)
    assert kept.accuracies == trained.accuracies
    assert accuracy(model, kept.network, dataset.audit) == trained.accuracies["accuracy"]
    for part in ("development", "audit"):
        rows = getattr(dataset, part)
        assert _read_kept(model, replace(dataset, **{part: Rows(rows.x, 9 - rows.y)}), options) is None
    slower = replace(model.baseline, learning_rate=1e-4)
    assert _read_kept(replace(model, baseline=slower), dataset, options) is None
    assert _read_kept(model, dataset, replace(options, seed=1)) is None
    model.path(options).write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"^file="):
        _read_kept(model, dataset, options)


def a_table(**mnist):
    """Return a table as good as printed in every line, with the given figures for MNIST."""
    lines = {
        name: {"accuracy": printed["accuracy"], "epsilon": printed["bdp"], "floor": 0.1, "worst_case": 1e3}
        for name, printed in PRINTED.items()
    }
    for name in ("mnist", "cifar10"):
        lines[name] |= {"epsilon_of_norms": 0.5, "worst_case_if_records_were_clipped": 0.7}
    for name in ("abalone", "adult"):
        lines[name]["by_learning_rate"] = [{"accuracy": 0.8, "epsilon": epsilon} for epsilon in (0.1, 3.0)]
    lines["mnist"] |= mnist
    return {"printed": PRINTED, "as_published": lines}


@pytest.mark.parametrize(
    ("mnist", "line", "clipping"),
    [
        ({}, True, (False, True)),
        ({"accuracy": 0.951}, True, (False, True)),  # comparable
        ({"accuracy": 0.949}, False, (False, True)),
        ({"epsilon": 0.951}, False, (False, True)),
        ({"worst_case": 2.2}, True, (True, True)),
        ({"worst_case_if_records_were_clipped": 2.3}, True, (False, False)),
    ],
)
def test_what_holds_follows_from_the_figures(mnist, line, clipping):
    judged = table1.verdicts(a_table(**mnist))
    assert [verdict.as_published for verdict in judged[:4]] == [line, True, None, None]
    assert "here epsilon is 0.1 to 3" in judged[2].why
    assert [verdict.accounted_right for verdict in judged[:4]] == [None] * 4
    assert [(verdict.as_published, verdict.accounted_right) for verdict in judged[4:]] == [clipping]


@pytest.mark.parametrize(("good", "holds"), [(0, None), (2, None), (4, False)])
def test_whether_dp_costs_more_is_seen_from_our_recipes(good, holds):
    ours = {
        name: {"accuracy": printed["accuracy"], "worst_case": printed["bdp"] * (1 if number < good else 1.01)}
        for number, (name, printed) in enumerate(PRINTED.items())
    }
    (verdict,) = recipes.verdicts({"printed": PRINTED, "ours": ours})
    assert verdict.accounted_right is holds
    assert f"on {good} of 4 data sets" in verdict.why
