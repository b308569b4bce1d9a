"""``bayesdp show``, ``claims``, ``verify``, ``compose`` and ``report``."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bayesdp import Ledger
from command_line import run, strict_json
from warm_programs import run_warm


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A ledger of 100 steps with two noises, 50 audit records and batches."""
    path = tmp_path_factory.mktemp("run") / "run.ledger"
    rng = np.random.default_rng(0)
    with Ledger.create(path, audit_ids=range(50), metadata={"model": "<b>"}) as ledger:
        for number in range(100):
            noise = 2.0 if number < 60 else 3.0
            norms = rng.lognormal(-0.5, 0.5, 50)
            ledger.step(noise_std=noise, sample_rate=0.1, clip=1.0, audit=norms, batch=norms[:7], planned_batch=8)
    return path


@pytest.fixture
def path(recorded, tmp_path):
    return Path(shutil.copy(recorded, tmp_path))


def test_show(path):
    before = path.read_bytes()
    values = strict_json(run("show", path, "--json").stdout)
    assert values["steps"] == 100
    names = ("noise_std", "sample_rate", "clip", "steps")
    assert [tuple(stretch[name] for name in names) for stretch in values["settings"]] == [
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
        assert audit["lambdas"] == list(ledger.mixture.orders)
        exact = np.sort(ledger.mixture_costs(ledger.mixture), axis=0)
    assert np.allclose(final["0.5"], exact[24], rtol=0.01)
    assert np.allclose(final["1"], exact[49], rtol=0.01)
    assert path.read_bytes() == before


def test_show_keeps_private_figures_to_itself(path):
    text = run("show", path, "--json").stdout
    assert "drawn" not in text
    private = strict_json(run("show", path, "--json", "--private").stdout)["private"]
    assert (private["batches"], private["drawn_mean"], private["drawn_most"]) == (100, 7.0, 7)
    assert private["not_for_release"]


def test_show_in_words(path):
    text = run("show", path).stdout
    assert "100 steps" in text
    assert "for everyone: epsilon = " in text
    assert "steps 61 to 100: noise 3, clip 1, sampling rate 0.1" in text
    assert "50 audit records, norms at 100 steps" in text


def test_show_what_is_not_finite(tmp_path):
    with Ledger.create(tmp_path / "wild.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[9.0, 1.0])
    values = strict_json(run("show", tmp_path / "wild.ledger", "--json").stdout)
    assert values["worst_case"]["epsilon"] is None
    assert "clip" in values["worst_case"]["reason"]
    assert values["audit"]["exposure_quantiles"]["1"] is None
    assert values["audit"]["costs_over_time"][0]["costs"]["1"] == [None] * 10
    assert "infinite" in run("show", tmp_path / "wild.ledger").stdout


def test_show_an_empty_ledger(tmp_path):
    Ledger.create(tmp_path / "new.ledger").close()
    values = strict_json(run("show", tmp_path / "new.ledger", "--json").stdout)
    assert (values["steps"], values["worst_case"]["epsilon"], values["audit"]["records"]) == (0, 0, 0)
    assert "no audit records" in run("show", tmp_path / "new.ledger").stdout


def test_verify(path):
    result = run_warm("verify", path)
    assert result.returncode == 0
    seal = result.stdout.split()[-1]
    assert result.stdout == f"{path}: complete and unchanged, 100 steps.\nSeal: {seal}\n"
    assert run("verify", path, "--seal", seal).stdout == result.stdout
    values = strict_json(run("verify", path, "--seal", seal, "--json").stdout)
    assert values == {
        "ledger": str(path),
        "complete": True,
        "steps": 100,
        "closed": True,
        "being_written": False,
        "seal": seal,
        "steps_covered_by_seal": None,
    }
    wrong = run("verify", path, "--seal", "00")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("bayesdp: seal='00': expected 64 hexadecimal digits")
    blamed = run("verify", path, "--seal", "0" * 64)
    assert (blamed.returncode, blamed.stdout) == (2, "")
    assert blamed.stderr.startswith(f"bayesdp: ledger='{path}': is not the ledger of the seal given")
    assert blamed.stderr.count("\n") == 1


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
def test_verify_says_what_was_changed(path, change, message):
    database = sqlite3.connect(path)
    database.executescript(change)
    database.close()
    result = run("verify", path)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_compose(path, tmp_path):
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
    "arguments",
    [
        ["show", "missing.ledger"],
        ["claims", "missing.ledger"],
        ["verify", "missing.ledger"],
        ["compose", "a", "-o", "b"],
    ],
)
def test_missing_files(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("bayesdp: ledger=")
    assert result.stderr.count("\n") == 1


def test_report_writes_the_page(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.5))
        ledger.report(tmp_path / "own.html", title="My own")
    assert "<h1>My own</h1>" in (tmp_path / "own.html").read_text()
    result = run("report", tmp_path / "run.ledger", "-o", tmp_path / "report.html", "--title", "A <b>model</b>")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "report.html")
    assert "<h1>A &lt;b&gt;model&lt;/b&gt;</h1>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.ledger"], "none.ledger"),
        (["run.ledger", "--delta", "2"], "delta=2"),
        (["run.ledger", "--gamma", "0"], "gamma=0"),
        (["run.ledger", "-o", "no/such/folder.html"], "output='no/such/folder.html'"),
        (["run.ledger", "-o", "/dev/full/x"], "output='/dev/full/x'"),
    ],
)
def test_bad_input_of_report_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with Ledger.create("run.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = sorted(tmp_path.iterdir())
    result = run("report", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
