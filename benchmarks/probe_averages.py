"""Do averages of several probes help at the same worst case? `python -m benchmarks.probe_averages [RECIPE ...]`

A worst case is divided among k probes that are trained independently, whitening included: without sampling, k Gaussian
releases with a k-th of the squared exposure each are worth one. Their scores are averaged. Accuracies are those of
validation rows, means over seeds of the noise. Writes results/probe_averages.json.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.guarantees.calibration import calibrate
from bayesdp.profiles import gaussian_epsilon
from bayesdp.randomness import Seeded
from bayesdp.recipes.catalogue import RECIPES
from bayesdp.recipes.linear_probe import fit_recipe
from bayesdp.recipes.recipe_run import RecipeRun
from bayesdp.run_ledger import Ledger
from benchmarks.choose_settings import rows_of
from benchmarks.machine import description

RESULT = Path(__file__).parents[1] / "results" / "probe_averages.json"
TARGETS = {"mnist": 0.2}
PROBES, SEEDS, DELTA = (1, 2, 4), 3, 1e-5


def accuracy_of(name: str, target: float, probes: int, seed: int) -> float:
    """The accuracy of averaged scores on validation rows, at a worst case of ``target`` for all probes together."""
    single = calibrate(target_epsilon=target, sample_rate=1.0, steps=1, delta=DELTA).noise_multiplier
    [each] = gaussian_epsilon(np.array([1 / (single * math.sqrt(probes))]), DELTA)
    dataset = rows_of(name, seed=0)
    scores = np.zeros((len(dataset.audit), dataset.classes))
    for probe in range(probes):
        run = RecipeRun(
            dataset=dataset,
            features=RECIPES[name].features,
            target_epsilon=float(each),
            delta=DELTA,
            ledger=Ledger(),
            randomness=Seeded(1000 * seed + probe),
        )
        arrays = fit_recipe(run, RECIPES[name].choice(target)).arrays
        scores += (dataset.audit.x - arrays["centre"]) @ arrays["weights"].T
    return float((scores.argmax(axis=1) == dataset.audit.y).mean())


def main() -> None:
    kept: dict[str, Any] = json.loads(RESULT.read_text())["results"] if RESULT.exists() else {}
    for name in sys.argv[1:] or TARGETS:
        found = {probes: [accuracy_of(name, TARGETS[name], probes, seed) for seed in range(SEEDS)] for probes in PROBES}
        for probes, accuracies in found.items():
            print(name, f"{probes} probes:", [round(accuracy, 4) for accuracy in accuracies], flush=True)
        kept[name] = {
            "features": RECIPES[name].features,
            "worst_case": TARGETS[name],
            "accuracies_by_number_of_probes": found,
        }
        RESULT.write_text(json.dumps({"machine": description(), "results": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
