"""The picture of accuracy, worst case and typical people: what docs/recipes.md says about it is in its results."""

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.frontier import NAMES, PICTURE, SEEDS, TARGETS, choices, draw

from bayesdp.experiment_files import write_png
from bayesdp.recipes import RECIPES

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "results" / "frontier.json").read_text())["results"]


@pytest.mark.parametrize("name", NAMES)
def test_the_points_are_those_of_the_present_recipe(name):
    measured = RESULTS[name]
    assert measured["features"] == RECIPES[name].features
    assert measured["seeds"] == SEEDS[name]
    settings = [asdict(choice) for target in TARGETS[name] for choice in choices(name, target)]
    assert [{key: point[key] for key in settings[0]} for point in measured["points"]] == settings


@pytest.mark.parametrize("name", NAMES)
def test_a_larger_clip_lowers_epsilon_of_half_at_the_same_worst_case(name):
    for target in TARGETS[name]:
        line = [point for point in RESULTS[name]["points"] if point["target_epsilon"] == target]
        for smaller, larger in pairwise(line):
            assert smaller["clip"] < larger["clip"]
            assert larger["half"] < smaller["half"] < target


def test_the_picture_is_drawn_from_the_results(tmp_path):
    """Not compared point by point: fonts differ from machine to machine."""
    assert (ROOT / PICTURE).stat().st_size > 10_000
    assert PICTURE.name in (ROOT / "docs" / "recipes.md").read_text()
    drawn = []
    write_png(tmp_path / "frontier.png", lambda figure: drawn.append(figure) or draw(figure, RESULTS))
    [figure] = drawn
    for name, panel in zip(NAMES, figure.axes, strict=True):
        lines = [line for line in panel.lines if len(line.get_xdata()) > 2]
        shown = [point for line in lines for point in zip(line.get_xdata(), line.get_ydata(), strict=True)]
        expected = [(point["half"], 100 * point["accuracy"]) for point in RESULTS[name]["points"]]
        assert [value for pair in shown for value in pair] == pytest.approx([v for pair in expected for v in pair])
        assert panel.get_title() == NAMES[name]
