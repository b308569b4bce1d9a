"""Claims about members: runs of known law in which taking part changes one's own exposure, and exact adversaries."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, norm

from bayesdp import Ledger, Plan
from bayesdp.claims.everyone import everyone_claim
from bayesdp.claims.members import LEVELS, level_claims, member_claims
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import NO_AUDIT
from bayesdp.guarantees.clip_bound import ClipBound, worst_case_of_many
from bayesdp.guarantees.trade_off import probability_with
from bayesdp.profiles import gaussian_delta, gaussian_epsilon

# The bound on probabilities


@given(st.floats(1e-6, 0.999), st.floats(0.01, 4.0))
def test_an_event_can_become_this_probable_and_no_more(without, mu):
    """1 - f(a) = Phi(Phi^-1(a) + mu) for a Gaussian: the bound is never below it, and close."""
    epsilons = np.linspace(0, float(gaussian_epsilon(mu, 1e-9)), 128)
    bound = float(probability_with(np.array(without), epsilons, gaussian_delta(mu, epsilons)))
    truth = norm.cdf(norm.ppf(without) + mu)
    assert truth <= bound * (1 + 1e-9)
    assert bound <= min(1.0, truth * 1.05 + 1e-6)


# A procedure that memorises: who takes part makes their own later steps loud


class Memorising:
    """One step of exposure 1/noise for all; then a second one, loud for those whose first output was large.

    Outputs along a person's own direction are N(0, 1), or N(exposure, 1) if the person took part. People differ in
    their first exposure. Without sampling, so costs are sums of squares.
    """

    def __init__(self, seed: int, noise: float, threshold: float) -> None:
        self.rng, self.noise, self.threshold = np.random.default_rng(seed), noise, threshold
        self.plan = Plan(steps=2, noise_std=noise, sample_rate=1.0, clip=1.0)

    def norms(self, people: int, *, member: bool) -> np.ndarray:
        """The norms of both steps, [2, people]."""
        first = np.minimum(1.0, self.rng.lognormal(-1.0, 0.7, people))
        output = self.rng.standard_normal(people) + (first / self.noise if member else 0.0)
        return np.stack([first, np.where(output > self.threshold, 1.0, 0.2 * first)])

    def figures(self, norms: np.ndarray) -> RecordFigures:
        ledger = Ledger(plan=self.plan)
        for row in norms:
            ledger.step(noise_std=self.noise, sample_rate=1.0, clip=1.0, audit=row)
        return RecordFigures(ledger, 1e-5, math.inf)


@pytest.mark.parametrize(("noise", "threshold"), [(4.0, 1.5), (1.0, 1.5), (0.5, 2.0)])
def test_members_of_a_procedure_that_memorises(noise, threshold):
    """How often a member's own epsilon, or cost, exceeds what was claimed: over audit sets, runs and members."""
    procedure, runs, records = Memorising(0, noise, threshold), 100, 99
    planned = ClipBound.of([(noise, 1.0, 2)])
    everyone = everyone_claim(worst_case_of_many([(noise, 1.0, 2)], 1e-5))
    shares = (0.5, 0.8, 0.95)
    exceeding = dict.fromkeys(shares, 0)
    beyond_level: dict[float, list[bool]] = {}
    claimed = 0
    for _ in range(runs):
        figures = procedure.figures(procedure.norms(records, member=False))
        own = procedure.figures(procedure.norms(1, member=True))
        for claim in member_claims(figures, planned, shares, 1e-5, everyone):
            if claim.own_epsilon is None and claim.reason is None:
                claimed += 1
                exceeding[claim.share] += own.ex_post_in[0] > claim.epsilon
        for claim in level_claims(figures, planned, 1e-5, everyone):
            budget = next(level for level in LEVELS if f"{100 * level:g} %" in claim.method) * 2 / noise**2
            beyond_level.setdefault(claim.share, []).append(own.costs[0, 0] > budget)
    for share, count in exceeding.items():
        assert count <= binom.isf(1e-6, runs, 1 - share)
    for share, beyond in beyond_level.items():
        assert sum(beyond) <= binom.isf(1e-6, len(beyond), 1 - share)
    assert claimed > 0 or noise < 1


def test_those_who_took_part_do_exceed_the_audit_set():
    """Without the correction the claim would be false: members exceed the audit median far more than half the time."""
    procedure, above = Memorising(1, 0.5, 0.5), 0
    for _ in range(600):
        audit = procedure.norms(99, member=False)
        own = procedure.norms(1, member=True)
        above += float((own**2).sum()) > float(np.median((audit**2).sum(axis=0)))
    assert above > binom.isf(1e-6, 600, 0.5)


# Exact: a single person, an adversary who decides the second exposure from the first output


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("threshold", [0.0, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("mu", [0.2, 1.0, 1.67])
def test_levels_against_an_adversary_that_is_known_exactly(mu, level, threshold):
    """Everyone exceeds the level if and only if their own first output is large: P_in(F) against its bound.

    The first exposure is all of the level. P_out(F) is the probability of a large output and of at most k such among
    the audit records; the stopped run, which never takes the second step, is what the bound speaks of.
    """
    exposure, records = mu * math.sqrt(level), 50
    out, inside = norm.sf(threshold), norm.sf(threshold - exposure)
    for allowed in (0, 2, 10, 25):
        others = binom.cdf(allowed, records, out)
        epsilons = np.linspace(0, float(gaussian_epsilon(exposure, 1e-9)), 128)
        bound = probability_with(np.array((allowed + 1) / (records + 1)), epsilons, gaussian_delta(exposure, epsilons))
        assert out * others <= (allowed + 1) / (records + 1)
        assert inside * others <= float(bound)


# Claims

STEP = {"noise_std": 8.0, "sample_rate": 1.0, "clip": 1.0}


def ledger_of(norms, steps=20, plan=True, **step):
    settings = {**STEP, **step}
    ledger = Ledger(plan=Plan(steps=steps, **settings) if plan else None)
    for _ in range(steps):
        ledger.step(**settings, audit=norms)
    return ledger


def test_quiet_people_have_less_than_everyone():
    claims = ledger_of(np.linspace(0.05, 0.3, 999)).claims()
    half, most, nearly_all = claims.members
    assert [claim.share for claim in claims.members] == [0.5, 0.9, 0.99]
    assert 0 < half.epsilon < most.epsilon < nearly_all.epsilon < claims.everyone.epsilon
    assert {claim.kind for claim in claims.members} == {"ex-post"}
    assert {claim.direction for claim in claims.members} == {"record in"}
    assert all(claim.gamma == 0 for claim in claims.members)
    assert half.for_whom() == "For a person trained on, with probability at least 50 %"
    assert half.epsilon > claims.share(0.5).ex_post.epsilon  # as members may have changed the run
    assert [claim.epsilon for claim in claims.levels] == sorted(claim.epsilon for claim in claims.levels)
    assert len(claims.levels) == len(LEVELS)
    assert all(claim.share > 0.99 for claim in claims.levels)
    values = json.loads(json.dumps(claims.to_dict(), allow_nan=False))
    assert [line["share"] for line in values["members"]] == [0.5, 0.9, 0.99]
    assert all(line["epsilon"] < claims.everyone.epsilon for line in values["members"] + values["levels"])


def test_levels_are_exact_without_sampling():
    claims = ledger_of(np.full(200, 0.1)).claims()
    exposure = math.sqrt(20) / 8
    for level, claim in zip(LEVELS, claims.levels, strict=True):
        assert claim.epsilon == pytest.approx(float(gaussian_epsilon(exposure * math.sqrt(level), 1e-5)), rel=1e-6)
        assert claim.share == pytest.approx(1 - norm.cdf(norm.ppf(1 / 201) + exposure * math.sqrt(level)), abs=2e-3)


def test_loud_people_are_no_better_than_everyone():
    claims = ledger_of(np.full(2000, 2.0)).claims()
    for claim in claims.members:
        assert claim.epsilon == claims.everyone.epsilon
        assert claim.own_epsilon > claim.epsilon
        assert "no better than for everyone" in claim.headline()
    assert claims.levels == ()


def test_sampled_runs_and_runs_without_a_plan():
    claims = ledger_of(np.linspace(0.05, 0.3, 999), sample_rate=0.2).claims()
    assert claims.members[0].epsilon < claims.everyone.epsilon
    assert claims.levels
    without = ledger_of(np.linspace(0.05, 0.3, 999), plan=False).claims()
    assert without.members[0].condition == without.everyone.condition != None  # noqa: E711
    assert without.levels == ()


def test_no_levels_where_a_run_sampled_although_its_plan_does_not():
    """The costs of sampled steps at all orders may stay within those of a Gaussian, and its profile need not hold."""
    ledger = Ledger(plan=Plan(steps=20, **STEP))
    for rate in (0.5, 1.0):
        ledger.step(noise_std=8.0, sample_rate=rate, clip=1.0, audit=np.linspace(0.05, 0.3, 999))
    claims = ledger.claims()
    assert claims.everyone.condition is None
    assert claims.members[0].epsilon < claims.everyone.epsilon
    assert claims.levels == ()


def test_too_few_audit_records_and_none():
    few = ledger_of(np.full(5, 0.1)).claims()
    assert few.members[2].reason == "there are too few audit records for this share of the people trained on"
    assert math.isinf(few.members[2].epsilon)
    none = Ledger()
    none.step(**STEP)
    assert none.claims().members == ()
    assert NO_AUDIT in str(none.claims().average.reason)


def test_without_a_guarantee_for_everyone_there_is_nothing_to_start_from():
    ledger = Ledger()
    ledger.step(noise_std=8.0, sample_rate=1.0, clip=None, audit=[0.5] * 99)
    assert {claim.reason for claim in ledger.claims().members} == {"there is no guarantee for everyone to start from"}
