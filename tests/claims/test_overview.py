"""The run in a few sentences: every figure is a claim's, rounded up, and nothing is above the one for everyone."""

import json
import math
import re

import numpy as np
import pytest

from bayesdp import Budget, Gate, InvalidInputError, Ledger, Plan
from bayesdp.formatting import round_up

STEP = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.0}
PLAN = Plan(steps=40, **STEP)


def run(steps=40, records=600, loudness=-1.5, **declared):
    rng = np.random.default_rng(0)
    ledger = Ledger(**declared)
    for _ in range(steps):
        ledger.step(**STEP, audit=rng.lognormal(loudness, 0.8, records) if records else None)
    return ledger.claims()


RUNS = {
    "plan met": lambda: run(plan=PLAN, training_records=1297),
    "stopped early": lambda: run(10, plan=PLAN),
    "left its plan": lambda: run(50, plan=PLAN),
    "no plan": run,
    "budget": lambda: run(budget=Budget(epsilon=2.0, delta=1e-5)),
    "no audit": lambda: run(plan=PLAN, records=0),
    "few": lambda: run(plan=PLAN, records=50, unit="person"),
    "loud": lambda: run(plan=PLAN, loudness=3.0),
    "used": lambda: run(plan=PLAN, audit_used_for="the learning rate"),
    "gate": lambda: run(plan=PLAN, gate=Gate(epsilon=1.0, delta=1e-6, share=0.9, gamma=0.01, records=600)),
}


@pytest.fixture(scope="module", params=list(RUNS))
def claims(request):
    return RUNS[request.param]()


def test_it_is_about_ten_lines(claims):
    lines = claims.statement().splitlines()
    assert str(claims) == claims.statement()
    assert lines[0].startswith("Advice: ") == (claims.advice is not None)
    lines = lines[claims.advice is not None :]
    assert len(lines) <= 11
    assert [line.split(":")[0] for line in lines[:2]] == ["Trained", "Guarantee for everyone"]


def test_every_share_that_is_sure_is_named_with_its_claim(claims):
    said = claims.overview()
    for pair in claims.shares:
        claim = pair.ex_post
        name = "half" if claim.share == 0.5 else f"{100 * claim.share:g} %"
        if claim.reason:
            assert f"or {name} there is no claim, because {claim.reason}." in said.left_out
        elif claim.own_epsilon is None and claim.kind == "ex-post":
            same = [one.ex_post for one in claims.shares if one.ex_post.share > claim.share]
            larger = any(round_up(one.epsilon) == round_up(claim.epsilon) for one in same)
            words = f"{name} (have epsilon )?at most {re.escape(round_up(claim.epsilon))}"
            assert larger or re.search(words, said.left_out)


def test_nothing_is_said_above_the_figure_for_everyone(claims):
    most, said = float(round_up(claims.everyone.epsilon)), claims.overview()
    for text in (said.left_out, said.members or "", said.estimate or ""):
        found = re.findall(r"(?:at most|about) (\d[\d.]*\d|\d)", text) + re.findall(r"(\d[\d.]*) \(\d", text)
        assert all(float(number) <= most for number in found), text


def test_the_same_sentences_are_in_every_form(claims):
    said = claims.overview()
    plain = claims.to_markdown().replace("\\", "")
    for label, text in said.lines():
        assert f"{label}: {text}" in claims.statement()
        assert f"| {label} | " in plain
        assert text.split("'")[0] in plain
        assert f"<th>{label}</th>" in claims._repr_html_()
    values = json.loads(json.dumps(claims.to_dict(), allow_nan=False))["statement"]
    assert values["everyone"] == said.everyone
    assert claims.statement(all=True).startswith(claims.statement())


def test_what_was_trained():
    assert RUNS["plan met"]().overview().trained == (
        "40 steps on 1,297 rows, at delta = 1e-05 (1 in 100,000) for each figure. One row counts as one person."
    )
    assert (
        RUNS["few"]().overview().trained
        == "40 steps, at delta = 1e-05 (1 in 100,000) for each figure. Each record is one person."
    )


def test_the_guarantee_names_what_it_rests_on():
    assert "(proved for the plan of 40 steps)" in RUNS["stopped early"]().overview().everyone
    assert "(proved for the budget of 2.0 at delta 1e-05)" in RUNS["budget"]().overview().everyone
    left = RUNS["left its plan"]().overview()
    assert "(proved if the number of steps" in left.everyone
    assert left.cautions == ("The run left its plan: 50 steps were taken, 40 were planned.",)


def test_without_an_audit_set_nothing_is_said_about_typical_people():
    said = RUNS["no audit"]().overview()
    assert said.left_out == "there is no audit set, so nothing can be said about typical people."
    assert said.members is said.estimate is None
    assert not any("audit people" in text for text in said.not_covered)
    assert any("the 50 audit people" in text for text in RUNS["few"]().overview().not_covered)


def test_loud_people_have_what_everyone_has():
    said = RUNS["loud"]().overview()
    assert said.members == "no better than for everyone."
    assert said.estimate == "no better than for everyone."


def test_shares_are_capped_by_what_everyone_left_out_has():
    """With sampling, that is less than for everyone, and proved: no ex-post figure is shown above it."""
    claims = RUNS["loud"]()
    left_out = claims.left_out
    assert left_out.epsilon < 0.95 * claims.everyone.epsilon
    assert (left_out.direction, left_out.kind, left_out.for_whom()) == (
        "record out",
        "proved",
        "For everyone who was left out",
    )
    for pair in claims.shares:
        assert pair.ex_post.epsilon == left_out.epsilon < pair.ex_post.own_epsilon
        assert pair.ex_post.headline().startswith("For at least")
        assert "no better than for everyone who was left out" in pair.ex_post.headline()
    figure = round_up(left_out.epsilon)
    assert (
        claims.overview().left_out
        == f"for half, 90 % and 99 % of them it is at most {figure}, as for everyone left out."
    )
    assert claims.to_dict()["left_out"]["epsilon"] == left_out.epsilon
    assert run(plan=PLAN, loudness=-6.0).left_out is not None
    unsampled = Ledger()
    unsampled.step(noise_std=2.0, sample_rate=1.0, clip=1.0, audit=np.full(600, 3.0))
    assert unsampled.claims().left_out is None
    assert "there is no figure below the one for everyone" in unsampled.claims().overview().left_out


def test_figures_that_rest_on_a_condition_name_it():
    """Without a plan those for members, and those of everyone left out, hold only if nobody looked."""
    condition = ", on the same condition as the guarantee."
    loud, mixed = run(loudness=3.0), run()
    assert "if the number of steps and the settings did not depend" in mixed.overview().everyone
    figure = round_up(loud.left_out.epsilon)
    assert f"it is at most {figure}, as for everyone left out{condition}" in loud.overview().left_out
    assert mixed.members[0].condition is not None
    assert mixed.members[0].own_epsilon is None
    assert condition in mixed.overview().members
    for planned in (run(plan=PLAN), run(plan=PLAN, loudness=3.0)):
        assert "condition" not in planned.statement()


def test_several_rows_are_covered_when_they_are_asked_for():
    ledger = Ledger(plan=PLAN)
    for _ in range(40):
        ledger.step(**STEP)
    claims = ledger.claims(rows=3)
    assert "people with more than one row" in ledger.claims().overview().not_covered
    assert "people with more than one row" not in claims.overview().not_covered
    assert claims.overview().several_rows.startswith(
        f"for a person with up to 3 rows: epsilon at most {round_up(claims.for_rows.epsilon)} (proved for the plan"
    )


def test_a_delta_that_allows_to_publish_a_record_is_cautioned_against():
    ledger = Ledger(training_records=1000)
    assert ledger.claims(delta=0.99e-3).overview().cautions == ()
    [caution] = ledger.claims(delta=1e-3).overview().cautions
    assert "delta=0.001 is at least 1 / 1000 records" in caution


def test_seeded_noise_is_the_first_line():
    ledger = Ledger()
    ledger.step(**STEP, caveats=["seeded"])
    assert ledger.claims().statement().startswith("NOT FOR RELEASE")


def test_a_step_without_a_clip_bound_guarantees_nothing():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.1, clip=None, audit=[0.1] * 50)
    said = ledger.claims().overview()
    assert said.everyone == "none, because a step without a clip bound has no worst case."
    assert said.guessing is None
    assert math.isinf(ledger.claims().everyone.epsilon)


@pytest.mark.parametrize(("name", "value"), [("training_records", 0), ("training_records", 1.5), ("unit", "household")])
def test_bad_declarations_are_refused_before_anything_is_written(tmp_path, name, value):
    with pytest.raises(InvalidInputError, match=f"{name}="):
        Ledger.create(tmp_path / "run.ledger", **{name: value})
    assert list(tmp_path.iterdir()) == []


def test_what_was_declared_is_kept_and_survives_composition(tmp_path):
    declared = {"training_records": 500, "unit": "person", "data": "survey"}
    with Ledger.create(tmp_path / "a.ledger", **declared) as first, Ledger(**declared) as second:
        first.step(**STEP)
        second.step(**STEP)
        both = first.then(second)
        assert (both.training_records, both.unit) == (500, "person")
        other = Ledger(training_records=400, data="survey")
        other.step(**STEP)
        assert (first.then(other).training_records, first.then(other).unit) == (None, "row")
    with Ledger.open(tmp_path / "a.ledger") as opened:
        assert (opened.training_records, opened.unit) == (500, "person")
