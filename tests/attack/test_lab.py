"""The lab: which attacks there are, what is written, and the page that is made of it."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayesdp import InvalidInputError
from bayesdp.attack.faults_page import faults_table, page_with_faults
from bayesdp.attack.finding import BETWEEN, Detection, Finding, Ranking
from bayesdp.attack.findings_page import page_with_tables, read, tables
from bayesdp.attack.lab import ATTACKS, AttackOptions, Lab, prepare
from bayesdp.progress import silent
from command_line import run

ROOT = Path(__file__).parents[2]
FINDING = Finding(subject="s", attacker="a", claim="c", kind="proved", claimed=1e-5, bound=4e-6, unit="delta")
BROKEN = Finding(
    subject="t | u", attacker="b", claim="d", kind="estimate", claimed=1.0, bound=2.0, unit="epsilon", confidence=0.999
)
DETECTION = Detection(bug="b", attacker="a", level=0.01, caught=9, trials=10, false_alarms=0, right_trials=400)
RANKING = Ranking(subject="members", attacker="a", figure="estimate", records=9, correlation=0.5, low=0.1, high=0.8)


def lab(found, folder, **options):
    module = SimpleNamespace(TITLE="Title", SECONDS=3.0, attack=lambda options: iter(found))
    return Lab({"exact": module}, AttackOptions(**options), folder, silent)


@pytest.mark.parametrize("found", [[FINDING, BROKEN, DETECTION], [DETECTION], [RANKING]])
def test_files_and_verdict(found, tmp_path):
    [result] = lab(found, tmp_path)
    assert result.as_expected == (BROKEN not in found)
    values = json.loads((tmp_path / "exact.json").read_text())
    assert values["command"] == "bayesdp attack exact --seed 0"
    assert len(values["findings"] + values["detections"] + values["rankings"]) == len(found) == len(result.lines())
    assert (tmp_path / "exact.png").stat().st_size > 1000


def test_small_versions_are_not_judged_by_their_power_and_have_their_own_files(tmp_path):
    missed = Detection(bug="b", attacker="a", level=0.01, caught=0, trials=2, false_alarms=0, right_trials=2)
    [small] = lab([missed, replace(RANKING, low=-0.1)], tmp_path, small=True)
    assert small.as_expected
    assert all(line.startswith("not judged: ") for line in small.lines())
    assert not next(iter(lab([missed], None))).as_expected
    assert (tmp_path / "exact-small.json").is_file()


def test_every_attack_can_be_prepared():
    everything = prepare("all")
    assert tuple(everything.modules) == ATTACKS
    assert "minutes" in everything.estimate()
    with pytest.raises(InvalidInputError, match="attack='nothing': expected one of exact"):
        prepare("nothing")


def test_a_run_is_given_to_the_attack_that_is_about_runs(tmp_path):
    """A ledger that would not be looked at is refused, and one that cannot be read before anything is written."""
    with pytest.raises(InvalidInputError, match="ledger='a': expected none for exact"):
        prepare("exact", ledgers=["a"])
    with pytest.raises(InvalidInputError, match=r"delta=0\.001: expected none for game"):
        prepare("game", delta=1e-3)
    for name in ("tightness", "all"):
        with pytest.raises(InvalidInputError, match="the file of a ledger"):
            prepare(name, tmp_path / "out", ledgers=[tmp_path / "absent.ledger"])
    assert not (tmp_path / "out").exists()


def test_the_command_gives_the_result_again():
    options = AttackOptions(seed=3, ledgers=(Path("my runs/a.ledger"),), delta=1e-6)
    assert options.command("tightness") == "bayesdp attack tightness --seed 3 --ledger 'my runs/a.ledger' --delta 1e-06"
    assert options.command("exact") == "bayesdp attack exact --seed 3"


def test_the_help_names_every_attack():
    shown = " ".join(run("attack", "--help").stdout.split())
    assert ", ".join((*ATTACKS, "all")) in shown


def test_tables(tmp_path):
    list(lab([FINDING, BROKEN, DETECTION, RANKING], tmp_path))
    shown = tables(read(tmp_path))
    assert "| s | c | proved | delta 1e-05 | 4e-06 | a | stands |" in shown
    assert "| t / u | d | estimate | epsilon 1 | 2 | b (0.999 confidence) | **broken: not as expected** |" in shown
    assert "| b | a | 9 of 10 | 0 of 400, at most 0.0092 (stated: 0.01) |" in shown
    assert "| estimate | 9 members | a | 0.50 | 0.10 to 0.80 | agrees |" in shown
    with pytest.raises(ValueError, match="unpack"):
        page_with_tables("no place", {})


def test_notes_about_gaps_are_a_column(tmp_path):
    list(lab([replace(FINDING, note=f"{BETWEEN}rounding")], tmp_path))
    shown = tables(read(tmp_path))
    assert "| verdict | what lies between |" in shown
    assert "| s | c | proved | delta 1e-05 | 4e-06 | a | stands | rounding |" in shown


def test_faults_are_counted_with_what_went_wrong(tmp_path):
    by_kind = {"ranks": {"value": 900, "refused": 90}, "damaged_file": {"identical": 8, "finding": 2}}
    fuzz = {"cases": 1000, "seed": 4, "by_kind": by_kind, "findings": [{}, {}]}
    faults = {
        "settings": {"steps": 5000, "writers": 3},
        "long": {"found": {"bytes_per_step": 210.4, "memory_per_step": 5.2}, "failures": []},
        "kills": {
            "found": {"kills": 7, "steps released": 1234, "steps recorded but not released": 5},
            "failures": ["a"],
        },
        "disk": {"found": [{"folds_that_failed": 4, "steps": 60}], "failures": []},
        "clock": {"found": {"steps": 30}, "failures": []},
        "memory": {
            "found": {"happened": {"MemoryError": 11, "StorageError": 2, "nothing": 5}, "steps": 40},
            "failures": [],
        },
    }
    for name, content in (("fuzz", fuzz), ("faults_under_load", faults)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    shown = faults_table(tmp_path)
    assert "1,000 calls of 2 kinds, seed 4: 908 values that keep their contract, 90 refusals in one line | 2 |" in shown
    assert "5,000 steps; 210 bytes of file and 5 of memory for each | none |" in shown
    assert "7 kills of 3 writers on as many ledgers, 1,234 steps released, 5 more recorded | 1 |" in shown
    assert "13 calls that failed, 40 steps | none |" in shown


def test_the_page_shows_the_results():
    page = (ROOT / "docs" / "attack.md").read_text()
    assert page == page_with_tables(page, read(ROOT / "results" / "attack"))
    assert page == page_with_faults(page, ROOT / "results")


@pytest.mark.parametrize("name", sorted(read(ROOT / "results" / "attack")))
def test_the_results_are_as_expected_and_whole(name):
    result = read(ROOT / "results" / "attack")[name]
    assert result["as_expected"]
    assert "--small" not in result["command"]
