"""Writers that are killed and interrupted: real processes, real signals, real files. No released step is lost."""

import os
import signal
import time

import numpy as np
import pytest

from bayesdp import Ledger
from ledger_kills import kill_storm
from ledger_processes import child, process
from ledger_runs import STEPS, beside, random_step, steps_of
from ledger_writers import interrupt_first_steps, write_through_aimed_interrupts, write_through_interrupts


def test_killed_writers_lose_nothing(tmp_path):
    outcome = kill_storm(tmp_path, 10, seed=1)
    assert outcome.failures == []
    assert outcome.counts["steps released"] > 0


@pytest.mark.slow
def test_killed_writers_lose_nothing_at_length(tmp_path):
    assert kill_storm(tmp_path, 200, seed=2).failures == []


def test_what_a_killed_writer_left_is_read_and_continued(killed):
    assert beside(killed, "-wal").exists()
    assert beside(killed, "-head").exists()
    assert steps_of(killed) == STEPS
    with Ledger.open(killed) as ledger:
        assert random_step(ledger, np.random.default_rng(0))[0] == STEPS + 1
    assert os.listdir(killed.parent) == [killed.name]
    assert steps_of(killed) == STEPS + 1


def test_a_ledger_goes_on_after_interrupts(tmp_path):
    path, rng = tmp_path / "run.ledger", np.random.default_rng(0)
    with process(write_through_interrupts, path, 30) as writer:
        for _ in range(30):
            assert writer.hear() == "step"
            time.sleep(rng.uniform(0, 0.05))
            writer.signal(signal.SIGINT)
            while (message := writer.hear()) != "interrupted":
                assert message == "step"
        [last] = writer.rest()
        assert writer.wait() == 0
    assert steps_of(path) == last


def test_a_ledger_goes_on_after_interrupts_in_the_middle_of_a_statement(tmp_path):
    [last] = child(write_through_aimed_interrupts, tmp_path / "run.ledger")
    assert steps_of(tmp_path / "run.ledger") == last


def test_a_ledger_that_is_closed_after_an_interrupt_in_its_first_step_opens(tmp_path):
    assert child(interrupt_first_steps, tmp_path / "run.ledger") == []
    assert steps_of(tmp_path / "run.ledger") >= 1
