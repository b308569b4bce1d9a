"""Composition: two halves are the whole, records are matched by id, what does not fit is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import InvalidInputError, Ledger, LedgerError, SubsampledGaussian, WorstCase, compose
from bayesdp.ledger import StepSource, histograms, run_composition

SETTINGS = [(1.0, 0.1, 1.0), (2.0, 0.1, 1.0), (1.0, 0.5, 2.0), (1.5, 1.0, 1.0)]


def record(ledger: Ledger, plan: list[int], norms: np.ndarray) -> Ledger:
    for number, row in zip(plan, norms, strict=True):
        noise, rate, clip = SETTINGS[number]
        audit = None if row[0] > 2 else row
        ledger.step(noise_std=noise, sample_rate=rate, clip=clip, audit=audit, batch=row[: len(row) // 2])
    return ledger


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.integers(0, 12), st.integers(0, 2**32), st.booleans())
def test_two_halves_are_the_whole(plan: list[int], split: int, seed: int, shuffled: bool) -> None:
    """Counts, costs, batches and the worst case; the second half may list its audit records in another order."""
    rng = np.random.default_rng(seed)
    norms = rng.lognormal(-1, 1, (len(plan), 5))
    ids = ["a", "b", "c", "d", "e"]
    order = rng.permutation(5) if shuffled else np.arange(5)
    whole = record(Ledger(audit_ids=ids), plan, norms)
    first = record(Ledger(audit_ids=ids), plan[:split], norms[:split])
    second = Ledger(audit_ids=[ids[i] for i in order])
    for number, row in zip(plan[split:], norms[split:], strict=True):
        noise, rate, clip = SETTINGS[number]
        audit = None if row[0] > 2 else row[order]
        second.step(noise_std=noise, sample_rate=rate, clip=clip, audit=audit, batch=row[: len(row) // 2])
    both = first.then(second)
    assert both.steps == whole.steps
    assert both.audit_ids == ids
    assert sorted(both.history.repeated_steps()) == sorted(whole.history.repeated_steps())
    assert both.history.bins.rates == whole.history.bins.rates
    assert both.history.bins.own == whole.history.bins.own
    composed, expected = both.audit.histogram(0), whole.audit.histogram(0)
    assert np.array_equal(composed.bins, expected.bins)
    assert np.array_equal(composed.counts, expected.counts)
    assert np.array_equal(both.costs(range(1, 20)), whole.costs(range(1, 20)))
    assert (both.history.audit_clipped, both.history.audited_steps) == (
        whole.history.audit_clipped,
        whole.history.audited_steps,
    )
    for number in range(1, whole.steps + 1):
        batch, before = both.private_batch(number), whole.private_batch(number)
        assert batch is not None
        assert before is not None
        assert (batch.drawn, batch.clipped) == (before.drawn, before.clipped)
        assert np.array_equal(batch.bins, before.bins)
        assert np.array_equal(batch.counts, before.counts)


def test_three_runs_in_slices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In any grouping the same counts; costs along the runs go on where the run before ended."""
    monkeypatch.setattr(histograms, "SLICE", 4)
    monkeypatch.setattr(run_composition, "SLICE", 4)
    rng = np.random.default_rng(0)
    ids = list(range(10))
    norms = rng.lognormal(-1, 0.5, (30, 10))
    runs = [record(Ledger(audit_ids=ids), [0] * 10, norms[i : i + 10]) for i in (0, 10, 20)]
    all_at_once = compose(runs, tmp_path / "all.ledger")
    all_at_once.close()
    stepwise = runs[0].then(runs[1]).then(runs[2])
    with Ledger.open(tmp_path / "all.ledger", write=False) as read:
        assert read.steps == 30
        assert [run["steps"] for run in read.composed_of] == [10, 10, 10]
        assert np.array_equal(read.costs(range(1, 9)), stepwise.costs(range(1, 9)))
        points, costs = read.snapshots()
        assert points[-1] == 30
        assert (np.diff(costs, axis=0) >= 0).all()
        whole = record(Ledger(audit_ids=ids), [0] * 30, norms)
        exact = whole.mixture_costs(whole.mixture)
        assert (costs[-1] >= exact * (1 - 1e-12)).all()
        assert (costs[-1] <= exact * 1.01).all()


@pytest.fixture(scope="module")
def worst_case_of_all_steps() -> WorstCase:
    return record(Ledger(), [0, 1, 0, 1], np.array([[0.5]] * 4)).worst_case()


@pytest.mark.parametrize(
    ("first", "second", "note"), [(None, None, "no ids"), (["a"], None, "no ids"), (["a"], ["b"], "are not those of")]
)
def test_without_common_ids_the_worst_case_remains(
    first: list[str] | None, second: list[str] | None, note: str, worst_case_of_all_steps: WorstCase
) -> None:
    ledgers = [record(Ledger(audit_ids=ids), [0, 1], np.array([[0.5], [0.7]])) for ids in (first, second)]
    both = compose(ledgers)
    assert (both.steps, both.audit_records, both.audit_ids) == (4, 0, None)
    assert len(both.notes) == 1
    assert both.notes[0].startswith("Worst case only: ")
    assert note in both.notes[0]
    assert both.worst_case() == worst_case_of_all_steps


def test_a_run_twice_is_refused(tmp_path: Path) -> None:
    first, second = Ledger(), Ledger()
    with pytest.raises(LedgerError, match="count twice"):
        compose([first, first])
    with pytest.raises(LedgerError, match="count twice"):
        compose([first.then(second), second], tmp_path / "new.ledger")
    assert list(tmp_path.iterdir()) == []


def test_other_data_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"data='b' .* data='a' .*disjoint data cannot be composed"):
        compose([Ledger(data="a"), Ledger(data="b")])
    assert compose([Ledger(data="a"), Ledger()]).data == "a"


def test_one_ledger_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="ledgers=1: expected at least two"):
        compose([Ledger()])


def test_a_composed_ledger_is_finished() -> None:
    both = Ledger().then(Ledger())
    with pytest.raises(LedgerError, match="is finished"):
        both.step(noise_std=1.0, sample_rate=0.1, clip=1.0)


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    (tmp_path / "new.ledger").write_text("precious")
    with pytest.raises(LedgerError, match="exists already"):
        compose([Ledger(), Ledger()], tmp_path / "new.ledger")
    assert (tmp_path / "new.ledger").read_text() == "precious"


def test_more_rates_and_clips_than_are_kept_exactly() -> None:
    """A rate that is exact in one run and rounded in the other; clip bounds beyond 64; composed of composed."""
    ids = ["a", "b"]
    lambdas = [2, 4, 8, 16, 32, 64, 128, 256]
    runs: list[Ledger] = []
    exact, left_out = np.zeros((2, 8)), np.zeros((2, 3))
    for first in (1, 0, 2):
        ledger = Ledger(audit_ids=ids)
        rates = [0.0123] if first == 1 else [0.02 + 0.001 * (i + first) for i in range(20)] + [0.0123]
        for number in range(80):
            noise, rate = 1 + number / 50 + first / 100, rates[number % len(rates)]
            ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=[2.0, 0.3])
            step, exposures = SubsampledGaussian(sample_rate=rate), [1 / noise, 0.3 / noise]
            exact += step.log_moment(exposures, lambdas)
            left_out += step.reverse(exposures, lambdas[:3])
        runs.append(ledger)
    for both in (compose(runs), runs[0].then(runs[1]).then(runs[2]), compose([runs[2].then(runs[0]), runs[1]])):
        assert both.steps == 240
        assert (both.costs(lambdas) >= exact * (1 - 1e-12)).all()
        assert (both.costs(lambdas)[:, :3] <= exact[:, :3] * 1.1).all()
        points, along = both.snapshots()
        assert points[-1] > 220
        assert (along[-1, :, :3] >= 0.8 * left_out).all()
        assert (along[-1, :, :3] <= 1.1 * left_out).all()


def test_the_curve_over_time_covers_all_runs() -> None:
    runs = [record(Ledger(audit_ids=["a"]), [0] * 101, np.full((101, 1), 0.5)) for _ in range(2)]
    points, costs = runs[0].then(runs[1]).snapshots()
    assert 20 <= len(points) <= 32
    assert min(points) < 20
    assert max(points) > 180
    assert (np.diff(costs[:, 0, 0]) > 0).all()


@pytest.mark.parametrize(("what", "states"), [("noise", ((5,), ())), ("draws", ((), (5,)))])
def test_runs_with_the_same_random_numbers_have_no_epsilon_together(
    tmp_path: Path, what: str, states: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """A seed at the top of a script that is run twice: one line, and nothing is written."""
    runs: list[Ledger] = []
    for name, source in (
        ("a.ledger", StepSource("opacus", *states).text()),
        ("b.ledger", StepSource("opacus", (1,), (2,)).text()),
        ("c.ledger", StepSource("opacus", *states).text()),
    ):
        runs.append(Ledger.create(tmp_path / name))
        runs[-1].step(noise_std=1.0, sample_rate=0.1, clip=1.0, source=source)
    refused = (
        rf"c\.ledger': .* \({what}\) of a step in '{{}}': .* no epsilon is known for both runs together; set no seed, "
        r"or another one in each run, or use SecureNoise and SecureSampler\.$"
    )
    with pytest.raises(LedgerError, match=refused.format(r".*a\.ledger")):
        compose(runs, tmp_path / "all.ledger")
    assert not (tmp_path / "all.ledger").exists()
    with pytest.raises(LedgerError, match=refused.format(":memory:")):
        compose(runs[:2]).then(runs[2])
    assert compose(runs[:2]).steps == 2


def test_noise_and_draws_from_generators_with_one_seed_are_no_repetition() -> None:
    first, second = Ledger(), Ledger()
    first.step(noise_std=1.0, sample_rate=0.1, clip=1.0, source=StepSource("opacus", (5,), (6,)).text())
    second.step(noise_std=1.0, sample_rate=0.1, clip=1.0, source=StepSource("opacus", (6,), (5,)).text())
    assert first.then(second).steps == 2


@pytest.mark.parametrize("others", [None, 1200, 1000])
def test_that_the_number_of_records_is_public_is_assumed_of_composed_runs_too(others: int | None) -> None:
    """The new ledger has a number only if all runs agree; what its claims rest on does not depend on that."""
    runs = [record(Ledger(training_records=records), [0], np.full((1, 3), 0.1)) for records in (1000, others)]
    both = compose(runs)
    assert both.training_records == (1000 if others == 1000 else None)
    assert "the number of training records is public" in both.claims().everyone.assumptions
    assert (
        "the number of training records is public"
        in compose([both, record(Ledger(), [0], np.full((1, 3), 0.1))]).claims().everyone.assumptions
    )
