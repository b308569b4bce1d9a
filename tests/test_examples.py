"""The scripts in examples/ run as they are, and print what they promise."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run a script in an empty folder; what it printed."""
    monkeypatch.chdir(tmp_path)

    def script(name):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_every_script_is_listed_and_tested():
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert scripts == set(re.findall(r"\]\((\w+\.py)\)", (EXAMPLES / "README.md").read_text()))
    assert all(f'"{name}"' in Path(__file__).read_text() for name in scripts)


def test_typical_epsilon(run, tmp_path):
    printed = run("typical_epsilon.py")
    assert printed.startswith("1. For everyone: epsilon = ")
    everyone, half = map(float, re.search(r"For everyone: ([\d.]+)\. For half .*: ([\d.]+)\.$", printed).groups())
    assert 0 < half < 0.9 * everyone
    assert {path.name for path in tmp_path.iterdir()} == {"digits.ledger", "report.html"}


def test_resume_training(run):
    with pytest.raises(SystemExit):
        run("resume_training.py")
    printed = run("resume_training.py")
    assert "Interrupted after 5 epochs, 30 steps in the ledger." in printed
    assert "10 epochs, 60 steps in the ledger." in printed


def test_stop_at_budget(run):
    printed = run("stop_at_budget.py")
    epsilon = float(re.search(r"Stopped after \d+ steps\. For everyone: epsilon = ([\d.]+) ", printed)[1])
    assert 1.8 < epsilon <= 2.0
