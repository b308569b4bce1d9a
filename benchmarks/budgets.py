"""A step of the enforced budgets with 1,000,000 records, against plain NumPy code that charges all in each step.

    python -m benchmarks.budgets

Both run interleaved in one process, with the same table of costs, and the clip norms of both are compared. Budgets run
out in several patterns; "all at once" times only the step in which everybody's does. Prints and writes
results/budgets.json; exit code 1 if a line misses its target.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp.budgets import RecordBudgets
from bayesdp.budgets.clip_costs import Setting, clip_costs
from benchmarks.machine import description

RECORDS, RATE, CLIP, NOISE, SEED, ROUNDS, STEPS = 1_000_000, 0.01, 1.0, 1.0, 0, 7, 25
LAMBDAS = {1: (8.0,), 8: (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)}
MILLISECONDS = {1: 8.0, 8: 50.0}
MEGABYTES = 150.0  # for one lambda
RESULT = Path(__file__).parents[1] / "results" / "budgets.json"

Step = tuple[float, np.ndarray | None, bool]
"""The noise of a step, norms to be refreshed before it if any, and whether the clock runs."""


def spread() -> np.ndarray:
    """Lognormal norms, about a quarter of them above the clip."""
    return np.exp(-0.5 + 0.8 * np.random.default_rng(SEED).standard_normal(RECORDS))


def nobody_runs_out() -> Iterator[Step]:
    yield NOISE, spread(), False
    for _ in range(STEPS):
        yield NOISE, None, True


def all_at_once() -> Iterator[Step]:
    for _ in range(3):
        yield NOISE, None, False
    yield NOISE, None, True


def thousands_in_each_step() -> Iterator[Step]:
    yield NOISE, spread(), False
    for number in range(3 * STEPS):
        yield NOISE, None, number >= 2 * STEPS


def noise_changes_in_each_step() -> Iterator[Step]:
    yield NOISE, spread(), False
    for number in range(STEPS):
        yield NOISE * (1.01 + 0.01 * number), None, True


def refreshed_before_each_step() -> Iterator[Step]:
    norms = spread()
    yield NOISE, norms, False
    for _ in range(STEPS):
        yield NOISE, norms, True


PATTERNS: dict[str, tuple[Callable[[], Iterator[Step]], float, bool]] = {
    "nobody runs out": (nobody_runs_out, 1e3, True),
    "all at once": (all_at_once, 3.5, True),
    "thousands in each step": (thousands_in_each_step, 20.0, True),
    "noise changes in each step": (noise_changes_in_each_step, 1e3, False),
    "refreshed before each step": (refreshed_before_each_step, 1e3, False),
}
"""Steps, the budget in full steps at the clip, and whether the target applies: it is for steps like the one before."""


class PlainBudgets:
    """Costs of all records, all comparisons and all subtractions in each step."""

    def __init__(self, budgets: dict[float, float]) -> None:
        self.left = np.repeat(np.array(list(budgets.values()))[:, None], RECORDS, axis=1)
        self.norms = np.full(RECORDS, np.inf)
        self.lambdas = tuple(budgets)

    def refresh(self, norms: np.ndarray) -> None:
        """Take norms [n] from the next step on."""
        self.norms = norms.copy()

    def step(self, *, noise_std: float, sample_rate: float, clip: float) -> np.ndarray:
        """Charge one step; the norms to clip to, [n]."""
        table = clip_costs(Setting(noise_std=noise_std, sample_rate=sample_rate, clip=clip), self.lambdas)
        cost = table.costs[:, table.places(self.norms)]
        levels = np.minimum(self.norms, clip)
        short = (self.left < cost).any(axis=0)
        self.left -= cost
        if short.any():
            rest = self.left[:, short] + cost[:, short]
            payable = [
                np.searchsorted(row, left, side="right") - 1 for row, left in zip(table.costs, rest, strict=True)
            ]
            levels[short] = np.minimum(levels[short], table.norms[np.maximum(np.min(payable, axis=0), 0)])
            self.left[:, short] = 0.0
        return levels


def timed(budgets: RecordBudgets | PlainBudgets, step: Step) -> tuple[float, np.ndarray]:
    noise, norms, _ = step
    if noise != NOISE:  # who comes second shall not find the table of the first
        clip_costs.cache_clear()
    begin = time.perf_counter()
    if norms is not None:
        budgets.refresh(norms)
    levels = budgets.step(noise_std=noise, sample_rate=RATE, clip=CLIP)
    return 1e3 * (time.perf_counter() - begin), levels


def budgets_of(full_steps: float, lambdas: tuple[float, ...]) -> dict[float, float]:
    """What so many steps cost at the clip, for each lambda."""
    costs = clip_costs(Setting(noise_std=NOISE, sample_rate=RATE, clip=CLIP), lambdas).costs[:, -1]
    return dict(zip(lambdas, (full_steps * costs).tolist(), strict=True))


def run(pattern: str, lambdas: tuple[float, ...]) -> dict[str, Any]:
    """Rounds with a fresh filter, the plain code beside it in the first two."""
    steps, full_steps, _ = PATTERNS[pattern]
    rounds: list[list[float]] = []
    plain: list[list[float]] = []
    ran_out: list[int] = []
    furthest = 0.0
    for number in range(ROUNDS):
        fast = RecordBudgets(RECORDS, budgets_of(full_steps, lambdas))
        slow = PlainBudgets(budgets_of(full_steps, lambdas)) if number < 2 else None
        rounds.append([])
        if slow is not None:
            plain.append([])
        for step in steps():
            took, levels = timed(fast, step)
            if step[2]:
                rounds[-1].append(took)
            if slow is not None:
                took, expected = timed(slow, step)
                if step[2]:
                    plain[-1].append(took)
                    furthest = max(furthest, float(np.abs(levels - expected).max()))
                    ran_out.append(fast.private_exhausted())
    new = np.diff(ran_out[: len(ran_out) // 2])
    # The quietest round: what the code takes while the machine is not busy with others; the median of all is beside it.
    quietest, plain_quietest = (min(map(statistics.median, times)) for times in (rounds, plain))
    return {
        "step_milliseconds": quietest,
        "step_milliseconds_median_of_all": statistics.median(t for times in rounds for t in times),
        "longest_step_milliseconds": max(t for times in rounds for t in times),
        "plain_milliseconds": plain_quietest,
        "plain_milliseconds_median": statistics.median(t for times in plain for t in times),
        "times_faster": plain_quietest / quietest,
        "furthest_from_plain_in_clips": furthest / CLIP,
        "records_that_ran_out_in_a_step": float(new.mean()) if len(new) else ran_out[0],
        "steps_timed": sum(map(len, rounds)),
    }


def memory(lambdas: tuple[float, ...]) -> float:
    """Megabytes at the peak of a run in which everything happens, with the norms that are handed over."""
    tracemalloc.start()
    norms = spread()
    budgets = RecordBudgets(RECORDS, budgets_of(3.5, lambdas))
    for noise in (1.0, 1.0, 2.0):
        budgets.refresh(norms)
        for _ in range(3):
            budgets.step(noise_std=noise, sample_rate=RATE, clip=CLIP)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def late_over_early(lambdas: tuple[float, ...]) -> float:
    """Time of a step after 5,000 others over that of one of the first, interleaved."""
    early, late = (RecordBudgets(RECORDS, budgets_of(1e5, lambdas)) for _ in range(2))
    for _ in range(5000):
        late.step(noise_std=NOISE, sample_rate=RATE, clip=CLIP)
    early.step(noise_std=NOISE, sample_rate=RATE, clip=CLIP)
    times = [[timed(budgets, (NOISE, None, True))[0] for budgets in (early, late)] for _ in range(200)]
    return statistics.median(t for _, t in times) / statistics.median(t for t, _ in times)


def main() -> int:
    """Run all cases, print, write, and say whether the targets hold."""
    settings = {"records": RECORDS, "sample_rate": RATE, "clip": CLIP, "noise_std": NOISE, "seed": SEED}
    report: dict[str, Any] = {"machine": description(), "settings": settings, "cases": []}
    missed_any = False
    for count, lambdas in LAMBDAS.items():
        case: dict[str, Any] = {"lambdas": lambdas, "target_milliseconds": MILLISECONDS[count], "patterns": {}}
        case["peak_megabytes"], case["late_over_early"] = memory(lambdas), late_over_early(lambdas)
        case["missed"] = ["memory"] if count == 1 and case["peak_megabytes"] > MEGABYTES else []
        case["missed"] += ["no growth with past steps"] if case["late_over_early"] > 1.2 else []
        print(f"{count} lambdas: peak {case['peak_megabytes']:.0f} MB, late/early {case['late_over_early']:.2f}")
        for pattern, (_, _, targeted) in PATTERNS.items():
            result = case["patterns"][pattern] = run(pattern, lambdas)
            if targeted and result["step_milliseconds"] > MILLISECONDS[count]:
                case["missed"].append(pattern)
            print(
                f"  {pattern}: {result['step_milliseconds']:.2f} ms a step "
                f"({result['step_milliseconds_median_of_all']:.2f} over all rounds, "
                f"longest {result['longest_step_milliseconds']:.1f}), plain {result['plain_milliseconds']:.0f} ms, "
                f"{result['times_faster']:.1f} times faster; {result['records_that_ran_out_in_a_step']:.0f} ran out; "
                f"clip norms within {result['furthest_from_plain_in_clips']:.1e} of plain"
            )
        print(f"  missed: {case['missed'] or 'nothing'}")
        missed_any |= bool(case["missed"])
        report["cases"].append(case)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    return int(missed_any)


if __name__ == "__main__":
    sys.exit(main())
