"""Faults while much goes on, in small; ``python -m benchmarks.faults_under_load`` has the long version."""

from command_line import run
from ledger_processes import child
from ledger_runs import steps_of
from load_faults import (
    fill_disk_in_folds,
    kill_and_restart,
    run_long,
    run_out_of_memory,
    write_while_the_clock_jumps,
)


def test_file_and_memory_of_a_long_run_stay_small(tmp_path):
    path = tmp_path / "run.ledger"
    *points, last = child(run_long, path, 600, 6)
    assert steps_of(path) == last["steps"] == 600
    assert last["bytes"] == path.stat().st_size < 500 * 600
    assert points[-1]["memory"] - points[0]["memory"] < 20_000_000


def test_several_writers_that_are_killed_and_started_again_lose_nothing(tmp_path):
    outcome = kill_and_restart(tmp_path, writers=3, cycles=6, seed=1, longest=0.1)
    assert outcome.failures == []
    assert outcome.counts["kills"] == 6
    assert outcome.counts["steps released"] > 0


def test_a_disk_that_is_full_in_the_middle_of_a_fold(tmp_path):
    [sent] = child(fill_disk_in_folds, tmp_path / "run.ledger", 3)
    assert sent["folds_that_failed"] == 3
    assert steps_of(tmp_path / "run.ledger") == sent["steps"]


def test_a_clock_that_goes_back(tmp_path):
    path = tmp_path / "run.ledger"
    [steps] = child(write_while_the_clock_jumps, path, 20)
    assert steps_of(path) == steps
    for command in ("verify", "show", "claims"):
        done = run(command, path)
        assert done.returncode == 0, done.stderr
    assert run("report", path, "-o", tmp_path / "report.html").returncode == 0


def test_no_memory_in_the_middle_of_steps_folds_and_claims(tmp_path):
    outcome = run_out_of_memory(tmp_path, tries=24, seed=0)
    assert outcome.failures == []
    assert outcome.counts["MemoryError"] > 0
    assert steps_of(tmp_path / "run.ledger") > 0
