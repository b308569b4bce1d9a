"""A storm over runs of several processes: ranks killed at any instant, ranks that share a seed.

    python -m benchmarks.ranks_storm [--kills 50] [--runs 100] [--seed 0] [-o FILE]

After every kill the ledger must open with every update that any rank has begun to apply, and at most one step more.
Every run with equal seeds on all ranks must be refused before anything is released, and no run with seeds of its own.
DDP with flat and ghost clipping and FSDP2 take turns, with two or three ranks (gloo). Prints and writes
results/ranks_storm.json, unless that is of a larger run; exit code 1 on any failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import opacus
import torch

from benchmarks.machine import description
from benchmarks.results import add_output, write_result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from rank_runs import AUDIT, BATCH, RECORDS  # noqa: E402
from rank_storm import kill_ranks, share_seeds  # noqa: E402

RESULT = ROOT / "results" / "ranks_storm.json"


def main() -> int:
    """Run both storms, print, write, and say whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    add_output(parser, RESULT)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "command": "python -m benchmarks.ranks_storm",
        "versions": description() | {"torch": torch.__version__, "opacus": opacus.__version__},
        "settings": {"kills": options.kills, "runs": options.runs, "seed": options.seed}
        | {"records": RECORDS, "batch": BATCH, "audit_records": AUDIT, "backend": "gloo"},
    }
    failures = 0
    for name, storm, times in (("kills", kill_ranks, options.kills), ("seeds", share_seeds, options.runs)):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            outcome = storm(Path(folder), times, options.seed)
        seconds = round(time.perf_counter() - begin, 1)
        report[name] = {"counts": dict(sorted(outcome.counts.items())), "failures": outcome.failures}
        report[name]["seconds"] = seconds
        failures += len(outcome.failures)
        print(f"{name}: {len(outcome.failures)} failures, {seconds} seconds")
        for line, count in report[name]["counts"].items():
            print(f"  {line}: {count}")
        for line in outcome.failures:
            print(f"  FAILED {line}")
    write_result(
        report, RESULT, lambda result: tuple(result["settings"][name] for name in ("kills", "runs")), options.output
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
