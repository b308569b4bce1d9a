"""Norms of audit records at some steps only: the statement says about what norms at every step would have given."""

from __future__ import annotations

import re

import numpy as np
import pytest

from bayesdp import Ledger


def run_with_norms(every: int, *, rate: float, steps: int = 60, clip: float = 1.0) -> Ledger:
    """Return a ledger of records with norms of their own, the same at each step, computed at every ``every``-th."""
    norms = np.random.default_rng(0).lognormal(-1.5, 0.8, 200)
    ledger = Ledger()
    for step in range(steps):
        ledger.step(noise_std=1.5, sample_rate=rate, clip=clip, audit=norms if step % every == 0 else None)
    return ledger


@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("every", [2, 10])
def test_the_statement_says_what_norms_at_every_step_would_have_given(rate: float, every: int) -> None:
    with run_with_norms(every, rate=rate) as some, run_with_norms(1, rate=rate) as always:
        statement = some.claims().statement()
        found = re.search(
            r"Norms of audit records were computed at (\d+) of 60 steps.* half .* about ([\d.]+)\.", statement
        )
        assert found is not None
        assert int(found[1]) == 60 // every
        known = always.claims()
        assert float(found[2]) == pytest.approx(known.share(0.5).ex_post.epsilon, rel=0.02)
        assert float(found[2]) < some.claims().share(0.5).ex_post.epsilon
        assert "were computed at" not in known.statement()


def test_nothing_is_said_where_it_would_change_nothing() -> None:
    """Records that are clipped at every step; and norms at nearly every step."""
    with Ledger() as clipped, Ledger() as nearly:
        for step in range(20):
            audit = np.full(200, 5.0) if step % 2 else None
            clipped.step(noise_std=2.0, sample_rate=1.0, clip=1.0, audit=audit)
            nearly.step(noise_std=2.0, sample_rate=1.0, clip=1.0, audit=np.full(200, 0.1) if step else None)
        assert "were computed at" not in clipped.claims().statement()
        assert "were computed at" not in nearly.claims().statement()
