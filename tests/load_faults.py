"""Faults under load: long runs, many writers that are killed, a disk that fills up in a fold, clocks, no memory.

Each function runs in processes of its own (ledger_processes.py) and returns or sends what happened. The tests use them
with few steps, benchmarks/faults_under_load.py with many.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger, LedgerError, StorageError
from ledger_kills import Outcome
from ledger_processes import Failure, Running, process
from ledger_runs import RECORDS, beside, counts_add_up, fold_often, random_step, steps_of

ENDINGS = ("", "-wal", "-shm", "-head", "-journal")


def run_long(pipe: Connection, path: Path, steps: int, points: int) -> None:
    """Record many steps; send at ``points`` places how many there are, the size of all files and the most memory."""
    audit = np.linspace(0.0, 2.0, RECORDS)
    with Ledger.create(path) as ledger:
        for number in range(1, steps + 1):
            ledger.step(noise_std=1.0 + (number % 3), sample_rate=0.1, clip=1.0, audit=audit)
            if number % max(1, steps // points) == 0:
                pipe.send({"steps": number, "bytes": _size(path), "memory": _memory()})
    pipe.send({"steps": steps, "bytes": _size(path), "memory": _memory()})


def _size(path: Path) -> int:
    files = (beside(path, ending) for ending in ENDINGS)
    return sum(file.stat().st_size for file in files if file.exists())


def _memory() -> int:
    """Return the memory in use now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def write_with_witness(pipe: Connection, path: Path, witness: Path, seed: int) -> None:
    """Continue or create a ledger until killed; write number and planned batch of each released step to a file."""
    fold_often()
    rng = np.random.default_rng(seed)
    log = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    pipe.send("ready")
    while True:
        _step_with_witness(ledger, rng, log)
        if rng.random() < 0.02:
            ledger.close()
            ledger = Ledger.open(path)


def _step_with_witness(ledger: Ledger, rng: np.random.Generator, log: int) -> int:
    """Record a step and only then, as a release would, write its number and planned batch; return its number."""
    number, planned = random_step(ledger, rng)
    os.write(log, f"{number} {planned!r}\n".encode())  # one write: a kill leaves the line, or nothing of it
    return number


def kill_and_restart(folder: Path, writers: int, cycles: int, seed: int, longest: float = 0.3) -> Outcome:
    """Let ``writers`` processes write a ledger each, all at once; kill one at random and start it again, many times.

    After each kill the ledger must have every step that the witness has, as it was released, and at most one more for
    each kill. Readers look while the others go on writing.
    """
    rng, outcome = random.Random(seed), Outcome()
    paths = [folder / f"{number}.ledger" for number in range(writers)]
    kills = [0] * writers
    running = [_start(path, rng) for path in paths]
    try:
        for _ in range(cycles):
            chosen = rng.randrange(writers)
            time.sleep(rng.uniform(0, longest))
            running[chosen].signal(signal.SIGKILL)
            messages, code = running[chosen].rest(), running[chosen].wait()
            running[chosen].stop()
            kills[chosen] += 1
            outcome.counts["kills"] += 1
            if code != -signal.SIGKILL:
                said = [message.summary for message in messages if isinstance(message, Failure)]
                outcome.failures.append(f"{paths[chosen].name} ended by itself with code {code}: {said}")
            fault = _compare(paths[chosen], kills[chosen], write=rng.random() < 0.5)
            if fault is not None:
                outcome.failures.append(f"after {kills[chosen]} kills of {paths[chosen].name}: {fault}")
            running[chosen] = _start(paths[chosen], rng)
    finally:
        for process in running:
            process.signal(signal.SIGKILL)
            process.wait()
            process.stop()
    for number, path in enumerate(paths):
        fault = _compare(path, kills[number] + 1, write=False)
        if fault is not None:
            outcome.failures.append(f"at the end, {path.name}: {fault}")
        released = _witnessed(path)
        outcome.counts["steps released"] += len(released)
        if path.exists():
            outcome.counts["steps recorded but not released"] += steps_of(path) - len(released)
    return outcome


def _start(path: Path, rng: random.Random) -> Running:
    running = Running(write_with_witness, path, path.with_suffix(".witness"), rng.randrange(1 << 32))
    if rng.random() < 0.7:  # others are killed while they start
        with contextlib.suppress(EOFError, TimeoutError):
            running.hear()
    return running


def _witnessed(path: Path) -> dict[int, float]:
    witness = path.with_suffix(".witness")
    lines = witness.read_text().splitlines() if witness.exists() else []
    return {int(number): float(planned) for number, planned in map(str.split, lines)}


def _compare(path: Path, kills: int, *, write: bool) -> str | None:
    """Return what is wrong with a ledger beside its witness; None if nothing is."""
    released = _witnessed(path)
    if not path.exists():
        return f"{len(released)} steps were released, and there is no ledger" if released else None
    try:
        with Ledger.open(path, write=write) as ledger:
            kept = {stored.step.number: stored.step.planned_batch for stored in ledger.stored_steps()}
            if any(kept.get(number) != planned for number, planned in released.items()):
                return "a step that was released is missing, or is another"
            if len(kept) > len(released) + kills:
                return f"{len(kept)} steps, of which {len(released)} were released, after {kills} kills"
            return None if counts_add_up(ledger) else "counts of audit records do not add up"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def fill_disk_in_folds(pipe: Connection, path: Path, rounds: int) -> None:
    """Let files not grow from the moment at which a fold writes a slice; send how many folds failed, and the steps."""
    fold_often()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    rng = np.random.default_rng(0)
    failed = 0
    with Ledger.create(path) as ledger:
        released = 0
        while failed < rounds:
            # In a write-ahead log that is long already, a fold needs no more room, and a full disk does not matter.
            ledger._file._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            ledger._file._database.set_trace_callback(_full_at("REPLACE INTO slices", path))
            try:
                released = random_step(ledger, rng)[0]
            except StorageError:
                _limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
                failed += 1
                assert ledger.steps == released, (ledger.steps, released)
                assert counts_add_up(ledger)
                ledger._file._database.set_trace_callback(None)
                released = random_step(ledger, rng)[0]
            finally:
                _limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
        ledger._file._database.set_trace_callback(None)
    pipe.send({"folds_that_failed": failed, "steps": released})


def _full_at(statement: str, path: Path) -> Any:
    def watch(executed: str) -> None:
        if executed.startswith(statement):
            _limit(resource.RLIMIT_FSIZE, max(beside(path, "-wal").stat().st_size, 1))

    return watch


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def write_while_the_clock_jumps(pipe: Connection, path: Path, steps: int) -> None:
    """Record steps while the clock goes back and forth by up to a century; send their number."""
    rng = np.random.default_rng(0)
    honest = time.time
    shift = 0.0
    time.time = lambda: honest() + shift
    try:
        for _ in range(3):  # closed and continued, each time at another date
            with Ledger.open(path) if path.exists() else Ledger.create(path) as ledger:
                for _ in range(steps):
                    shift = float(rng.choice([-1.0, -3600.0, -3.1e9, -honest(), -2 * honest(), 3.1e9, 0.0]))
                    random_step(ledger, rng)
    finally:
        time.time = honest
    pipe.send(3 * steps)


def run_out_of_memory(folder: Path, tries: int, seed: int) -> Outcome:
    """Take memory away, ``tries`` times, before steps, folds and claims of one ledger; count what was raised.

    Libraries in C may end the process at once instead: glibc without memory for thread-local data (code 127), OpenBLAS
    (code 1). That is a kill like any other, after which the next process goes on with the ledger. Whatever happens, the
    ledger has every step that the witness has, and no exception other than those of fail_for_memory is raised.
    """
    outcome, path = Outcome(), folder / "run.ledger"
    processes = 0
    while (left := tries - outcome.counts.total()) > 0:
        processes += 1
        with process(fail_for_memory, path, path.with_suffix(".witness"), left, seed + processes) as running:
            messages, code = running.rest(), running.wait()
        outcome.counts.update(message for message in messages if isinstance(message, str))
        failures = [message.summary for message in messages if isinstance(message, Failure)]
        outcome.failures += failures
        if code is None:
            outcome.failures.append(f"process {processes} hangs")
        elif code != 0 and not failures:
            outcome.counts["process ended by a library"] += 1
        fault = _compare(path, outcome.counts.total(), write=False)
        outcome.failures += [] if fault is None else [f"after process {processes}: {fault}"]
        if outcome.failures:
            break
    return outcome


def fail_for_memory(pipe: Connection, path: Path, witness: Path, tries: int, seed: int) -> None:
    """Take memory away before steps, folds and claims; send after each try what was raised.

    After each failure, with memory again, the ledger has every step that was released and at most one more.
    """
    fold_often()
    rng = np.random.default_rng(seed)
    log = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Ledger.open(path) if path.exists() else Ledger.create(path) as ledger:
        released = _step_with_witness(ledger, rng, log)
        ledger.claims()  # imports what it needs
        for number in range(tries):
            ahead = int(rng.integers(0, 1 << int(rng.integers(12, 27))))
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            _limit(resource.RLIMIT_AS, now + ahead)
            happened = "nothing"
            try:
                if number % 3 == 2:
                    ledger.claims(1e-6 * (1 + number))
                else:
                    for _ in range(20):
                        released = _step_with_witness(ledger, rng, log)
            except (MemoryError, StorageError, LedgerError) as error:
                happened = type(error).__name__
            finally:
                _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)
            assert released <= ledger.steps <= released + 1, (released, ledger.steps)
            assert counts_add_up(ledger)
            released = ledger.steps
            pipe.send(happened)
