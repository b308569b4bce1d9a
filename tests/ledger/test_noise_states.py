"""Digests of the generators' states that stand with a step: kept, chained, and no setting of a stretch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesdp import Ledger
from bayesdp.ledger import source_text, states_of
from bayesdp.ledger.noise_states import program_of


@pytest.mark.parametrize("states", [[], [0], [2**64 - 1, 17]])
@pytest.mark.parametrize("program", ["opacus", "", "a noise=b", "two\nlines"])
def test_a_source_keeps_program_and_states(program: str, states: list[int]) -> None:
    source = source_text(program, states)
    assert program_of(source) == program
    assert states_of(source) == states


@pytest.mark.parametrize("source", ["opacus", "noise=abc", "white noise=loud", "x noise=", "x noise=0123"])
def test_other_sources_are_left_alone(source: str) -> None:
    assert program_of(source) == source
    assert states_of(source) == []


def test_steps_from_different_states_are_one_stretch(tmp_path: Path) -> None:
    settings = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
    with Ledger.create(tmp_path / "a") as ledger:
        for state in (5, 6, 7):
            ledger.step(**settings, source=source_text("opacus", [state]))
        ledger.amend(3, batch=[0.5])
        ledger.step(**settings, source="opacus")  # as an earlier version wrote it
    with Ledger.open(tmp_path / "a") as ledger:
        assert [(stretch.source, stretch.steps) for stretch in ledger.history.stretches] == [("opacus", 4)]
        assert [states_of(stored.step.source) for stored in ledger.stored_steps()] == [[5], [6], [7], []]
