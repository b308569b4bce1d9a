"""Where a step came from stands with it: kept, chained, and no setting of a stretch."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesdp import Ledger
from bayesdp.ledger import StepSource


@pytest.mark.parametrize("ranks", [1, 2, 1000])
@pytest.mark.parametrize("draws", [(), (5, 2**63)])
@pytest.mark.parametrize("noise", [(), (0,), (2**64 - 1, 17)])
@pytest.mark.parametrize("rows", [(), (3,)])
@pytest.mark.parametrize("program", ["opacus", "", "a noise=b", "a draws=b", "an audit=b", "of ranks=b", "two\nlines"])
def test_a_text_says_all_of_a_source(
    program: str, noise: tuple[int, ...], draws: tuple[int, ...], rows: tuple[int, ...], ranks: int
) -> None:
    source = StepSource(program, noise, draws, rows, ranks)
    assert StepSource.read(source.text()) == source


@pytest.mark.parametrize(
    "text",
    ["opacus", "noise=abc", "white noise=loud", "x noise=", "x noise=0123", "x draws=0", "x audit=1", "x ranks=0"],
)
def test_other_texts_are_left_alone(text: str) -> None:
    assert StepSource.read(text) == StepSource(text)
    assert StepSource(text).text() == text


def test_steps_from_different_states_are_one_stretch(tmp_path: Path) -> None:
    settings = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
    with Ledger.create(tmp_path / "a") as ledger:
        for state in (5, 6, 7):
            ledger.step(**settings, source=StepSource("opacus", (state,), (state + 1,), ranks=state).text())
        ledger.amend(3, batch=[0.5])
        ledger.step(**settings, source="opacus")  # as an earlier version wrote it
    with Ledger.open(tmp_path / "a") as ledger:
        assert [(stretch.source, stretch.steps) for stretch in ledger.history.stretches] == [("opacus", 4)]
        sources = [StepSource.read(stored.step.source) for stored in ledger.stored_steps()]
    assert [source.noise for source in sources] == [(5,), (6,), (7,), ()]
    assert [source.draws for source in sources] == [(6,), (7,), (8,), ()]
    assert [source.ranks for source in sources] == [5, 6, 7, 1]
