"""A script that is run a second time: its ledger exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesdp import Ledger, LedgerError
from opacus_runs import private_run


def test_the_message_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with private_run().watch(path):
        pass
    expected = (
        f"ledger={str(path)!r}: exists already; give a new run another name, let watch number its runs "
        f"(ledger={str(tmp_path / 'run-{n}.ledger')!r}), or continue this one with Ledger.open."
    )
    run = private_run()
    with pytest.raises(LedgerError) as raised:
        run.watch(path)
    assert str(raised.value) == expected
    assert "pre_step" not in vars(run.optimizer)
    with Ledger.open(path) as ledger, run.watch(ledger):
        run.train(most=1)


def test_runs_are_numbered(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        run = private_run()
        with run.watch(tmp_path / "run-{n}.ledger"):
            run.train(most=number)
    steps = []
    for number in (1, 2, 3):
        with Ledger.open(tmp_path / f"run-{number}.ledger", write=False) as ledger:
            steps.append(ledger.steps)
    assert steps == [1, 2, 3]


def test_a_number_is_never_used_twice(tmp_path: Path) -> None:
    """Also if a ledger was moved away and something of it is left, or if numbers are missing."""
    (tmp_path / "run-7.ledger-wal").touch()
    (tmp_path / "run-x.ledger").touch()
    with private_run().watch(tmp_path / "run-{n}.ledger"):
        assert (tmp_path / "run-8.ledger").exists()
