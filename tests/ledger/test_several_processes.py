"""Several processes at once: one writes, others read whole states, and nobody else can write."""

import time

import numpy as np
import pytest

from bayesdp import Ledger, LedgerError
from ledger_processes import child, process
from ledger_runs import counts_add_up, random_step, steps_of
from ledger_writers import open_to_write, write_and_fork, write_until_killed


def test_a_second_writer_is_refused(tmp_path):
    path, rng = tmp_path / "run.ledger", np.random.default_rng(0)
    with Ledger.create(path) as ledger:
        random_step(ledger, rng)
        for _ in range(2):
            with pytest.raises(LedgerError, match="being written"):
                Ledger.open(path)
            [refusal] = child(open_to_write, path)
            assert "being written" in refusal
            with pytest.raises(LedgerError):
                Ledger.create(path)
            random_step(ledger, rng)
    assert steps_of(path) == 3


def test_a_reader_sees_a_complete_prefix(tmp_path):
    path, seen = tmp_path / "run.ledger", [0]
    with process(write_until_killed, path, 0, 0.0) as writer:
        assert writer.hear() == "ready"
        released, _ = writer.hear()
        for _ in range(8):
            while writer.pipe.poll():
                released, _ = writer.hear()
            with Ledger.open(path, write=False) as ledger:
                kept = [(stored.step.number, stored.step.planned_batch) for stored in ledger.stored_steps()]
                assert counts_add_up(ledger)
                assert ledger.steps >= max(released, seen[-1])
                assert [number for number, _ in kept[: ledger.steps]] == list(range(1, ledger.steps + 1))
                seen.append(ledger.steps)
            time.sleep(0.05)
    assert seen[-1] > seen[1]
    with Ledger.open(path, write=False) as ledger:
        final = [(stored.step.number, stored.step.planned_batch) for stored in ledger.stored_steps()]
    assert final[: len(kept)] == kept


def test_a_forked_process_cannot_write(tmp_path):
    assert child(write_and_fork, tmp_path / "run.ledger") == []
    assert steps_of(tmp_path / "run.ledger") == 2
