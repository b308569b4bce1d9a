"""Risk of a run: as sure as the worst case for everyone; for a share, order statistics of the records' own figures."""

import json
import math
import re

import numpy as np
import pytest
from scipy.stats import norm

import bayesdp
from bayesdp import InvalidInputError, Ledger, Plan
from bayesdp.estimators import order_statistic_rank
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.trade_off import clip_bound_risk

STEPS, RECORDS = 40, 600
SAMPLED = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.0}
LEVELS = np.random.default_rng(0).uniform(0.05, 1.5, RECORDS)


def ledger_of(settings, steps=STEPS, plan=None, levels=LEVELS):
    ledger = Ledger(plan=plan)
    for _ in range(steps):
        ledger.step(**settings, audit=levels)
    return ledger


@pytest.fixture(scope="module")
def claims():
    return ledger_of(SAMPLED).claims()


def test_for_everyone_it_is_that_of_the_noise(claims):
    alone = bayesdp.attack_risk(noise_multiplier=2.0, sample_rate=0.1, steps=STEPS)
    assert claims.risk.everyone.risk == alone
    assert (claims.risk.everyone.kind, claims.risk.everyone.condition) == ("proved", claims.everyone.condition)
    assert "if the number of steps" in claims.risk.everyone.statement()


def test_with_a_plan_it_is_that_of_the_whole_plan():
    planned = ledger_of(SAMPLED, steps=5, plan=Plan(steps=STEPS, **SAMPLED)).claims().risk
    assert planned.everyone.risk == bayesdp.attack_risk(noise_multiplier=2.0, sample_rate=0.1, steps=STEPS)
    assert planned.everyone.condition is None
    few = bayesdp.attack_risk(noise_multiplier=2.0, sample_rate=0.1, steps=5)
    assert planned.share(0.99).risk.mu <= few.mu * 1.01  # estimates are of the steps that were taken


def test_a_share_is_the_order_statistic_of_the_records_own_figures(claims):
    norms = np.minimum(np.sort(LEVELS), 1.0)
    for share in (0.5, 0.99):
        rank = order_statistic_rank(RECORDS, share, 0.01)
        bound = ClipBound.of([(2.0 / norms[rank - 1], 0.1, STEPS)])
        alone, found = clip_bound_risk(bound, 1e-5), claims.risk.share(share)
        assert (found.kind, found.gamma, found.samples) == ("estimate", 0.01, RECORDS)
        # Never below; above it by the rounding of exposures and by the coarser grid of epsilons.
        for ours, exact in zip((*found.risk.tpr, found.risk.advantage), (*alone.tpr, alone.advantage), strict=True):
            assert exact * (1 - 1e-4) <= ours <= exact * 1.02
        assert 0.99 * alone.mu <= found.risk.mu <= 1.02 * alone.mu


def test_without_sampling_a_share_is_exact():
    claims = ledger_of({**SAMPLED, "sample_rate": 1.0, "noise_std": 20.0}).claims()
    for share in (0.5, 0.9):
        rank = order_statistic_rank(RECORDS, share, 0.01)
        mu = math.sqrt(STEPS) * min(np.sort(LEVELS)[rank - 1], 1.0) / 20
        risk = claims.risk.share(share).risk
        assert mu <= risk.mu <= 1.01 * mu
        np.testing.assert_allclose(risk.tpr, norm.cdf(norm.ppf(risk.fpr) + risk.mu), rtol=1e-9)


def test_no_share_exceeds_everyone_and_larger_shares_have_more_risk(claims):
    half, ninety, most, everyone = (claim.risk for claim in (*claims.risk.shares, claims.risk.everyone))
    for less, more in ((half, ninety), (ninety, most), (most, everyone)):
        assert less.mu <= more.mu
        assert less.advantage <= more.advantage
        assert all(a <= b for a, b in zip(less.tpr, more.tpr, strict=True))
    assert half.mu < most.mu


def test_too_few_records_no_records_and_no_clip_bound():
    few = ledger_of(SAMPLED, levels=LEVELS[:20]).claims().risk
    assert few.share(0.5).risk is not None
    assert few.share(0.99).risk is None
    assert "needs 459 audit records; there are 20" in few.share(0.99).reason
    assert "nothing can be said" in few.share(0.99).statement()
    alone = Ledger()
    alone.step(**SAMPLED)
    assert alone.claims().risk.shares == ()
    with pytest.raises(InvalidInputError, match=r"share=0\.5"):
        alone.claims().risk.share(0.5)
    unclipped = Ledger()
    unclipped.step(noise_std=2.0, sample_rate=0.1, clip=None, audit=LEVELS)
    risk = unclipped.claims().risk
    assert risk.everyone.to_dict()["mu"] is None
    assert "without a clip bound" in risk.everyone.reason
    assert 0 < risk.share(0.5).risk.mu < math.inf
    assert json.dumps(risk.to_dict(), allow_nan=False)


def test_an_empty_ledger_reveals_nothing():
    everyone = Ledger().claims().risk.everyone.risk
    assert (everyone.tpr, everyone.advantage, everyone.mu) == (everyone.fpr, 0.0, 0.0)


def test_a_caveat_makes_it_an_estimate():
    ledger = Ledger()
    ledger.step(**SAMPLED, audit=LEVELS, caveats=["left-out", "earlier-norms"])
    claims = ledger.claims()
    assert claims.risk.everyone.kind == claims.everyone.kind == "estimate"
    assert claims.risk.everyone.assumptions == claims.everyone.assumptions
    assert "finds about" in claims.risk.everyone.statement()
    assert claims.risk.share(0.5).assumptions == claims.share(0.5).estimate.assumptions


def test_it_is_said_in_every_form(claims):
    values = claims.to_dict()["risk"]
    assert set(values) == {"everyone", "shares"}
    assert values["everyone"]["tpr_at_fpr"].keys() == {"0.001", "0.01"}
    assert [share["share"] for share in values["shares"]] == [0.5, 0.9, 0.99]
    json.dumps(values, allow_nan=False)
    text = claims.statement(all=True)
    assert claims.risk.everyone.statement() in text
    printed = re.search(r"For everyone: an attacker who accepts 1 % false alarms finds at most ([\d.]+) %", text)
    assert float(printed[1]) / 100 >= claims.risk.everyone.risk.tpr[1]
    assert "finds about" in claims.risk.share(0.5).statement()
    assert "| Risk for everyone | **mu = " in claims.to_markdown(all=True)
    assert "true positives at 0.1 % false positives" in claims.risk.to_html()
