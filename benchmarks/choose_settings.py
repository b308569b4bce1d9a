"""Choose the settings of the recipes on validation rows: `python -m benchmarks.choose_settings [RECIPE ...]`.

Every configuration trains on the rows that are neither for validation nor for the audit, and is judged on those for
validation. Audit rows are not looked at. Validation rows are private too: what choosing by them costs is in
docs/recipes.md. Writes results/choices.json, and prints what was chosen.

The most accurate configuration is chosen. That of digits is for a demonstration of what holds for typical people: of
those within `WITHIN` of the most accurate, it is the one in which validation rows are the least exposed.

`--typical` chooses for the aim typical, at the same worst case: of the configurations that give up at most `GIVE_UP` of
the accuracy of the settings for everyone, the one in which half of the people have the least epsilon, estimated. For
CIFAR-10 that is a full point, since less bought little in what was compared.
"""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.profiles import gaussian_epsilon
from bayesdp.randomness import Seeded
from bayesdp.recipes.catalogue import RECIPES, Choice
from bayesdp.recipes.datasets import Dataset, load
from bayesdp.recipes.features import extract, find_extractor
from bayesdp.recipes.recipe_run import RecipeRun
from bayesdp.run_ledger import Ledger
from benchmarks import network_grids, setting_grids
from benchmarks.machine import description
from benchmarks.setting_grids import OTHER_FEATURES, TYPICAL

RESULT = Path("results/choices.json")
WITHIN = 0.02
GIVE_UP = {"mnist": 0.004, "adult": 0.004, "cifar10": 0.01}
GRIDS = setting_grids.GRIDS | network_grids.GRIDS
SEEDS_OF_TYPICAL = {"mnist": 1, "cifar10": 1, "adult": 5}
SEEDS = {"abalone": 20, "adult": 5, "mnist": 1, "fashion-mnist": 1, "cifar10": 1, "sst2": 1, "digits": 5}
SEEDS |= network_grids.SEEDS


def for_choosing(dataset: Dataset) -> Dataset:
    """The same with validation rows in the place of audit and test rows, and without them in the development rows."""
    held_out = np.zeros(0, np.int64)
    return replace(dataset, development=dataset.train, audit=dataset.validation, held_out=held_out, test=None)


def rows_of(name: str, seed: int) -> Dataset:
    """The rows with which settings of a recipe are chosen, under the name of the recipe."""
    recipe = RECIPES[name]
    dataset = for_choosing(extract(load(recipe.data_name, seed=seed), find_extractor(recipe.features)))
    rows = None if recipe.audit_rows is None else network_grids.AUDIT_ROWS
    return replace(dataset.with_audit_rows(rows), name=name)


def train(dataset: Dataset, choice: Choice, seed: int) -> tuple[float, Ledger]:
    """Accuracy on validation rows, and the ledger of the run."""
    ledger = Ledger()
    run = RecipeRun(
        dataset=dataset,
        features=RECIPES[dataset.name].features,
        target_epsilon=choice.target_epsilon,
        delta=1e-5,
        ledger=ledger,
        randomness=Seeded(seed),
    )
    fitted = importlib.import_module(f"bayesdp.recipes.{choice.module}").fit_recipe(run, choice)
    return fitted.accuracy, ledger


def judge(dataset: Dataset, choice: Choice, seed: int) -> tuple[float, float]:
    """Accuracy on validation rows, and the median of their exposures over that of the clip bound."""
    accuracy, ledger = train(dataset, choice, seed)
    steps = ledger.history.repeated_steps()
    most = sum(count * cost_at_the_bound(noise, rate) for noise, rate, count in steps)
    return accuracy, float(np.median(np.sqrt(np.minimum(ledger.costs([1.0])[:, 0] / most, 1.0))))


def cost_at_the_bound(noise: float, rate: float) -> float:
    """What a step costs a record whose gradient has the length of the clip bound, at order 1."""
    if rate == 1:
        return noise**-2
    step = Ledger()
    step.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=[1.0])
    return float(step.costs([1.0])[0, 0])


def configuration(trial: dict[str, Any]) -> dict[str, Any]:
    """The settings of a trial, without what they gave. Those that took all directions of features say so no more."""
    gone = ("accuracy", "sd", "exposure", *([] if trial.get("directions") else ["directions"]))
    return {key: value for key, value in trial.items() if key not in gone}


def compare(name: str, grids: list[list[Choice]], earlier: dict[str, Any]) -> list[dict[str, Any]]:
    """Train with all configurations, except those that were compared before with as many seeds."""
    known = [configuration(trial) for trial in earlier.get("compared", []) if earlier["seeds"] == SEEDS[name]]
    found: list[dict[str, Any]] = []
    features = {"features": RECIPES[name].features}
    for grid in ([choice for choice in grid if features | asdict(choice) not in known] for grid in grids):
        scores: list[list[tuple[float, float]]] = [[] for _ in grid]
        for seed in range(SEEDS[name] if grid else 0):
            dataset = rows_of(name, seed)
            for number, choice in enumerate(grid):
                scores[number].append(judge(dataset, choice, seed))
                print(name, choice, "accuracy {:.4f}, exposure {:.3f}".format(*scores[number][-1]), flush=True)
        for choice, of_choice in zip(grid, scores, strict=True):
            accuracies, exposures = np.array(of_choice).T
            found.append(
                {
                    **features,
                    **asdict(choice),
                    "accuracy": float(np.mean(accuracies)),
                    "sd": float(np.std(accuracies)),
                    "exposure": float(np.mean(exposures)),
                }
            )
    return found


def chosen(name: str, compared: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The configuration for each target, by the rule that stands above."""
    best: list[dict[str, Any]] = []
    for target in sorted({trial["target_epsilon"] for trial in compared}, reverse=True):
        rivals = [trial for trial in compared if trial["target_epsilon"] == target]
        most = max(trial["accuracy"] for trial in rivals)
        if name == "digits":
            best.append(
                min(
                    (trial for trial in rivals if trial["accuracy"] >= most - WITHIN),
                    key=lambda trial: trial["exposure"],
                )
            )
        else:
            best.append(next(trial for trial in rivals if trial["accuracy"] == most))
    return best


def with_half(name: str, choices: list[Choice], seeds: int) -> list[dict[str, Any]]:
    """Settings of a recipe that does not sample, with accuracy and estimated epsilons: means over seeds."""
    found: dict[Choice, list[tuple[float, float, float]]] = {choice: [] for choice in choices}
    for seed in range(seeds):
        dataset = rows_of(name, seed)
        for choice, figures in found.items():
            accuracy, ledger = train(dataset, choice, seed)
            exposures = np.quantile(np.sqrt(ledger.costs([1.0])[:, 0]), [0.5, 0.9])
            most = choice.target_epsilon
            figures.append((accuracy, *np.minimum(gaussian_epsilon(exposures, 1e-5), most).tolist()))
            print(name, choice, "accuracy {:.4f}, half {:.4f}, 90 % {:.4f}".format(*figures[-1]), flush=True)
    means = {choice: np.mean(figures, axis=0).tolist() for choice, figures in found.items()}
    names = ("accuracy", "half", "ninety")
    return [{**asdict(choice), **dict(zip(names, means[choice], strict=True))} for choice in choices]


def compare_typical(name: str) -> dict[str, Any]:
    """The configurations for the aim typical, and the settings for everyone at the same targets."""
    targets = sorted({choice.target_epsilon for choice in TYPICAL[name]})
    everyone = [replace(RECIPES[name].choice(target), target_epsilon=target) for target in targets]
    trials = with_half(name, [*everyone, *TYPICAL[name]], SEEDS_OF_TYPICAL[name])
    return {
        "features": RECIPES[name].features,
        "seeds": SEEDS_OF_TYPICAL[name],
        "configurations": len(TYPICAL[name]),
        "everyone": trials[: len(everyone)],
        "compared": sorted(trials[len(everyone) :], key=lambda trial: trial["half"]),
    }


def chosen_typical(name: str, comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The configuration for each target, by the rule that stands above."""
    give_up = GIVE_UP[name]
    return [
        min(
            (
                trial
                for trial in comparison["compared"]
                if trial["target_epsilon"] == instead["target_epsilon"]
                and trial["accuracy"] >= instead["accuracy"] - give_up
            ),
            key=lambda trial: trial["half"],
        )
        for instead in comparison["everyone"]
    ]


def with_earlier(found: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was compared before counts too; best first."""
    again = [configuration(trial) for trial in found]
    everything = [*found, *(trial for trial in earlier if configuration(trial) not in again)]
    return sorted(everything, key=lambda trial: (-trial["target_epsilon"], -trial["accuracy"]))


def choose_typical(names: list[str], kept: dict[str, Any]) -> None:
    for name in names:
        kept["machine"] = description()
        kept["recipes"][name]["typical"] = compare_typical(name)
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        for configuration in chosen_typical(name, kept["recipes"][name]["typical"]):
            print("chosen:", name, configuration)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("recipes", nargs="*", choices=[*GRIDS, []], help="all of them by default")
    what = options.add_mutually_exclusive_group()
    what.add_argument("--typical", action="store_true", help="choose for the aim typical")
    what.add_argument("--other-features", action="store_true", help="compare other features, with the best settings")
    chosen_options = options.parse_args()
    names = chosen_options.recipes
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {"recipes": {}}
    if chosen_options.typical:
        choose_typical(names or list(TYPICAL), kept)
        return
    grids = GRIDS
    if chosen_options.other_features:
        grids = {name: OTHER_FEATURES[name][1] for name in names or OTHER_FEATURES}
        RECIPES.update({name: replace(RECIPES[name], features=OTHER_FEATURES[name][0]) for name in grids})
    for name in names or list(grids):
        earlier = kept["recipes"].get(name, {})
        found = with_earlier(compare(name, grids[name], earlier), earlier.get("compared", []))
        kept["machine"] = description()
        typical = {key: value for key, value in kept["recipes"].get(name, {}).items() if key == "typical"}
        kept["recipes"][name] = {"seeds": SEEDS[name], "configurations": len(found), "compared": found, **typical}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        for configuration in chosen(name, found):
            print("chosen:", name, configuration)


if __name__ == "__main__":
    main()
