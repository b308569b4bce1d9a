"""All claims of a ledger as one object: names and positions, who is covered, what is missing and why, privacy."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.populations import spread
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesdp import Claim, Gate, InvalidInputError, Ledger, RunClaims, compose
from bayesdp.claims import ClaimRequest, compute_claims
from bayesdp.claims.everyone import OWN_GRADIENTS
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.estimators import order_statistic_rank
from bayesdp.profiles import gaussian_epsilon
from kept import forget_results

STEP = {"noise_std": 6.0, "sample_rate": 4096 / 60000, "clip": 1.0}


@pytest.fixture(scope="module")
def run() -> Ledger:
    ledger = Ledger(audit_groups=["north"] * 400 + ["south"] * 80 + ["sea"] * 20)
    for norms in spread(500, seed=0, steps=20):
        ledger.step(**STEP, audit=norms, batch=norms[:40])
    return ledger


def test_the_list_begins_with_the_worst_case_and_every_claim_carries_it(run):
    everyone, *others = run.claims()
    assert (everyone.audience, everyone.kind, everyone.direction) == ("everyone", "proved", "both")
    assert everyone.epsilon == run.worst_case(1e-5).epsilon
    assert all(claim.worst_case == everyone for claim in others)
    kinds = [claim.kind for claim in others]
    assert others[0] == run.claims().anytime  # without a plan
    assert others[1] == run.claims().left_out
    assert kinds[2:8] == ["ex-post", "estimate", "proved", "estimate", "proved", "estimate"]
    assert kinds[-2:] == ["estimate", "model-based"]
    json.dumps([claim.to_dict() for claim in run.claims()], allow_nan=False)


@pytest.fixture(scope="module")
def claims(run) -> RunClaims:
    return run.claims(rows=2, private=True)


def test_it_is_a_sequence_of_claims(claims):
    listed = list(claims)
    assert isinstance(claims, Sequence)
    assert len(claims) == len(listed) == 4 + 6 + 18 + 3 + 2 + 1
    assert all(isinstance(claim, Claim) for claim in listed)
    assert [claims[number] for number in range(len(claims))] == listed
    assert claims[-1] == listed[-1]
    assert claims[1:5] == listed[1:5]
    assert claims[::-1] == list(reversed(claims)) == listed[::-1]
    assert all(claim in claims for claim in listed)
    assert replace(listed[0], epsilon=0.0) not in claims
    assert (claims.index(listed[3]), claims.count(listed[3])) == (3, 1)
    first, *others = claims
    assert [first, *others] == listed
    with pytest.raises(IndexError):
        _ = claims[len(claims)]


def test_names_are_positions(claims):
    pairs = [claims.share(share) for share in (0.5, 0.9, 0.99)]
    for name in ("north", "sea", "south"):
        pairs += [claims.share(share, group=name) for share in (0.5, 0.9, 0.99)]
    named = [claims.everyone, claims.anytime, claims.left_out, claims.for_rows]
    for pair in pairs:
        named += [pair.ex_post, pair.estimate]
    assert list(claims) == [*named, *claims.members, claims.average, claims.bayesian, *claims.private]
    assert claims.gate == ()
    assert [claim.share for claim in named[4:10]] == [0.5, 0.5, 0.9, 0.9, 0.99, 0.99]
    assert claims.share(0.9, group="sea").ex_post.group == "sea"


def test_a_gate_has_its_name():
    gated = Ledger(gate=Gate(epsilon=1.0, delta=1e-5, share=0.9, gamma=0.01, records=100))
    gated.step(**STEP, audit=np.full(100, 0.1))
    claims = gated.claims()
    record_out, record_in = claims.gate
    assert (record_out.direction, record_in.direction) == ("record out", "record in")
    assert list(claims)[-2:] == [record_out, record_in]


@pytest.mark.parametrize("share", [0.95, 0.9000001, "half", None])
def test_a_share_that_was_not_requested_is_refused_in_one_line(claims, share):
    with pytest.raises(InvalidInputError) as refused:
        claims.share(share)
    assert str(refused.value) == f"share={share!r}: expected one of the requested shares: 0.5, 0.9, 0.99."


def test_an_unknown_group_is_refused_in_one_line(claims):
    with pytest.raises(InvalidInputError) as refused:
        claims.share(0.5, group="west")
    assert str(refused.value) == "group='west': expected one of the groups of audit records: north, sea, south."


def test_without_audit_records_no_share_has_claims():
    with pytest.raises(InvalidInputError, match=r"share=0\.5: expected .*: none, as a share needs"):
        Ledger().claims().share(0.5)


def test_equal_runs_have_equal_claims(run, claims):
    forget_results()
    assert run.claims(rows=2, private=True) == claims
    assert run.claims() != claims
    assert claims != list(claims)


def test_all_forms_say_every_claim(claims):
    statement, markdown = claims.statement(all=True), claims.to_markdown(all=True)
    numbered = [line for line in statement.splitlines() if line[0:1].isdigit()]
    assert numbered == [f"{n}. {claim.headline(with_kind=True)}" for n, claim in enumerate(claims, start=1)]
    assert markdown.count("|---|---|") == 1 + len(claims) + len(claims.risk.all())
    for claim in claims:
        assert claim.figure() in markdown.replace("\\", "")


def test_plain_values_are_json(claims):
    values = json.loads(json.dumps(claims.to_dict(), allow_nan=False))
    assert set(values) == {
        *("statement", "worst_case", "bayesian", "shares", "members", "levels", "average", "groups", "rows", "risk"),
        "left_out",
    }
    assert values["bayesian"]["epsilon"] == claims.bayesian.epsilon
    half = values["shares"][0]
    assert (half["epsilon"], half["estimate_epsilon"]) == (
        claims.share(0.5).ex_post.epsilon,
        claims.share(0.5).estimate.epsilon,
    )
    assert values["groups"]["sea"][2]["epsilon"] is None
    assert values["groups"]["sea"][2]["reason"] == claims.share(0.99, group="sea").ex_post.reason


def test_shares_are_order_statistics(run):
    figures = RecordFigures(run, 1e-5, run.worst_case(1e-5).epsilon)
    for pair, share in zip(
        compute_claims(run, ClaimRequest(gamma=0.05, shares=(0.3, 0.9))).shares, (0.3, 0.9), strict=True
    ):
        rank = order_statistic_rank(500, share, 0.05)
        own, left_out = np.sort(figures.ex_post)[rank - 1], run.claims().left_out.epsilon
        assert left_out < figures.worst_case
        assert pair.ex_post.epsilon == min(own, left_out)
        assert pair.ex_post.own_epsilon == (own if own > left_out else None)
        assert pair.estimate.epsilon == np.sort(figures.estimates)[rank - 1]
        assert pair.estimate.epsilon <= run.worst_case(1e-5).epsilon
        assert pair.ex_post.direction == "record out"
        assert (pair.ex_post.samples, pair.ex_post.gamma) == (500, 0.05)


def test_too_small_an_audit_set_is_said_with_what_would_do(run):
    (pair,) = compute_claims(run, ClaimRequest(shares=(0.9999,))).shares
    for claim in (pair.ex_post, pair.estimate):
        assert math.isinf(claim.epsilon)
        assert "needs 46050 audit records; there are 500" in claim.reason
        assert claim.to_dict()["epsilon"] is None


def test_groups_have_their_own_records(run):
    claims = compute_claims(run, ClaimRequest(shares=(0.9,), gamma=0.05))
    assert list(claims.groups) == ["north", "sea", "south"]
    north, sea, south = (claims.share(0.9, group=name).ex_post for name in ("north", "sea", "south"))
    assert [claim.samples for claim in (north, sea, south)] == [400, 20, 80]
    assert "there are 20" in sea.reason
    assert "group 'north'" in str(north)
    assert math.isfinite(south.epsilon)


def test_jointly_gamma_is_shared_out(run):
    alone = compute_claims(run, ClaimRequest(shares=(0.5, 0.9), gamma=0.08))
    together = compute_claims(run, ClaimRequest(shares=(0.5, 0.9), gamma=0.08, joint=True))
    assert together.share(0.5).ex_post.gamma == pytest.approx(0.01)  # two shares, for all and for three groups
    for share in (0.5, 0.9):
        assert together.share(share).ex_post.epsilon >= alone.share(share).ex_post.epsilon
    assert "hold together with 92 % confidence" in str(together.share(0.5).ex_post)
    assert "by itself" in str(alone.share(0.5).ex_post)


def test_what_comes_from_training_members_is_left_out_unless_asked_for(run):
    assert not any(claim.private for claim in run.claims())
    private = [claim for claim in run.claims(private=True) if claim.private]
    assert len(private) == 1
    assert "batches" in private[0].method


@pytest.mark.parametrize("estimator", ["betting", "kullback-leibler", "empirical-bernstein"])
def test_every_estimator_of_the_average(run, estimator):
    average = compute_claims(run, ClaimRequest(estimator=estimator)).average
    assert 0 < average.epsilon <= run.worst_case(1e-5).epsilon
    assert average.kind == "estimate"
    fixed = compute_claims(run, ClaimRequest(estimator=estimator, fixed_exposures=True)).average
    assert fixed.kind == ("estimate" if estimator == "empirical-bernstein" else "proved")


def test_without_sampling_the_estimate_is_the_gaussian_profile():
    rng = np.random.default_rng(1)
    ledger = Ledger()
    norms = rng.random((10, 60))
    for row in norms:
        ledger.step(noise_std=8.0, sample_rate=1.0, clip=1.0, audit=row)
    (pair,) = compute_claims(ledger, ClaimRequest(shares=(0.5,), gamma=0.05)).shares
    exact = np.sort(gaussian_epsilon(np.sqrt((norms**2).sum(axis=0)) / 8.0, 1e-5))
    rank = order_statistic_rank(60, 0.5, 0.05)
    assert exact[rank - 1] <= pair.estimate.epsilon <= exact[rank - 1] * 1.005
    assert "Gaussian" in pair.estimate.method


def test_ledgers_without_audit_records_or_steps():
    empty = Ledger()
    claims = compute_claims(empty, ClaimRequest())
    assert claims.everyone.epsilon == 0
    assert list(claims.shares) == []
    assert "no audit records" in claims.average.reason
    assert "no audit records" in claims.bayesian.reason
    few = Ledger()
    few.step(**STEP, audit=[0.5, 0.1])
    assert "needs 3 audit records" in compute_claims(few, ClaimRequest()).average.reason


def test_without_a_clip_bound_there_is_no_worst_case_but_shares_hold():
    rng = np.random.default_rng(2)
    ledger = Ledger()
    for _ in range(10):
        ledger.step(noise_std=5.0, sample_rate=0.1, clip=None, audit=rng.random(200))
    claims = compute_claims(ledger, ClaimRequest(shares=(0.5, 0.9)))
    assert "without a clip bound" in claims.everyone.reason
    assert all(0 < pair.ex_post.epsilon < 2 for pair in claims.shares)
    assert claims.average.reason  # 200 records cannot exclude a share of a thousandth that loses everything
    json.dumps([claim.to_dict() for claim in claims], allow_nan=False)


def test_records_beyond_the_grid_have_no_epsilon():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[1e9] * 80 + [0.1] * 20)
    (pair,) = compute_claims(ledger, ClaimRequest(shares=(0.5,))).shares
    assert pair.ex_post.reason == pair.estimate.reason == "the noise is too small for these norms"


def test_groups_survive_composition():
    first = Ledger(audit_ids=["a", "b"], audit_groups=["x", "y"])
    second = Ledger(audit_ids=["b", "a"], audit_groups=["y", "x"])
    for ledger in (first, second):
        ledger.step(**STEP, audit=[0.5, 0.1])
    assert compose([first, second]).audit_groups == ["x", "y"]
    other = Ledger(audit_ids=["a", "b"], audit_groups=["x", "x"])
    other.step(**STEP, audit=[0.5, 0.1])
    assert compose([first, other]).audit_groups is None


@settings(max_examples=5)
@given(st.integers(0, 1000), st.sampled_from([0.01, 0.3, 1.0]), st.sampled_from([1e-3, 1e-6, 1e-9]))
def test_more_exposure_never_gives_less(seed, rate, delta):
    rng = np.random.default_rng(seed)
    norms = rng.random((8, 40))
    louder = norms * (1 + rng.random((8, 40)))
    found = []
    for table in (norms, louder):
        ledger = Ledger()
        for row in table:
            ledger.step(noise_std=3.0, sample_rate=rate, clip=1.5, audit=row)
        found.append(compute_claims(ledger, ClaimRequest(delta=delta, shares=(0.5, 0.8), gamma=0.05)))
    for quiet, loud in zip(found[0].shares, found[1].shares, strict=True):
        assert quiet.ex_post.epsilon <= loud.ex_post.epsilon
        assert quiet.estimate.epsilon <= loud.estimate.epsilon * 1.01  # kinds of steps are chosen anew
    assert found[0].average.epsilon <= found[1].average.epsilon * 1.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0}, "delta=0"),
        ({"gamma": 1}, "gamma=1"),
        ({"shares": [0.5, 2]}, "shares=2"),
        ({"estimator": "hope"}, "estimator='hope': expected one of betting"),
        ({"rows": 0}, "rows=0"),
    ],
)
def test_refused(run, options, message):
    with pytest.raises(ValueError, match=message):
        run.claims(**options)


@pytest.mark.parametrize("groups", ["abc", [], [1, 2], ["a", ""], ["a", "\ud800"]])
def test_bad_groups_are_refused(groups):
    with pytest.raises(ValueError, match="audit_groups="):
        Ledger(audit_groups=groups)


def test_names_of_groups_are_compared_as_they_are():
    ledger = Ledger(audit_groups=["a"] * 3 + ["a\0"] * 2)
    ledger.step(**STEP, audit=[0.1, 0.2, 0.3, 0.4, 0.5])
    groups = compute_claims(ledger, ClaimRequest(shares=(0.1,), gamma=0.5)).groups
    assert [pairs[0].ex_post.samples for pairs in groups.values()] == [3, 2]


@pytest.mark.parametrize(
    "settings",
    [
        {"noise_std": 1e6, "sample_rate": 0.1, "clip": 1.0},
        {"noise_std": 1.0, "sample_rate": 1e-300, "clip": 1.0},
        {"noise_std": 0.03, "sample_rate": 0.1, "clip": 1.0},
        {"noise_std": 1e-6, "sample_rate": 1.0, "clip": 1.0},
        {"noise_std": 1e9, "sample_rate": 0.5, "clip": 1e-3},
    ],
)
@pytest.mark.parametrize("delta", [0.9, 1e-5, 1e-300])
def test_settings_at_the_edge_give_figures_or_reasons(settings, delta):
    ledger = Ledger()
    for _ in range(2):
        ledger.step(**settings, audit=np.linspace(0, 2, 20))
    for claim in ledger.claims(delta=delta, shares=(0.5,), private=True, rows=2):
        values = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
        assert (values["epsilon"] is None) == bool(values["reason"])
        assert values["epsilon"] is None or values["epsilon"] >= 0


def test_groups_must_fit_the_ids():
    with pytest.raises(ValueError, match=r"len\(audit_groups\)=1"):
        Ledger(audit_ids=[1, 2], audit_groups=["a"])


@pytest.mark.parametrize(("source", "named"), [("opacus", True), ("jax_privacy", True), ("arrays", False)])
def test_what_a_training_loop_of_somebody_else_may_not_do_is_said(source, named):
    """In every claim, in the statement too; whoever hands over norms has computed them by themselves."""
    ledger = Ledger()
    ledger.step(**STEP, audit=np.full(10, 0.5), source=source)
    claims = ledger.claims()
    assert {OWN_GRADIENTS.text in claim.assumptions for claim in claims} == {named}
    assert (OWN_GRADIENTS.text in claims.statement()) == named
    assert claims.everyone.kind == "proved"
