"""Faults of the machine while a ledger is hard at work: in the ledger is always at least what was released.

    python -m benchmarks.faults_under_load [--steps 100000] [--writers 8] [--cycles 500] [--rounds 50] [--folder DIR]
                                           [-o FILE]

- **long**: one ledger with ``--steps`` steps (a million by option); files and memory must stay below 500 bytes a step.
- **kills**: ``--writers`` processes write a ledger each, all at once; ``--cycles`` times one is killed at a random
  instant, looked at, and started again. A witness file has every step that was released.
- **disk**: the disk is full, ``--rounds`` times, from the moment at which a fold writes.
- **clock**: the clock goes back and forth by up to a century; the ledger must open, verify and report.
- **memory**: memory is taken away in the middle of steps, folds and claims.

Prints and writes results/faults_under_load.json, unless that is of a larger run; exit code 1 on any failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import description
from benchmarks.results import add_output, write_result

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from command_line import run  # noqa: E402
from ledger_processes import Failure, process  # noqa: E402
from ledger_runs import steps_of  # noqa: E402
from load_faults import (  # noqa: E402
    fill_disk_in_folds,
    kill_and_restart,
    run_long,
    run_out_of_memory,
    write_while_the_clock_jumps,
)

RESULT = ROOT / "results" / "faults_under_load.json"
BYTES_PER_STEP = 500
"""What a step may add, at most, to the files and to memory: its settings, its hash and nothing of its records."""


def _heard(function: Callable[..., None], *arguments: object) -> tuple[list[Any], list[str]]:
    """Run a function in a process of its own, however long it takes; return what it sent, and why it failed."""
    with process(function, *arguments) as running:
        sent: list[Any] = []
        while True:
            try:
                sent.append(running.pipe.recv())
            except (EOFError, ConnectionResetError):
                break
        code = running.wait()
    failures = [message.summary for message in sent if isinstance(message, Failure)]
    sent = [message for message in sent if not isinstance(message, Failure)]
    return sent, failures or ([] if code == 0 else [f"ended with code {code}"])


def long_run(folder: Path, steps: int) -> tuple[Any, list[str]]:
    """One ledger with many steps."""
    points, failures = _heard(run_long, folder / "run.ledger", steps, 20)
    if failures:
        return points, failures
    begin, end, closed = points[0], points[-2], points[-1]
    steps_between = max(1, end["steps"] - begin["steps"])
    growth = {name: (end[name] - begin[name]) / steps_between for name in ("bytes", "memory")}
    found = {"points": points, "bytes_per_step": growth["bytes"], "memory_per_step": growth["memory"]}
    if steps_of(folder / "run.ledger") != steps:
        failures.append(f"{steps_of(folder / 'run.ledger')} steps of {steps}")
    if closed["bytes"] > BYTES_PER_STEP * steps + 500_000:
        failures.append(f"a closed ledger of {closed['bytes']} bytes")
    if end["memory"] - begin["memory"] > BYTES_PER_STEP * steps_between + 30_000_000:
        failures.append(f"memory grew by {end['memory'] - begin['memory']} bytes")
    return found, failures


def kills(folder: Path, writers: int, cycles: int, seed: int) -> tuple[Any, list[str]]:
    """Many writers, killed and started again."""
    outcome = kill_and_restart(folder, writers, cycles, seed)
    return dict(sorted(outcome.counts.items())), outcome.failures


def disk(folder: Path, rounds: int) -> tuple[Any, list[str]]:
    """A disk that is full in the middle of a fold."""
    sent, failures = _heard(fill_disk_in_folds, folder / "run.ledger", rounds)
    if sent and steps_of(folder / "run.ledger") != sent[-1]["steps"]:
        failures.append("steps are missing")
    return sent, failures


def clock(folder: Path, steps: int) -> tuple[Any, list[str]]:
    """A clock that jumps."""
    path = folder / "run.ledger"
    sent, failures = _heard(write_while_the_clock_jumps, path, steps)
    for arguments in (("verify", path), ("claims", path), ("report", path, "-o", folder / "report.html")):
        done = run(*arguments)
        if done.returncode:
            failures.append(f"{arguments[0]}: {done.stderr}")
    if sent and steps_of(path) != sent[-1]:
        failures.append("steps are missing")
    return {"steps": sent[-1] if sent else None}, failures


def memory(folder: Path, rounds: int, seed: int) -> tuple[Any, list[str]]:
    """No memory in the middle of steps, folds and claims."""
    outcome = run_out_of_memory(folder, 6 * rounds, seed)
    happened = dict(sorted(outcome.counts.items()))
    return {"happened": happened, "steps": steps_of(folder / "run.ledger")}, outcome.failures


def main() -> int:
    """Run all faults, print, write, and say whether anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", help="where ledgers are written: a disk, or memory, where a sync takes no time")
    add_output(parser, RESULT)
    options = parser.parse_args()
    parts: dict[str, Callable[[Path], tuple[Any, list[str]]]] = {
        "long": lambda folder: long_run(folder, options.steps),
        "kills": lambda folder: kills(folder, options.writers, options.cycles, options.seed),
        "disk": lambda folder: disk(folder, options.rounds),
        "clock": lambda folder: clock(folder, options.rounds),
        "memory": lambda folder: memory(folder, options.rounds, options.seed),
    }
    report: dict[str, Any] = {
        "machine": description(),
        "settings": {name: value for name, value in vars(options).items() if name != "output"},
    }
    failed = 0
    for name, part in parts.items():
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found, failures = part(Path(folder))
        seconds = round(time.perf_counter() - begin, 1)
        report[name] = {"found": found, "failures": failures, "seconds": seconds}
        failed += len(failures)
        print(f"{name}: {len(failures)} failures, {seconds} seconds", flush=True)
        for line in failures:
            print(f"  FAILED {line}", flush=True)
    write_result(
        report,
        RESULT,
        lambda result: tuple(result["settings"][name] for name in ("steps", "writers", "cycles", "rounds")),
        options.output,
    )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
