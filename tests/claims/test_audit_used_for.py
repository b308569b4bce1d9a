"""Audit records that were used to choose or to stop: declared before the run, and then nothing from them is a bound."""

import contextlib
import json
import re
import sqlite3

import numpy as np
import pytest

from bayesdp import Gate, InvalidInputError, Ledger, LedgerError, account, compose
from bayesdp.report.contents import report_contents
from bayesdp.report.live import LiveView
from bayesdp.report.summary import summary, words
from command_line import run as command

STEP = {"noise_std": 4.0, "sample_rate": 0.1, "clip": 1.0}
NORMS = np.linspace(0.05, 0.6, 600)
USE = "learning rate and number of steps"
SAID = f"the audit records were drawn from the population and were used for: {USE}"
GATE = Gate(epsilon=3.0, delta=1e-5, share=0.9, gamma=0.01, records=600)


def ledger_of(*, steps=12, **settings):
    ledger = Ledger(audit_groups=["a"] * 300 + ["b"] * 300, gate=GATE, **settings)
    for _ in range(steps):
        ledger.step(**STEP, audit=NORMS)
    return ledger


def resting_on_the_audit(claims):
    return [claim for claim in claims if claim.audience != "everyone" and not claim.private]


def test_nothing_that_rests_on_audit_records_is_a_bound_any_more():
    used, fresh = ledger_of(audit_used_for=USE).claims(), ledger_of().claims()
    pairs = list(zip(resting_on_the_audit(used), resting_on_the_audit(fresh), strict=True))
    assert {claim.kind for _, claim in pairs} == {"ex-post", "estimate", "model-based", "proved"}
    for claim, before in pairs:
        assert claim.kind == "estimate"
        assert claim.epsilon == before.epsilon
        assert SAID in claim.assumptions
        assert not any("not used" in text or "nothing was read" in text for text in claim.assumptions)
    assert used.everyone == fresh.everyone  # norms play no part in it
    assert used.anytime.kind == "ex-post"
    fixed = ledger_of(audit_used_for=USE).claims(fixed_exposures=True)
    assert fixed.average.kind == "estimate"


def test_without_a_declaration_the_assumption_stands_as_before():
    claims = ledger_of().claims()
    assert claims.share(0.5).ex_post.kind == "ex-post"
    assert "not used to train, choose or stop" in claims.statement()
    assert "used for:" not in claims.statement()
    for claim in resting_on_the_audit(claims):
        assert any("not used to train" in text for text in claim.assumptions), claim
        assert any("drawn from the" in text for text in claim.assumptions), claim


def test_a_private_figure_does_not_rest_on_audit_records():
    ledger = Ledger(audit_used_for=USE)
    for _ in range(3):
        ledger.step(**STEP, audit=NORMS, batch=NORMS[:50])
    [batches] = ledger.claims(private=True).private
    assert batches.kind == "model-based"
    assert SAID not in batches.assumptions


def test_statement_json_report_and_live_line_say_it():
    ledger = ledger_of(audit_used_for=USE)
    claims = ledger.claims()
    short, text = claims.statement(), claims.statement(all=True)
    assert f"It rests on: {SAID};" in short
    assert f"This run, people whose data was used: nothing is sure, because the audit set was used for: {USE}." in short
    assert "This run, people whose data was not used: nothing is sure for half, 90 % and 99 %" in short
    assert "whether their data was used or not: half about" in short
    assert f"Assumption: {SAID}." in text
    assert "not used to" not in text
    assert not re.search(r"^\d+\. For at least .*\(ex-post", text, re.MULTILINE)
    values = claims.to_dict()
    assert {share["kind"] for share in values["shares"]} == {"estimate"}
    assert {share["kind"] for shares in values["groups"].values() for share in shares} == {"estimate"}
    assert values["average"]["kind"] == values["bayesian"]["kind"] == "estimate"
    assert json.dumps(values)
    page = report_contents(ledger)
    assert any("only estimates" in stamp and SAID in stamp for stamp in page.stamps)
    assert page.first.overview == claims.overview()
    assert "nothing is sure" in dict(page.first.most_people)["This run, people whose data was not used"]
    assert "an estimate, for 99 % of people" in LiveView(ledger).line()
    assert "an estimate" not in LiveView(ledger_of()).line()
    shown = summary(ledger)
    assert shown["audit_used_for"] == USE
    assert f"used for: {USE}" in words(shown)


def test_it_is_part_of_the_first_hash_and_cannot_be_dropped(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger.create(path, audit_used_for=USE) as ledger:
        ledger.step(**STEP, audit=NORMS)
    with Ledger.open(path) as ledger:  # resumed
        ledger.step(**STEP, audit=NORMS)
        assert ledger.audit_used_for == USE
        assert ledger.claims().share(0.5).ex_post.kind == "estimate"
    for change in ("DELETE FROM settings", "UPDATE settings SET value = 'nothing'"):
        copy = tmp_path / f"{change[:6]}.ledger"
        copy.write_bytes(path.read_bytes())
        with contextlib.closing(sqlite3.connect(copy)) as database, database:
            database.execute(f"{change} WHERE name = 'audit_used_for'")
        with pytest.raises(LedgerError, match="step 1 was changed"):
            Ledger.open(copy, write=False)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_composed_ledger_inherits_it(order):
    runs = [Ledger(audit_ids=range(600), audit_used_for=use) for use in (USE, None)]
    for run in runs:
        run.step(**STEP, audit=NORMS)
    both = compose([runs[number] for number in order])
    assert both.audit_used_for == USE
    assert both.claims().share(0.5).ex_post.kind == "estimate"
    other = Ledger(audit_ids=range(600), audit_used_for="the clip bound")
    assert both.then(other).audit_used_for == f"{USE}; the clip bound"


def test_account_and_its_command_take_it(tmp_path):
    norms = np.tile(NORMS, (3, 1))
    settings = {"noise_std": 4.0, "sample_rate": 0.1, "clip": 1.0}
    assert account(norms, **settings, audit_used_for=USE).share(0.5).ex_post.kind == "estimate"
    np.save(tmp_path / "norms.npy", norms)
    arguments = ["--noise-std", "4", "--sample-rate", "0.1", "--clip", "1", "--json", "--audit-used-for", USE]
    result = command("account", str(tmp_path / "norms.npy"), *arguments)
    assert {share["kind"] for share in json.loads(result.stdout)["shares"]} == {"estimate"}


@pytest.mark.parametrize("use", ["", " . ", 3, ["lr"], "\ud800"])
def test_what_is_no_text_is_refused_and_leaves_no_file(tmp_path, use):
    with pytest.raises(InvalidInputError, match="audit_used_for="):
        Ledger.create(tmp_path / "run.ledger", audit_used_for=use)
    assert not list(tmp_path.iterdir())


def test_it_stands_in_one_line():
    assert Ledger(audit_used_for=" learning\nrate. ").audit_used_for == "learning rate"
