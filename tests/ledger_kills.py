"""A storm of kills: writers that are killed at any instant, and what each of them leaves.

The tests use it with few kills, benchmarks/ledger_storm.py with many.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayesdp import Ledger
from ledger_processes import Failure, process
from ledger_runs import beside, counts_add_up
from ledger_writers import write_until_killed


@dataclass
class Outcome:
    """The result of a storm: counts of what happened, and a line for each thing that must not happen."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def kill_storm(folder: Path, kills: int, seed: int) -> Outcome:
    """Kill writers, and after each one look at what it left; a few of them work on each ledger."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    path, released, steps = folder / "0.ledger", dict[int, float](), 0
    for kill in range(kills):
        new, fault = _kill_a_writer(path, int(rng.integers(1 << 32)), rng)
        released |= new
        outcome.counts["kills"] += 1
        outcome.counts["steps released"] += len(new)
        outcome.counts[_left(path)] += 1
        last = max([steps, *new])
        fault = fault or _check_what_was_left(path, released, last, write=bool(rng.random() < 0.5))
        if isinstance(fault, str):
            outcome.failures.append(f"kill {kill}, {_left(path)}: {fault}")
        else:
            outcome.counts["steps recorded but not released"] += fault - last
            steps = fault
        if isinstance(fault, str) or rng.random() < 0.25:
            path, released, steps = folder / f"{kill + 1}.ledger", {}, 0
    return outcome


def _kill_a_writer(path: Path, seed: int, rng: np.random.Generator) -> tuple[dict[int, float], str | None]:
    """Kill a writer at a random instant; return the steps it released, and why it ended before, if it did."""
    with process(write_until_killed, path, seed, 0.05) as writer:
        assert writer.hear() == "ready"
        time.sleep(rng.uniform(0, 0.3 if rng.random() < 0.75 else 0.02))  # opening takes a few milliseconds
        writer.signal(signal.SIGKILL)
        messages, code = writer.rest(), writer.wait()
    complaint = None if code == -signal.SIGKILL else f"the writer ended by itself with code {code}"
    if messages and isinstance(messages[-1], Failure):
        complaint = f"the writer ended by itself: {messages.pop().summary}"
    return dict(messages), complaint


def _left(path: Path) -> str:
    """Return in words what kind of files a killed writer left."""
    if not path.exists():
        return "killed before there was a file"
    for ending, name in (("-journal", "while closing"), ("-wal", "while writing"), ("-head", "with a head only")):
        if beside(path, ending).exists():
            return f"killed {name}"
    return "killed with a closed ledger"


def _check_what_was_left(path: Path, released: dict[int, float], last: int, *, write: bool) -> int | str:
    """Return how many steps a ledger has after a kill, or what is wrong. Step ``last`` must be there."""
    if not path.exists() and not last:
        return 0
    try:
        with Ledger.open(path, write=write) as ledger:
            kept = {stored.step.number: stored.step.planned_batch for stored in ledger.stored_steps()}
            if not last <= ledger.steps <= last + 1:
                return f"{ledger.steps} steps, though {last} were known"
            if any(kept[number] != planned for number, planned in released.items()):
                return "a step is not the one that was released"
            return ledger.steps if counts_add_up(ledger) else "counts of audit records do not add up"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
