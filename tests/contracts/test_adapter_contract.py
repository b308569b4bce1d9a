"""What every adapter promises: the same run gives the same ledger, and nothing is released that is not recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger, LedgerError
from bayesdp.claims import RunClaims
from bayesdp.ledger.exposure_grid import below, round_up
from contracts.adapter_runs import ADAPTERS, AUDIT_RECORDS, AdapterRun, FloatArray, Problem, new_problem

PROBLEM = new_problem()
REFERENCE = next(iter(ADAPTERS))
SHARES = (0.5, 0.8)


@dataclass(frozen=True)
class Finished:
    """A run of the whole problem."""

    ledger: Ledger
    parameters: FloatArray
    claims: RunClaims


@cache
def finished(adapter: str) -> Finished:
    ledger = Ledger()
    run = ADAPTERS[adapter](PROBLEM, ledger, nothing)
    run.train(PROBLEM.steps)
    run.close()
    return Finished(ledger, run.parameters, ledger.claims(shares=SHARES, private=True))


def nothing() -> None:
    """Do nothing at an update."""


def counter() -> tuple[list[int], Callable[[], None]]:
    """Return the updates so far, and what is to be called at each."""
    updates: list[int] = []
    return updates, lambda: updates.append(len(updates) + 1)


def audit_exposures(ledger: Ledger) -> list[FloatArray]:
    """Return the exposures of each audit record over all steps, rounded up to the grid, ascending, [T]."""
    counts = ledger.step_counts()
    exposures: list[FloatArray] = []
    for _, kinds, counted in counts.slices():
        exposures += [np.sort(np.repeat(counts.exposures[kinds], of_record)) for of_record in counted.T]
    return exposures


def batch_exposures(ledger: Ledger, step: int) -> FloatArray:
    """Return the exposures of the batch at a step, rounded up to the grid, ascending, [b]."""
    batch = ledger.private_batch(step)
    assert batch is not None
    return np.sort(np.repeat(ledger.history.bins.exposures_of(batch.bins), batch.counts))


def assert_within_one_bucket(exposures: FloatArray, expected: FloatArray) -> None:
    larger, smaller = np.maximum(exposures, expected), np.minimum(exposures, expected)
    assert (below(round_up(larger)) <= smaller).all()


@pytest.mark.parametrize("adapter", ADAPTERS)
class TestContract:
    def test_it_is_the_same_run(self, adapter: str) -> None:
        """The comparisons below are of one model, data, batches and noise; the adapters differ by round-off."""
        start = np.concatenate([parameter.ravel() for parameter in PROBLEM.parameters])
        assert not np.allclose(finished(adapter).parameters, start)
        closeness = ADAPTERS[adapter].closeness
        np.testing.assert_allclose(
            finished(adapter).parameters, finished(REFERENCE).parameters, rtol=closeness, atol=1e-3 * closeness
        )

    def test_every_step_has_the_settings_of_the_run(self, adapter: str) -> None:
        steps = finished(adapter).ledger.stored_steps()
        assert len(steps) == PROBLEM.steps
        for stored in steps:
            step = stored.step
            assert step.noise_std == pytest.approx(PROBLEM.noise_std, rel=1e-12)
            assert step.sample_rate == pytest.approx(PROBLEM.sample_rate, rel=1e-12)
            assert step.clip == pytest.approx(PROBLEM.clip, rel=1e-12)
            assert step.audited == AUDIT_RECORDS
            assert step.caveats == ""

    def test_audit_records_are_counted_within_one_bucket(self, adapter: str) -> None:
        exposures, expected = audit_exposures(finished(adapter).ledger), audit_exposures(finished(REFERENCE).ledger)
        assert len(exposures) == len(expected) == AUDIT_RECORDS
        for own, other in zip(exposures, expected, strict=True):
            assert len(own) == len(other) == PROBLEM.steps
            assert_within_one_bucket(own, other)

    def test_batches_are_counted_within_one_bucket(self, adapter: str) -> None:
        for step, drawn in enumerate(PROBLEM.batches, start=1):
            exposures, expected = (batch_exposures(finished(name).ledger, step) for name in (adapter, REFERENCE))
            assert len(exposures) == len(expected) == len(drawn)
            assert_within_one_bucket(exposures, expected)

    def test_the_claims_are_the_same(self, adapter: str) -> None:
        claims, expected = finished(adapter).claims, finished(REFERENCE).claims
        described = [
            [(claim.audience, claim.kind, claim.method, claim.private) for claim in run] for run in (claims, expected)
        ]
        assert described[0] == described[1]
        assert claims.everyone.epsilon == expected.everyone.epsilon
        for share in SHARES:
            for kind in ("ex_post", "estimate"):
                epsilon, other = (getattr(run.share(share), kind).epsilon for run in (claims, expected))
                assert epsilon == pytest.approx(other, rel=0.01)
        for claim, other in zip(claims, expected, strict=True):
            assert (claim.epsilon is None) == (other.epsilon is None)
            if claim.epsilon is not None:
                assert claim.epsilon == pytest.approx(other.epsilon, rel=0.01)

    def test_a_step_is_on_disk_before_its_update_is_applied(self, adapter: str, tmp_path: Path) -> None:
        """Whoever opens the file at the moment of the update finds the step in it."""
        path = tmp_path / "run.ledger"
        on_disk: list[int] = []

        def look() -> None:
            with Ledger.open(path, write=False) as seen:
                on_disk.append(seen.steps)

        with Ledger.create(path) as ledger:
            run = ADAPTERS[adapter](PROBLEM, ledger, look)
            run.train(4)
            run.close()
        assert on_disk == [1, 2, 3, 4]

    def test_a_record_that_breaks_its_gradient_contributes_nothing(self, adapter: str) -> None:
        """The third step draws a record whose gradient is not finite: an error would tell that it is there."""
        ledger, (updates, at_update) = Ledger(keep_norms=True), counter()
        run = ADAPTERS[adapter](PROBLEM.spoiled(2), ledger, at_update)
        run.train(3)
        assert ledger.steps == len(updates) == 3
        assert np.isfinite(run.parameters).all()
        charged = {"zero": 0.0, "clip": PROBLEM.clip}[run.broken_norm]
        assert np.count_nonzero(ledger.private_norms(3)[1] == charged) == 1

    def test_a_refused_step_records_nothing_and_releases_nothing(self, adapter: str) -> None:
        """By the first step, or by the adapter when it begins."""
        ledger, (updates, at_update) = Ledger(), counter()
        begun: list[tuple[AdapterRun, bytes]] = []

        def train() -> None:
            run = ADAPTERS[adapter](PROBLEM.with_spoiled_audit(), ledger, at_update)
            begun.append((run, run.parameters.tobytes()))
            run.train(1)

        with pytest.raises(InvalidInputError, match=r"audit\[7\]=nan"):
            train()
        assert ledger.steps == len(updates) == 0
        assert all(run.parameters.tobytes() == before for run, before in begun)

    @pytest.mark.parametrize(
        ("problem", "audit_ids", "message"),
        [
            pytest.param(replace(PROBLEM, noise_multiplier=0.0), None, r"noise_\w+=0\.0: expected", id="no noise"),
            pytest.param(PROBLEM, range(7), r"len\(audit\)=60: expected .*7 audit records", id="other audit records"),
        ],
    )
    def test_what_no_adapter_can_account_is_refused(
        self, adapter: str, problem: Problem, audit_ids: range | None, message: str
    ) -> None:
        """By the adapter when it begins, or by the first step; the table of modes has what is refused by one only."""
        ledger, (updates, at_update) = Ledger(audit_ids=audit_ids), counter()
        with pytest.raises(InvalidInputError, match=message):
            ADAPTERS[adapter](problem, ledger, at_update).train(1)
        assert ledger.steps == len(updates) == 0

    def test_a_ledger_that_cannot_be_written_releases_nothing(self, adapter: str, tmp_path: Path) -> None:
        ledger, (updates, at_update) = Ledger.create(tmp_path / "run.ledger"), counter()
        run = ADAPTERS[adapter](PROBLEM, ledger, at_update)
        run.train(2)
        ledger.close()
        before = run.parameters
        with pytest.raises(LedgerError, match="is closed"):
            run.train(1)
        assert len(updates) == 2
        assert run.parameters.tobytes() == before.tobytes()

    def test_training_is_the_same_to_the_last_bit_without_the_adapter(self, adapter: str) -> None:
        run = ADAPTERS[adapter](PROBLEM, None, nothing)
        run.train(PROBLEM.steps)
        assert run.parameters.tobytes() == finished(adapter).parameters.tobytes()
