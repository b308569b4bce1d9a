"""The page about scale shows what its benchmark has measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.scale import MARKS, PAGE, RESULT, fit, predicted, tables

from bayesdp.estimators import records_needed

ROOT = Path(__file__).parents[1]


def test_the_tables_are_those_of_the_results():
    written = PAGE.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    assert written.strip() == tables(json.loads(RESULT.read_text()))


def test_the_page_says_how_many_records_shares_need():
    assert f"{records_needed(0.99, 0.01)} records are enough for a claim about 99 % of people" in PAGE.read_text()
    assert f"{records_needed(0.999, 0.01):,} for 99.9 %" in PAGE.read_text()


def test_outside_the_fit_the_model_is_within_a_factor_of_two():
    for check in json.loads(RESULT.read_text())["outside_the_fit"]:
        assert 0.5 < check["predicted"] / check["measured"] < 2, check["what"]


def test_a_fit_finds_the_coefficients_of_a_line():
    rows = [{"audit": m, "batch": b, "value": 2 + 3e-4 * m + 5e-5 * b} for m in (10, 10**4) for b in (10, 10**5)]
    found = fit(rows, "value", ("audit", "batch"))
    assert all(abs(predicted(found, row) / row["value"] - 1) < 1e-9 for row in rows)
    assert abs(found["audit"] - 3e-4) < 1e-9
