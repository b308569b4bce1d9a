"""A storm of faults over the ledger: writers killed at any instant, files damaged in any way.

    python -m benchmarks.ledger_storm [--kills 200] [--mutations 1000] [--seed 0] [--keep FOLDER] [-o FILE]

After every kill the ledger must open with all steps that were released, and at most the one that was being written.
Every damaged ledger must be refused in one line, or say exactly what it said before; never less, never something else.
Prints and writes results/ledger_storm.json, unless that is of a larger run; exit code 1 on any failure. ``--keep``:
where damaged files that were neither refused nor harmless are copied to.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.results import add_output, write_result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from ledger_damage import mutation_storm  # noqa: E402
from ledger_kills import kill_storm  # noqa: E402
from ledger_runs import RECORDS, STEPS  # noqa: E402

RESULT = ROOT / "results" / "ledger_storm.json"


def main() -> int:
    """Run both storms, print, write, and say whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--mutations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    add_output(parser, RESULT)
    options = parser.parse_args()
    settings = {"kills": options.kills, "mutations": options.mutations, "seed": options.seed}
    settings |= {"audit_records": RECORDS, "steps_of_damaged_ledgers": STEPS}
    report: dict[str, Any] = {"machine": description(), "settings": settings}
    failures = 0
    for name, storm, arguments in (
        ("kills", kill_storm, (options.kills, options.seed)),
        ("mutations", mutation_storm, (options.mutations, options.seed, options.keep)),
    ):
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            outcome = storm(Path(folder), *arguments)
        seconds = round(time.perf_counter() - begin, 1)
        report[name] = {"counts": dict(sorted(outcome.counts.items())), "seconds": seconds}
        report[name]["failures"] = outcome.failures
        failures += len(outcome.failures)
        print(f"{name}: {len(outcome.failures)} failures, {seconds} seconds")
        for line, count in report[name]["counts"].items():
            print(f"  {line}: {count}")
        for line in outcome.failures:
            print(f"  FAILED {line}")
    write_result(
        report,
        RESULT,
        lambda result: tuple(result["settings"][name] for name in ("kills", "mutations")),
        options.output,
    )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
