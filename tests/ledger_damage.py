"""A storm of damage: copies of ledgers are damaged in one place each, and opened.

The tests use it with few mutations, benchmarks/ledger_storm.py with many.
"""

from __future__ import annotations

import faulthandler
import shutil
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger, LedgerError, StorageError
from ledger_kills import Outcome
from ledger_processes import Running
from ledger_runs import STEPS, beside, content, copy_ledger, counts_add_up, fold_often, random_step
from ledger_writers import written

PAGE, LOG_HEADER, LOG_FRAME = 4096, 32, 4096 + 24
ENDINGS = ("", "-wal", "-shm", "-head")


def mutation_storm(folder: Path, mutations: int, seed: int, keep: Path | None = None) -> Outcome:
    """Damage copies of ledgers in one place each, and open them; ``keep`` is where those that fail are copied to."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    originals: list[tuple[Path, dict[str, Any]]] = []
    for closed in (True, False):
        home = folder / ("closed" if closed else "killed")
        home.mkdir()
        path = written(home, closed=closed, seed=seed)
        originals.append((path, _reference(copy_ledger(path, folder / f"{home.name}-reference"), closed)))
    with _Judge() as judge:
        for number in range(mutations):
            path, reference = originals[number % 2]
            damaged = copy_ledger(path, folder / "damaged")
            what = f"{path.parent.name} ledger, {_damage(damaged, rng)}"
            paths = {name: copy_ledger(damaged, folder / name) for name in ("read", "write")}
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


def _reference(path: Path, closed: bool) -> dict[str, Any]:
    """Return what a copy of a ledger says that was not damaged."""
    ledger = Ledger.open(path, write=False)
    assert ledger.steps == STEPS
    assert counts_add_up(ledger)
    assert any(part.through for part in ledger.audit.slices)
    return {"closed": closed, "content": content(ledger), "hash": ledger.history.hash.hex()}


def _damage(path: Path, rng: np.random.Generator) -> str:
    """Damage one of the files of a ledger; return in words what was done."""
    endings, weights = (("",), (1.0,))
    if beside(path, "-wal").exists():
        endings, weights = ENDINGS, (0.35, 0.35, 0.05, 0.25)
    target = beside(path, str(rng.choice(endings, p=weights)))
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
            first, second = (start + size * int(page) for page in rng.choice(pages, 2, replace=False))
            page = data[first : first + size]
            data[first : first + size], data[second : second + size] = data[second : second + size], page
            what = f"{kind} at {first} and {second}"
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
    """Return any position in a file, half of the time just after the start of a page: that holds the file together."""
    at = int(rng.integers(size))
    if rng.random() < 0.5:
        at = min(size - 1, at - at % PAGE + int(rng.integers(120)))
    return at


class _Judge:
    """A process that opens damaged ledgers, so that a crash or a hang can be told from an error.

    It is started again when it does not survive one.
    """

    def __init__(self) -> None:
        self._process: Running | None = None

    def __call__(self, case: dict[str, Any]) -> dict[str, str]:
        if self._process is None:
            self._process = Running(judge_all)
        self._process.pipe.send(case)
        try:
            return self._process.hear()
        except TimeoutError:
            self._stop()
            return {"fatal": "hung"}
        except (EOFError, ConnectionResetError):
            code = self._process.wait()
            self._stop()
            return {"fatal": f"crashed with code {code}"}

    def _stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None

    def __enter__(self) -> _Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()


def judge_all(pipe: Connection) -> None:
    """Open one damaged ledger after the other, as asked, and send the verdict on each."""
    faulthandler.enable()
    fold_often()
    while True:
        case = pipe.recv()
        pipe.send({way: _judge(way, case[way], case) for way in ("read", "write")})


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
    ledger.close()  # must not raise any more
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
