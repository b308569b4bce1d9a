"""``bayesdp epsilon``, ``calibrate`` and ``account``."""

import os

import numpy as np
import pytest

from bayesdp import Ledger
from command_line import CALIBRATE, EPSILON, account, run, strict_json


@pytest.fixture
def norms(tmp_path):
    path = tmp_path / "norms.csv"
    np.savetxt(path, np.random.default_rng(0).uniform(0.1, 2, (6, 12)), delimiter=",")
    return path


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


RISK = ("calibrate", "--sample-rate", 0.1, "--steps", 50)


def test_calibrate_to_a_risk():
    values = strict_json(run(*RISK, "--tpr", 0.05, "--fpr", 0.01, "--json").stdout)
    rates = {"noise_multiplier", "target_tpr", "fpr", "tpr", "advantage", "mu"}
    assert set(values) == {*rates, "epsilon", "delta", "accountant", "rdp_epsilon", "pld_epsilon"}
    assert 0.0499 < values["tpr"] <= values["target_tpr"] == 0.05
    text = run(*RISK, "--tpr", 0.05, "--fpr", 0.01).stdout
    assert "who accepts 1 % false alarms finds at most 5 % of the people who were in the data" in text
    assert "For everyone: epsilon = " in text


@pytest.mark.parametrize(
    ("options", "quoted"),
    [
        (["--tpr", 0.01, "--fpr", 0.01], "tpr=0.01: expected a rate above fpr=0.01"),
        (["--tpr", 1.0, "--fpr", 0.01], "tpr=1.0"),
        (["--tpr", 0.5, "--fpr", 0], "fpr=0"),
        (["--tpr", 0.5, "--fpr", "nan"], "fpr=nan"),
        (["--tpr", 0.5], "target='tpr': expected either --target-epsilon, or --tpr and --fpr"),
        (["--tpr", 0.5, "--fpr", 0.1, "--target-epsilon", 1], "target='target_epsilon, tpr, fpr'"),
        ([], "target=None"),
    ],
)
def test_bad_targets_are_one_line(options, quoted):
    result = run(*RISK, *options)
    assert result.returncode == 2
    assert quoted in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


def test_the_output_file_is_the_printed_json(tmp_path):
    target = tmp_path / "result.json"
    printed = run(*EPSILON, "--json", "-o", target).stdout
    assert target.read_text() == printed
    assert os.listdir(tmp_path) == ["result.json"]


def test_account(norms):
    result = run(*account(norms, "--json"))
    values = strict_json(result.stdout)
    assert set(values) == {
        *("statement", "worst_case", "bayesian", "shares", "left_out", "members", "levels", "average", "risk"),
    }
    assert values["bayesian"]["kind"] == "model-based"
    assert values["bayesian"]["epsilon"] > 0
    assert values["bayesian"]["lambda"] >= 1
    assert [part["share"] for part in values["shares"]] == [0.5, 0.9, 0.99]
    half, *others = values["shares"]  # 12 audit records are enough for half of the population only
    assert 0 < half["epsilon"] < half["estimate_epsilon"]  # of somebody left out, and of both directions
    for part in others:
        assert part["epsilon"] is None
        assert "audit records; there are 12" in part["reason"]
    assert values["average"]["kind"] == "estimate"
    assert 0 < values["average"]["epsilon"] <= values["worst_case"]["epsilon"]
    text = run(*account(norms, "--all")).stdout
    assert text.startswith("Advice: 52 % of the gradients of audit records are clipped at the clip bound 1, and half ")
    assert text.splitlines()[1].startswith("Trained: ")
    assert "\n1. For everyone" in text
    assert "On average" in text
    assert text.startswith(run(*account(norms)).stdout.rstrip())


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 120 records in three groups, accounted into a ledger."""
    folder = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    np.save(folder / "norms.npy", np.exp(rng.normal(-1, 0.7, (20, 120))))
    (folder / "groups.txt").write_text("north\n" * 60 + "south\n" * 50 + "<b>|sea\n" * 10)
    options = ["--ledger", folder / "run.ledger", "--groups", folder / "groups.txt", "--all"]
    made = run(*account(folder / "norms.npy", *options))
    assert made.returncode == 0, made.stderr
    (folder / "account.txt").write_text(made.stdout)
    return folder


def test_account_prints_all_of_it(folder):
    text = (folder / "account.txt").read_text()
    assert "\n1. For everyone: epsilon = " in text
    for part in (
        "For at least 50 %",
        "in group 'north'",
        "On average over",
        "Bayesian accountant",
        "What the lines above rest on",
    ):
        assert part in text
    assert "needs 459 audit records; there are 120" in text


def test_account_as_json(folder):
    options = ["--groups", folder / "groups.txt", "--shares", ".5,.9,.999", "--gamma", 0.05, "--rows", 2, "--json"]
    values = strict_json(run(*account(folder / "norms.npy", *options)).stdout)
    assert set(values) == {
        *("statement", "worst_case", "bayesian", "shares", "members", "levels", "average", "groups", "rows", "risk"),
        "left_out",
    }
    half, ninety, all_but = values["shares"]
    assert set(half) == {
        *("share", "epsilon", "ex_post_epsilon", "kind", "condition"),
        *("estimate_epsilon", "gamma", "direction", "records", "reason"),
    }
    assert half["estimate_epsilon"] > half["epsilon"] > 0  # both directions, and record out
    assert half["estimate_epsilon"] <= ninety["estimate_epsilon"] <= values["worst_case"]["epsilon"]
    assert half["direction"] == "record out"
    assert all_but["epsilon"] is all_but["estimate_epsilon"] is None
    assert "2995 audit records" in all_but["reason"]
    assert [part["records"] for part in values["groups"]["south"]] == [50] * 3
    assert values["average"]["estimator"] == "betting"
    assert values["average"]["kind"] == "estimate"
    assert values["rows"]["epsilon"] > 2 * values["worst_case"]["epsilon"]


def test_fixed_exposures_decide_the_kind_of_the_average(folder):
    options = ["--fixed-exposures", "--estimator", "kullback-leibler", "--json"]
    average = strict_json(run(*account(folder / "norms.npy", *options)).stdout)["average"]
    assert (average["kind"], average["estimator"]) == ("proved", "kullback-leibler")


def test_claims_of_its_ledger_are_those_of_account(folder):
    claims = strict_json(run("claims", folder / "run.ledger", "--json").stdout)["claims"]
    shares = strict_json(run(*account(folder / "norms.npy", "--json")).stdout)["shares"]
    sure = [
        claim for claim in claims if claim["audience"] == "share" and claim["kind"] == "ex-post" and not claim["group"]
    ]
    assert [claim["epsilon"] for claim in sure] == [part["epsilon"] for part in shares]
    assert claims[0]["audience"] == "everyone"
    assert not any(claim["private"] for claim in claims)
    private = strict_json(run("claims", folder / "run.ledger", "--private", "--json").stdout)["claims"]
    assert [claim["private"] for claim in private].count(True) == 1


def test_claims_as_markdown(folder):
    table = run("claims", folder / "run.ledger", "--markdown", "--joint", "--all").stdout
    assert table.startswith("| Guarantee for everyone | **epsilon at most ")
    assert "| For everyone | **epsilon = " in table
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


def test_account_goes_through_a_ledger(tmp_path):
    norms = np.random.default_rng(0).uniform(0.1, 2, (30, 12))
    np.save(tmp_path / "norms.npy", norms)
    options = ["--ledger", tmp_path / "kept.ledger", "--json"]
    values = strict_json(run(*account(tmp_path / "norms.npy", *options)).stdout)
    with Ledger.open(tmp_path / "kept.ledger", write=False) as ledger:
        assert (ledger.steps, ledger.audit_records) == (30, 12)
        assert ledger.worst_case().to_dict_with_kind() == values["worst_case"]
    refused = run(*account(tmp_path / "norms.npy", *options))
    assert refused.returncode == 2
    bad = run(*account(tmp_path / "norms.npy", "--ledger", tmp_path / "new.ledger", "--delta", 2))
    assert bad.returncode == 2
    assert not (tmp_path / "new.ledger").exists()


def test_account_at_the_plan(norms):
    taken, planned, fewer = (
        run(*account(norms, *more)).stdout for more in ((), ("--planned-steps", 5000), ("--planned-steps", 1))
    )
    assert "if the number of steps and the settings did not depend on earlier results" in taken
    assert "the plan of 5000 steps" in planned
    assert "The run left its plan" in fewer
