"""A server that is killed and started again: no applied round is missing from the ledger."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError
from flower_runs import arrays, grid_of, strategy

ROUNDS = 60
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


def start_server(folder: Path) -> subprocess.Popen:
    path = [str(Path(__file__).parents[1]), *(entry for entry in sys.path if entry.endswith("src"))]
    program = SERVER.format(path=path, folder=str(folder), rounds=ROUNDS)
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stderr=subprocess.DEVNULL)


def test_no_applied_round_is_missing_after_kills(tmp_path):
    """Three kills here; 20 kills of real processes: benchmarks/flower_kills.py."""
    random = np.random.default_rng(0)
    killed = 0
    while not (tmp_path / "done").exists():
        server = start_server(tmp_path)
        until = recorded(tmp_path) + int(random.integers(1, 15)) if killed < 3 else ROUNDS + 1
        while server.poll() is None and recorded(tmp_path) < until:
            time.sleep(0.02)
        if server.poll() is None:
            os.kill(server.pid, signal.SIGKILL)
            killed += 1
        server.wait()
        lines = [line.split() for line in (tmp_path / "seen.txt").read_text().splitlines() if len(line) > 60]
        steps = recorded(tmp_path)
        assert max(int(number) for number, _ in lines) - 1 <= steps
        assert len({model for _, model in lines}) - 1 <= steps  # the first model was not trained
    assert killed == 3
    assert recorded(tmp_path) == ROUNDS
    assert Ledger.open(tmp_path / "run.ledger", write=False).claims().everyone.kind == "proved"


def recorded(folder: Path) -> int:
    try:
        return Ledger.open(folder / "run.ledger", write=False).steps
    except LedgerError:
        return 0


def test_a_run_goes_on_with_model_and_ledger(tmp_path):
    whole = strategy(tmp_path / "whole.ledger")
    expected = whole.start(grid_of(6, 2), arrays(), num_rounds=6).arrays["w"].numpy()
    places = {"checkpoint": tmp_path / "model.npz", "ledger": tmp_path / "run.ledger"}
    first = strategy(**places)
    with pytest.raises(KeyboardInterrupt):
        first.start(grid_of(6, 2), arrays(), num_rounds=6, evaluate_fn=interrupt_after(3))
    first.ledger.close()
    rounds = []
    second = strategy(**places)
    result = second.start(grid_of(6, 2), arrays(), num_rounds=6, evaluate_fn=lambda n, _: rounds.append(n))
    np.testing.assert_array_equal(result.arrays["w"].numpy(), expected)
    assert rounds == [3, 4, 5, 6]
    assert second.ledger.claims().everyone.epsilon == whole.ledger.claims().everyone.epsilon
    third = strategy(**{**places, "ledger": second.ledger})
    np.testing.assert_array_equal(third.start(grid_of(6, 2), arrays(), num_rounds=6).arrays["w"].numpy(), expected)


def interrupt_after(rounds):
    def evaluate(number, model):
        if number == rounds:
            raise KeyboardInterrupt

    return evaluate


def test_the_step_is_on_disk_before_the_model_is(tmp_path, monkeypatch):
    """If the ledger cannot be written, there is no new model anywhere."""
    ran = strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz")
    models = []
    ran.start(grid_of(4, 0), arrays(), num_rounds=2, evaluate_fn=lambda _, model: models.append(model))
    before = (tmp_path / "model.npz").read_bytes()
    ran.ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ran.start(grid_of(4, 0), arrays(), num_rounds=5, evaluate_fn=lambda _, model: models.append(model))
    assert (tmp_path / "model.npz").read_bytes() == before
    assert len(models) == 4  # two rounds and the models that each start began with


def test_a_model_without_its_ledger_is_refused(tmp_path):
    ran = strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz")
    ran.start(grid_of(4, 0), arrays(), num_rounds=2)
    other = strategy(tmp_path / "other.ledger", checkpoint=tmp_path / "model.npz")
    with pytest.raises(LedgerError, match="the checkpoint of run"):
        other.start(grid_of(4, 0), arrays(), num_rounds=2)


@pytest.mark.parametrize("content", [b"", b"no model", json.dumps({}).encode()])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match="expected a model that PrivateFedAvg wrote"):
        strategy(tmp_path / "run.ledger", checkpoint=tmp_path / "model.npz").start(
            grid_of(4, 0), arrays(), num_rounds=2
        )


def test_audit_clients_that_come_later_are_neither_trained_on_nor_counted(tmp_path):
    first = strategy(tmp_path / "run.ledger")
    first.start(grid_of(4, 2), arrays(), num_rounds=3)
    first.ledger.close()
    second = strategy(tmp_path / "run.ledger")
    second.start(grid_of(4, 5), arrays(), num_rounds=6)
    assert second.ledger.steps == 6
    assert second.ledger.audit_ids == ["4", "5"]
