"""The program as a whole: help, version, and errors as one line and exit code 2."""

import os
import subprocess
import sys

import numpy as np
import pytest

import bayesdp
from bayesdp import Ledger
from command_line import BAYESDP, CALIBRATE, EPSILON, account, run, run_program
from warm_programs import run_without

COMMANDS = (
    *("epsilon", "calibrate", "account", "show", "claims", "verify"),
    *("compose", "train", "report", "reproduce", "attack"),
)


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        ([*EPSILON[:1], "--noise-multiplier", 0, *EPSILON[3:]], "noise_multiplier=0"),
        ([*EPSILON, "--delta", 0], "delta=0"),
        ([*EPSILON, "--delta", "nan"], "delta=nan"),
        ([*EPSILON, "--steps", -1], "steps=-1"),
        ([*EPSILON, "--steps", "ten"], "steps=ten"),
        ([*EPSILON, "--steps=2.5"], "steps=2.5"),
        ([*EPSILON, "--sample-rate", 1.5], "sample_rate=1.5"),
        ([*EPSILON, "--no-such-option"], "--no-such-option"),
        (["epsilon"], "--noise-multiplier"),
        (["no-such-command"], "no-such-command"),
        ([*CALIBRATE, "--target-epsilon", -1], "target_epsilon=-1"),
        ([*EPSILON, "-o", "/no/such/folder/x.json"], "output="),
        (account("missing.csv"), "NORMS='missing.csv'"),
        (account(__file__), "NORMS="),
        ([*EPSILON, "--steps", "9" * 400], "steps="),
        ([*EPSILON, "--noise-multiplier", 1e-200], "noise_multiplier=1e-200"),
    ],
)
def test_bad_input_is_one_line_and_code_2(tmp_path, arguments, quoted):
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert quoted in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("program", [(BAYESDP,), (sys.executable, "-m", "bayesdp")], ids=["bayesdp", "python -m"])
def test_both_ways_to_start_it(program):
    assert run_program("--version", program=program).stdout.strip() == f"bayesdp {bayesdp.__version__}"
    figures = run_program(*EPSILON, program=program)
    assert (figures.returncode, figures.stdout) == (0, run(*EPSILON).stdout)
    bad = run_program(*EPSILON, "--delta", 0, program=program)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == run(*EPSILON, "--delta", 0).stderr


def test_help_teaches_and_version_is_printed():
    for command in COMMANDS:
        text = run(command, "--help").stdout
        assert f"Example: bayesdp {command}" in " ".join(text.split())
    assert run("--version").stdout.strip() == f"bayesdp {bayesdp.__version__}"
    assert "Usage" in run().stdout


def test_help_starts_without_heavy_imports():
    code = """
import sys
sys.argv = ['bayesdp', '--help']
from bayesdp.cli import main
try:
    main()
except SystemExit:
    print([m for m in ('numpy', 'scipy', 'dp_accounting', 'torch') if m in sys.modules], len(sys.modules))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    heavy, modules = printed.strip().splitlines()[-1].rsplit(" ", 1)
    assert heavy == "[]"
    assert int(modules) < 250  # about 160 with typer's own; NumPy alone would add as many


@pytest.fixture
def ledger(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    return tmp_path / "run.ledger"


@pytest.mark.parametrize("library", ["jinja2", "plotly"])
def test_a_report_without_its_libraries_is_one_line(ledger, library):
    result = run_without("report", ledger, "-o", ledger.with_name("report.html"), libraries=[library])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == f"bayesdp: {library}=missing: the report needs pip install 'bayesdp[report]'.\n"
    assert [path.name for path in ledger.parent.iterdir()] == ["run.ledger"]


@pytest.mark.parametrize("library", ["torch", "opacus", "sklearn"])
def test_training_without_its_libraries_is_one_line_and_leaves_nothing(tmp_path, library):
    result = run_without("train", "digits", "-o", tmp_path / "out", libraries=[library])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"bayesdp: {library}=missing: ")
    assert "needs pip install 'bayesdp[" in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_parquet_without_its_library_is_one_line(tmp_path):
    (tmp_path / "norms.parquet").write_bytes(b"PAR1 nothing PAR1")
    result = run_without(*account(tmp_path / "norms.parquet"), libraries=["pyarrow"])
    assert result.returncode == 2
    assert result.stderr == "bayesdp: pyarrow=missing: reading .parquet needs pip install 'bayesdp[arrow]'.\n"


def test_a_ledger_that_cannot_be_stored_is_one_line(tmp_path):
    """Files of at most 8 kB, as with `ulimit -f`: the ledger does not fit."""
    np.save(tmp_path / "norms.npy", np.ones((40, 100)))
    arguments = " ".join(map(str, account(tmp_path / "norms.npy", "--ledger", tmp_path / "run.ledger")))
    limited = f"trap '' XFSZ; ulimit -f 8; exec {BAYESDP} {arguments}"
    result = run_program(limited, program=("bash", "-c"))
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"bayesdp: ledger='{tmp_path / 'run.ledger'}': ")
    assert result.stderr.count("\n") == 1
