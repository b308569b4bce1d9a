"""Networks from scratch: the recipes mnist-network and cifar10-network, beside what is published.

    python -m benchmarks.networks [RECIPE ...]

BAYESDP_DATA names the data folder. Every run is an experiment with seeded noise, on training and validation rows
together; the accuracy is that of the whole published test set, looked at once. Writes results/networks.json after each
recipe, and the table of docs/recipes.md; `--table` writes the table alone. Exit code 1 if a line fails its target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import opacus
import torch

from bayesdp.recipes.training import train_several
from benchmarks.machine import description
from benchmarks.tables import epsilon_cell, percent_cell, write_between

ROOT = Path(__file__).parents[1]
RESULT, PAGE = ROOT / "results/networks.json", ROOT / "docs/recipes.md"
MARKS = "<!-- networks: written by python -m benchmarks.networks --table -->", "<!-- end of networks -->"


@dataclass(frozen=True)
class Line:
    """What a recipe is to reach with every seed, at which worst case, and what it is called in the table."""

    recipe: str
    accuracy: float
    epsilon: float
    seeds: int
    name: str


LINES = (
    Line("mnist-network", 0.96, 2.0, 3, "MNIST"),
    Line("cifar10-network", 0.55, 3.0, 1, "CIFAR-10"),
)
PUBLISHED = (
    ("CIFAR-10", "[De et al. 2022](https://arxiv.org/abs/2204.13650), Wide-ResNet of 40 layers", "81.4 %", "8"),
    (
        "CIFAR-10",
        "[Tang et al. 2023](https://arxiv.org/abs/2306.06076), after training on images from random processes",
        "72.3 %",
        "1",
    ),
    ("CIFAR-10", "best before Tang et al., as they report it", "60.6 %", "1"),
)
"""Data, source, accuracy and epsilon as the abstracts of the papers have them; De et al. name delta there, 1e-5."""


def measured(line: Line) -> dict[str, Any]:
    """Train with all seeds; processor time beside the time that passed on a shared machine."""
    begin, worked = time.perf_counter(), time.process_time()
    runs = train_several(
        line.recipe, seeds=line.seeds, target_epsilon=line.epsilon, reproducible=True, baseline=False
    ).to_dict()["runs"]
    least, most = min(run["accuracy"] for run in runs), max(run["worst_case"]["epsilon"] for run in runs)
    met = bool(least >= line.accuracy and most <= line.epsilon)
    print(line, [round(run["accuracy"], 4) for run in runs], "met" if met else "NOT MET", flush=True)
    seconds = {"passed": time.perf_counter() - begin, "processor": time.process_time() - worked}
    threads = torch.get_num_threads()
    return {"line": asdict(line), "met": met, "seconds": seconds, "threads": threads, "runs": runs}


def table(results: list[dict[str, Any]]) -> str:
    """In Markdown; figures of people are rounded up, accuracies down."""
    head = ["", "trained by", "accuracy on test rows", "**worst case**", "for 50 %", "for 90 %", "for 99 %", "time"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [_row(result) for result in results]
    lines += [
        f"| {data} | {by} | {accuracy} | {epsilon} | – | – | – | – |" for data, by, accuracy, epsilon in PUBLISHED
    ]
    return "\n".join(lines)


def _row(result: dict[str, Any]) -> str:
    runs, line = result["runs"], result["line"]
    accuracies = [run["accuracy"] for run in runs]
    spread = f"{percent_cell(float(np.mean(accuracies)))} %"
    if len(runs) > 1:
        spread += f" ± {100 * float(np.std(accuracies)):.2f}; least {percent_cell(min(accuracies))} %"
    seeds = "one seed" if len(runs) == 1 else f"{len(runs)} seeds"
    worst = epsilon_cell(max(run["worst_case"]["epsilon"] for run in runs))
    shares = [
        " / ".join(_largest(runs, number, what) for what in ("epsilon", "estimate_epsilon")) for number in range(3)
    ]
    minutes = f"{result['seconds']['processor'] / len(runs) / 60:.0f} min"
    cells = [line["name"], f"`{line['recipe']}`", f"{spread} ({seeds})", f"**{worst}**", *shares, minutes]
    return f"| {' | '.join(cells)} |"


def _largest(runs: list[dict[str, Any]], number: int, what: str) -> str:
    """The largest figure for a share; a dash where there are too few audit rows for it."""
    found = [run["shares"][number][what] for run in runs]
    return "–" if None in found else epsilon_cell(max(found))


def results_so_far() -> list[dict[str, Any]]:
    return json.loads(RESULT.read_text())["results"] if RESULT.exists() else []


def keep(result: dict[str, Any]) -> None:
    known = {kept["line"]["recipe"]: kept for kept in results_so_far()} | {result["line"]["recipe"]: result}
    results = [known[line.recipe] for line in LINES if line.recipe in known]
    versions = {"torch": torch.__version__, "opacus": opacus.__version__}
    machine = {**description(), **versions}
    RESULT.write_text(
        json.dumps({"command": "python -m benchmarks.networks", "machine": machine, "results": results}, indent=1)
        + "\n"
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("recipes", nargs="*", help="both by default")
    options.add_argument("--table", action="store_true", help="write the table of docs/recipes.md, without training")
    chosen = options.parse_args()
    for line in () if chosen.table else LINES:
        if not chosen.recipes or line.recipe in chosen.recipes:
            keep(measured(line))
    write_between(PAGE, MARKS, table(results_so_far()))
    return 0 if all(result["met"] for result in results_so_far()) else 1


if __name__ == "__main__":
    sys.exit(main())
