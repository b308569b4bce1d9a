"""The ledger as its users see it: create, record, resume, read, from several threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bayesdp import Gate, Ledger, LedgerError, StorageError
from bayesdp.ledger import StepCounts, histograms
from kept import forget_results

STEP: dict[str, Any] = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}


def fill(ledger: Ledger, norms: np.ndarray) -> None:
    for row in norms:
        ledger.step(**STEP, audit=row)


@pytest.fixture
def norms() -> np.ndarray:
    return np.random.default_rng(0).lognormal(-1, 0.7, (40, 6))


def test_create_close_open(tmp_path: Path, norms: np.ndarray) -> None:
    path = tmp_path / "run.ledger"
    with Ledger.create(path, data="digits", metadata={"model": "linear", "seed": 3}) as ledger:
        fill(ledger, norms)
        costs, seal_before = ledger.costs(range(1, 33)), ledger.seal
    assert [file.name for file in tmp_path.iterdir()] == ["run.ledger"]
    with Ledger.open(path, write=False) as read:
        assert (read.steps, read.audit_records, read.data) == (40, 6, "digits")
        assert read.metadata == {"model": "linear", "seed": 3}
        assert np.array_equal(read.costs(range(1, 33)), costs)
        assert read.seal != seal_before  # counts were folded on closing


def test_resume_equals_one_run(tmp_path: Path, norms: np.ndarray) -> None:
    """Closed and opened again after every few steps, or not closed at all before the next one opens."""
    path = tmp_path / "run.ledger"
    Ledger.create(path).close()
    for start in range(0, 40, 7):
        ledger = Ledger.open(path)
        fill(ledger, norms[start : start + 7])
        if start % 2:
            ledger.close()
        del ledger  # gives up the lock
    whole = Ledger()
    fill(whole, norms)
    with Ledger.open(path) as resumed:
        assert resumed.steps == 40
        costs = whole.costs(range(1, 33))
        forget_results()
        assert np.array_equal(resumed.costs(range(1, 33)), costs)
        assert resumed.snapshots()[0] == whole.snapshots()[0]
        assert np.allclose(resumed.snapshots()[1], whole.snapshots()[1], rtol=1 / 128)  # one bit of those kept


def test_opening_without_a_step_leaves_the_file_as_it_was(tmp_path: Path, norms: np.ndarray) -> None:
    path = tmp_path / "run.ledger"
    with Ledger.create(path) as ledger:
        fill(ledger, norms)
    before = path.read_bytes()
    for write in (True, False):
        Ledger.open(path, write=write).close()
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.ledger"]


def test_steps_before_the_first_norms_are_charged_at_the_clip_bound() -> None:
    ledger = Ledger()
    ledger.step(**STEP)
    ledger.step(**STEP, audit=[0.0, 5.0])
    costs = ledger.costs([1, 2, 3])
    assert costs[1] == pytest.approx(2 * costs[0])
    assert (costs[0] > 0).all()


def test_batches_are_counted_and_private() -> None:
    ledger = Ledger()
    ledger.step(**STEP, batch=[0.5, 0.5, 3.0, 0.0])
    ledger.step(**STEP, batch=[])
    ledger.step(**STEP)
    first, second = ledger.private_batch(1), ledger.private_batch(2)
    assert first is not None
    assert second is not None
    assert (first.drawn, first.clipped, first.counts.tolist()) == (4, 1, [1, 2, 1])
    assert ledger.history.bins.exposures_of(first.bins).tolist() == [0.0, 0.5, 1.0]
    assert (second.drawn, second.clipped, second.counts.tolist()) == (0, 0, [])
    assert ledger.private_batch(3) is None
    assert ledger.audit_records == 0
    assert ledger.costs([1]).shape == (0, 1)


def test_norms_are_kept_only_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.ledger"
    with Ledger.create(path, keep_norms=True) as ledger:
        ledger.step(**STEP, audit=[0.25, 7.0], batch=[0.1])
        ledger.step(**STEP)
    with Ledger.open(path) as read:
        audit, batch = read.private_norms(1)
        assert audit is not None
        assert batch is not None
        assert (audit.tolist(), batch.tolist()) == ([0.25, 7.0], [0.1])
        assert read.private_norms(2) == (None, None)
    with Ledger() as other:
        other.step(**STEP, audit=[1.0])
        assert other.private_norms(1) == (None, None)


def test_what_a_step_keeps() -> None:
    ledger = Ledger()
    assert ledger.step(**STEP, audit=[0.5, 2.0, 3.0], planned_batch=64, source="opacus") == 1
    (stored,) = ledger.stored_steps()
    step = stored.step
    assert (step.noise_std, step.sample_rate, step.clip) == (1.0, 0.1, 1.0)
    assert (step.planned_batch, step.source, step.audited, step.audit_clipped) == (64.0, "opacus", 3, 2)
    assert abs(step.time - time.time()) < 60


def test_a_closed_ledger_can_be_closed_again_and_not_written(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "run.ledger")
    ledger.step(**STEP)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="is closed; Ledger"):
        ledger.step(**STEP)
    with Ledger.open(tmp_path / "run.ledger", write=False) as read, pytest.raises(LedgerError, match="reading only"):
        read.step(**STEP)


def test_a_step_after_a_seal_takes_it_off_again(tmp_path: Path) -> None:
    """As if close() had been interrupted just after sealing."""
    ledger = Ledger.create(tmp_path / "run.ledger")
    ledger.step(**STEP)
    ledger._file.seal(ledger.steps, ledger.history.hash)
    ledger.step(**STEP)
    del ledger
    with Ledger.open(tmp_path / "run.ledger") as read:
        assert read.steps == 2


def test_steps_from_several_threads(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        threads = [
            threading.Thread(target=lambda: [ledger.step(**STEP, audit=[0.5]) for _ in range(20)]) for _ in "abc"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.steps == 60


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ledgers of the same relative name: closing one leaves the other alone."""
    ledgers: list[Ledger] = []
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        ledgers.append(Ledger.create("run.ledger"))
        ledgers[-1].step(**STEP)
    ledgers[0].close()
    assert (tmp_path / "y" / "run.ledger-head").exists()
    assert sorted(file.name for file in (tmp_path / "x").iterdir()) == ["run.ledger"]
    ledgers[1].close()


def test_a_link_leads_to_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run.ledger")
    with (
        Ledger.create(tmp_path / "run.ledger"),
        pytest.raises(LedgerError, match=r"by this process: close .*write=False\)"),
    ):
        Ledger.open(tmp_path / "link")


def fail_to_record(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Try to record an audited step while the disk fails."""

    def fail(_: object) -> None:
        raise OSError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(ledger._file, "insert", fail)
        with pytest.raises(StorageError, match="broken"):
            ledger.step(**STEP, audit=[0.5, 0.1])


def test_the_first_audited_step_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After many steps without norms, so that a fold is due as soon as the number of records is known."""
    monkeypatch.setattr(histograms, "_SHORTEST", 8)
    monkeypatch.setattr(histograms, "_LONGEST", 8)
    ledger = Ledger.create(tmp_path / "run.ledger")
    for _ in range(20):
        ledger.step(**STEP)
    fail_to_record(ledger, monkeypatch)
    assert (ledger.steps, ledger.audit_records) == (20, 0)
    assert ledger.step(**STEP, audit=[0.5, 0.1, 0.2]) == 21
    ledger.close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert (read.steps, read.audit_records) == (21, 3)


@pytest.mark.parametrize("read", [Ledger.step_counts, Ledger.exposure_counts, Ledger.snapshots])
def test_what_is_read_after_a_failed_step_is_without_it(monkeypatch: pytest.MonkeyPatch, read: Any) -> None:
    """Whatever is asked for first: the file decides, not what was in memory when the step failed."""
    ledger, expected = Ledger(), Ledger()
    for _ in range(3):
        ledger.step(**STEP)
        expected.step(**STEP)
    fail_to_record(ledger, monkeypatch)
    given, wanted = read(ledger), read(expected)
    if isinstance(given, StepCounts):
        assert (given.records, list(given.slices())) == (wanted.records, []) == (0, [])
    else:
        assert [np.asarray(part).tolist() for part in given] == [np.asarray(part).tolist() for part in wanted]


def test_readers_in_other_threads_see_whole_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While steps are recorded and folded, costs always are those of as many steps as there were."""
    monkeypatch.setattr(histograms, "_SHORTEST", 8)
    monkeypatch.setattr(histograms, "_LONGEST", 8)
    problems: list[str] = []
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(**STEP, audit=[0.5])
        single = ledger.costs([2])[0, 0]
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                before = ledger.steps
                costs, after = ledger.costs([2])[0, 0], ledger.steps
                stored = len(ledger.stored_steps())
                if not (before - 0.01 <= costs / single <= after + 0.01 and after <= stored):
                    problems.append(f"{before} {costs / single} {after} {stored}")

        threads = [threading.Thread(target=read) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(150):
            ledger.step(**STEP, audit=[0.5])
        done.set()
        for thread in threads:
            thread.join()
        assert problems == []
        assert ledger.steps == 151
    with Ledger.open(tmp_path / "run.ledger", write=False) as closed:
        assert closed.steps == 151


def test_claims_of_ledgers_without_steps() -> None:
    gate = Gate(epsilon=3.0, delta=1e-5, share=0.5, gamma=0.01, records=20)
    for ledger in (Ledger(audit_ids=["a", "b", "c"]), Ledger(gate=gate), Ledger()):
        assert ledger.claims()[0].epsilon == 0


def test_a_ledger_that_is_left_at_exit_says_nothing() -> None:
    """Modules are gone by then: what gives it up must not need them."""
    code = "import sys; from bayesdp import Ledger; sys.modules['kept'] = Ledger()"
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
