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


def test_what_an_audit_adds_is_proportional_to_its_records_but_for_two_milliseconds() -> None:
    """From 16 records up: at most 1.0 m/B of a step, 0.7 for the CNN, and 2 ms; with 8 records 3 ms."""
    lines = json.loads((ROOT / "results" / "audit_cost.json").read_text())["after"]["lines"]
    assert all(line["over_milliseconds"]["value"] <= 2 for line in lines)
    for line in lines:
        for records, added in line["audit_milliseconds"].items():
            most = line["price"]["limit"] * int(records) / line["batch"] * line["milliseconds_alone"]
            assert added <= most + (2 if int(records) >= 16 else 3)
