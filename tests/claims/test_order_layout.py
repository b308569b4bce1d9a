"""Orders that are laid out from a plan: fixed before the run, tight for records from a quarter of the clip bound on."""

import math
import sqlite3
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Ledger, LedgerError, Plan, compose
from bayesdp.claims.ex_post import hockey_stick_epsilons
from bayesdp.claims.order_layout import laid_out
from bayesdp.ledger import settings
from bayesdp.mechanisms.log_moments import log_moments
from bayesdp.mechanisms.order_mixture import WIDE_IN, WIDE_OUT, OrderMixture
from bayesdp.profiles.conversion import record_epsilons

DELTA = 1e-5
RUNS = [
    (5.0, 1.0, 1),
    (1.0, 1.0, 1),
    (0.5, 1.0, 1),
    (1.0, 0.01, 1000),
    (0.5, 0.01, 300),
    (3.0, 0.05, 100),
    (1.1, 256 / 60000, 14062),
    (6.0, 4096 / 60000, 292),
]
"""(noise multiplier, rate, steps)."""
FINE = np.geomspace(0.25, 4096, 400)


def ex_post_over_fixed(noise, rate, steps, part, mixture):
    """The ex-post epsilon of a record at ``part`` of the clip, over its Rényi epsilon were its exposures fixed."""
    exposure = part / noise
    costs = steps * log_moments(rate, [exposure], mixture.lambdas, "record out")
    fixed = record_epsilons(steps * log_moments(rate, [exposure], FINE, "record out"), FINE, DELTA)[0]
    return float(hockey_stick_epsilons(costs, DELTA, mixture)[0] / fixed)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("part", [1.0, 0.8, 0.6, 0.4, 0.25])
def test_at_most_ten_per_cent_above_renyi_at_fixed_exposures(run, part):
    assert 1 <= ex_post_over_fixed(*run, part, laid_out([run], "record out")) <= 1.1


@pytest.mark.parametrize("run", RUNS)
def test_quiet_records_lose_little(run):
    assert ex_post_over_fixed(*run, 0.1, laid_out([run], "record out")) <= 1.35


@given(
    st.lists(st.tuples(st.floats(0.02, 1e4), st.floats(1e-6, 1.0), st.integers(1, 10**6)), min_size=1, max_size=3),
    st.sampled_from(["record in", "record out"]),
)
def test_any_plan_gives_orders_and_weights(steps, direction):
    mixture = laid_out(steps, direction)
    assert mixture.direction == direction
    sampled = any(rate < 1 for _, rate, _ in steps)
    assert len(mixture.orders) in ((9,) if sampled else (5, 9))
    assert list(mixture.orders) == sorted(mixture.orders)
    assert all(0 < order <= 4096 for order in mixture.orders)
    assert 0.99 < sum(mixture.weights) <= 1
    assert OrderMixture.from_json(mixture.to_json()) == mixture
    if direction == "record in" and sampled:
        assert all(order == math.floor(order) for order in mixture.orders)


# In the ledger

STEP = {"noise_std": 6.0, "sample_rate": 0.1, "clip": 1.0}
PLAN = Plan(steps=50, **STEP)


def test_the_orders_are_part_of_the_first_hash(tmp_path):
    path = tmp_path / "run.ledger"
    with Ledger.create(path, plan=PLAN) as ledger:
        ledger.step(**STEP, audit=[0.5] * 20)
        assert ledger.mixture == laid_out([(6.0, 0.1, 50)], "record out")
        assert ledger.mixture_in == laid_out([(6.0, 0.1, 50)], "record in")
        before = ledger.claims(shares=(0.5,)).share(0.5).ex_post.epsilon
    with Ledger.open(path, write=False) as ledger:
        assert ledger.claims(shares=(0.5,)).share(0.5).ex_post.epsilon == before
    other = OrderMixture((1.0, 2.0), (0.5, 0.5)).to_json()
    with sqlite3.connect(path) as database:
        changed = database.execute("UPDATE settings SET value = ? WHERE name = 'mixture'", (other,)).rowcount
        assert changed == 1
    with pytest.raises(LedgerError):
        Ledger.open(path, write=False)


def test_without_a_plan_they_are_the_same_for_every_run():
    assert Ledger().mixture == WIDE_OUT


def begun(monkeypatch, second, plan):
    """A ledger that is begun at this second of a day."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 1, 1, 0, 0, second, tzinfo=tz)

    with monkeypatch.context() as patch:
        patch.setattr(settings, "datetime", Clock)
        return Ledger(plan=plan, audit_ids=[0])


def test_the_orders_of_the_run_that_was_begun_first_serve_all(monkeypatch):
    """No others were fixed before the first step of all; the order in which ledgers are given changes nothing."""
    early, late, wide = (
        begun(monkeypatch, second, plan) for second, plan in ((1, PLAN), (2, Plan(steps=10, **STEP)), (3, None))
    )
    orders = (early.mixture, early.mixture_in)
    assert orders != (late.mixture, late.mixture_in)
    for whole in (early.then(wide), compose([wide, late, early]), late.then(wide.then(early)), wide.then(early, late)):
        assert (whole.mixture, whole.mixture_in) == orders
    assert late.then(wide).mixture == late.mixture
    before_any_plan = begun(monkeypatch, 0, None).then(early)
    assert (before_any_plan.mixture, before_any_plan.mixture_in) == (WIDE_OUT, WIDE_IN)
    unsampled, sampled = Ledger(plan=Plan(steps=2, noise_std=6.0, sample_rate=1.0, clip=1.0)), Ledger()
    sampled.step(**STEP)
    assert math.isfinite(unsampled.then(sampled).claims().anytime.epsilon)  # orders that are not whole


@pytest.mark.parametrize("plans", [(PLAN, Plan(steps=10, **STEP), None), (None, PLAN, PLAN)])
def test_runs_with_different_plans_compose(plans):
    """Costs along runs with other orders are known at their ends."""
    ids = list(range(20))
    ledgers = [Ledger(plan=plan, audit_ids=ids) for plan in plans]
    for ledger in ledgers:
        for _ in range(10):
            ledger.step(**STEP, audit=np.linspace(0.1, 1, 20))
    whole = compose(ledgers)
    assert whole.mixture == ledgers[0].mixture
    alone = Ledger(plan=plans[0], audit_ids=ids)
    for _ in range(30):
        alone.step(**STEP, audit=np.linspace(0.1, 1, 20))
    assert whole.claims().share(0.5).ex_post.epsilon == pytest.approx(alone.claims().share(0.5).ex_post.epsilon)
    points, costs = whole.snapshots()
    assert {10, 20} <= set(points)
    exact = alone.mixture_costs(whole.mixture) / 30
    for point, at in zip(points, costs, strict=True):
        assert (at >= exact * point * (1 - 1e-9)).all()
        assert (at <= exact * point * 1.02).all()
    same = compose([Ledger(plan=PLAN), Ledger(plan=PLAN)])
    assert same.mixture == laid_out([(6.0, 0.1, 50)], "record out")
