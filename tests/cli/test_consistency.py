"""What all commands have in common: help in words, --json, -o; and cautions about figures nobody should promise."""

import re
import shutil

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.cautions import about_delta, about_epsilon, about_target
from command_line import CALIBRATE, EPSILON, account, run, strict_json

COMMANDS = (
    "epsilon",
    "calibrate",
    "account",
    "show",
    "claims",
    "verify",
    "compose",
    "train",
    "report",
    "demo",
    "reproduce",
    "attack",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_help_is_in_words(monkeypatch, command, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    text = run(command, "-h").stdout
    assert text == run(command, "--help").stdout
    assert not re.search(r"<[^>]*>|\{|list\[|Path\b", text)
    assert re.search(r"^  --json +Print JSON", text, re.MULTILINE)
    assert re.search(r"^  -o, --output (FILE|FOLDER) .*\b[Ww]rite", text, re.MULTILINE)
    assert not re.search(r"\w-$", text, re.MULTILINE), "an option is broken at a hyphen"
    assert "\N{NON-BREAKING HYPHEN}" not in text
    assert f"Example: bayesdp {command}" in text
    assert all(len(line) <= columns for line in text.splitlines())


def test_the_list_of_commands_is_not_cut_short(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = run("-h").stdout
    assert text == run("--help").stdout == run().stdout
    for command in COMMANDS:
        assert re.search(rf"^  {command} +\w.*\.$", text, re.MULTILINE)
    assert "..." not in text.split("Commands:")[1]


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """The folder with two closed ledgers that tests copy."""
    folder, rng = tmp_path_factory.mktemp("originals"), np.random.default_rng(0)
    for name in ("a.ledger", "b.ledger"):
        with Ledger.create(folder / name, audit_ids=range(60), training_records=1000) as ledger:
            for _ in range(5):
                ledger.step(noise_std=4.0, sample_rate=0.1, clip=1.0, audit=rng.random(60), planned_batch=100)
    return folder


@pytest.fixture
def ledgers(originals, tmp_path):
    """A folder with copies of two ledgers."""
    for name in ("a.ledger", "b.ledger"):
        shutil.copy(originals / name, tmp_path / name)
    return tmp_path


JSON = {
    "epsilon": EPSILON,
    "calibrate": CALIBRATE,
    "account": account("norms.npy"),
    "show": ["show", "a.ledger"],
    "claims": ["claims", "a.ledger"],
    "verify": ["verify", "a.ledger"],
    "compose": ["compose", "a.ledger", "b.ledger", "-o", "c.ledger"],
    "report": ["report", "a.ledger"],
}


@pytest.mark.parametrize("command", JSON)
def test_json_is_all_that_is_printed(ledgers, command):
    np.save(ledgers / "norms.npy", np.full((3, 60), 0.5))
    result = run(*JSON[command], "--json", cwd=ledgers)
    assert (result.returncode, result.stderr) == (0, "")
    assert strict_json(result.stdout)


def test_json_of_a_report_has_its_claims(ledgers):
    values = strict_json(run("report", "a.ledger", "--json", cwd=ledgers).stdout)
    assert values.pop("report") == "report.html"
    assert (ledgers / "report.html").exists()
    assert values == strict_json(run("claims", "a.ledger", "--json", cwd=ledgers).stdout)


def test_json_of_a_composition_is_that_of_show(ledgers):
    values = strict_json(run("compose", "a.ledger", "b.ledger", "-o", "c.ledger", "--json", cwd=ledgers).stdout)
    assert values == strict_json(run("show", "c.ledger", "--json", cwd=ledgers).stdout)
    assert values["steps"] == 10


@pytest.mark.parametrize("command", ["epsilon", "calibrate", "show", "claims", "verify"])
@pytest.mark.parametrize("also", [[], ["--json"]])
def test_output_is_the_json(ledgers, command, also):
    printed = run(*JSON[command], "--json", cwd=ledgers).stdout
    assert run(*JSON[command], *also, "-o", "figures.json", cwd=ledgers).returncode == 0
    assert (ledgers / "figures.json").read_text() == printed


def test_markdown_goes_to_the_file_as_it_is_printed(ledgers):
    printed = run("claims", "a.ledger", "--markdown", "-o", "card.md", cwd=ledgers).stdout
    assert (ledgers / "card.md").read_text() == printed
    assert printed.startswith("|") or "\n|" in printed


def test_json_and_markdown_together_are_refused(ledgers):
    result = run("claims", "a.ledger", "--json", "--markdown", "-o", "x", cwd=ledgers)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "bayesdp: markdown=True: expected one of --json and --markdown.\n"
    assert not (ledgers / "x").exists()


NONE = {"epsilon": None, "delta": None, "records": None, "target_epsilon": None}


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"delta": 1e-3, "records": 999}, None),
        ({"delta": 1e-3, "records": 1000}, "delta=0.001 is at least 1 / 1000 records: .*well below 0.001"),
        ({"delta": 9e-4}, None),
        ({"delta": 1e-3}, "delta=0.001 is large: .*well below 1 / number of training records"),
        ({"epsilon": 10.0}, None),
        ({"epsilon": 10.1}, "epsilon=10.1 is above 10: by itself it promises hardly anything"),
        ({"epsilon": float("inf")}, None),  # the statement gives the reason
        ({"target_epsilon": 8.0}, None),
        ({"target_epsilon": 12.0}, "target_epsilon=12 is above 10.*usual targets are 1 to 8"),
        ({"target_epsilon": 0.01}, None),
        ({"target_epsilon": 0.001}, "target_epsilon=0.001 needs so much noise"),
    ],
)
def test_when_there_is_a_caution(figures, said):
    given = {**NONE, **figures}
    lines = [
        *about_delta(given["delta"], given["records"]),
        *about_epsilon(given["epsilon"]),
        *about_target(given["target_epsilon"]),
    ]
    assert len(lines) == (said is not None)
    if said is not None:
        assert re.fullmatch(f"{said}.*", lines[0])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*EPSILON, "--noise-multiplier", 0.5], r"epsilon=\S+ is above 10"),
        ([*EPSILON, "--delta", 0.1], "delta=0.1 is large"),
        ([*CALIBRATE, "--target-epsilon", 30], "target_epsilon=30 is above 10"),
        ([*CALIBRATE, "--target-epsilon", 0.005], "target_epsilon=0.005 needs so much noise"),
        (["show", "a.ledger", "--delta", 0.001], "delta=0.001 is at least 1 / 1000 records"),
        (["report", "a.ledger", "--delta", 0.002], "delta=0.002 is at least 1 / 1000 records"),
    ],
)
@pytest.mark.parametrize("json_", [[], ["--json"]])
def test_a_caution_is_no_error(ledgers, arguments, said, json_):
    result = run(*arguments, *json_, cwd=ledgers)
    assert result.returncode == 0
    assert re.fullmatch(f"bayesdp: caution: {said}.*\n", result.stderr)
    assert result.stdout
    if json_:
        strict_json(result.stdout)


def test_a_statement_has_the_caution_and_it_is_said_once(ledgers):
    result = run("claims", "a.ledger", "--delta", 0.002, cwd=ledgers)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("Caution: delta=0.002 is at least 1 / 1000 records") == 1
    values = strict_json(run("claims", "a.ledger", "--delta", 0.002, "--json", cwd=ledgers).stdout)
    assert values["statement"]["cautions"][0].startswith("delta=0.002 is at least 1 / 1000 records")


def test_all_claims_are_printed_when_they_are_asked_for(ledgers):
    short, whole = (run("claims", "a.ledger", *more, cwd=ledgers).stdout for more in ([], ["--all"]))
    assert len(short.splitlines()) <= 10
    assert whole.startswith(short.rstrip())
    assert "On average over people like those in the audit set" in whole
    tables = [run("claims", "a.ledger", "--markdown", *more, cwd=ledgers).stdout for more in ([], ["--all"])]
    assert tables[0].count("|---|---|") == 1
    assert tables[1].count("|---|---|") > 10
