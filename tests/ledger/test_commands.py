"""bayesdp show, verify, compose, and account --ledger, run as a user runs them."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import Ledger

BAYESDP = Path(sys.executable).parent / "bayesdp"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([BAYESDP, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def strict_json(text: str) -> Any:
    def no_constants(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=no_constants)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with Ledger.create(tmp_path / "run.ledger", audit_ids=range(50), metadata={"model": "<b>"}) as ledger:
        for number in range(100):
            noise = 2.0 if number < 60 else 3.0
            norms = rng.lognormal(-0.5, 0.5, 50)
            ledger.step(noise_std=noise, sample_rate=0.1, clip=1.0, audit=norms, batch=norms[:7], planned_batch=8)
    return tmp_path / "run.ledger"


def test_show(path: Path) -> None:
    before = path.read_bytes()
    values = strict_json(run("show", path, "--json").stdout)
    assert values["steps"] == 100
    assert [(one["noise_std"], one["sample_rate"], one["clip"], one["steps"]) for one in values["settings"]] == [
        (2.0, 0.1, 1.0, 60),
        (3.0, 0.1, 1.0, 40),
    ]
    assert values["settings"][0]["planned_batch"] == 8
    assert values["metadata"] == {"model": "<b>"}
    audit = values["audit"]
    assert (audit["records"], audit["steps"], audit["ids"]) == (50, 100, True)
    assert 0.1 < audit["share_clipped"] < 0.3
    quantiles = list(audit["exposure_quantiles"].values())
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == 0.5
    assert 0 < audit["rounding_at_most"] < 0.01
    points = [point["step"] for point in audit["costs_over_time"]]
    assert points == list(range(4, 101, 4))
    final = audit["costs_over_time"][-1]["costs"]
    with Ledger.open(path, write=False) as ledger:
        exact = np.sort(ledger.costs(audit["lambdas"]), axis=0)
    assert np.allclose(final["0.5"], exact[24], rtol=0.01)
    assert np.allclose(final["1"], exact[49], rtol=0.01)
    assert path.read_bytes() == before


def test_show_keeps_private_figures_to_itself(path: Path) -> None:
    text = run("show", path, "--json").stdout
    assert "drawn" not in text
    private = strict_json(run("show", path, "--json", "--private").stdout)["private"]
    assert (private["batches"], private["drawn_mean"], private["drawn_most"]) == (100, 7.0, 7)
    assert private["not_for_release"]


def test_show_in_words(path: Path) -> None:
    text = run("show", path).stdout
    assert "100 steps" in text
    assert "for everyone: epsilon = " in text
    assert "steps 61 to 100: noise 3, clip 1, sampling rate 0.1" in text
    assert "50 audit records, norms at 100 steps" in text


def test_show_what_is_not_finite(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "wild.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[9.0, 1.0])
    values = strict_json(run("show", tmp_path / "wild.ledger", "--json").stdout)
    assert values["worst_case"]["epsilon"] is None
    assert "clip" in values["worst_case"]["reason"]
    assert values["audit"]["exposure_quantiles"]["1"] is None
    assert values["audit"]["costs_over_time"][0]["costs"]["1"] == [None] * 8
    assert "infinite" in run("show", tmp_path / "wild.ledger").stdout


def test_show_an_empty_ledger(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "new.ledger").close()
    values = strict_json(run("show", tmp_path / "new.ledger", "--json").stdout)
    assert (values["steps"], values["worst_case"]["epsilon"], values["audit"]["records"]) == (0, 0, 0)
    assert "no audit records" in run("show", tmp_path / "new.ledger").stdout


def test_verify(path: Path) -> None:
    result = run("verify", path)
    assert result.returncode == 0
    seal = result.stdout.split()[-1]
    assert run("verify", path, "--seal", seal).returncode == 0
    wrong = run("verify", path, "--seal", "00")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("bayesdp: seal='00': expected ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE steps SET noise_std = 9 WHERE number = 7", "step 7 was changed"),
        ("DELETE FROM steps WHERE number = 7", "step 7 is missing"),
        ("UPDATE steps SET number = number + 1000 WHERE number = 7", "step 7 is missing"),
        (
            "UPDATE steps SET number = -7 WHERE number = 7; UPDATE steps SET number = 7 WHERE number = 8;"
            "UPDATE steps SET number = 8 WHERE number = -7",
            "step 7 was changed, or steps are not in their order",
        ),
    ],
)
def test_verify_says_what_was_changed(path: Path, change: str, message: str) -> None:
    database = sqlite3.connect(path)
    database.executescript(change)
    database.close()
    result = run("verify", path)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_compose(path: Path, tmp_path: Path) -> None:
    other, both = tmp_path / "other.ledger", tmp_path / "both.ledger"
    with Ledger.create(other, audit_ids=range(50)) as ledger:
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(50, 0.5))
    result = run("compose", path, other, "-o", both)
    assert result.returncode == 0
    assert "101 steps" in result.stdout
    assert run("verify", both).returncode == 0
    again = run("compose", path, other, "-o", both)
    assert again.returncode == 2
    assert "exists already" in again.stderr


@pytest.mark.parametrize(
    "arguments", [["show", "missing.ledger"], ["verify", "missing.ledger"], ["compose", "a", "-o", "b"]]
)
def test_missing_files(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("bayesdp: ledger=")
    assert result.stderr.count("\n") == 1


def test_account_goes_through_a_ledger(tmp_path: Path) -> None:
    norms = np.random.default_rng(0).uniform(0.1, 2, (30, 12))
    np.save(tmp_path / "norms.npy", norms)
    options = [
        "--noise-multiplier",
        2,
        "--clip",
        1,
        "--sample-rate",
        0.1,
        "--ledger",
        tmp_path / "kept.ledger",
        "--json",
    ]
    values = strict_json(run("account", tmp_path / "norms.npy", *options).stdout)
    with Ledger.open(tmp_path / "kept.ledger", write=False) as ledger:
        assert (ledger.steps, ledger.audit_records) == (30, 12)
        assert ledger.worst_case().to_dict() == values["worst_case"]
    refused = run("account", tmp_path / "norms.npy", *options)
    assert refused.returncode == 2
    bad = run("account", tmp_path / "norms.npy", *options[:-2], tmp_path / "new.ledger", "--delta", 2)
    assert bad.returncode == 2
    assert not (tmp_path / "new.ledger").exists()
