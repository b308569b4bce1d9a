"""Refused input: one line that quotes name=value, and nothing is changed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError

STEP: dict[str, Any] = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}

REFUSED = [
    ({"noise_std": 0.0}, "noise_std=0.0: "),
    ({"noise_std": math.nan}, "noise_std=nan: "),
    ({"noise_std": 1e-9}, "noise_multiplier=1e-09: "),
    ({"sample_rate": 1.5}, "sample_rate=1.5: "),
    ({"clip": -1.0}, "clip=-1.0: "),
    ({"clip": math.inf}, "clip=inf: "),
    ({"audit": []}, "len(audit)=0: "),
    ({"audit": [0.1]}, "len(audit)=1: expected one norm for each of the 2 audit records."),
    ({"audit": [0.1, math.nan]}, "audit[1]=nan: "),
    ({"audit": [0.1, -1.0]}, "audit[1]=-1.0: "),
    ({"audit": [[0.1, 0.1]]}, "audit.shape=(1, 2): "),
    ({"batch": [math.inf]}, "batch[0]=inf: "),
    ({"batch": ["a"]}, "batch=['a']: "),
    ({"planned_batch": 0}, "planned_batch=0: "),
    ({"source": 3}, "source=3: "),
    ({"source": "\ud800"}, "source='\\ud800': "),
    ({"noise_std": 1e-310, "clip": None}, "noise_std=1e-310: "),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused_steps_change_nothing(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP, audit=[0.1, 0.2], batch=[0.3])
        seal, costs, rates = ledger.seal, ledger.costs([1, 5]), list(ledger.history.bins.rates)
        with pytest.raises(InvalidInputError) as error:
            ledger.step(**(STEP | changes))
        assert str(error.value).startswith(message)
        assert "\n" not in str(error.value)
        assert (ledger.steps, ledger.seal, ledger.history.bins.rates) == (1, seal, rates)
        assert np.array_equal(ledger.costs([1, 5]), costs)
        assert ledger.step(**STEP, audit=[0.1, 0.2]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"audit_ids": []}, "audit_ids=[]: "),
        ({"audit_ids": "abc"}, "audit_ids='abc': "),
        ({"audit_ids": 5}, "audit_ids=5: "),
        ({"audit_ids": [[1]]}, "audit_ids=[[1]]: "),
        ({"audit_ids": [True]}, "audit_ids=[True]: "),
        ({"metadata": 5}, "metadata=5: "),
        ({"metadata": {"a": 10**5000}}, "metadata=dict: "),
        ({"data": "\ud800"}, "data='\\ud800': "),
        ({"audit_ids": ["a", "a"]}, "audit_ids=['a', 'a']: "),
        ({"audit_ids": [1.5]}, "audit_ids=[1.5]: "),
        ({"data": 3}, "data=3: "),
        ({"metadata": {"a": math.nan}}, "metadata={'a': nan}: "),
        ({"metadata": {"a": object()}}, "metadata={'a': <object"),
    ],
)
def test_refused_settings_leave_no_file(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as error:
        Ledger.create(tmp_path / "run.ledger", **arguments)
    assert str(error.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    path.write_text("precious")
    with pytest.raises(LedgerError, match="exists already"):
        Ledger.create(path)
    assert path.read_text() == "precious"


def test_the_log_of_an_earlier_ledger_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "run.ledger-wal").write_bytes(b"old")
    with pytest.raises(LedgerError, match=r"run\.ledger-wal of an earlier ledger.*move it"):
        Ledger.create(tmp_path / "run.ledger")
    assert [file.name for file in tmp_path.iterdir()] == ["run.ledger-wal"]


def test_unknown_step_of_a_batch() -> None:
    ledger = Ledger()
    ledger.step(**STEP)
    with pytest.raises(InvalidInputError, match="step=2: expected a step from 1 to 1"):
        ledger.private_batch(2)


@pytest.mark.parametrize("path", ["", "/", "a\0b", "\ud800", None, 3, b"x"])
def test_impossible_paths(path: Any) -> None:
    with pytest.raises(InvalidInputError, match="path="):
        Ledger.create(path)
    with pytest.raises(InvalidInputError, match="path="):
        Ledger.open(path)
