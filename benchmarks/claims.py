"""All claims of a ledger with 10,000 audit records: seconds, memory, and what rounding to few kinds of steps adds.

python -m benchmarks.claims    writes results/claims.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger
from bayesdp.claims.step_kinds import KINDS, exposure_counts
from bayesdp.profiles import profiles
from benchmarks.machine import description
from benchmarks.populations import easy, spread

RECORDS, DELTA, GAMMA, SEED, ROUNDS = 10_000, 1e-5, 0.01, 0, 5
RUNS = {
    "spread": (spread, {"noise_std": 6.0, "sample_rate": 4096 / 60000, "clip": 1.0}),
    "easy": (easy, {"noise_std": 1.0, "sample_rate": 0.01, "clip": 1.0}),
}
TARGET_SECONDS, TARGET_MEGABYTES = 12.0, 600.0
RESULT = Path(__file__).parents[1] / "results" / "claims.json"
_COMPARED, _FINEST = 400, 4096

_CHILD = """
import json, resource, sys, time
from bayesdp import Ledger
start = time.perf_counter()
with Ledger.open(sys.argv[1], write=False) as ledger:
    opened = time.perf_counter()
    claims = ledger.claims(delta=float(sys.argv[2]), gamma=float(sys.argv[3]))
    done = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({
    "open_seconds": opened - start,
    "claims_seconds": done - opened,
    "peak_megabytes": peak,
    "claims": [claim.headline(with_kind=True) for claim in claims],
}))
"""


def main() -> None:
    """Measure every run in processes of its own, and write the result."""
    found = {name: measure(name) for name in RUNS}
    result = {
        "machine": description(),
        "settings": {"records": RECORDS, "delta": DELTA, "gamma": GAMMA, "seed": SEED, "kinds_of_steps": KINDS},
        "targets": {"seconds": TARGET_SECONDS, "megabytes": TARGET_MEGABYTES},
        "runs": found,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    for name, run in found.items():
        print(
            f"{name}: {run['seconds_quietest']:.1f} s in the quietest of {ROUNDS} rounds, median "
            f"{run['seconds_median']:.1f} s, {run['peak_megabytes']:.0f} MB; rounding adds "
            f"{100 * run['rounding_adds_median']:.2f} % "
            f"(most {100 * run['rounding_adds_most']:.2f} %)"
        )
        print("\n".join("  " + line for line in run["claims"]))
    late = [name for name, run in found.items() if not meets(run)]
    print(f"written: {RESULT.name}")
    if late:
        sys.exit(f"misses its target: {', '.join(late)}")


def meets(found: dict[str, Any]) -> bool:
    """Whether time and memory are within the targets."""
    return found["seconds_quietest"] <= TARGET_SECONDS and found["peak_megabytes"] <= TARGET_MEGABYTES


def measure(name: str) -> dict[str, Any]:
    """Time and memory of all claims, opening included, each round in a new process."""
    population, settings = RUNS[name]
    norms = population(RECORDS, seed=SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ledger"
        with Ledger.create(path) as ledger:
            for row in norms:
                ledger.step(**settings, audit=row)
        rounds = []
        for _ in range(ROUNDS):
            command = [sys.executable, "-c", _CHILD, str(path), str(DELTA), str(GAMMA)]
            rounds.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        seconds = [taken["open_seconds"] + taken["claims_seconds"] for taken in rounds]
        added = rounding(path)
    return {
        "steps": len(norms),
        "seconds_quietest": min(seconds),
        "seconds_median": float(np.median(seconds)),
        "peak_megabytes": max(taken["peak_megabytes"] for taken in rounds),
        "rounding_adds_median": float(np.median(added)),
        "rounding_adds_most": float(added.max()),
        "claims": rounds[0]["claims"],
    }


def rounding(path: Path) -> np.ndarray:
    """What the few kinds of steps add to the epsilon of single records, relative to many kinds."""
    with Ledger.open(path, write=False) as ledger:
        costs = ledger.costs([8.0])[:, 0]
        steps = ledger.step_counts()
        few, many = (exposure_counts(steps, costs, 8.0, kinds) for kinds in (KINDS, _FINEST))
    some = np.linspace(0, RECORDS - 1, _COMPARED).astype(int)
    epsilons = []
    for counts in (few, many):
        start = time.perf_counter()
        taken = type(counts)(counts.rates, counts.exposures, counts.counts[some])
        epsilons.append(profiles(taken, DELTA).epsilon)
        print(f"  {len(counts.rates)} kinds of steps: {time.perf_counter() - start:.1f} s for {_COMPARED} records")
    return epsilons[0] / epsilons[1] - 1


if __name__ == "__main__":
    main()
