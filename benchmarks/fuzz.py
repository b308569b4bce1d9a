"""A fuzzer over the whole public face: random calls of the library, the command line, the ledger's reader, the report.

    python -m benchmarks.fuzz [--cases 20000] [--seed 0] [--only KIND] [--case N] [--seconds S] [-o FILE]

Whatever is passed, the outcome must be a value that keeps its contract (no NaN, no negative epsilon, no share above
everyone, no fall with a further step), or one line ``name=value: expected ...``. Any other exception, a warning, a
traceback, another exit code and more than 5 s of processor time are findings; each is printed with the command that
repeats it. Cheap calls are frequent and dear ones rare, so that a million cases take about an hour on one core.
Prints and writes results/fuzz.json, unless that is of more cases; exit code 1 on any finding.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fuzz_commands, fuzz_declared, fuzz_ledgers, fuzz_library, fuzz_locales, fuzz_mechanisms
from benchmarks.fuzz_judge import judged
from benchmarks.fuzz_values import Values
from benchmarks.machine import description
from benchmarks.results import add_output, write_result

RESULT = Path(__file__).parents[1] / "results" / "fuzz.json"
KINDS: dict[str, tuple[float, Callable[..., Any], bool]] = {
    "log_moment": (22, fuzz_library.log_moment, False),
    "estimator": (22, fuzz_library.estimator, False),
    "ranks": (12, fuzz_library.ranks, False),
    "implications": (12, fuzz_library.implications, False),
    "gaussian_profile": (10, fuzz_library.gaussian_profile, False),
    "declarations": (10, fuzz_library.declarations, False),
    "bayesian_accountant": (4, fuzz_library.bayesian_accountant, False),
    "record_budgets": (3, fuzz_library.record_budgets, False),
    "ledger_steps": (4, fuzz_ledgers.ledger_steps, False),
    "damaged_file": (1.5, fuzz_ledgers.damaged_file, True),
    "ledger_claims": (0.4, fuzz_ledgers.ledger_claims, False),
    "accounted": (0.3, fuzz_ledgers.accounted, False),
    "chosen_run": (0.05, fuzz_ledgers.chosen_run, False),
    "posterior": (2, fuzz_mechanisms.posterior, False),
    "subsampled": (2, fuzz_mechanisms.subsampled, False),
    "events": (0.3, fuzz_mechanisms.events, False),
    "beside_the_oracle": (0.2, fuzz_mechanisms.beside_the_oracle, False),
    "declared_ledger": (0.1, fuzz_declared.declared_ledger, False),
    "composition": (0.05, fuzz_declared.composition, False),
    "command": (0.3, fuzz_commands.command, True),
    "worst_case": (0.1, fuzz_library.worst_case, False),
    "attack_risk": (0.05, fuzz_library.attack_risk, False),
    "calibration": (0.02, fuzz_library.calibration, False),
    "report": (0.01, fuzz_ledgers.report, True),
}
"""Name, how often it comes, the function, and whether it needs a folder."""
QUESTIONS = {"worst_case": 2, "calibration": 6, "events": 2, "declared_ledger": 2, "composition": 5, "command": 2}
"""How many worst cases a case of some kinds computes: a calibration tries several noises."""
NAMES = tuple(KINDS)
_ENDS = np.cumsum([weight for weight, _, _ in KINDS.values()])


def run_case(seed: int, number: int, root: Path, only: str | None = None) -> tuple[str, str, str | None]:
    """Run one case, which depends on seed and number alone; return its kind, its outcome, and what was found."""
    rng = np.random.default_rng([seed, number])
    drawn = NAMES[int(np.searchsorted(_ENDS, rng.uniform(0, _ENDS[-1]), side="right"))]
    kind = only or drawn
    _, function, needs_folder = KINDS[kind]
    values = Values(rng)
    outcome, finding = judged(
        lambda: function(values, root) if needs_folder else function(values), QUESTIONS.get(kind, 1)
    )
    return kind, outcome, finding


def fuzz(cases: range, seed: int, only: str | None = None, seconds: float = float("inf")) -> dict[str, Any]:
    """Run cases and return how many of each kind had which outcome, the time of each kind, and all findings."""
    counts: dict[str, Counter[str]] = {name: Counter() for name in NAMES}
    taken: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    begin, done = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder, fuzz_locales.installed(Path(folder) / "locales") as built:
        fuzz_locales.EFFECTIVE.clear()
        for number in cases:
            started = time.process_time()
            kind, outcome, finding = run_case(seed, number, Path(folder), only)
            taken[kind] += time.process_time() - started
            counts[kind][outcome] += 1
            done += 1
            if finding is not None:
                again = f"python -m benchmarks.fuzz --seed {seed} --case {number}" + (f" --only {only}" if only else "")
                findings.append({"kind": kind, "found": finding, "again": again})
                print(f"FOUND {kind}: {finding}\n  {again}", flush=True)
            if time.monotonic() - begin > seconds:
                break
    return {
        "cases": done,
        "by_kind": {name: dict(sorted(count.items())) for name, count in counts.items() if count},
        "processor_seconds": {name: round(value, 1) for name, value in taken.items()},
        "locales": {"built": built, "in_effect": dict(sorted(fuzz_locales.EFFECTIVE.items()))},
        "findings": findings,
    }


def main() -> int:
    """Run the cases that were asked for, print, write, and say whether anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=NAMES, help="only calls of this kind")
    parser.add_argument("--case", type=int, help="repeat this case and write nothing")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    add_output(parser, RESULT)
    options = parser.parse_args()
    if options.case is not None:
        found = fuzz(range(options.case, options.case + 1), options.seed, options.only)
        print(json.dumps(found, indent=2))
        return int(bool(found["findings"]))
    found = fuzz(range(options.cases), options.seed, options.only, options.seconds)
    print(json.dumps({key: found[key] for key in ("cases", "by_kind", "processor_seconds", "locales")}, indent=2))
    print(f"{found['cases']} cases, {len(found['findings'])} findings")
    if options.only is None:
        report = {"machine": description(), "seed": options.seed, **found}
        write_result(report, RESULT, lambda result: (result["cases"],), options.output)
    return int(bool(found["findings"]))


if __name__ == "__main__":
    sys.exit(main())
