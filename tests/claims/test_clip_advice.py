"""Advice about the clip bound: its figures are those of a ledger that recorded the same gradients at that bound."""

import json
import math
import re
import sys

import numpy as np
import pytest

from bayesdp import Ledger, Plan
from bayesdp.claims.clip_advice import AFTER_A_CHOICE, HELPS, NOTES, clip_advice
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.shares import share_epsilon
from bayesdp.cli import main
from bayesdp.formatting import round_up
from bayesdp.guarantees.selection import Selection
from bayesdp.report.live import LiveView

RECORDS = 100
RUNS = {
    "full batch": (40, 1.0, 15.0, 0.5),
    "sampled": (40, 0.1, 1.2, 0.5),
    "norms that never change": (40, 0.1, 1.5, 0.0),
}
LONG = {"rarely sampled": (300, 0.01, 0.8, 0.5), "wild norms": (100, 0.05, 1.0, 2.0)}


def norms_of(step, spread, records=RECORDS):
    people = np.random.default_rng(7).lognormal(1.5, 0.7, records)
    return people * np.random.default_rng(step).lognormal(0, spread, records)


def run(steps, rate, noise, spread, clip=1.0, source="arrays", **declared):
    ledger = Ledger(**declared)
    for step in range(steps):
        settings = {"noise_std": noise * clip, "sample_rate": rate, "clip": clip, "source": source}
        ledger.step(**settings, audit=norms_of(step, spread))
    return ledger


def figures(ledger, delta=1e-5):
    return RecordFigures(ledger, delta, ledger.worst_case(delta).epsilon)


def advice(ledger, delta=1e-5, gamma=0.01):
    return clip_advice(ledger, figures(ledger, delta), gamma)


@pytest.mark.parametrize("name", [*RUNS, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)])
def test_figures_are_those_of_a_run_at_the_other_bound(name):
    """The oracle: the same norms, recorded with that clip bound and noise. At most 8 % higher, 2 % lower."""
    steps, rate, noise, spread = {**RUNS, **LONG}[name]
    found = advice(run(steps, rate, noise, spread))
    assert found.shares == (0.5, 0.9)
    checked = [bound for bound in found.bounds if bound.factor in (1, 4, 16)]
    assert [bound.factor for bound in checked][:2] == [1, 4]
    for bound in checked:
        other = figures(run(steps, rate, noise, spread, clip=bound.factor))
        assert other.worst_case == pytest.approx(found.everyone, rel=1e-12)
        for share, epsilon in zip(found.shares, bound.epsilons, strict=True):
            real = share_epsilon(other.estimates, share, 0.01)
            assert 0.98 * real <= epsilon <= 1.08 * real
            assert epsilon == real or bound.factor != 1
        clipped = np.mean([norms_of(step, spread) > bound.factor for step in range(steps)])
        assert bound.clipped == pytest.approx(clipped, abs=1e-12)


def test_nothing_is_above_the_figure_for_everyone_and_a_larger_bound_never_costs_half_more():
    found = advice(run(*RUNS["sampled"]))
    halves = [bound.epsilons[0] for bound in found.bounds]
    assert all(epsilon <= found.everyone for bound in found.bounds for epsilon in bound.epsilons)
    assert halves == sorted(halves, reverse=True)
    assert halves[0] > 0.9 * found.everyone
    assert halves[-1] < 0.1 * found.everyone
    factors = [bound.factor for bound in found.bounds]
    assert factors == sorted(factors)
    assert 1.0 in factors
    assert len(factors) <= 12


def test_the_statement_begins_with_it_where_most_are_clipped():
    ledger = run(*RUNS["sampled"])
    claims = ledger.claims()
    first, second, third = claims.statement().splitlines()[:3]
    assert re.fullmatch(
        r"Advice: 9\d % of the gradients of audit records are clipped at the clip bound 1, so typical people lose as "
        r"much as anyone; at (\d+), with the same worst case, half would be at about (0\.\d+) of it\.",
        first,
    )
    assert (second.split(":")[0], third.split(":")[0]) == ("Trained", "Guarantee for everyone")
    found = advice(ledger)
    assert found.sentence == claims.advice == claims.overview().advice == first.removeprefix("Advice: ")
    assert claims.to_dict()["statement"]["advice"] == claims.advice
    clip, part = re.findall(r"at (\d+), .* about (0\.\d+)", first)[0]
    [bound] = [bound for bound in found.bounds if bound.clip == float(clip)]
    assert part == round_up(bound.epsilons[0] / found.everyone, 2)
    assert bound.epsilons[0] <= HELPS * found.everyone
    assert all(b.epsilons[0] > HELPS * found.everyone for b in found.bounds if b.factor <= bound.factor / 2)
    assert claims.to_markdown().index("Guarantee for everyone") < claims.to_markdown().index("Advice")


def test_it_names_what_a_user_of_opacus_sets_and_bounds_that_changed():
    assert "the clip bound 1 (max_grad_norm), so" in run(*RUNS["full batch"], source="opacus").claims().advice
    ledger = Ledger()
    for step, clip in enumerate([1.0, 2.0] * 10):
        ledger.step(noise_std=9 * clip, sample_rate=1.0, clip=clip, audit=norms_of(step, 0.3))
    assert re.search(r"clipped at their clip bounds, .*; at \d+ times these, with", ledger.claims().advice)
    assert all(bound.clip is None for bound in advice(ledger).bounds)


def test_nothing_is_said_where_most_are_not_clipped():
    ledger = run(10, 1.0, 8.0, 0.3, clip=16.0)
    claims = ledger.claims()
    assert claims.advice is None
    assert claims.statement().startswith("Trained")
    found = advice(ledger)
    assert found.sentence is None
    assert found.bounds[0].factor < 1
    assert found.reason is None


@pytest.mark.parametrize("norm", [0.0, 5e-324, 1.0, 1e308])
def test_hostile_norms(norm):
    """All norms 0, tiny, exactly at the bound, or beyond every bound: figures stay finite, and are those of the run."""
    ledger = Ledger()
    for _ in range(20):
        ledger.step(noise_std=2.0, sample_rate=0.1 if norm > 1 else 1.0, clip=1.0, audit=np.full(60, norm))
    found = advice(ledger)
    assert all(0 <= epsilon <= found.everyone for bound in found.bounds for epsilon in bound.epsilons)
    if norm == 1e308:
        assert {bound.clipped for bound in found.bounds} == {1.0}
        assert found.sentence == (
            "100 % of the gradients of audit records are clipped at the clip bound 1, so typical people lose as much "
            "as anyone."
        )
    else:
        assert found.sentence is None
    assert json.dumps(found.to_dict(), allow_nan=False)


def test_steps_without_norms_cost_the_same_at_every_bound():
    ledger = Ledger()
    for step in range(40):
        ledger.step(noise_std=9.0, sample_rate=1.0, clip=1.0, audit=None if step % 2 else norms_of(step, 0.3))
    found = advice(ledger)
    assert found.bounds[-1].epsilons[0] > 0.6 * found.everyone
    assert "so typical people lose as much as anyone" in found.sentence
    assert len(found.bounds) < 12  # the table ends where a larger bound changes nothing


def test_why_there_is_no_advice():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0)
    for made, reason in [
        (ledger, "there are no norms of audit records"),
        (Ledger(), "there is no figure for everyone to compare with"),
    ]:
        found = advice(made)
        assert (found.reason, found.bounds, found.to_dict()["notes"]) == (reason, (), [])
    few = Ledger()
    few.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=[5.0] * 6)
    assert advice(few).reason == "a share of 50 % at gamma=0.01 needs 7 audit records; there are 6"
    assert few.claims().advice is None
    unclipped = Ledger()
    unclipped.step(noise_std=1.0, sample_rate=1.0, clip=None, audit=[5.0] * 20)
    assert math.isinf(advice(unclipped).everyone)
    assert advice(unclipped).to_dict()["everyone"] is None
    assert advice(unclipped).reason == "there is no figure for everyone to compare with"


def test_the_notes_say_what_it_rests_on():
    said = " ".join(NOTES)
    for words in ("estimates", "another model", "learning rate", "accuracy", 'audit_used_for="the clip bound"'):
        assert words in said


def test_a_run_that_is_chosen_among_others_gets_no_advice(tmp_path, monkeypatch, capsys):
    """The figures of the run include the choice, and those at other bounds would not."""
    steps, rate, noise, spread = RUNS["full batch"]
    plan = Plan(steps=steps, noise_std=noise, sample_rate=rate, clip=1.0)
    chosen, alone = (run(steps, rate, noise, spread, plan=plan, selection=s) for s in (Selection(mean=5), None))
    chosen.mark_chosen()
    assert alone.claims().advice
    assert advice(alone).bounds
    assert chosen.claims().advice is None
    assert advice(chosen).bounds == ()
    assert advice(chosen).reason == AFTER_A_CHOICE
    view = LiveView(chosen)
    view.line()
    assert view.advice() == ""
    path = tmp_path / "run.ledger"
    with Ledger.create(path, plan=plan, selection=Selection(mean=5)) as ledger:
        ledger.step(noise_std=noise, sample_rate=rate, clip=1.0, audit=norms_of(1, spread))
    monkeypatch.setattr(sys, "argv", ["bayesdp", "advise", str(path)])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == f"No advice about the clip bound: {AFTER_A_CHOICE}.\n"
