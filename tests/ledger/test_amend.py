"""Amended steps: norms that become known after a step was recorded."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError
from bayesdp.ledger import head
from bayesdp.ledger.file import LedgerFile
from ledger_processes import process
from ledger_writers import amend_until_killed

STEP: dict[str, Any] = {"noise_std": 2.0, "sample_rate": 1.0, "clip": 1.0}
NORMS = np.array([0.1, 0.5, 3.0])
LAMBDAS = range(1, 33)


def test_until_norms_are_given_the_clip_bound_is_charged(tmp_path: Path) -> None:
    plain = Ledger()
    plain.step(**STEP, audit=NORMS / 2)
    plain.step(**STEP, audit=NORMS, batch=[0.3, 0.4])
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP, audit=NORMS / 2)
        ledger.step(**STEP)
        assert (ledger.costs(LAMBDAS) >= plain.costs(LAMBDAS)).all()
        ledger.amend(2, audit=NORMS, batch=[0.3, 0.4])
        assert ledger.steps == 2
        assert np.array_equal(ledger.costs(LAMBDAS), plain.costs(LAMBDAS))
        assert ledger.worst_case() == plain.worst_case()
        assert ledger.history.audited_steps == 2
        assert ledger.history.audit_clipped == plain.history.audit_clipped
    with Ledger.open(tmp_path / "run.ledger") as read:
        assert np.array_equal(read.costs(LAMBDAS), plain.costs(LAMBDAS))
        batch = read.private_batch(2)
        assert batch is not None
        assert batch.drawn == 2


def test_amended_twice_and_then_continued(tmp_path: Path) -> None:
    plain = Ledger()
    with Ledger.create(tmp_path / "run.ledger", keep_norms=True) as ledger:
        for number in range(70):  # past a round of folding
            ledger.step(**STEP)
            ledger.amend(number + 1, audit=NORMS)
            ledger.amend(number + 1, audit=NORMS * (1 + number % 3))
            plain.step(**STEP, audit=NORMS * (1 + number % 3))
        kept = ledger.private_norms(70)[0]
        assert kept is not None
        assert np.array_equal(kept, NORMS)
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert np.array_equal(read.costs(LAMBDAS), plain.costs(LAMBDAS))


def test_refused_amendments_change_nothing(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        with pytest.raises(InvalidInputError, match="step=1: expected a step from 1 to 0"):
            ledger.amend(1, audit=NORMS)
        ledger.step(**STEP, audit=NORMS)
        ledger.step(**STEP, audit=NORMS)
        before = ledger.seal
        with pytest.raises(InvalidInputError, match=r"len\(audit\)=2"):
            ledger.amend(2, audit=[1, 2])
        with pytest.raises(InvalidInputError, match=r"audit\[1\]=nan"):
            ledger.amend(2, audit=[1, np.nan, 2])
        with pytest.raises(LedgerError, match="step 1 is not its last"):
            ledger.amend(1, audit=NORMS)
        assert ledger.seal == before
    with Ledger.open(tmp_path / "run.ledger") as ledger, pytest.raises(LedgerError, match="or it was closed"):
        ledger.amend(2, audit=NORMS)  # closed: its counts are final


def test_killed_while_amending(tmp_path: Path) -> None:
    """Whenever the writer dies, the ledger opens, with the old record of its last step or with the new one."""
    for run in range(6):
        path = tmp_path / f"{run}.ledger"
        with process(amend_until_killed, path) as writer:
            assert writer.hear() == "ready"
            time.sleep(0.02 + 0.013 * run)
            writer.signal(signal.SIGKILL)
            assert writer.rest() == []
            assert writer.wait() == -signal.SIGKILL
        with Ledger.open(path) as ledger:
            assert ledger.steps >= 1
            assert ledger.history.audited_steps >= ledger.steps - 1
            ledger.step(**STEP, audit=NORMS)


def test_reading_while_a_step_is_amended(tmp_path: Path) -> None:
    """The head was read before, the steps after: what was recorded again in between is no damage."""
    ledger = Ledger.create(tmp_path / "run.ledger")
    for _ in range(3):
        ledger.step(**STEP, audit=NORMS)
    reader = LedgerFile(tmp_path / "run.ledger", write=False)
    read = head.read

    def read_and_wait(path: Path) -> Any:
        said = read(path)
        head.read = read
        ledger.amend(3, audit=NORMS / 2)
        return said

    head.read = read_and_wait
    try:
        assert Ledger.from_file(reader).steps == 3
    finally:
        head.read = read
    ledger.close()
