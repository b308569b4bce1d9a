"""The settings of the recipes are the best of those that were compared on validation rows."""

import importlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from bayesdp.recipes import RECIPES

COMPARED = json.loads((Path(__file__).parents[2] / "results" / "choices.json").read_text())["recipes"]


@pytest.mark.parametrize("name", COMPARED)
def test_settings_are_the_best_of_those_that_were_compared(name):
    comparison, recipe = COMPARED[name], RECIPES[name]
    assert recipe.tried == comparison["configurations"] == len(comparison["compared"])
    for choice in recipe.choices:
        same_target = [other for other in comparison["compared"] if other["target_epsilon"] == choice.target_epsilon]
        best = max(same_target, key=lambda compared: compared["accuracy"])
        assert {key: best[key] for key in asdict(choice)} == asdict(choice)


def test_recipes_that_were_not_compared_say_so():
    assert [recipe.name for recipe in RECIPES.values() if recipe.tried is None] == sorted(set(RECIPES) - set(COMPARED))


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda recipe: recipe.name)
def test_every_choice_names_the_module_that_trains_it(recipe):
    for choice in recipe.choices:
        assert callable(importlib.import_module(f"bayesdp.recipes.{choice.module}").fit_recipe)
