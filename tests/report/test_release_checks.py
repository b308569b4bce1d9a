"""Before a release: each question has an answer that is true of the run, and says whether it is settled."""

import hashlib

import numpy as np
import pytest

from bayesdp import Ledger, Plan
from bayesdp.formatting import round_up
from bayesdp.report import write_report
from bayesdp.report.contents import report_contents
from bayesdp.report.page import render
from warm_programs import run_warm

STEP = {"noise_std": 4.0, "sample_rate": 0.1, "clip": 1.0}


def ledger_of(caveats=(), **declared):
    ledger = Ledger(plan=Plan(steps=20, **STEP), **declared)
    for _ in range(20):
        ledger.step(**STEP, audit=np.full(500, 0.2), caveats=caveats)
    return ledger


def checks(ledger, **options):
    return {check.question: check for check in report_contents(ledger, **options).first.checks}


@pytest.mark.parametrize(
    ("records", "status", "words"),
    [
        (1297, "settled", "1e-05 is 77.1 times less than that; added up over all of them it is at most 0.013."),
        (10_000, "settled", "1e-05 is 10 times less than that"),
        (60_000, "open", "1e-05 is 1.67 times less than that; added up over all of them it is at most 0.6. Choose"),
        (100_000, "not met", "1e-05 is not less than that; added up over all of them it is at most 1. Choose"),
        (5_000_000, "not met", "Choose a delta of at most 1e-08; epsilon is then larger."),
        (None, "open", "how many there are is not known"),
    ],
)
def test_delta_is_judged_by_the_number_of_people(records, status, words):
    check = checks(ledger_of(training_records=records))["Is delta small enough?"]
    assert check.status == status
    assert words in check.answer


def test_someone_with_several_rows_has_the_figures_of_the_claims():
    ledger = ledger_of()
    check = checks(ledger, delta=1e-6)["Does anyone have more than one row?"]
    two, three = (round_up(ledger.claims(delta=1e-6, rows=rows).for_rows.epsilon) for rows in (2, 3))
    assert f"epsilon at most {two} with 2 and {three} with 3" in check.answer
    assert check.command.endswith("--delta 1e-06 --rows 5")
    assert checks(ledger_of(unit="person"))["Is each record one person?"].status == "settled"


def test_settings_that_were_compared_are_not_covered():
    question = "Were other models trained on the same data to choose this one?"
    assert checks(ledger_of())[question].status == "open"
    tuning = {"configurations": 16, "before": "found by hand"}
    check = checks(ledger_of(metadata={"settings": {"tuning": tuning}}))[question]
    assert check.status == "not met"
    assert check.answer.startswith("Yes: 16 configurations were compared (found by hand).")


def test_a_seeded_run_must_be_trained_again_and_does_not_print_its_seed():
    ledger = ledger_of(["seeded"], metadata={"seed": 918273645546, "reproducible": True})
    page = report_contents(ledger)
    first = page.first.checks[0]
    assert (first.question, first.status) == ("Must this model be trained again?", "not met")
    assert "against those who do not know the seed" in page.first.overview.everyone
    assert "everything else but the seed" in page.first.overview.guessing
    text = render(page)
    assert "918273645546" not in text
    assert "set by hand; not shown" in text
    assert 'class="scale"' in text  # below the question it belongs to, which is the second here
    assert "918273645546" in render(report_contents(ledger_of(metadata={"seed": 918273645546})))


def test_the_page_shows_the_fingerprint_of_the_file(tmp_path):
    path, model, page = (tmp_path / name for name in ("run.ledger", "my model.bin", "report.html"))
    model.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    with Ledger.create(path, plan=Plan(steps=1, **STEP)) as ledger:
        ledger.step(**STEP)
    write_report(ledger, page, model=model)
    assert f"must be {digest}" in page.read_text()
    assert "sha256sum &#39;my model.bin&#39;" in page.read_text()
    assert "--model &#39;my model.bin&#39;" in page.read_text()
    again = run_warm("report", path, "--model", model, "-o", tmp_path / "again.html")
    assert again.returncode == 0
    assert (tmp_path / "again.html").read_text() == page.read_text()


def test_a_model_that_is_not_there_is_refused_in_one_line(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP)
    result = run_warm("report", "run.ledger", "--model", "nowhere.bin", "-o", "report.html", cwd=tmp_path)
    assert result.returncode == 2
    expected = "expected a file that can be read (No such file or directory)"
    assert result.stderr == f"bayesdp: model='nowhere.bin': {expected}.\n"
    assert not (tmp_path / "report.html").exists()


def test_how_many_are_left_is_said():
    assert report_contents(ledger_of()).first.unsettled == "5 of 5 are not settled yet."
    assert report_contents(ledger_of(training_records=1000)).first.unsettled == "4 of 5 are not settled yet."
