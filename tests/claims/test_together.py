"""Several shares, groups and looks: what holds together, and how surely."""

import numpy as np
import pytest
from scipy.stats import binom

from bayesdp import InvalidInputError, Ledger, Plan
from bayesdp.estimators import order_statistic_rank

STEP = {"noise_std": 8.0, "sample_rate": 1.0, "clip": 1.0}


def ledger_of(records=900, groups=False):
    names = [("north", "south")[number % 2] for number in range(records)]
    ledger = Ledger(audit_groups=names if groups else None)
    for _ in range(5):
        ledger.step(**STEP, audit=np.linspace(0.05, 0.3, records))
    return ledger


def test_the_statement_says_how_surely_all_hold():
    assert "and all 3 together with at least 97 % confidence" in ledger_of().claims().statement(all=True)
    assert "and all 9 together with at least 91 % confidence" in ledger_of(groups=True).claims().statement(all=True)
    assert "All 9 shares hold together with 99 % confidence" in ledger_of(groups=True).claims(joint=True).statement(
        all=True
    )
    unsure = ledger_of(groups=True).claims(gamma=0.2).statement(all=True)
    assert "how surely all 9 hold together cannot be said" in unsure


def test_looks_share_gamma():
    once, often = ledger_of().claims(), ledger_of().claims(looks=20)
    assert often.share(0.9).ex_post.gamma == pytest.approx(0.01 / 20)
    assert often.share(0.9).ex_post.epsilon > once.share(0.9).ex_post.epsilon
    assert "at each of 20 looks, together with at least 97 % confidence" in often.statement(all=True)
    both = ledger_of().claims(looks=20, joint=True)
    assert both.share(0.9).ex_post.gamma == pytest.approx(0.01 / 60)
    assert "All 3 shares, at each of 20 looks, hold together with 99 % confidence." in both.statement(all=True)
    with pytest.raises(InvalidInputError, match="looks=0"):
        ledger_of().claims(looks=0)


def test_looks_also_cover_members_levels_and_the_average():
    plan = Plan(steps=5, **STEP)
    ledger = Ledger(plan=plan)
    for _ in range(5):
        ledger.step(**STEP, audit=np.linspace(0.05, 0.3, 900))
    once, often = ledger.claims(), ledger.claims(looks=5)
    for before, after in zip(once.members, often.members, strict=True):
        assert after.reason or after.epsilon > before.epsilon
    assert not once.members[1].reason
    assert [claim.epsilon for claim in often.levels] == [claim.epsilon for claim in once.levels]
    for before, after in zip(once.levels, often.levels, strict=True):
        assert 1 - after.share == pytest.approx(5 * (1 - before.share), abs=6e-3)
    assert often.average.gamma == pytest.approx(0.01 / 5)
    assert often.average.epsilon > once.average.epsilon


def test_together_they_fail_as_rarely_as_is_said():
    """20 looks at independent audit sets of one population, three shares each: how often any quantile is missed."""
    shares, gamma, looks, records = (0.5, 0.9, 0.95), 0.2, 20, 200
    rng = np.random.default_rng(0)
    ranks = [order_statistic_rank(records, share, gamma / (3 * looks)) for share in shares]
    missed, runs = 0, 400
    for _ in range(runs):
        ordered = np.sort(rng.random((looks, records)), axis=1)
        missed += any((ordered[:, rank - 1] < share).any() for rank, share in zip(ranks, shares, strict=True))
    assert missed <= binom.isf(1e-6, runs, gamma)
    assert missed > 0  # the bound is not idle


def test_the_other_form_of_ex_post():
    sharper, stricter = ledger_of().claims(), ledger_of().claims(form="markov")
    assert "hockey-stick form" in sharper.share(0.5).ex_post.method
    assert "markov form" in stricter.share(0.5).ex_post.method
    assert sharper.share(0.5).ex_post.epsilon < stricter.share(0.5).ex_post.epsilon
    assert "the privacy loss itself exceeds" in stricter.statement(all=True)
    assert "the privacy loss itself exceeds" not in sharper.statement(all=True)
    with pytest.raises(InvalidInputError, match="form='other': expected one of hockey-stick, markov"):
        ledger_of().claims(form="other")
