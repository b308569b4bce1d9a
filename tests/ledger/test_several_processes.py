"""Several processes at once: one writes, others read whole states, and nobody else can write."""

import time

import numpy as np
import pytest

from bayesdp import Ledger, LedgerError
from bayesdp.ledger import head
from ledger_processes import child, process
from ledger_runs import counts_add_up, random_step, steps_of
from ledger_writers import create, open_to_write, write_and_fork, write_until_killed, write_while_asked, written


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


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def test_a_second_writer_hears_that_another_process_is_writing(tmp_path):
    """At every stage of a run: before its first step (no -wal file yet), with -wal and -head, and until closed."""
    path = tmp_path / "run.ledger"
    with process(write_while_asked, path) as writer:
        assert writer.hear() == "created"
        for number in range(1, 4):
            before = files(tmp_path)
            for attempt in (create, open_to_write):
                [refusal] = child(attempt, path)
                assert refusal == f"ledger={str(path)!r}: is being written by another process."
            assert files(tmp_path) == before
            writer.pipe.send("step")
            assert writer.hear() == number
        assert {"run.ledger-wal", "run.ledger-head"} <= set(before)
        writer.pipe.send("close")
        assert writer.hear() == "closed"
        [refusal] = child(create, path)
        assert refusal.endswith("exists already; give a new run another name, or continue this one with Ledger.open.")
    assert steps_of(path) == 3


def test_a_writer_whose_file_was_taken_away_still_holds_the_name(tmp_path):
    path = tmp_path / "run.ledger"
    with process(write_while_asked, path) as writer:
        assert writer.hear() == "created"
        writer.pipe.send("step")
        assert writer.hear() == 1
        path.rename(tmp_path / "elsewhere")
        [refusal] = child(create, path)
        assert "is being written by another process" in refusal
        assert "move it" not in refusal


def test_what_a_killed_writer_left_is_continued_or_moved(tmp_path):
    path = written(tmp_path, closed=False)
    [refusal] = child(create, path)
    way_out = "give a new run another name, or continue this one with Ledger.open"
    assert refusal == f"ledger={str(path)!r}: exists already and was not closed; {way_out}."
    path.rename(tmp_path / "elsewhere")
    [refusal] = child(create, path)
    assert "beside it lies run.ledger-wal of an earlier ledger, with steps of it; move it to that ledger" in refusal
    for file in tmp_path.iterdir():
        file.rename(tmp_path / file.name.replace("run.ledger", "elsewhere"))
    with Ledger.create(path):
        assert steps_of(tmp_path / "elsewhere") > 0


def test_looking_whether_a_ledger_is_written_keeps_no_writer_out(tmp_path):
    """Looking takes the lock for an instant, in which a writer that begins must not be refused."""
    path = tmp_path / "run.ledger"
    written(tmp_path, closed=False)
    with process(look_again_and_again, path) as looking:
        assert looking.hear() == "looking"
        for _ in range(50):
            Ledger.open(path).storage.abandon()


def look_again_and_again(pipe, path):
    pipe.send("looking")
    while True:
        head.is_held(path)


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
