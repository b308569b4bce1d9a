"""Other clip bounds in words, in the report and on a page of its own: the same figures everywhere; in a browser."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from bayesdp import Ledger
from bayesdp.claims.clip_advice import NOTES
from bayesdp.cli.main import app
from bayesdp.formatting import round_up

STEP = {"noise_std": 9.0, "sample_rate": 1.0, "clip": 1.0}


def bayesdp(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A ledger in which most gradients are clipped."""
    path, rng = tmp_path_factory.mktemp("clip") / "<run>.ledger", np.random.default_rng(0)
    level = rng.lognormal(1.5, 0.7, 200)
    with Ledger.create(path) as ledger:
        for _ in range(30):
            ledger.step(**STEP, audit=level * rng.lognormal(0, 0.3, 200))
    return path


@pytest.fixture(scope="module")
def values(path):
    return json.loads(bayesdp("advise", path, "--json").output)


def test_the_command_says_what_the_statement_says(path, values):
    words = bayesdp("advise", path).output
    statement = bayesdp("claims", path).output
    assert statement.startswith(f"Advice: {values['sentence']}\n")
    assert words.startswith(values["sentence"])
    assert values["sentence"].endswith(" of it (bayesdp advise).")
    assert all(note in words for note in NOTES)
    assert values["notes"] == list(NOTES)
    assert values["reason"] is None
    for bound in values["bounds"]:
        cells = [round_up(share["estimate_epsilon"]) for share in bound["shares"]]
        name = f"{bound['clip']:g}" + (" (this run)" if bound["factor"] == 1 else "")
        row = rf"^ *{re.escape(name)} +\d+ % +{' +'.join(map(re.escape, cells))} +{round_up(values['everyone'])}$"
        assert re.search(row, words, re.MULTILINE), name


def test_the_row_of_the_run_is_the_estimate_of_its_claims(path, values):
    with Ledger.open(path, write=False) as ledger:
        claims = ledger.claims()
    [now] = [bound for bound in values["bounds"] if bound["factor"] == 1]
    assert now["clip"] == 1
    assert values["everyone"] == claims.everyone.epsilon
    for figure in now["shares"]:
        assert figure["estimate_epsilon"] == claims.share(figure["share"]).estimate.epsilon


def test_page_and_report_draw_the_figures(path, values, tmp_path, open_visit):
    assert bayesdp("advise", path, "-o", tmp_path / "advice.html").exit_code == 0
    assert bayesdp("report", path, "-o", tmp_path / "report.html").exit_code == 0
    for name in ("advice", "report"):
        visit = open_visit(tmp_path / f"{name}.html", viewport={"width": 1280, "height": 1000})
        page = visit.page
        shown = " ".join(page.locator("body").inner_text().split())
        assert values["sentence"] in shown
        assert NOTES[2] in shown
        drawn = page.evaluate("document.getElementById('chart-clip').data.map((line) => [line.name, [...line.y]])")
        halves = [bound["shares"][0]["estimate_epsilon"] for bound in values["bounds"]]
        assert dict(drawn)["estimate for half of people"] == halves
        assert set(dict(drawn)["everyone"]) == {values["everyone"]}
        visit.check()
        visit.close()


def test_without_figures_there_is_the_reason(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP)
    result = bayesdp("advise", tmp_path / "run.ledger", "-o", tmp_path / "advice.html")
    assert result.exit_code == 0
    assert result.output == "No advice about the clip bound: there are no norms of audit records.\n"
    assert "There are no figures: there are no norms of audit records." in (tmp_path / "advice.html").read_text()
    values = json.loads(bayesdp("advise", tmp_path / "run.ledger", "--json").output)
    assert (values["bounds"], values["reason"]) == ([], "there are no norms of audit records")
