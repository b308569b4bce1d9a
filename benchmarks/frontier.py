"""Accuracy, worst case and typical people against each other: `python -m benchmarks.frontier [RECIPE ...]`.

For a worst case and a data set, a larger clip charges typical people less, since their gradients stay below it, and
adds more noise. Here the clip goes from one that cuts every gradient to one that cuts hardly any, and with it the part
of the budget that goes into whitening, which charges all people alike. Everything is measured on validation rows, so
audit rows are not looked at: accuracy, and the epsilon of half and of 90 % of people, estimated. Writes
results/frontier.json and docs/pictures/frontier.png; `--picture` draws the picture only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.experiment_files import write_png
from bayesdp.recipes.catalogue import RECIPES, Choice, ProbeChoice, VariationalChoice
from benchmarks.choose_settings import with_half
from benchmarks.machine import description

RESULT, PICTURE = Path("results/frontier.json"), Path("docs/pictures/frontier.png")
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "adult": "Adult"}
TARGETS = {"mnist": (0.2, 0.65), "cifar10": (0.2, 0.65), "adult": (0.03, 0.06, 0.1)}
SEEDS = {"mnist": 1, "cifar10": 1, "adult": 10}
PROBE_CLIPS = {0.02: 0.2, 0.06: 0.15, 0.15: 0.08, 0.4: 0.03, 0.8: 0.02}
"""Clips of a probe, with the part of the budget for the shape of the features."""
TABLE_CLIPS = (0.5, 1.0, 1.5, 2.5, 4.0, 6.0)
STEP = 100.0
"""The learning rate of a probe times the clip, so that clipped gradients move the weights equally far at every clip."""


def choices(name: str, target: float) -> Iterator[Choice]:
    """The settings of one curve: those of the recipe, except for what the clip decides."""
    if name == "adult":
        for clip in TABLE_CLIPS:
            yield VariationalChoice(target_epsilon=target, steps=80, clip=clip, learning_rate=4.0, momentum=0.5)
        return
    recipe = RECIPES[name].choice(target)
    assert isinstance(recipe, ProbeChoice)
    for clip, shape in PROBE_CLIPS.items():
        yield ProbeChoice(
            target_epsilon=target,
            steps=80,
            clip=clip,
            learning_rate=STEP / clip,
            momentum=0.0,
            centre=0.003 if clip > 0.1 else 0.01,
            shape=shape,
            floor=0.5,
        )


def measure(name: str) -> list[dict[str, Any]]:
    """All points of a data set, on validation rows; means over its seeds."""
    return with_half(name, [choice for target in TARGETS[name] for choice in choices(name, target)], SEEDS[name])


def draw(figure: Any, results: dict[str, Any]) -> None:
    """One panel for each data set, one line for each worst case; its dotted line is at the worst case itself."""
    from matplotlib.ticker import LogLocator, NullFormatter

    names = [name for name in NAMES if name in results]
    for name, panel in zip(names, figure.subplots(1, len(names), squeeze=False)[0], strict=True):
        for number, target in enumerate(TARGETS[name]):
            points = [point for point in results[name]["points"] if point["target_epsilon"] == target]
            half, accuracy = ([point[key] for point in points] for key in ("half", "accuracy"))
            colour = f"C{number}"
            panel.plot(half, 100 * np.array(accuracy), "o-", color=colour, label=f"worst case {target:g}")
            panel.axvline(target, color=colour, linestyle=":", linewidth=1)
        panel.set_title(NAMES[name])
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.set_xlabel("epsilon of half of the people (estimate)")
        panel.set_ylabel("accuracy on validation rows, %")
        panel.grid(alpha=0.3)
        panel.legend(loc="lower right", fontsize="small")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("recipes", nargs="*", choices=[*NAMES, []], help="all of them by default")
    options.add_argument("--picture", action="store_true", help="draw the picture only")
    chosen = options.parse_args()
    for name in () if chosen.picture else chosen.recipes or NAMES:
        points = measure(name)
        kept: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"results": {}}
        found = {"features": RECIPES[name].features, "seeds": SEEDS[name], "points": points}
        kept = {"machine": description(), "results": {**kept["results"], name: found}}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    results = json.loads(RESULT.read_text())["results"]
    write_png(PICTURE, lambda figure: draw(figure, results), width=4.4 * len(results), height=4.0)


if __name__ == "__main__":
    main()
