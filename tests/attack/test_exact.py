"""Exact adversaries: claims that must stand do so closely, what is no bound breaks, and the oracles agree."""

import math
from types import SimpleNamespace

import pytest
from scipy.stats import norm

from bayesdp import Gate
from bayesdp.attack import exact, exact_events, exact_laws, exact_printed, exact_subjects, exact_traps
from bayesdp.attack.loss_walks import worst_delta, worst_steering_delta
from bayesdp.profiles import gaussian_delta, gaussian_epsilon
from traps import TRAPS, true_delta

MENU = ((1.0, 0.2), (1.0, 0.4))


def test_states_that_remember_the_order_give_what_counts_give():
    def epsilon_of(chosen):
        return 0.5 + 0.3 * sum(chosen)

    def choices(chosen):
        return [((*chosen, number), kind) for number, kind in enumerate(MENU)] if len(chosen) < 3 else []

    options = {"record_in": True, "rounding": "down"}
    in_order = worst_delta((), choices, epsilon_of, **options)
    assert in_order == pytest.approx(
        worst_steering_delta(MENU, 3, lambda counts: 0.5 + 0.3 * counts[1], **options), rel=1e-9
    )


def test_a_window_of_losses_hides_almost_nothing():
    """Rounded down, losses far beyond epsilon are cut off; interpolated they are not."""
    reached = {
        rounding: worst_steering_delta([(1.0, 1.0)], 9, lambda _: 20.0, record_in=True, rounding=rounding)
        for rounding in ("down", "interpolated")
    }
    assert reached["down"] == pytest.approx(reached["interpolated"], rel=0.02)


def test_a_step_of_exposure_0_changes_nothing():
    def epsilon_of(counts):
        return 1.0 if counts[0] <= 1 else math.inf

    one, padded = (
        worst_steering_delta([(1.0, 0.5), *extra], 2, epsilon_of, record_in=True) for extra in ([], [(1.0, 0.0)])
    )
    assert padded == pytest.approx(one, rel=1e-9)
    assert one == pytest.approx(float(gaussian_delta(0.5, 1.0)), rel=1e-2)


STANDING = {
    "plan": lambda: exact_subjects.planned(1.0, 0.3, 4),
    "anytime": lambda: exact_subjects.anytime(MENU, 2),
    "budget": lambda: exact_subjects.budget(((1.0, 0.1), (1.0, 0.2)), 4),
    "left out": lambda: exact_subjects.left_out(MENU, 2),
    "left out, markov": lambda: exact_subjects.left_out(MENU, 2, "markov"),
    "member": lambda: exact_subjects.member(((0.3, 0.5), (0.3, 1.5)), 2),
    "enforced": lambda: exact_subjects.enforced(mu=0.5),
}


@pytest.mark.parametrize("name", STANDING)
def test_claims_that_must_stand_do(name):
    subject = STANDING[name]()
    for finding in exact.best_strategy(subject):
        assert finding.stands
        assert finding.bound > 1e-3 * finding.claimed
        assert finding.as_expected


def test_plans_and_enforced_budgets_are_tight():
    for name in ("plan", "enforced"):
        for finding in exact.best_strategy(STANDING[name]()):
            assert finding.bound > 0.9 * finding.claimed, name


@pytest.mark.parametrize(
    ("subject", "times"),
    [
        (lambda: exact_traps.steps_taken(0.1, 12), 4),
        (exact_traps.cheaper_direction, 5),
    ],
)
def test_what_is_no_bound_breaks(subject, times):
    for finding in exact.best_strategy(subject()):
        assert not finding.stands
        assert finding.as_expected
        assert finding.bound > times * finding.claimed


def test_the_smaller_of_two_figures_holds_at_the_sum_of_their_deltas_and_not_at_one():
    together = exact_printed.subjects(small=True, at_one_delta=False)
    alone = exact_printed.subjects(small=True, at_one_delta=True)
    assert [subject.directions for subject in together] == [("record out",), ("record out",), ("record in",)]
    assert ["left out" in subject.claim for subject in together] == [False, True, False]
    for standing, trap in zip(together, alone, strict=True):
        assert standing.delta == 2 * trap.delta
        [whole], [half] = exact.best_strategy(standing), exact.best_strategy(trap)
        assert whole.bound == half.bound
        assert whole.stands
        assert not half.stands
        assert half.bound > 1.15 * half.claimed, half.line()


def test_one_draw_and_the_best_of_ten_break():
    dropout = exact_traps.dropout_at_one_draw(steps=3, exposure=0.5, kept=0.5)
    # An audit record that dropout switched off three times claims 0: an eighth of the total variation is missing.
    assert dropout.bound > norm.cdf(0.25) / 8 * 0.01
    assert not dropout.stands
    assert exact_traps.best_of_several(10).bound == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_by_high_precision(trap):
    found = exact_traps.true_delta(trap.first, trap.second, trap.threshold, 4.0)
    assert found == pytest.approx(true_delta(trap, 4.0, "record in"), rel=1e-4)


def test_the_average_of_a_trajectory_breaks():
    finding = exact_traps.average_of_a_trajectory(*exact_traps.TRAPS[0], people=10_000)
    assert not finding.stands
    assert finding.kind == "estimate"


def test_levels_and_gate_stand_and_would_not_without_their_correction():
    for finding in exact_events.levels(20, 4.0, records=100, loud=1):
        assert finding.stands
        assert finding.bound > 2 / 101 * 0.5
    for finding in exact_events.gate(Gate(epsilon=4.0, delta=1e-5, share=0.9, gamma=0.01, records=100)):
        assert 0.01 < finding.bound < finding.claimed


def test_members_stand_closely_and_would_not_if_taking_part_changed_nothing():
    findings = list(exact_events.shares(20, 40.0, records=400))
    assert len(findings) == 3
    for finding in findings:
        assert 0.6 * finding.claimed < finding.bound < finding.claimed


def test_figures_of_a_share_break_without_their_condition():
    [finding] = exact.best_strategy(exact_printed.without_a_plan(10))
    assert finding.bound > 1.5 * finding.claimed


def test_claims_about_known_laws_stand_closely():
    findings = list(exact_laws.findings())
    assert [finding.line() for finding in findings if not finding.stands] == []
    for finding in findings:
        assert finding.bound > (0.02 if "zero-out" in finding.claim else 0.85) * finding.claimed, finding.line()


@pytest.mark.parametrize("mean", [3.0, 20.0])
def test_one_run_at_the_price_of_one_breaks_if_the_best_is_released(mean, monkeypatch):
    """The hostile score is strong: at the epsilon of a single trial it reaches far more than delta."""
    alone = gaussian_epsilon(math.sqrt(10) / 10.0, exact_laws.DELTA)
    monkeypatch.setattr(
        exact_laws.Ledger, "claims", lambda *_: SimpleNamespace(everyone=SimpleNamespace(epsilon=alone))
    )
    assert exact_laws.best_of(mean, steps=10, noise=10.0).bound > 2 * mean * exact_laws.DELTA
