"""The recipes against the paper's Table 1: `python -m benchmarks.recipes [RECIPE ...]`, results/recipes.json.

Every target is trained with several seeds of noise, as an experiment (seeded noise, not for release), on train and
validation rows together; accuracy is that of the audit rows, looked at once. `--keep DIR` also keeps the ledger, report
and statement of every run, which `python -m benchmarks.ex_post --ledgers DIR` reads. `--table` writes the table of
README.md from the results, without training. Its column with tuning paid comes from results/recipe_aims.json.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.recipes.training import train_several
from benchmarks.machine import description
from benchmarks.tables import epsilon_cell, percent_cell, write_between

ROOT = Path(__file__).parents[1]
RESULT, PAID, README = ROOT / "results/recipes.json", ROOT / "results/recipe_aims.json", ROOT / "README.md"
MARKS = "<!-- recipes: written by python -m benchmarks.recipes --table -->", "<!-- end of recipes -->"


@dataclass(frozen=True)
class Line:
    """What a recipe is to reach, and with how many seeds it is shown; ``mean``: on average, not with each seed."""

    recipe: str
    accuracy: float
    epsilon: float
    seeds: int
    mean: bool = False


LINES = (
    Line("mnist", 0.96, 0.2, 3),
    Line("mnist", 0.984, 0.5, 3),
    Line("mnist", 0.982, 0.65, 3),
    Line("cifar10", 0.73, 0.09, 3),
    Line("cifar10", 0.845, 0.2, 3),
    Line("cifar10", 0.88, 0.65, 3),
    Line("abalone", 0.77, 0.12, 10, mean=True),
    Line("adult", 0.842, 0.06, 10),
    Line("fashion-mnist", 0.886, 0.65, 3),
)
PAPER = {
    "mnist": "96 % at 2.2 / 0.95",
    "cifar10": "73 % at 8.0 / 0.76",
    "abalone": "76 % at 7.6 / 0.61",
    "adult": "81 % at 0.5 / 0.2",
}
NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "abalone": "Abalone",
    "adult": "Adult",
    "fashion-mnist": "Fashion-MNIST",
}


def show(line: Line, keep: Path | None) -> dict[str, Any]:
    """Train with all seeds, and say whether the line is met."""
    output = None if keep is None else keep / f"{line.recipe}-{line.epsilon:g}"
    found = train_several(
        line.recipe, seeds=line.seeds, target_epsilon=line.epsilon, reproducible=True, baseline=False, output=output
    ).to_dict()
    accuracies = [run["accuracy"] for run in found["runs"]]
    reached = float(np.mean(accuracies)) if line.mean else min(accuracies)
    within = max(run["worst_case"]["epsilon"] for run in found["runs"]) <= line.epsilon
    print(
        line,
        [round(accuracy, 4) for accuracy in accuracies],
        "met" if reached >= line.accuracy and within else "NOT MET",
        flush=True,
    )
    return {"line": asdict(line), "met": bool(reached >= line.accuracy and within), **found}


def table(results: list[dict[str, Any]]) -> str:
    """In Markdown; figures of people are rounded up, accuracies down."""
    head = (
        "| | paper: accuracy at DP / BDP epsilon | accuracy: mean ± sd; least (seeds) | **worst case** "
        "| for 50 % | for 90 % | for 99 % | tuning paid, too: `--tune 5` |\n"
        "|---|---|---|---|---|---|---|---|\n"
    )
    paid = {found["line"]["recipe"]: found for found in json.loads(PAID.read_text())["results"] if _tuned(found)}
    rows: list[str] = []
    for result in results:
        found = paid.get(result["line"]["recipe"])
        beside = found is not None and _nearest(results, found) is result
        rows.append(_row(result, _paid(found) if beside else "–"))
    return head + "\n".join(rows)


def _tuned(found: dict[str, Any]) -> bool:
    return found["line"]["tune"] is not None


def _nearest(results: list[dict[str, Any]], paid: dict[str, Any]) -> dict[str, Any]:
    """The line of a data set whose worst case is nearest to that of its run with tuning paid, in terms of ratios."""
    lines = [result for result in results if result["line"]["recipe"] == paid["line"]["recipe"]]
    return min(lines, key=lambda result: abs(math.log(result["line"]["epsilon"] / paid["line"]["epsilon"])))


def _paid(found: dict[str, Any]) -> str:
    accuracies = [run["accuracy"] for run in found["runs"]]
    worst = max(run["worst_case"]["epsilon"] for run in found["runs"])
    mean, least = percent_cell(float(np.mean(accuracies))), percent_cell(min(accuracies))
    return f"{mean} %; {least} % ({len(accuracies)}) at **{epsilon_cell(worst)}**"


def _row(found: dict[str, Any], paid: str) -> str:
    name, runs = found["line"]["recipe"], found["runs"]
    accuracies = [run["accuracy"] for run in runs]
    mean, least = percent_cell(float(np.mean(accuracies))), percent_cell(min(accuracies))
    spread = f"{mean} % ± {100 * float(np.std(accuracies)):.2f}; {least} %"
    worst = epsilon_cell(max(run["worst_case"]["epsilon"] for run in runs))
    shares = [
        " / ".join(epsilon_cell(_largest(runs, number, what)) for what in ("epsilon", "estimate_epsilon"))
        for number in range(3)
    ]
    cells = [f"| {NAMES[name]}", PAPER.get(name, "–"), f"{spread} ({len(runs)})", f"**{worst}**", *shares, paid]
    return " | ".join(cells) + " |"


def _largest(runs: list[dict[str, Any]], number: int, what: str) -> float:
    return max(run["shares"][number][what] for run in runs)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("recipes", nargs="*", choices=[*NAMES, []], help="all of them by default")
    options.add_argument("--keep", type=Path, help="folder for the ledgers, reports and statements of all runs")
    options.add_argument("--table", action="store_true", help="write the table of README.md, without training")
    chosen = options.parse_args()
    kept: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"results": []}
    for line in () if chosen.table else LINES:
        if chosen.recipes and line.recipe not in chosen.recipes:
            continue
        order = [asdict(known) for known in LINES]
        others = [found for found in kept["results"] if found["line"] in order and found["line"] != asdict(line)]
        results = [*others, show(line, chosen.keep)]
        kept = {"machine": description(), "results": sorted(results, key=lambda found: order.index(found["line"]))}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")
    write_between(README, MARKS, table(kept["results"]))


if __name__ == "__main__":
    main()
