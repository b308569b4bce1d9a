"""The worst case for a person with several rows."""

import math

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.profiles import gaussian_epsilon


def test_a_person_with_several_rows():
    run = Ledger()
    for _ in range(60):
        run.step(noise_std=6.0, sample_rate=4096 / 60000, clip=1.0)
    claims = compute_claims(run, ClaimRequest(rows=3))
    group = claims.for_rows
    assert group.epsilon > 3 * claims.everyone.epsilon
    assert group.delta == 1e-5
    assert "3 rows" in str(group)
    # Is it implied? One row at epsilon / 3 has a delta whose geometric sum is within 1e-5.
    figures = RecordFigures(run, 1e-5, claims.everyone.epsilon)
    single = group.epsilon / 3
    group_delta = [
        float(figures.clip_bound.deltas(np.array([at]), 1e-8)[0]) * (math.exp(3 * at) - 1) / (math.exp(at) - 1)
        for at in (single, 0.98 * single)
    ]
    assert group_delta[0] <= 1e-5 * (1 + 1e-6)
    assert group_delta[1] > 1e-5


@pytest.mark.parametrize(("noise", "rows"), [(1.0, 20), (1.0, 100), (5.0, 1000), (20.0, 1000), (5.0, 3)])
def test_many_rows_of_one_person_against_the_exact_group(noise, rows):
    """Without sampling a person with k rows is one Gaussian of k times the exposure: a claim cannot be below it."""
    ledger = Ledger()
    ledger.step(noise_std=noise, sample_rate=1.0, clip=1.0)
    claim = compute_claims(ledger, ClaimRequest(rows=rows)).for_rows
    assert claim.epsilon >= gaussian_epsilon(rows / noise, 1e-5)


def test_rows_of_a_subsampled_run_have_a_finite_figure():
    ledger = Ledger()
    for _ in range(200):
        ledger.step(noise_std=1.0, sample_rate=0.02, clip=1.0)
    assert compute_claims(ledger, ClaimRequest(rows=5)).for_rows.epsilon < 100
