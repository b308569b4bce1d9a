"""Figures for everyone at random settings, against dp-accounting's privacy loss distributions on finer grids.

python -m benchmarks.guarantees    writes results/guarantees.json

The reference is itself an upper bound, so a figure may be a little below it where its grid is the coarser one. What a
grid adds falls with the square of its interval: where a figure is below, the reference is computed again on a grid four
times as fine.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

import bayesdp
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.several_rows import rows_bound
from benchmarks.machine import description

SINGLE, SEVERAL, SEED = 500, 60, 19
RESULT = Path(__file__).parents[1] / "results" / "guarantees.json"
_ROUND_OFF = 1e-12  # of delta: what the reference may lose


def main() -> None:
    """Compare worst cases and figures for several rows at random settings, and write the result."""
    rng = np.random.default_rng(SEED)
    result = {
        "machine": description(),
        "seed": SEED,
        "worst_case": compare(SINGLE, lambda: (*_setting(rng, 1e-4, 3000), 1)),
        "profile_at_the_clip_bound": compare(SINGLE // 5, lambda: (*_setting(rng, 1e-4, 3000), -1)),
        "several_rows": compare(SEVERAL, lambda: (*_setting(rng, 1e-3, 300), int(rng.integers(2, 6)))),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


def compare(number: int, draw: Callable[[], tuple[float, float, int, float, int]]) -> dict[str, Any]:
    """Return how figures at ``number`` drawn settings compare with the reference, as shares of it."""
    shares: list[float] = []
    places: list[str] = []
    below: list[str] = []
    seconds = 0.0
    while len(shares) < number:
        noise, rate, steps, delta, rows = draw()
        begun = time.process_time()
        ours = _ours(noise, rate, steps, delta, rows)
        seconds = max(seconds, time.process_time() - begun)
        if not 0.02 < ours < 40:  # elsewhere the reference takes minutes and gigabytes
            continue
        interval = max(ours / 2000, 1e-4) if rows > 1 else ours / 2000  # mixtures are slow to discretise
        reference = _reference(noise, rate, steps, delta, abs(rows), interval)
        for _ in range(4):
            if ours >= reference:
                break
            interval /= 4  # only where it must be
            reference = _reference(noise, rate, steps, delta, abs(rows), interval)
        place = f"noise {noise:.4g}, rate {rate:.4g}, {steps} steps, delta {delta:g}, rows {abs(rows)}: {ours:.6g}"
        shares.append(ours / reference - 1)
        print(f"{shares[-1]:+.1e}  {place}", flush=True)
        places.append(place)
        if ours < reference:
            below.append(f"{place} against {reference:.6g} on a grid of {interval:.2g}")
    return {
        "settings": number,
        "above_reference": {
            name: float(np.quantile(shares, level))
            for name, level in (("least", 0), ("median", 0.5), ("99 %", 0.99), ("largest", 1))
        },
        "largest_at": places[int(np.argmax(shares))],
        "below_reference": below,
        "most_cpu_seconds": round(seconds, 2),
    }


def _setting(rng: np.random.Generator, least_rate: float, most_steps: int) -> tuple[float, float, int, float]:
    """Draw noise, rate, steps and delta, each evenly on a logarithmic scale."""
    noise = math.exp(rng.uniform(math.log(0.6), math.log(30)))
    rate = math.exp(rng.uniform(math.log(least_rate), 0.0))
    steps = round(math.exp(rng.uniform(0.0, math.log(most_steps))))
    return noise, rate, steps, 10.0 ** -int(rng.integers(3, 10))


def _ours(noise: float, rate: float, steps: int, delta: float, rows: int) -> float:
    """Return our figure; a number of rows of -1 stands for the profile of one row."""
    if rows == 1:
        return bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta).epsilon
    bound = ClipBound.of([(noise, rate, steps)])
    return bound.epsilon(delta) if rows == -1 else rows_bound(bound, rows, delta).epsilon


def _reference(noise: float, rate: float, steps: int, delta: float, rows: int, interval: float) -> float:
    if rows == 1:
        step = pld.from_gaussian_mechanism(noise, value_discretization_interval=interval, sampling_prob=rate)
    else:
        weights = [math.comb(rows, j) * rate**j * (1 - rate) ** (rows - j) for j in range(rows + 1)]
        step = pld.from_mixture_gaussian_mechanism(
            noise, range(rows + 1), weights, value_discretization_interval=interval
        )
    return float(step.self_compose(steps).get_epsilon_for_delta(delta + _ROUND_OFF))


if __name__ == "__main__":
    main()
