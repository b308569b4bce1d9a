"""Running costs are those of ``Ledger.costs``, whatever was recorded, amended or folded since they were asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.ledger import RunningCosts, histograms

STEP: dict[str, Any] = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
RECORDS = 5


@pytest.mark.parametrize("interval", [8, 1280])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_the_costs_of_the_ledger(monkeypatch: pytest.MonkeyPatch, interval: int, seed: int) -> None:
    """Random steps, with and without norms, amended at times before and after the question; folded often or never."""
    monkeypatch.setattr(histograms, "_SHORTEST", interval)
    monkeypatch.setattr(histograms, "_LONGEST", interval)
    rng = np.random.default_rng(seed)
    ledger = Ledger(audit_ids=range(RECORDS))
    running = RunningCosts(ledger, 8.0)
    for _ in range(40):
        settings = STEP | {"noise_std": float(rng.choice([1.0, 2.0])), "sample_rate": float(rng.choice([0.1, 0.3]))}
        norms = rng.lognormal(-1, 1, RECORDS) if rng.random() < 0.5 else None
        asked = rng.random() < 0.6
        if asked:
            charged = np.ones(RECORDS) if norms is None else norms
            promised = running.after(charged, **settings, steps=1)
        number = ledger.step(**settings, audit=norms)
        if asked:
            costs = ledger.costs([8.0])[:, 0]
            assert (promised >= costs).all()
            assert np.allclose(promised, costs, rtol=1e-8)
        if rng.random() < 0.5:
            ledger.amend(number, audit=rng.lognormal(-1, 1, RECORDS))


def test_several_steps_at_once() -> None:
    ledger = Ledger(audit_ids=range(RECORDS))
    ledger.step(**STEP)
    norms = np.linspace(0.1, 2.0, RECORDS)
    promised = RunningCosts(ledger, 8.0).after(norms, **STEP, steps=7)
    for _ in range(7):
        ledger.step(**STEP, audit=norms)
    assert (promised >= ledger.costs([8.0])[:, 0]).all()
    assert np.allclose(promised, ledger.costs([8.0])[:, 0], rtol=1e-8)


def test_a_step_that_is_amended_after_it_was_counted() -> None:
    """Charged at the clip bound when asked, and at its norms when asked again; also with a step in between."""
    ledger = Ledger(audit_ids=range(RECORDS))
    running = RunningCosts(ledger, 4.0)
    nothing = np.zeros(RECORDS)
    norms = np.linspace(0.1, 0.5, RECORDS)
    for _ in range(3):
        number = ledger.step(**STEP)
        before = running.after(nothing, **STEP, steps=1)
        ledger.amend(number, audit=norms)
        after = running.after(nothing, **STEP, steps=1)
        assert (after < before).all()
        assert np.allclose(after, ledger.costs([4.0])[:, 0], rtol=1e-9)
    number = ledger.step(**STEP)
    ledger.amend(number, audit=norms)
    ledger.step(**STEP, audit=norms)
    assert np.allclose(running.after(nothing, **STEP, steps=1), ledger.costs([4.0])[:, 0], rtol=1e-9)


def test_asking_leaves_the_ledger_as_it_is() -> None:
    ledger = Ledger(audit_ids=range(RECORDS))
    ledger.step(**STEP)
    seal, rates, own = ledger.seal, list(ledger.history.bins.rates), list(ledger.history.bins.own)
    running = RunningCosts(ledger, 8.0)
    running.after(np.ones(RECORDS), noise_std=3.0, sample_rate=0.7, clip=2.0, steps=5)
    assert (ledger.seal, ledger.history.bins.rates, ledger.history.bins.own) == (seal, rates, own)


def test_a_gated_step_costs_as_much_as_the_steps_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """All costs are computed once, then only those of new steps."""
    ledger = Ledger(audit_ids=range(RECORDS))
    running = RunningCosts(ledger, 8.0)
    asked: list[int] = []
    costs = ledger.costs
    monkeypatch.setattr(ledger, "costs", lambda orders: (asked.append(ledger.steps), costs(orders))[1])
    for _ in range(20):
        running.after(np.ones(RECORDS), **STEP, steps=1)
        ledger.step(**STEP, audit=np.ones(RECORDS) / 2)
    assert asked == [0]
