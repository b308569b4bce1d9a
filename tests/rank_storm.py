"""A storm over several processes: ranks that are killed at any instant, and ranks that share a seed.

The tests use it with few of them, benchmarks/ranks_storm.py with many.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bayesdp import Ledger
from rank_runs import RunningRanks, values

_LONGEST = 60.0  # seconds until a run must have begun, or ended
MODES = ("hooks", "ghost", "ghost_fsdp")


@dataclass
class Storm:
    """Counts of what happened, and a line for each thing that must not happen."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def kill_ranks(folder: Path, kills: int, seed: int) -> Storm:
    """Kill a rank of a run, again and again; after each the ledger must have every update that any rank began."""
    rng, storm = np.random.default_rng(seed), Storm()
    for kill in range(kills):
        own, mode, ranks = folder / str(kill), MODES[kill % len(MODES)], (2, 2, 3)[kill // 3 % 3]
        running = RunningRanks("trains_on", ranks, own, mode=mode, seconds=30)
        victim = int(rng.integers(ranks))
        begun = _wait_for(own / "updates0")
        time.sleep(float(rng.uniform(0, 0.5)))
        running.programs[victim].send_signal(signal.SIGKILL)
        answers = running.answers()
        released = [(own / f"updates{rank}").stat().st_size for rank in range(ranks) if _exists(own, rank)]
        with Ledger.open(own / "run.ledger") as ledger:
            steps = ledger.steps
            ledger.worst_case(1e-5)
        storm.counts["kills"] += 1
        storm.counts[f"kills of rank {victim}"] += 1
        storm.counts["steps released"] += max(released)
        storm.counts["ledgers one step ahead"] += steps == max(released) + 1
        others = [answer for rank, answer in enumerate(answers) if rank != victim]
        named = sum("RanksError" in str(answer.value) or "RanksError" in answer.errors for answer in others)
        storm.counts["other ranks that ended with RanksError"] += named
        storm.counts["other ranks that ended with an error of PyTorch's own collectives"] += len(others) - named
        if not begun or not max(released) <= steps <= max(released) + 1:
            storm.failures.append(f"kill {kill} of rank {victim} ({mode}): {released} released, {steps} in the ledger")
    return storm


def share_seeds(folder: Path, runs: int, seed: int) -> Storm:
    """Train with equal seeds on all ranks, and with seeds of their own; the first must be refused, the others not."""
    storm = Storm()
    seeds = np.random.default_rng(seed).integers(1 << 40, size=(2, runs)).tolist()
    for number, mode in enumerate(MODES):
        equal, own = (given[number :: len(MODES)] for given in seeds)
        ranks = 2 + number % 2
        for refused in values("equal_seeds", ranks, folder / f"equal-{mode}", mode=mode, seeds=equal)[:1]:
            for given, (error, steps, unchanged) in zip(equal, refused, strict=True):
                caught = "the same on several ranks" in str(error) and steps == 0 and unchanged
                storm.counts["runs with equal seeds"] += 1
                storm.counts["caught before anything was released"] += caught
                if not caught:
                    storm.failures.append(f"seed {given} ({mode}): {error}, {steps} steps")
        honest = values("own_seeds", ranks, folder / mode, mode=mode, seeds=own)[0]
        for given, (error, steps) in zip(own, honest, strict=True):
            storm.counts["runs with seeds of their own"] += 1
            storm.counts["refused by mistake"] += error is not None
            if error is not None or steps != 3:
                storm.failures.append(f"honest seed {given} ({mode}): {error}, {steps} steps")
    return storm


def _wait_for(path: Path) -> bool:
    """Wait until a file has something in it."""
    end = time.monotonic() + _LONGEST
    while time.monotonic() < end:
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size:
                return True
        time.sleep(0.02)
    return False


def _exists(folder: Path, rank: int) -> bool:
    return (folder / f"updates{rank}").exists()
