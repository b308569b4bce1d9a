"""Progress on a terminal: the live line ends with the last step, whatever ends the run; then come the paths."""

import json
import re
from pathlib import Path

import pytest

from bayesdp import Ledger
from bayesdp.report.live import LiveView
from command_line import run
from recipe_data import write_adult
from terminal import in_terminal, rows


def last_line(folder):
    with Ledger.open(folder / "run.ledger", write=False) as ledger:
        return LiveView(ledger).line()


def test_train_shows_the_last_figures_the_last_phase_and_the_paths(tmp_path):
    write_adult(tmp_path / "data")
    folder = tmp_path / "out"
    command = ["train", "adult", "--data", tmp_path / "data", "--target-epsilon", "1", "-o", folder]
    code, out, shown = in_terminal(*command)
    assert code == 0
    written = rows(shown)
    assert last_line(folder) in written
    live = written.index(last_line(folder))
    assert not any(row.startswith("Step ") for row in written[live + 1 :])
    assert any("Claims and report" in row for row in written[live + 1 :])
    assert all(len(row) <= 80 for row in written if row.startswith(("Training", "Claims")))
    assert not any(re.search(r"\bdelt$|\bdel$|\bepsilo$", row) for row in written)
    paths = dict(line.split(": ", 1) for line in out.split("\n\n")[-1].splitlines())
    assert list(paths) == ["Folder", "Statement", "Ledger", "Model", "Report"]
    assert paths["Folder"] == str(folder)
    assert all(Path(path).exists() for path in paths.values())
    [printed] = set(re.findall(r"bayesdp (verify run\.ledger --seal \w{64})", (folder / "report.html").read_text()))
    assert "complete and unchanged" in run(*printed.split(), cwd=folder).stdout


STEPS = """
import json, sys, time
import numpy as np
from bayesdp import Ledger
from bayesdp.cli.output import progress
from bayesdp.progress import showing
from bayesdp.report.live import LiveView

way, path = sys.argv[1], sys.argv[2]
ledger = Ledger.create(path)
view = LiveView(ledger)

def step():
    ledger.step(noise_std=3.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.3))

if way == "bar":
    with showing(lambda items: progress(items, view), range(90)) as numbers:
        for number in numbers:
            step()
elif way == "bar, error":
    with showing(lambda items: progress(items, view), range(90)) as numbers:
        for number in numbers:
            step()
            if number == 41:
                raise ValueError("stop")
else:
    for number in range(1 if way == "one step" else 90):
        step()
        view.show()
        if way == "error" and number == 41:
            raise ValueError("stop")
    if way != "never ended":
        view.end()
        view.end()
    if way == "goes on":
        step()
        view.show()
        view.end()
"""
WAYS = {"bar": 90, "bar, error": 42, "one step": 1, "ended": 90, "never ended": 90, "error": 42, "goes on": 91}


@pytest.mark.parametrize("way", WAYS)
def test_the_line_ends_on_the_last_step(tmp_path, way):
    """Steps take a millisecond, and the line is drawn every half second."""
    path = tmp_path / "run.ledger"
    code, _, shown = in_terminal(way, path, code=STEPS)
    assert code == (1 if "error" in way else 0)
    with Ledger.open(path, write=False) as ledger:
        final = LiveView(ledger).line()
    assert final.startswith(f"Step {WAYS[way]}: epsilon ")
    lines = [row for row in rows(shown) if row.startswith("Step ")]
    assert lines[-1] == final
    assert shown.count(f"{final}\r\n") == 1  # it stays: what follows begins a new row


def test_a_narrow_terminal_does_not_break_the_line(tmp_path):
    code, _, shown = in_terminal("ended", tmp_path / "run.ledger", code=STEPS, columns=40)
    assert code == 0
    drawn = [row for row in rows(shown) if row.startswith("Step ")]
    assert all(len(row) < 40 and row.endswith("…") for row in drawn[:-1])
    assert drawn[-1].endswith("(delta 1e-05, if steps did not depend on results)")


WATCHED = """
import json, sys
import torch
from opacus import PrivacyEngine
import bayesdp.opacus

torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(400, 5), torch.randint(0, 2, (400,)))
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=torch.utils.data.DataLoader(data, batch_size=20),
    noise_multiplier=2.0, max_grad_norm=1.0)
loss = torch.nn.CrossEntropyLoss()
watched = None
if sys.argv[1] != "without":
    audit = (torch.randn(500, 5), torch.randint(0, 2, (500,)))
    watched = bayesdp.opacus.watch(model, optimizer, loader, ledger=sys.argv[2], audit=audit, loss=loss, live=True)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
if sys.argv[1] == "error":
    raise ValueError("stop")
if sys.argv[1] == "statement":
    print(watched.statement())
if sys.argv[1] == "closed":
    watched.close()
"""


@pytest.mark.parametrize("way", ["closed", "statement", "error"])
def test_watch_ends_its_line_on_the_last_step(tmp_path, way):
    path = tmp_path / "run.ledger"
    code, _, shown = in_terminal(way, path, code=WATCHED, warn=False)
    assert code == (1 if way == "error" else 0)
    with Ledger.open(path, write=False) as ledger:
        assert ledger.steps == 40
        final = LiveView(ledger).line()
    assert [row for row in rows(shown) if row.startswith("Step ")][-1] == final
    assert f"{final}\r\n" in shown


@pytest.mark.parametrize("way", ["without", "closed"])
def test_one_warning_of_pytorch_stays_one(tmp_path, way):
    """Inputs without gradients make PyTorch warn once, at the first step; watch neither hides nor repeats that."""
    _, _, shown = in_terminal(way, tmp_path / "run.ledger", code=WATCHED)
    assert shown.count("Full backward hook is firing") == 1


def test_json_is_not_disturbed_by_progress(tmp_path):
    write_adult(tmp_path / "data")
    command = ["train", "adult", "--data", tmp_path / "data", "--target-epsilon", "1", "--json"]
    code, out, _ = in_terminal(*command)
    assert code == 0
    assert json.loads(out)["recipe"] == "adult"
