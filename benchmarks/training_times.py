"""How long `bayesdp train` takes from raw images, and again from the features it has kept.

    python -m benchmarks.training_times [RECIPE ...] [--cache DIR [--again]]  (by default: mnist fashion-mnist cifar10)

BAYESDP_DATA names the data folder. Each recipe is trained twice as a user trains it, by the command, with noise from
the operating system: once with an empty cache, once with what the first run left there. Times are those that passed
from the start of the command to its end, statement and report included. `--cache` keeps the features in DIR, which must
not exist; `--again` measures the second run alone, from features that are there. Writes results/training_times.json
after each recipe; others in it are kept. Exit code 1 if a run from the cache takes more than two minutes, or one from
raw images more than ninety.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import description

RESULT = Path(__file__).parents[1] / "results" / "training_times.json"
MOST = {"from_raw_images": 90 * 60.0, "from_cache": 2 * 60.0}  # seconds


def trained(recipe: str, cache: Path, output: Path) -> dict[str, Any]:
    """Run the command; return its time, and what it says of the model."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bayesdp", "train", recipe, "--json", "-o", str(output)],
        env=os.environ | {"BAYESDP_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    passed = time.perf_counter() - begin
    said = json.loads(done.stdout)
    threads = os.environ.get("OMP_NUM_THREADS")
    figures = {"accuracy": said["accuracy"], "worst_case": said["worst_case"]["epsilon"]}
    return {"seconds": passed, "threads": int(threads) if threads else os.cpu_count(), **figures}


def main() -> int:
    """Train, print, write, and say whether a run took too long."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=["mnist", "fashion-mnist", "cifar10"])
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    kept = json.loads(RESULT.read_text())["recipes"] if RESULT.exists() else {}
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder) / "cache"
        cache.mkdir(exist_ok=options.again)
        for recipe in options.recipes:
            wanted = ["from_cache"] if options.again else list(MOST)
            times = {name: trained(recipe, cache, Path(folder) / f"{recipe}-{name}") for name in wanted}
            kept[recipe] = kept.get(recipe, {}) | {"machine": description(), **times}
            RESULT.write_text(
                json.dumps({"command": "python -m benchmarks.training_times", "recipes": kept}, indent=1) + "\n"
            )
            for name in wanted:
                seconds = times[name]["seconds"]
                slow |= seconds > MOST[name]
                print(f"{recipe} {name}: {seconds:.0f} s{' TOO SLOW' * (seconds > MOST[name])}", flush=True)
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
