"""A run that was chosen among others: its claims cover the choice, in the ledger too, or are withheld with a reason."""

import json
import math

import numpy as np
import pytest
from scipy.special import ndtr

from bayesdp import Budget, Ledger, Plan, compose
from bayesdp.claims.record_figures import RecordFigures
from bayesdp.claims.selected import CHOSEN, LEFT_PLAN, WITHHELD
from bayesdp.guarantees.selection import GaussianTrial, SelectedBound, Selection
from bayesdp.guarantees.trade_off import guaranteed_risk
from bayesdp.ledger import LedgerError
from bayesdp.report.chart_data import by_delta, over_training
from bayesdp.report.release_checks import release_checks
from bayesdp.report.summary import summary, words
from selected_runs import SELECTION, SETTINGS, STEPS, recorded


@pytest.fixture(scope="module")
def alone():
    return recorded(None).claims()


@pytest.fixture(scope="module")
def chosen():
    return recorded().claims()


def test_everyone_pays_for_the_choice(alone, chosen):
    bound = SelectedBound(GaussianTrial(math.sqrt(STEPS) / 100), SELECTION)
    assert chosen.everyone.epsilon == pytest.approx(float(bound.epsilons([1e-5])[0]), rel=1e-5)
    assert chosen.everyone.epsilon > 1.3 * alone.everyone.epsilon
    assert chosen.everyone.kind == "proved"
    assert chosen.worst_case.rdp_epsilon > chosen.worst_case.epsilon  # dp-accounting's
    assert chosen.selection.trial_epsilon == pytest.approx(alone.everyone.epsilon, rel=1e-5)
    assert chosen.risk.everyone.risk.advantage > alone.risk.everyone.risk.advantage


def test_figures_of_shares_and_members_pay_too(alone, chosen):
    ratio = SelectedBound(GaussianTrial(math.sqrt(STEPS) / 100), SELECTION).log_ratio
    at = recorded(None).claims(delta=1e-5 / SELECTION.mean)
    for share in (0.5, 0.9):
        assert chosen.share(share).ex_post.epsilon == pytest.approx(at.share(share).ex_post.epsilon + ratio, rel=1e-5)
        assert chosen.share(share).estimate.epsilon == pytest.approx(at.share(share).estimate.epsilon + ratio, rel=1e-5)
        assert chosen.share(share).ex_post.kind == "ex-post"
    for before, after in zip(alone.members, chosen.members, strict=True):
        assert before.epsilon + ratio < after.epsilon <= chosen.everyone.epsilon
    assert all(CHOSEN in claim.assumptions for claim in (chosen.everyone, chosen.share(0.5).ex_post))


def test_what_is_not_known_after_a_choice_is_withheld(chosen):
    for claim in (chosen.average, chosen.bayesian, *chosen.risk.shares):
        assert claim.reason == WITHHELD
    assert chosen.levels == ()
    assert chosen.to_dict()["average"]["epsilon"] is None
    for claim in (chosen.average, chosen.bayesian):  # nor a figure in a note, which would leave out the choice
        assert claim.notes == ()
        assert claim.own_epsilon is None


def test_the_statement_says_what_was_paid(alone, chosen):
    statement = chosen.statement()
    assert "Tuning: covered. This is the best of a random number of private runs, 5 on average" in statement
    assert "proved for the best of a random number of runs, 5 on average, each with the plan of 20 steps" in statement
    assert "choosing settings" not in statement
    assert "choosing settings" in alone.statement()
    assert "Tuning" not in alone.statement()
    assert chosen.to_dict()["selection"]["mean"] == 5
    assert "selection" not in alone.to_dict()


def test_the_file_says_so_to_everyone_who_opens_it(tmp_path, chosen):
    recorded(path=tmp_path / "run.ledger").close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        assert ledger.selection == SELECTION
        assert ledger.worst_case().epsilon == chosen.everyone.epsilon
        ledger.report(tmp_path / "report.html")
        with pytest.raises(ValueError, match="more="):
            ledger.worst_case(more=(100.0, 1.0, 5))
    page = (tmp_path / "report.html").read_text()
    assert "the guarantee for everyone includes it" in page


def test_a_chosen_run_that_left_its_plan_guarantees_nothing():
    ledger = recorded(steps=STEPS + 1)
    assert math.isinf(ledger.worst_case().epsilon)
    claims = ledger.claims()
    assert "left its plan" in claims.everyone.reason
    assert "left its plan" in claims.share(0.5).ex_post.reason
    assert math.isinf(claims.share(0.5).estimate.epsilon)
    assert all(claim.reason for claim in claims.members)
    figures = RecordFigures(ledger, 1e-5, math.inf)
    assert np.isinf(figures.ex_post).all()
    assert np.isinf(figures.ex_post_in).all()
    along = over_training(ledger, figures, 1e-5, (0.5,), 0.01)
    at_deltas = by_delta(ledger, figures, [1e-5, 1e-3], (0.5,), 0.01)
    assert set(along.everyone) | set(along.ex_post[0]) == {None}
    assert {*at_deltas.everyone, *at_deltas.ex_post[0], *at_deltas.estimate[0]} == {None}


def test_fewer_steps_than_planned_cost_the_plan(chosen):
    assert recorded(steps=5).claims().everyone.epsilon == chosen.everyone.epsilon


def test_what_cannot_be_chosen_is_refused(tmp_path):
    with pytest.raises(ValueError, match="selection="):
        Ledger(selection=SELECTION)
    with pytest.raises(ValueError, match="selection="):
        Ledger(selection=SELECTION, plan=Plan(steps=3, **SETTINGS), budget=Budget(epsilon=1.0))
    with pytest.raises(ValueError, match="selection="):
        Ledger(selection=5, plan=Plan(steps=3, **SETTINGS))
    with pytest.raises(LedgerError, match="chosen among others"):
        compose([recorded(), recorded(None)])


def test_losses_of_the_chosen_run_keep_the_ex_post_bound():
    """A hostile score: of the law of the best trial, what exceeds the ex-post epsilon of a record is within delta.

    One step, one record with a given exposure: its ex-post epsilon is a number, so the form is a hockey-stick
    divergence, which is computed exactly on a fine grid for scores that favour what tells the two laws apart.
    """
    delta, most, own, mean = 1e-5, 0.3, 0.1, 6.0
    ledger = Ledger(plan=Plan(steps=1, noise_std=1 / most, sample_rate=1.0, clip=1.0), selection=Selection(mean=mean))
    ledger.step(noise_std=1 / most, sample_rate=1.0, clip=1.0, audit=np.full(600, own / most))
    ledger.mark_chosen()
    claimed = ledger.claims(delta).share(0.5).ex_post.epsilon
    ends = np.linspace(-8, 8, 40001)
    p, q = np.diff(ndtr(ends - own)), np.diff(ndtr(ends))
    for tail, share in ((1e-5, 0.5), (1e-5, 0.8), (1e-4, 0.9)):
        far, near = (int(np.searchsorted(np.cumsum(q), 1 - level)) for level in (tail, tail + share))
        order = np.r_[near : len(p), 0:near]
        order[: far - near].sort()
        first, second = _best_of(p, order, mean), _best_of(q, order, mean)
        assert np.maximum(first - math.exp(claimed) * second, 0).sum() <= delta


def _best_of(law, order, mean):
    reached = np.cumsum(law[order])
    found = np.zeros(len(law))
    found[order] = np.diff(reached / mean / (1 - (1 - 1 / mean) * reached), prepend=0.0)
    return found


@pytest.mark.parametrize("mean", [2.0, 5.0, 30.0])
def test_the_advantage_agrees_with_epsilon_and_mu(mean):
    """Every (epsilon, delta) limits the advantage, so the figure beside one is no larger; nor than what mu allows."""
    mu, delta = 0.2, 1e-5
    bound = SelectedBound(GaussianTrial(mu), Selection(mean=mean))
    risk = guaranteed_risk(bound, delta)
    epsilon = float(bound.epsilons([delta])[0])
    assert risk.advantage <= (math.expm1(epsilon) + 2 * delta) / (math.exp(epsilon) + 1) * (1 + 1e-6)
    assert risk.advantage <= 2 * ndtr(risk.mu / 2) - 1 + 2 * delta
    assert risk.advantage < 0.9 * float(bound.deltas(np.zeros(1), delta)[0])
    # Never below the truth: the laws of the best trial for scores that favour what tells the two laws apart.
    ends = np.linspace(-8, 8, 20001)
    p, q = np.diff(ndtr(ends - mu)), np.diff(ndtr(ends))
    reached = 0.0
    for start in np.linspace(0.02, 0.98, 25):
        near = int(np.searchsorted(np.cumsum(q), start))
        for order in (np.arange(len(p)), np.r_[near : len(p), 0:near]):
            first, second = _best_of(p, order, mean), _best_of(q, order, mean)
            reached = max(reached, np.maximum(first - second, 0).sum())
    assert 0.2 * risk.advantage < reached <= risk.advantage


def test_plans_that_differ_pay_for_the_dearest():
    """The chosen plan reveals less than another trial may have: claims are those of the exposure that was declared."""
    cheap, dear = math.sqrt(STEPS) / 100, 2 * math.sqrt(STEPS) / 100
    claims = recorded(Selection(mean=5, exposure=dear)).claims()
    bound = SelectedBound(GaussianTrial(dear), SELECTION)
    assert claims.everyone.epsilon == pytest.approx(float(bound.epsilons([1e-5])[0]), rel=1e-6)
    assert claims.worst_case.rdp_epsilon > claims.everyone.epsilon
    assert "each with a plan that reveals no more" in claims.statement()
    # An exposure below that of the plan lowers nothing.
    assert (
        recorded(Selection(mean=5, exposure=cheap / 2)).claims().everyone.epsilon
        == recorded().claims().everyone.epsilon
    )
    sampled = Plan(steps=50, noise_std=2.0, sample_rate=0.01, clip=1.0)
    epsilons = []
    for exposure in (None, 1e-6, dear):
        ledger = Ledger(plan=sampled, selection=Selection(mean=5, exposure=exposure))
        ledger.step(noise_std=2.0, sample_rate=0.01, clip=1.0)
        ledger.mark_chosen()
        epsilons.append(ledger.worst_case().epsilon)
    assert epsilons[1] >= epsilons[0] * (1 - 1e-6)
    assert epsilons[2] > epsilons[0]


def test_steps_of_a_trial_have_one_time(tmp_path):
    """How long a trial took tells whether it was the first, which must stay secret."""
    began = "2026-01-31T13:00:00+01:00"
    selection = Selection(mean=5, began=began)
    assert selection.began == "2026-01-31T12:00:00+00:00"
    assert Selection.from_json(selection.to_json()) == selection
    with recorded(selection, tmp_path / "run.ledger") as ledger:
        assert ledger.created == selection.began
        assert {stored.step.time for stored in ledger.stored_steps()} == {1769860800.0}
    with recorded() as ledger:
        assert len({stored.step.time for stored in ledger.stored_steps()}) == 1
    with recorded(None) as ledger:
        assert len({stored.step.time for stored in ledger.stored_steps()}) > 1


@pytest.mark.parametrize("began", ["yesterday", "2026-01-31T13:00:00", 5.0])
def test_no_time_at_which_a_choice_began(began):
    with pytest.raises(ValueError, match="began="):
        Selection(mean=5, began=began)


def test_a_chosen_run_that_left_its_plan_is_called_so_everywhere(tmp_path):
    with recorded(path=tmp_path / "run.ledger", steps=STEPS + 1) as ledger:
        claims = ledger.claims(rows=3)
    assert claims.selection.statement() == f"not covered, because {LEFT_PLAN}."
    assert "Tuning: not covered, because the run was chosen among others and left its plan" in claims.statement()
    assert "covered. This is the best" not in claims.statement(all=True)
    assert "choosing settings or the best of several models" in claims.statement()
    assert claims.risk.everyone.reason == LEFT_PLAN
    values = json.loads(json.dumps(claims.to_dict(), allow_nan=False))
    assert values["selection"] == {
        "mean": 5.0,
        "trial_epsilon": None,
        "epsilon": None,
        "delta": 1e-5,
        "reason": LEFT_PLAN,
    }
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger:
        ledger.report(tmp_path / "report.html")
        plain = ledger.claims()
    options = {"verify": None, "ledger_name": "run.ledger", "tuning": {}, "model": None}
    [check] = [check for check in release_checks(plain, None, **options) if "Were other models" in check.question]
    assert check.status == "open"
    assert LEFT_PLAN in check.answer
    assert "the guarantee for everyone includes it" not in (tmp_path / "report.html").read_text()


def test_json_of_a_run_that_was_chosen_is_strict(chosen):
    values = json.loads(json.dumps(chosen.to_dict(), allow_nan=False))
    assert set(values["selection"]) == {"mean", "trial_epsilon", "epsilon", "delta"}


def test_show_says_that_the_run_was_chosen(tmp_path):
    for marked in (True, False):
        ledger = recorded(Selection(mean=5, exposure=0.1), marked=marked)
        shown = json.loads(json.dumps(summary(ledger), allow_nan=False))
        assert shown["selection"] == {
            "mean": 5.0,
            "exposure": 0.1,
            "began": None,
            "chosen": marked,
            "assumption": CHOSEN,
        }
        assert ("not marked as chosen" in words(shown)) is not marked
        assert "the best of a random number of runs, 5 on average" in words(shown)
    assert summary(recorded(None))["selection"] is None
