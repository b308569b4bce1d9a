"""Servers that are killed at random rounds: processes with strategy, ledger and model; clients note what they see."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bayesdp import Ledger, LedgerError

SERVER = """
import hashlib, sys, time
sys.path[:0] = {path!r}
from pathlib import Path
from flower_runs import arrays, client_app, grid_of, strategy

folder = Path({folder!r})
ran = strategy(folder / "run.ledger", checkpoint=folder / "model.npz")
seen = open(folder / "seen.txt", "a", buffering=1)

def note(node, message):  # what left the server, as a client sees it
    if "arrays" in message.content:
        model = hashlib.sha256(message.content["arrays"]["w"].numpy().tobytes()).hexdigest()
        seen.write(f"{{message.content['config']['server-round']}} {{model}}\\n")
        time.sleep(0.001)
    return True

ran.start(grid_of(6, 2, answers=note), arrays(), num_rounds={rounds})
ran.ledger.close()
(folder / "done").touch()
"""


@dataclass(frozen=True)
class Kill:
    """What the ledger had when the server was dead, and what had left the server until then."""

    steps: int
    newest_round_sent: int
    models_seen: int

    @property
    def missing(self) -> int:
        """Rounds that were applied and are not in the ledger."""
        return max(self.newest_round_sent - 1 - self.steps, self.models_seen - self.steps, 0)


def kill_storm(folder: Path, kills: int, rounds: int, seed: int) -> list[Kill]:
    """Kill the server ``kills`` times, each time after some rounds more and a moment, then let it end; the kills."""
    random = np.random.default_rng(seed)
    found: list[Kill] = []
    while not (folder / "done").exists():
        server = _start(folder, rounds)
        until = (
            recorded(folder) + int(random.integers(1, 1 + rounds // (kills + 1))) if len(found) < kills else rounds + 1
        )
        while server.poll() is None and recorded(folder) < until:
            time.sleep(0.02)
        time.sleep(float(random.uniform(0, 0.05)))
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
            found.append(after_kill(folder))
        server.wait()
        if server.returncode > 0:
            raise RuntimeError(f"the server ended with {server.returncode}")
    return found


def after_kill(folder: Path) -> Kill:
    """Compare the ledger on disk with what clients have seen."""
    lines = [line.split() for line in (folder / "seen.txt").read_text().splitlines() if len(line) > 64]
    newest = max((int(number) for number, _ in lines), default=0)
    models = len({model for _, model in lines})
    return Kill(recorded(folder), newest, max(models - 1, 0))  # the first model was not trained


def recorded(folder: Path) -> int:
    """How many steps the ledger on disk has, by a reader beside the server."""
    try:
        return Ledger.open(folder / "run.ledger", write=False).steps
    except LedgerError:
        return 0


def _start(folder: Path, rounds: int) -> subprocess.Popen[bytes]:
    path = [str(Path(__file__).parent), *(entry for entry in sys.path if entry.endswith("src"))]
    program = SERVER.format(path=path, folder=str(folder), rounds=rounds)
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stderr=subprocess.DEVNULL)
