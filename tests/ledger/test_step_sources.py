"""Digests of the generators' states that stand with a step: kept, chained, and no setting of a stretch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesdp import Ledger
from bayesdp.ledger import audit_rows, draw_states, noise_states, source_text
from bayesdp.ledger.step_sources import program_of


@pytest.mark.parametrize("draws", [[], [5, 2**63]])
@pytest.mark.parametrize("noise", [[], [0], [2**64 - 1, 17]])
@pytest.mark.parametrize("rows", [[], [3]])
@pytest.mark.parametrize("program", ["opacus", "", "a noise=b", "a draws=b", "an audit=b", "two\nlines"])
def test_a_source_keeps_program_and_digests(program: str, noise: list[int], draws: list[int], rows: list[int]) -> None:
    source = source_text(program, noise, draws, rows)
    assert program_of(source) == program
    assert noise_states(source) == noise
    assert draw_states(source) == draws
    assert audit_rows(source) == rows


@pytest.mark.parametrize(
    "source", ["opacus", "noise=abc", "white noise=loud", "x noise=", "x noise=0123", "x draws=0", "x audit=1"]
)
def test_other_sources_are_left_alone(source: str) -> None:
    assert program_of(source) == source
    assert noise_states(source) == draw_states(source) == audit_rows(source) == []


def test_steps_from_different_states_are_one_stretch(tmp_path: Path) -> None:
    settings = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
    with Ledger.create(tmp_path / "a") as ledger:
        for state in (5, 6, 7):
            ledger.step(**settings, source=source_text("opacus", [state], [state + 1]))
        ledger.amend(3, batch=[0.5])
        ledger.step(**settings, source="opacus")  # as an earlier version wrote it
    with Ledger.open(tmp_path / "a") as ledger:
        assert [(stretch.source, stretch.steps) for stretch in ledger.history.stretches] == [("opacus", 4)]
        assert [noise_states(stored.step.source) for stored in ledger.stored_steps()] == [[5], [6], [7], []]
        assert [draw_states(stored.step.source) for stored in ledger.stored_steps()] == [[6], [7], [8], []]
