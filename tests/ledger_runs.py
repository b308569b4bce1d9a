"""Ledgers for tests of faults: random steps, what they must add up to, and copies of their files."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger
from bayesdp.ledger import histograms

RECORDS = 40
STEPS = 80


def fold_often() -> None:
    """Fold every 16 steps in this process: with so few records it would happen only every 1280 steps."""
    histograms._SHORTEST = histograms._LONGEST = 16


def random_step(ledger: Ledger, rng: np.random.Generator) -> tuple[int, float]:
    """Record a step; return its number, and its planned batch, which differs from that of any other step."""
    planned = float(rng.uniform(1, 100))
    audit = None if rng.random() < 0.2 else rng.exponential(1.0, RECORDS)
    batch = None if rng.random() < 0.2 else rng.exponential(1.0, int(rng.integers(0, 30)))
    noise, rate = float(rng.choice([0.8, 1.0, 2.0])), float(rng.choice([0.1, 0.2]))
    number = ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=audit, batch=batch, planned_batch=planned)
    return number, planned


def counts_add_up(ledger: Ledger) -> bool:
    """Return whether every audit record has one count for every step."""
    counts = [ledger.audit.histogram(number).counts for number in range(len(ledger.audit.slices))]
    return all((part.sum(axis=0, dtype=np.int64) == ledger.steps).all() for part in counts)


def content(ledger: Ledger) -> str:
    """Return one hash over everything that a ledger says."""
    parts: list[Any] = [ledger.steps, ledger.seal, ledger.costs(range(1, 9)).tobytes().hex()]
    for number in range(1, ledger.steps + 1):
        batch = ledger.private_batch(number)
        parts.append(
            None if batch is None else [batch.drawn, batch.clipped, batch.bins.tolist(), batch.counts.tolist()]
        )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def steps_of(path: Path) -> int:
    """Open a ledger for reading, check its counts and return how many steps it has."""
    with Ledger.open(path, write=False) as ledger:
        assert counts_add_up(ledger)
        return ledger.steps


def beside(path: Path, ending: str) -> Path:
    """Return the file beside a ledger whose name has this ending: -wal, -shm, -head or -journal."""
    return path.with_name(path.name + ending)


def copy_ledger(path: Path, folder: Path) -> Path:
    """Copy a ledger and the files beside it into a new folder."""
    shutil.copytree(path.parent, folder)
    return folder / path.name


def execute(path: Path, *statements: str) -> None:
    """Execute SQL statements on a file, behind the ledger's back."""
    database = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in statements:
            database.execute(statement)
    finally:
        database.close()
