"""The table and the check for leakage, whole, on a few made-up rows: what they need and what they keep."""

import json

import numpy as np
import pytest

from bayesdp.reproduce import reproduce
from bayesdp.reproduce.leakage import story as leakage_story
from bayesdp.reproduce.table1 import PUBLISHED
from bayesdp.reproduce.table1 import story as table_story
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
    assert table["published"].keys() == PUBLISHED.keys()
    for name, one in table["published"].items():
        assert 0 <= one["accuracy"] <= 1
        assert one["epsilon"] >= one["floor"] - 1e-9, name
    mnist, cifar = table["published"]["mnist"], table["published"]["cifar10"]
    assert mnist["worst_case"] > 100
    assert cifar["worst_case"] is None
    assert mnist["worst_case_if_records_were_clipped"] < 10
    text = table_story(table)
    assert "nothing is clipped" in text
    assert "0.95 (0.721)" in text
    models = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()}
    leakage = reproduce("leakage", tmp_path, small=True, data=folder)["leakage"]
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "models").iterdir()} == models
    for panel in leakage["panels"]:
        assert sum(panel["members"]) == sum(panel["others"]) == 10
        assert panel["accuracy"] == table["published"][panel["name"]]["accuracy"]
        assert 0 <= panel["auc"] <= 1
    assert "95 % interval" in leakage_story(leakage)
    assert json.loads((tmp_path / "leakage.json").read_text()) == leakage
