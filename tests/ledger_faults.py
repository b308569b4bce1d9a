"""Faults for ledgers: writers that are killed at any instant, files that are damaged in any way.

The tests use it with small numbers, benchmarks/ledger_storm.py with large ones. Run as a script, this file is the
process that is killed, or the one that opens damaged files so that a crash or a hang can be told from an error.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger, LedgerError, StorageError
from bayesdp.ledger import histograms

RECORDS = 40
STEPS = 80
PATIENCE = 30.0  # seconds after which a process counts as hung
PAGE, LOG_HEADER, LOG_FRAME = 4096, 32, 4096 + 24
ENDINGS = ("", "-wal", "-shm", "-head", "-journal")


@dataclass
class Outcome:
    """What a storm found: counts of what happened, and a line for each thing that must not happen."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def fold_often() -> None:
    """Fold every 16 steps in this process: with few records it would happen only once in 1024."""
    histograms._SHORTEST = histograms._LONGEST = 16


def random_step(ledger: Ledger, rng: np.random.Generator) -> tuple[int, float]:
    """One step; its number, and its planned batch, by which it can be told from any other."""
    planned = float(rng.uniform(1, 100))
    audit = None if rng.random() < 0.2 else rng.exponential(1.0, RECORDS)
    batch = None if rng.random() < 0.2 else rng.exponential(1.0, int(rng.integers(0, 30)))
    noise, rate = float(rng.choice([0.8, 1.0, 2.0])), float(rng.choice([0.1, 0.2]))
    number = ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=audit, batch=batch, planned_batch=planned)
    return number, planned


def counts_add_up(ledger: Ledger) -> bool:
    """Every audit record has one count for every step."""
    histogram = [ledger.audit.histogram(number) for number in range(len(ledger.audit.slices))]
    return all((one.counts.sum(axis=0, dtype=np.int64) == ledger.steps).all() for one in histogram)


def content(ledger: Ledger) -> str:
    """One hash over what a ledger says."""
    parts: list[Any] = [ledger.steps, ledger.seal, ledger.costs(range(1, 9)).tobytes().hex()]
    for number in range(1, ledger.steps + 1):
        batch = ledger.private_batch(number)
        parts.append(
            None if batch is None else [batch.drawn, batch.clipped, batch.bins.tolist(), batch.counts.tolist()]
        )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


# Writers that are killed


@contextmanager
def script(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """This file as a process, killed at the end if it still runs."""
    command = [sys.executable, __file__, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def write_until_killed(path: Path, seed: int, reopen: float) -> None:
    """Continue or create a ledger, step after step; what was released is said on stdout.

    ``reopen``: how often, after a step, the ledger is closed and opened again.
    """
    fold_often()
    rng = np.random.default_rng(seed)
    _say("ready")
    ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
    while True:
        number, planned = random_step(ledger, rng)
        _say(number, planned.hex())
        if rng.random() < reopen:
            ledger.close()
            ledger = Ledger.open(path)


def write_some(path: Path, steps: int, seed: int, left: str) -> None:
    """A ledger of so many steps, closed and opened again after a quarter; left ``closed``, or open until killed."""
    fold_often()
    rng = np.random.default_rng(seed)
    ledger = Ledger.create(path)
    for _ in range(steps // 4):
        random_step(ledger, rng)
    ledger.close()
    ledger = Ledger.open(path)
    while ledger.steps < steps:
        random_step(ledger, rng)
    if left == "closed":
        ledger.close()
    _say("done")
    signal.pause()


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # in one piece, whenever the process is killed


def written(folder: Path, *, closed: bool, steps: int = STEPS, seed: int = 0) -> Path:
    """A ledger of a process that has ended: it closed the ledger, or was killed before it could."""
    path = folder / "run.ledger"
    with script("write_some", path, steps, seed, "closed" if closed else "open") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
    return path


def kill_storm(folder: Path, kills: int, seed: int) -> Outcome:
    """Kill writers, and after each one look at what it left; a few of them work on each ledger."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    path, released, steps = folder / "0.ledger", dict[int, float](), 0
    for kill in range(kills):
        said, fault = _kill_a_writer(path, int(rng.integers(1 << 32)), rng)
        released |= said
        outcome.counts["kills"] += 1
        outcome.counts["steps released"] += len(said)
        outcome.counts[_left(path)] += 1
        last = max([steps, *said])
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
    """Start a writer and kill it at a random instant; the steps it released, and why it ended before, if it did."""
    with script("write_until_killed", path, seed, 0.05, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(rng.uniform(0, 0.3 if rng.random() < 0.75 else 0.02))  # opening takes a few milliseconds
        process.send_signal(signal.SIGKILL)
        lines = process.stdout.read().decode().splitlines()
        complaint = process.stderr.read().decode().strip().splitlines()
    released = {int(number): float.fromhex(planned) for number, planned in map(str.split, lines)}
    return released, f"the writer ended by itself: {complaint[-1]}" if complaint else None


def _left(path: Path) -> str:
    """What kind of files a killed writer left."""
    if not path.exists():
        return "killed before there was a file"
    for ending, name in (("-journal", "while closing"), ("-wal", "while writing"), ("-head", "with a head only")):
        if path.with_name(path.name + ending).exists():
            return f"killed {name}"
    return "killed with a closed ledger"


def _check_what_was_left(path: Path, released: dict[int, float], last: int, *, write: bool) -> int | str:
    """How many steps a ledger has after a kill; or what is wrong. ``last`` is the last one that must be there."""
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


# Files that are damaged


def mutation_storm(folder: Path, mutations: int, seed: int, keep: Path | None = None) -> Outcome:
    """Damage copies of ledgers in one place each, and open them; ``keep`` is where those that fail are copied to."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    originals: list[tuple[Path, dict[str, Any]]] = []
    for closed in (True, False):
        home = folder / ("closed" if closed else "killed")
        home.mkdir()
        path = written(home, closed=closed, seed=seed)
        originals.append((path, _reference(_copy(path, folder / f"{home.name}-reference"), closed)))
    with _Judge() as judge:
        for number in range(mutations):
            path, reference = originals[number % 2]
            damaged = _copy(path, folder / "damaged")
            what = f"{path.parent.name} ledger, {_damage(damaged, rng)}"
            paths = {name: str(_copy(damaged, folder / name)) for name in ("read", "write")}
            verdict = judge(reference | paths)
            outcome.counts["mutations"] += 1
            outcome.counts[f"of a {path.parent.name} ledger"] += 1
            for way in paths:
                said = verdict.get(way, verdict.get("fatal", "nothing"))
                if said in ("refused", "identical", "refused after a step"):
                    outcome.counts[f"to {way}: {said}"] += 1
                else:
                    outcome.failures.append(f"mutation {number}, to {way}: {what}: {said}")
                    if keep is not None:
                        shutil.copytree(damaged.parent, keep / str(number), dirs_exist_ok=True)
            for used in ("damaged", "read", "write"):
                shutil.rmtree(folder / used)
    return outcome


def _copy(path: Path, folder: Path) -> Path:
    shutil.copytree(path.parent, folder)
    return folder / path.name


def _reference(path: Path, closed: bool) -> dict[str, Any]:
    """What a copy of a ledger says that was not damaged."""
    ledger = Ledger.open(path, write=False)
    assert ledger.steps == STEPS
    assert counts_add_up(ledger)
    assert any(one.through for one in ledger.audit.slices)
    return {"closed": closed, "content": content(ledger), "hash": ledger.history.hash.hex()}


def _damage(path: Path, rng: np.random.Generator) -> str:
    """Damage one of the files of a ledger; what was done."""
    endings, weights = (("",), (1.0,))
    if path.with_name(path.name + "-wal").exists():
        endings, weights = ENDINGS[:4], (0.35, 0.35, 0.05, 0.25)
    target = path.with_name(path.name + str(rng.choice(endings, p=weights)))
    data = bytearray(target.read_bytes())
    what = "delete"
    kinds = ["flip", "overwrite", "zero", "truncate", "delete", "append", "insert", "swap", "swap frames"]
    kind = str(rng.choice(kinds, p=[0.3, 0.15, 0.1, 0.1, 0.05, 0.05, 0.05, 0.1, 0.1]))
    if kind == "delete":
        target.unlink()
        return f"{target.name}: delete"
    at, length = _position(len(data), rng), int(rng.integers(1, 1 << rng.integers(1, 14)))
    if kind in ("swap", "swap frames"):
        start, size = (LOG_HEADER, LOG_FRAME) if kind == "swap frames" else (0, PAGE)
        pages = (len(data) - start) // size
        if pages < 2:
            kind = "flip"
        else:
            one, other = (start + size * int(page) for page in rng.choice(pages, 2, replace=False))
            data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]
            what = f"{kind} at {one} and {other}"
    if kind == "flip":
        bit = int(rng.integers(8))
        data[at] ^= 1 << bit
        what = f"flip bit {bit} of byte {at}"
    elif kind in ("overwrite", "zero"):
        length = min(length, len(data) - at)
        data[at : at + length] = rng.bytes(length) if kind == "overwrite" else bytes(length)
        what = f"{kind} {length} bytes at {at}"
    elif kind == "truncate":
        del data[at:]
        what = f"truncate at {at}"
    elif kind == "append":
        data += rng.bytes(length)
        what = f"append {length} bytes"
    elif kind == "insert":
        data[at:at] = rng.bytes(length)
        what = f"insert {length} bytes at {at}"
    target.write_bytes(data)
    return f"{target.name} of {len(data)} bytes: {what}"


def _position(size: int, rng: np.random.Generator) -> int:
    """Anywhere in a file, and half of the time where a page begins: there is what holds the file together."""
    at = int(rng.integers(size))
    if rng.random() < 0.5:
        at = min(size - 1, at - at % PAGE + int(rng.integers(120)))
    return at


class _Judge:
    """A process that opens damaged ledgers; started again when it does not survive one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, case: dict[str, Any]) -> dict[str, str]:
        if self._process is None:
            command = [sys.executable, __file__, "judge_all"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case).encode() + b"\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            answered = selector.select(PATIENCE)
        answer = process.stdout.readline() if answered else b""
        if answer:
            return json.loads(answer)
        if not answered:
            process.kill()
        code = process.wait()
        self._stop()
        return {"fatal": f"crashed with code {code}" if answered else "hung"}

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def judge_all() -> None:
    """Open one damaged ledger after the other, as asked on stdin; say on stdout what came of each."""
    faulthandler.enable()
    fold_often()
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps({way: _judge(way, Path(case[way]), case) for way in ("read", "write")}), flush=True)


def _judge(way: str, path: Path, case: dict[str, Any]) -> str:
    before = path.read_bytes() if path.exists() else None
    try:
        said = (_judge_reading if way == "read" else _judge_writing)(path, case)
        after = path.read_bytes() if path.exists() else None
        if way == "read" and case["closed"] and before != after:
            return "reading changed the file"
        return said
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _judge_reading(path: Path, case: dict[str, Any]) -> str:
    try:
        ledger = Ledger.open(path, write=False)
        said = "identical" if content(ledger) == case["content"] else f"different, {ledger.steps} steps"
    except (LedgerError, StorageError) as error:
        return _refused(error)
    ledger.close()  # must not find fault any more
    return said


def _judge_writing(path: Path, case: dict[str, Any]) -> str:
    try:
        ledger = Ledger.open(path)
    except (LedgerError, StorageError) as error:
        again = _judge_reading(path, case)
        if again not in ("refused", "identical"):
            return f"refused at first, then {again}"
        return _refused(error)
    stage = "at once"
    try:
        with ledger:
            if content(ledger) != case["content"]:
                return f"different, {ledger.steps} steps"
            known = ledger.steps
            random_step(ledger, np.random.default_rng(0))
            stage = "after a step"
        with Ledger.open(path, write=False) as ledger:
            if ledger.steps != known + 1 or ledger.history.hash_at(known).hex() != case["hash"]:
                return f"different after a step, {ledger.steps} steps"
            if not counts_add_up(ledger):
                return "counts do not add up after a step"
        return "identical"
    except (LedgerError, StorageError) as error:
        said = _refused(error)
        return f"{said} {stage}" if said == "refused" and stage == "after a step" else said


def _refused(error: Exception) -> str:
    return "refused" if "\n" not in str(error) else f"an error of more than one line: {error}"


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    if name == "write_until_killed":
        write_until_killed(Path(given[0]), int(given[1]), float(given[2]))
    elif name == "write_some":
        write_some(Path(given[0]), int(given[1]), int(given[2]), given[3])
    elif name == "judge_all":
        judge_all()
