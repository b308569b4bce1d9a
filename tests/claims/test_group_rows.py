"""The worst case for a person with several rows."""

import math

import numpy as np
import pytest

from bayesdp import Claim, Ledger, Plan
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.claims.group_rows import rows_claim
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.profiles import gaussian_epsilon


def run(noise, rate, steps, plan=None):
    ledger = Ledger(plan=plan)
    for _ in range(steps):
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0)
    return ledger


def test_a_person_with_several_rows():
    ledger = run(6.0, 4096 / 60000, 60)
    claims = compute_claims(ledger, ClaimRequest(rows=3))
    group = claims.for_rows
    assert group.epsilon > 3 * claims.everyone.epsilon
    assert group.delta == 1e-5
    assert "PLD, 3 rows of one person" in str(group)
    assert (group.kind, group.condition) == (claims.everyone.kind, claims.everyone.condition)
    # It is tighter than group privacy: one row at epsilon / 3 has a delta whose geometric sum exceeds 1e-5.
    figures = RecordFigures(ledger, 1e-5, claims.everyone.epsilon)
    single = group.epsilon / 3
    delta = float(figures.clip_bound.deltas(np.array([single]), 1e-8)[0])
    assert delta * (math.exp(3 * single) - 1) / (math.exp(single) - 1) > 1e-5


def test_the_claim_is_that_of_the_plan():
    """A run that stopped early is the planned run with the rest thrown away, for several rows as for one."""
    plan = Plan(steps=60, noise_std=6.0, sample_rate=0.05, clip=1.0)
    stopped = compute_claims(run(6.0, 0.05, 20, plan), ClaimRequest(rows=3))
    whole = compute_claims(run(6.0, 0.05, 60), ClaimRequest(rows=3)).for_rows
    assert stopped.for_rows.epsilon == whole.epsilon
    assert stopped.for_rows.condition is None
    assert "the plan of 60 steps" in str(stopped.for_rows)


def test_it_is_never_below_the_claim_for_one_row():
    everyone = Claim(epsilon=50.0, delta=1e-5, audience="everyone", direction="both", kind="proved", method="RDP")
    assert rows_claim(ClipBound.of([(6.0, 0.05, 60)]), everyone, 2).epsilon == 50.0


def test_where_one_row_costs_nothing_several_have_a_figure():
    claims = compute_claims(run(1e4, 1.0, 1), ClaimRequest(rows=100))
    assert claims.everyone.epsilon < 1e-3
    assert claims.for_rows.epsilon == pytest.approx(gaussian_epsilon(0.01, 1e-5), rel=1e-6)


def test_without_a_clip_bound_there_is_no_claim():
    ledger = Ledger()
    ledger.step(noise_std=6.0, sample_rate=0.05, clip=None)
    claim = compute_claims(ledger, ClaimRequest(rows=3)).for_rows
    assert math.isinf(claim.epsilon)
    assert "clip bound" in claim.reason


@pytest.mark.parametrize(("noise", "rows"), [(1.0, 20), (1.0, 100), (5.0, 1000), (20.0, 1000), (5.0, 3)])
def test_many_rows_of_one_person_against_the_exact_group(noise, rows):
    """Without sampling a person with k rows is one Gaussian of k times the exposure: a claim cannot be below it."""
    ledger = Ledger()
    ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0)
    claim = compute_claims(ledger, ClaimRequest(rows=rows)).for_rows
    assert claim.epsilon == pytest.approx(gaussian_epsilon(rows / noise, 1e-5), rel=1e-9)
    assert claim.epsilon >= gaussian_epsilon(rows / noise, 1e-5)


def test_rows_of_a_subsampled_run_have_a_finite_figure():
    ledger = Ledger()
    for _ in range(200):
        ledger.step(noise_std=1.0, sample_rate=0.02, clip=1.0)
    assert compute_claims(ledger, ClaimRequest(rows=5)).for_rows.epsilon < 100
