"""The ledger as its users see it: create, record, resume, read; refused input changes nothing."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bayesdp
from bayesdp import InvalidInputError, Ledger, LedgerError, StorageError
from bayesdp.guarantees.worst_case import rdp_epsilon
from bayesdp.ledger import histograms
from bayesdp.profiles.conversion import record_epsilons

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
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]
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
        assert np.array_equal(resumed.costs(range(1, 33)), whole.costs(range(1, 33)))
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
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger"]


def test_worst_case_is_the_one_of_the_settings() -> None:
    ledger = Ledger()
    for number in range(30):
        ledger.step(noise_std=2.0 if number < 20 else 3.0, sample_rate=0.1, clip=2.0)
    assert ledger.worst_case(1e-6) == bayesdp.worst_case_of([(1.0, 0.1, 20), (1.5, 0.1, 10)], delta=1e-6)
    assert Ledger().worst_case().epsilon == 0


def test_worst_case_of_a_noise_schedule_is_a_little_above() -> None:
    """200 different noises; RDP of all of them is the yardstick."""
    noises = np.linspace(1.0, 1.25, 200).tolist()
    ledger = Ledger()
    for noise in noises:
        ledger.step(noise_std=noise, sample_rate=0.01, clip=1.0)
    exact = rdp_epsilon([(noise, 0.01, 1) for noise in noises])
    worst = ledger.worst_case()
    assert exact <= worst.rdp_epsilon <= exact * 1.02
    assert worst.pld_epsilon is not None
    assert worst.epsilon == worst.pld_epsilon < exact


def test_a_step_without_clip_has_no_worst_case() -> None:
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[0.5])
    worst = ledger.worst_case()
    assert math.isinf(worst.epsilon)
    assert worst.to_dict()["reason"] == "a step without a clip bound has no worst case"
    assert np.isfinite(ledger.costs([1, 2])).all()


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
    assert ledger.history.bins.exposures(first.bins & 0xFFFF).tolist() == [0.0, 0.5, 1.0]
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
    with pytest.raises(LedgerError, match="move it away"):
        Ledger.create(tmp_path / "run.ledger")
    assert [one.name for one in tmp_path.iterdir()] == ["run.ledger-wal"]


def test_a_closed_ledger_can_be_closed_again_and_not_written(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "run.ledger")
    ledger.step(**STEP)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="is closed; Ledger"):
        ledger.step(**STEP)
    with Ledger.open(tmp_path / "run.ledger", write=False) as read, pytest.raises(LedgerError, match="read only"):
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
    assert sorted(one.name for one in (tmp_path / "x").iterdir()) == ["run.ledger"]
    ledgers[1].close()


def test_a_link_leads_to_the_same_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "run.ledger")
    with Ledger.create(tmp_path / "run.ledger"), pytest.raises(LedgerError, match="another process"):
        Ledger.open(tmp_path / "link")


def test_the_first_audited_step_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After many steps without norms, so that a fold is due as soon as the number of records is known."""
    monkeypatch.setattr(histograms, "_SHORTEST", 8)
    monkeypatch.setattr(histograms, "_LONGEST", 8)
    ledger = Ledger.create(tmp_path / "run.ledger")
    for _ in range(20):
        ledger.step(**STEP)

    def fail(_: object) -> None:
        raise OSError("broken")

    with monkeypatch.context() as broken:
        broken.setattr(ledger._file, "insert", fail)
        with pytest.raises(StorageError, match="broken"):
            ledger.step(**STEP, audit=[0.5, 0.1])
    assert (ledger.steps, ledger.audit_records) == (20, 0)
    assert ledger.step(**STEP, audit=[0.5, 0.1, 0.2]) == 21
    ledger.close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as read:
        assert (read.steps, read.audit_records) == (21, 3)


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


def test_rounding_includes_rates_and_what_is_beyond_the_grid() -> None:
    ledger = Ledger()
    rates = np.linspace(0.1, 0.2, 60).tolist()
    for rate in rates:
        ledger.step(noise_std=1.0, sample_rate=rate, clip=1.0, audit=[0.5])
    lambdas = np.arange(1.0, 257)
    exact = sum(bayesdp.SubsampledGaussian(sample_rate=rate).log_moment([0.5], lambdas) for rate in rates)
    rounded, truth = (record_epsilons(np.asarray(costs), lambdas, 1e-5) for costs in (ledger.costs(lambdas), exact))
    assert 0.001 < rounded[0] / truth[0] - 1 <= ledger.rounding() < 0.1
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[9.0])
    assert math.isinf(ledger.rounding())


def test_many_different_settings_have_a_worst_case() -> None:
    ledger = Ledger()
    rng = np.random.default_rng(0)
    for noise, rate in zip(rng.uniform(1, 20, 60).tolist(), rng.uniform(0.001, 0.5, 60).tolist(), strict=True):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    ledger.step(noise_std=1e-6, sample_rate=0.01, clip=1.0)
    worst = ledger.worst_case()
    assert worst.accountant == "RDP"
    assert worst.epsilon > 0
