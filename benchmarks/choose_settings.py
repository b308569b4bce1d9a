"""Choose the settings of the recipes on validation rows: `python -m benchmarks.choose_settings [RECIPE ...]`.

Every configuration trains on the rows that are neither for validation nor for the audit, and is judged on those for
validation. Audit rows are not looked at. Validation rows are private too: what choosing by them costs is in
docs/recipes.md. Writes results/choices.json, and prints what was chosen.

The most accurate configuration is chosen. That of digits is for a demonstration of what holds for typical people: of
those within `WITHIN` of the most accurate, it is the one in which validation rows are the least exposed.
"""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.randomness import Seeded
from bayesdp.recipes.catalogue import RECIPES, Choice, NetworkChoice, ProbeChoice, VariationalChoice
from bayesdp.recipes.datasets import Dataset, load
from bayesdp.recipes.features import extract, find_extractor
from bayesdp.recipes.recipe_run import RecipeRun
from bayesdp.run_ledger import Ledger
from benchmarks.machine import description

RESULT = Path("results/choices.json")
WITHIN = 0.02


def probes(
    target: float,
    directions: int,
    steps: list[int],
    rates: list[float],
    shapes: list[tuple[float, float]],
    clip: float = 0.02,
) -> list[Choice]:
    """``shapes``: part of the budget for the shape, and least variance."""
    return [
        ProbeChoice(
            target_epsilon=target,
            directions=directions,
            steps=step,
            clip=clip,
            learning_rate=rate,
            shape=shape,
            floor=floor,
        )
        for (shape, floor), step, rate in itertools.product(shapes, steps, rates)
    ]


def regressions(target: float, steps: list[int], rates: list[float], clips: list[float]) -> list[Choice]:
    return [
        VariationalChoice(target_epsilon=target, steps=step, clip=clip, learning_rate=rate, momentum=momentum)
        for step, rate, clip, momentum in itertools.product(steps, rates, clips, [0.0, 0.5])
    ]


def networks(target: float, steps: list[int], rates: list[float], clips: list[float]) -> list[Choice]:
    return [
        NetworkChoice(target_epsilon=target, steps=step, sample_rate=1.0, clip=clip, learning_rate=rate)
        for step, rate, clip in itertools.product(steps, rates, clips)
    ]


GRIDS: dict[str, list[list[Choice]]] = {
    "mnist": [
        probes(0.65, 800, [80, 120], [500.0, 750.0], [(0.2, 0.2), (0.15, 0.3)]),
        probes(0.2, 300, [40, 60], [500.0, 900.0], [(0.1, 0.3), (0.15, 0.5)]),
    ],
    "fashion-mnist": [
        probes(0.65, 0, [80], [1250.0], [(0.05, 0.5), (0.2, 0.3)])
        + probes(0.65, 800, [80, 120], [500.0, 1000.0], [(0.2, 0.3), (0.1, 0.5)])
    ],
    "cifar10": [
        probes(0.65, 0, [60, 100], [600.0, 900.0], [(0.2, 0.5), (0.15, 0.8)]),
        probes(0.09, 0, [10, 20], [1250.0, 2500.0], [(0.0, 0.3), (0.1, 0.5)]),
    ],
    "abalone": [regressions(0.15, [12, 25, 50], [1.0, 3.0], [0.5, 1.0, 2.0])],
    "adult": [regressions(0.06, [20, 30], [2.0, 3.0], [1.0, 2.0])],
    "sst2": [probes(1.0, 0, [40, 80], [30.0, 60.0], [(0.1, 0.5), (0.2, 0.3)], clip=0.1)],
    "digits": [networks(3.0, [10, 20, 40], [0.25, 0.5, 1.0, 2.0], [1.0, 2.0, 4.0, 8.0])],
}
SEEDS = {"abalone": 20, "adult": 5, "mnist": 1, "fashion-mnist": 1, "cifar10": 2, "sst2": 1, "digits": 5}


def for_choosing(dataset: Dataset) -> Dataset:
    """The same with validation rows in the place of audit and test rows, and without them in the development rows."""
    held_out = np.zeros(0, np.int64)
    return replace(dataset, development=dataset.train, audit=dataset.validation, held_out=held_out, test=None)


def judge(dataset: Dataset, choice: Choice, seed: int) -> tuple[float, float]:
    """Accuracy on validation rows, and the median of their exposures over that of the clip bound."""
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
    steps = ledger.history.repeated_steps()
    most = sum(count / noise**2 for noise, _, count in steps)  # no recipe samples, so squares of exposures add up
    return fitted.accuracy, float(np.median(np.sqrt(np.minimum(ledger.costs([1.0])[:, 0] / most, 1.0))))


def compare(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for grid in GRIDS[name]:
        scores: list[list[tuple[float, float]]] = [[] for _ in grid]
        for seed in range(SEEDS[name]):
            dataset = for_choosing(extract(load(name, seed=seed), find_extractor(RECIPES[name].features)))
            for number, choice in enumerate(grid):
                scores[number].append(judge(dataset, choice, seed))
                print(name, choice, "accuracy {:.4f}, exposure {:.3f}".format(*scores[number][-1]), flush=True)
        for choice, of_choice in zip(grid, scores, strict=True):
            accuracies, exposures = np.array(of_choice).T
            found.append(
                {
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


def with_earlier(found: list[dict[str, Any]], earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was compared before counts too; best first."""

    def configuration(trial: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in trial.items() if key not in ("accuracy", "sd", "exposure")}

    again = [configuration(trial) for trial in found]
    everything = [*found, *(trial for trial in earlier if configuration(trial) not in again)]
    return sorted(everything, key=lambda trial: (-trial["target_epsilon"], -trial["accuracy"]))


def main() -> None:
    names = sys.argv[1:] or list(GRIDS)
    kept = json.loads(RESULT.read_text()) if RESULT.exists() else {"recipes": {}}
    for name in names:
        found = with_earlier(compare(name), kept["recipes"].get(name, {}).get("compared", []))
        kept["machine"] = description()
        kept["recipes"][name] = {"seeds": SEEDS[name], "configurations": len(found), "compared": found}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
        for configuration in chosen(name, found):
            print("chosen:", name, configuration)


if __name__ == "__main__":
    main()
