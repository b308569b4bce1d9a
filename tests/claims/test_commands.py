"""``bayesdp account`` and ``bayesdp claims``, run as a user runs them."""

import os

import numpy as np
import pytest

from test_cli import account, run, strict_json


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    np.save(folder / "norms.npy", np.exp(rng.normal(-1, 0.7, (20, 120))))
    (folder / "groups.txt").write_text("north\n" * 60 + "south\n" * 50 + "<b>|sea\n" * 10)
    made = run(*account(folder / "norms.npy", "--ledger", folder / "run.ledger", "--groups", folder / "groups.txt"))
    assert made.returncode == 0, made.stderr
    (folder / "account.txt").write_text(made.stdout)
    return folder


def test_account_prints_all_of_it(folder):
    text = (folder / "account.txt").read_text()
    assert text.startswith("1. For everyone: epsilon = ")
    for part in (
        "For at least 50 %",
        "in group 'north'",
        "On average over",
        "Bayesian accountant",
        "What this rests on",
    ):
        assert part in text
    assert "needs 459 audit records, there are 120" in text


def test_account_as_json(folder):
    options = ["--groups", folder / "groups.txt", "--shares", ".5,.9,.999", "--gamma", 0.05, "--rows", 2, "--json"]
    values = strict_json(run(*account(folder / "norms.npy", *options)).stdout)
    assert set(values) == {"worst_case", "bayesian", "shares", "average", "groups", "rows"}
    half, ninety, all_but = values["shares"]
    assert set(half) == {"share", "epsilon", "estimate_epsilon", "gamma", "direction", "records", "reason"}
    assert 0 < half["estimate_epsilon"] < half["epsilon"]
    assert half["estimate_epsilon"] <= ninety["estimate_epsilon"] <= values["worst_case"]["epsilon"]
    assert half["direction"] == "record out"
    assert all_but["epsilon"] is all_but["estimate_epsilon"] is None
    assert "2995 audit records" in all_but["reason"]
    assert [one["records"] for one in values["groups"]["south"]] == [50] * 3
    assert values["average"]["estimator"] == "betting"
    assert values["average"]["kind"] == "estimate"
    assert values["rows"]["epsilon"] > 2 * values["worst_case"]["epsilon"]


def test_fixed_exposures_decide_the_kind_of_the_average(folder):
    options = ["--fixed-exposures", "--estimator", "kullback-leibler", "--json"]
    average = strict_json(run(*account(folder / "norms.npy", *options)).stdout)["average"]
    assert (average["kind"], average["estimator"]) == ("proved", "kullback-leibler")


def test_claims_of_a_ledger_are_those_of_account(folder):
    found = strict_json(run("claims", folder / "run.ledger", "--json").stdout)["claims"]
    shares = strict_json(run(*account(folder / "norms.npy", "--json")).stdout)["shares"]
    sure = [one for one in found if one["kind"] == "ex-post" and one["group"] is None]
    assert [one["epsilon"] for one in sure] == [one["epsilon"] for one in shares]
    assert found[0]["audience"] == "everyone"
    assert not any(one["private"] for one in found)
    private = strict_json(run("claims", folder / "run.ledger", "--private", "--json").stdout)["claims"]
    assert [one["private"] for one in private].count(True) == 1


def test_claims_as_markdown(folder):
    table = run("claims", folder / "run.ledger", "--markdown", "--joint").stdout
    assert table.startswith("| For everyone | **epsilon = ")
    assert "<b>" not in table
    assert "hold together" in table


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        (["--estimator", "hope"], "estimator='hope'"),
        (["--groups", "missing.txt"], "groups='missing.txt'"),
        (["--shares", ".5,2"], "shares=2.0"),
        (["--shares", "half"], "shares='half'"),
        (["--rows", 0], "rows=0"),
        (["--gamma", 0], "gamma=0.0"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_ledger(folder, tmp_path, options, quoted):
    result = run(*account(folder / "norms.npy", "--ledger", "new.ledger", *options), cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert quoted in result.stderr
    assert os.listdir(tmp_path) == []


def test_groups_of_another_length(folder, tmp_path):
    (tmp_path / "few.txt").write_text("a\nb\n")
    result = run(*account(folder / "norms.npy", "--ledger", "new.ledger", "--groups", "few.txt"), cwd=tmp_path)
    assert result.returncode == 2
    assert "len(groups)=2: expected a group for each of the 120 records" in result.stderr
    assert os.listdir(tmp_path) == ["few.txt"]


def test_claims_of_no_ledger(tmp_path):
    result = run("claims", tmp_path / "missing.ledger")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
