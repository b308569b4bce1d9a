"""Train the public network for digits on drawings: `python -m benchmarks.digit_network [--check]`.

Writes the weights that the package carries, and results/digit_network.json: the share of MNIST's validation rows that
ridge regression on drawings alone classifies correctly. No row of MNIST is used for training. `--check` only computes
that figure for the weights that are there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from bayesdp.recipes.datasets import load
from bayesdp.recipes.digit_network import WEIGHTS, train_network
from bayesdp.recipes.drawn_digits import drawn_digits
from bayesdp.recipes.features import EXTRACTORS
from benchmarks.machine import description

RESULT = Path("results/digit_network.json")
DIGITS, EPOCHS, DRAWN = 40_000, 5, 6_000


def without_private_data() -> float:
    """The share of validation rows that ridge regression on drawings alone classifies correctly."""
    images, classes = drawn_digits(DRAWN, seed=1)
    extractor = EXTRACTORS["drawn-digits"]
    drawn, rows = extractor(images).astype(np.float64), load("mnist").validation
    centre = drawn.mean(axis=0)
    moments = (drawn - centre).T @ (drawn - centre)
    ridge = 1e-2 * np.trace(moments) / len(moments)
    weights = np.linalg.solve(moments + ridge * np.eye(len(moments)), (drawn - centre).T @ np.eye(10)[classes])
    return float((((extractor(rows.x) - centre) @ weights).argmax(axis=1) == rows.y).mean())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="train nothing")
    started = time.perf_counter()
    if not options.parse_args().check:
        train_network(DIGITS, EPOCHS, WEIGHTS)
    seconds = time.perf_counter() - started
    found = {
        "machine": description(),
        "drawn_digits": DIGITS,
        "epochs": EPOCHS,
        "seconds": seconds,
        "bytes": WEIGHTS.stat().st_size,
        "validation_accuracy_without_private_data": without_private_data(),
    }
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
