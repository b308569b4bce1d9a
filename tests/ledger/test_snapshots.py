"""Costs along the run: at about 32 points, never below the exact ones, hardly above."""

from __future__ import annotations

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.ledger import histograms
from bayesdp.ledger.snapshots import spacing


@pytest.mark.parametrize("steps", [1, 2, 31, 32, 33, 64, 65, 1000, 10_000, 123_457])
def test_number_of_points(steps: int) -> None:
    points = steps // spacing(steps)
    assert points <= 32
    assert points >= min(steps, 16)


@pytest.mark.parametrize("interval", [16, 1024])
@pytest.mark.parametrize("steps", [7, 40, 200])
def test_costs_at_points(monkeypatch: pytest.MonkeyPatch, interval: int, steps: int) -> None:
    """Against a ledger that ends at each point; with folds on the way or none; audit norms missing at times."""
    monkeypatch.setattr(histograms, "_SHORTEST", 16)
    monkeypatch.setattr(histograms, "_LONGEST", interval)
    monkeypatch.setattr(histograms, "SLICE", 4)
    rng = np.random.default_rng(0)
    norms = rng.lognormal(-1, 1.5, (steps, 9))
    norms[:, 3] = 0
    ledger, short = Ledger(audit_ids=range(9)), Ledger(audit_ids=range(9))
    for number, row in enumerate(norms):
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=2.0, audit=row if number % 5 else None)
    points, kept = ledger.snapshots()
    assert points == list(range(spacing(steps), steps + 1, spacing(steps)))
    assert kept.shape == (len(points), 9, len(ledger.mixture.orders))
    for number, row in enumerate(norms, start=1):
        short.step(noise_std=1.0, sample_rate=0.1, clip=2.0, audit=row if (number - 1) % 5 else None)
        if number in points:
            exact, snapshot = short.mixture_costs(short.mixture), kept[points.index(number)]
            assert (snapshot >= exact * (1 - 1e-12)).all()
            assert (snapshot <= exact * 1.006).all()
