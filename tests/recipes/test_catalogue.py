"""The settings of the recipes are those that were best on validation rows."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bayesdp.recipes import RECIPES

COMPARED = json.loads((Path(__file__).parents[2] / "results" / "choices.json").read_text())["recipes"]


@pytest.mark.parametrize("name", COMPARED)
def test_settings_are_the_best_of_those_that_were_compared(name):
    found, recipe = COMPARED[name], RECIPES[name]
    assert recipe.tried == found["configurations"] == len(found["compared"])
    for choice in recipe.choices:
        same_target = [one for one in found["compared"] if one["target_epsilon"] == choice.target_epsilon]
        best = max(same_target, key=lambda one: one["accuracy"])
        assert {key: best[key] for key in asdict(choice)} == asdict(choice)


def test_recipes_that_were_not_compared_say_so():
    assert [recipe.name for recipe in RECIPES.values() if recipe.tried is None] == sorted(set(RECIPES) - set(COMPARED))
