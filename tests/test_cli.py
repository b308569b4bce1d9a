"""The commands, run as a user runs them."""

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from bayesdp.norms_file import read_norms

BAYESDP = Path(sys.executable).parent / "bayesdp"


def run(*arguments, cwd=None):
    return subprocess.run([BAYESDP, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=120)


def strict_json(text):
    def no_constants(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=no_constants)


def steps_of(path):
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM steps").fetchone()[0]


EPSILON = ["epsilon", "--noise-multiplier", 4, "--sample-rate", 0.1, "--steps", 100, "--delta", 1e-5]
CALIBRATE = ["calibrate", "--target-epsilon", 5, "--sample-rate", 0.1, "--steps", 10, "--delta", 1e-5]


@pytest.fixture
def norms(tmp_path):
    path = tmp_path / "norms.csv"
    np.savetxt(path, np.random.default_rng(0).uniform(0.1, 2, (6, 12)), delimiter=",")
    return path


def account(path, *more):
    return ["account", path, "--noise-multiplier", 2, "--clip", 1, "--sample-rate", 0.1, "--delta", 1e-5, *more]


def test_epsilon():
    values = strict_json(run(*EPSILON, "--json").stdout)
    assert set(values) == {"epsilon", "delta", "accountant", "rdp_epsilon", "pld_epsilon"}
    assert values["accountant"] == "PLD"
    assert values["epsilon"] == values["pld_epsilon"] < values["rdp_epsilon"]
    assert "For everyone: epsilon = " in run(*EPSILON).stdout


def test_calibrate():
    values = strict_json(run(*CALIBRATE, "--json").stdout)
    assert set(values) == {"noise_multiplier", "epsilon", "delta", "accountant", "rdp_epsilon", "pld_epsilon"}
    assert 4.95 <= values["epsilon"] <= 5


def test_account(norms):
    result = run(*account(norms, "--json"))
    values = strict_json(result.stdout)
    assert set(values) == {"worst_case", "bayesian", "shares", "average"}
    assert values["bayesian"]["kind"] == "model-based"
    assert values["bayesian"]["epsilon"] > 0
    assert values["bayesian"]["lambda"] >= 1
    assert [s["share"] for s in values["shares"]] == [0.5, 0.9, 0.99]
    half, *others = values["shares"]  # 12 audit records are enough for half of the population only
    assert half["epsilon"] > half["estimate_epsilon"] > 0
    for part in others:
        assert part["epsilon"] is None
        assert "audit records, there are 12" in part["reason"]
    assert values["average"]["kind"] == "estimate"
    assert 0 < values["average"]["epsilon"] <= values["worst_case"]["epsilon"]
    text = run(*account(norms)).stdout
    assert text.startswith("1. For everyone")
    assert "On average" in text


def test_all_formats_agree(tmp_path, norms):
    values = np.loadtxt(norms, delimiter=",")
    np.save(tmp_path / "norms.npy", values)
    named = tmp_path / "named.csv"
    named.write_text(",".join(f"record {i}" for i in range(12)) + "\n" + norms.read_text())
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({f"r{i}": column for i, column in enumerate(values.T)})
    pyarrow.parquet.write_table(table, tmp_path / "norms.parquet")
    for path in (norms, named, tmp_path / "norms.npy"):
        assert np.array_equal(read_norms(path), values)
    first, other = (run(*account(path, "--json")).stdout for path in (named, tmp_path / "norms.parquet"))
    assert first
    assert first == other


def test_what_cannot_be_claimed_is_null_with_a_reason(tmp_path, norms):
    few = tmp_path / "few.csv"
    few.write_text("0.5,0.2\n0.4,0.1\n")
    result = run(*account(few, "--json"))
    assert result.returncode == 0
    bayesian = strict_json(result.stdout)["bayesian"]
    assert bayesian["epsilon"] is None
    assert "samples=2" in bayesian["reason"]
    late = strict_json(run(*account(norms, "--json", "--paper-gamma", 1e-6)).stdout)["bayesian"]
    assert late["epsilon"] is None
    assert "total gamma" in late["reason"]


def test_the_output_file_is_the_printed_json(tmp_path):
    target = tmp_path / "result.json"
    printed = run(*EPSILON, "--json", "-o", target).stdout
    assert target.read_text() == printed
    assert os.listdir(tmp_path) == ["result.json"]


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


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        (b"", "at least one row"),
        (b"a,b\n", "at least one row"),
        (b"1,2\n3\n", "row 2=1"),
        (b"1,2\n3,x\n", "row 2='x'"),
        (b"1,2,nan\n", "[0, 2]=nan"),
        (b"1,inf\n", "[0, 1]=inf"),
        (b"1,-2\n", "[0, 1]=-2.0"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"1 " * 100_000, "cannot be read"),
    ],
)
def test_bad_csv(tmp_path, content, quoted):
    path = tmp_path / "norms.csv"
    path.write_bytes(content)
    result = run(*account(path))
    assert result.returncode == 2
    assert quoted in result.stderr


def test_bad_npy_and_parquet(tmp_path):
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing PAR1")
    flat = tmp_path / "flat.npy"
    np.save(flat, np.ones(5))
    for path in (pickled, broken, flat):
        result = run(*account(path))
        assert result.returncode == 2, path
        assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("noise", [[], ["--noise-std", 1, "--noise-multiplier", 1]])
def test_exactly_one_noise(norms, noise):
    result = run("account", norms, "--clip", 1, "--sample-rate", 0.1, *noise)
    assert result.returncode == 2
    assert "exactly one" in result.stderr


@pytest.mark.parametrize(
    ("more", "quoted"),
    [
        (["--paper-gamma", 0], "paper_gamma=0"),
        (["--paper-gamma", "nan"], "paper_gamma=nan"),
        (["--paper-gamma", 0.7], "gamma=0.7"),
        (["--shares", ".5,half"], "shares='.5,half'"),
        (["--shares", ".5,1.5"], "shares=1.5"),
        (["--gamma", 2], "gamma=2"),
    ],
)
def test_bad_options_of_account(norms, more, quoted):
    result = run(*account(norms, *more))
    assert result.returncode == 2
    assert quoted in result.stderr
    assert result.stdout == ""


def test_a_header_of_numbers_as_data_frames_write_it(tmp_path, norms):
    numbered = tmp_path / "numbered.csv"
    numbered.write_text(",".join(map(str, range(12))) + "\n" + norms.read_text())
    assert run(*account(numbered, "--json")).stdout == run(*account(norms, "--json")).stdout


def test_help_teaches_and_version_is_printed():
    import bayesdp

    for command in ("epsilon", "calibrate", "account"):
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
    print([m for m in ('numpy', 'scipy', 'dp_accounting', 'torch') if m in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.stdout.strip().endswith("[]")


def test_demo_trains_states_and_reports_as_often_as_it_is_asked(tmp_path):
    for _ in range(2):
        result = run("demo", "-o", tmp_path / "out")
        assert result.returncode == 0, result.stderr
        assert "1. For everyone: epsilon" in result.stdout
        assert "For at least 99 % of people" in result.stdout
        assert "needs 459 audit records" not in result.stdout
        assert result.stdout.endswith(f"Report: {tmp_path / 'out' / 'report.html'}\n")
    assert "Privacy of the digits model" in (tmp_path / "out" / "report.html").read_text()


def test_demo_that_was_killed_goes_on(tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen([BAYESDP, "demo", "-o", out], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        while steps_of(out / "run.ledger") < 5:
            assert running.poll() is None
            time.sleep(0.05)
        running.kill()
    before = steps_of(out / "run.ledger")
    assert not (out / "report.html").exists()
    result = run("demo", "-o", out)
    assert result.returncode == 0, result.stderr
    assert (out / "report.html").exists()
    assert 5 <= before < steps_of(out / "run.ledger") == 60


def test_demo_serves_its_report_and_nothing_else(tmp_path):
    environment = {**os.environ, "BROWSER": "true"}
    command = [BAYESDP, "demo", "--serve", "-o", tmp_path / "out"]
    listen = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # tests may run where Ctrl-C is ignored
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=listen) as running:
        try:
            address = next(line for line in running.stdout if line.startswith("http://127.0.0.1:")).split()[0]
            assert urllib.request.urlopen(address).read() == (tmp_path / "out" / "report.html").read_bytes()
            for path in ("run.ledger", "../out/run.ledger", "model.safetensors"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(address + path)
        finally:
            running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130


def test_demo_leaves_the_files_of_others_alone(tmp_path):
    files = {"run.ledger": "somebody's", "report.html": "ledger"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = run("demo", "-o", tmp_path)
    assert result.returncode == 2
    assert "earlier demo" in result.stderr
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_demo_refuses_a_folder_that_is_a_file(tmp_path):
    target = tmp_path / "file"
    target.write_text("")
    result = run("demo", "-o", target)
    assert result.returncode == 2
    assert "output=" in result.stderr
