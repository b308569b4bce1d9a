"""The documentation shows what audits cost as it was measured."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.audit_cost import table

ROOT = Path(__file__).parents[1]


def test_the_table_of_audit_costs_is_that_of_the_results() -> None:
    result = json.loads((ROOT / "results" / "audit_cost.json").read_text())
    assert table(result) in (ROOT / "docs" / "opacus.md").read_text()


def test_audits_cost_at_most_what_was_asked_for() -> None:
    """At most 1.0 m/B of a step, 0.7 for the CNN, in both ways of clipping."""
    lines = json.loads((ROOT / "results" / "audit_cost.json").read_text())["after"]["lines"]
    assert len(lines) == 14
    assert all(line["price"]["high"] <= line["price"]["limit"] for line in lines)


def test_an_audit_of_few_records_takes_little_more_than_a_pass_of_one_record() -> None:
    """At most 2 ms more than PyTorch alone takes for one record."""
    lines = json.loads((ROOT / "results" / "audit_cost.json").read_text())["after"]["lines"]
    assert all(line["fixed_milliseconds"]["value"] <= line["plain_milliseconds"] + 2 for line in lines)
