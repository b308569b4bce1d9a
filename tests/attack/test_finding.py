"""Verdicts: what stands, what is broken, and when a planted bug counts as caught."""

import math

import pytest

from bayesdp.attack.finding import Detection, Finding


def finding(claimed, bound, **others):
    return Finding(
        subject="s", attacker="a", claim="c", kind="proved", claimed=claimed, bound=bound, unit="delta", **others
    )


@pytest.mark.parametrize(
    ("claimed", "bound", "stands"), [(1e-5, 9e-6, True), (1e-5, 1.01e-5, False), (1e-5, math.nan, False)]
)
def test_a_claim_stands_if_it_is_not_below_the_bound(claimed, bound, stands):
    assert finding(claimed, bound).stands == stands
    assert finding(claimed, bound).as_expected == stands
    assert finding(claimed, bound, should_break=True).as_expected != stands
    assert finding(claimed, bound).line().startswith("stands" if stands else "BROKEN")


def detection(caught, false_alarms):
    return Detection(
        bug="b",
        attacker="a",
        level=0.01,
        caught=caught,
        trials=20,
        false_alarms=false_alarms,
        right_trials=200,
    )


@pytest.mark.parametrize(("caught", "false_alarms", "right"), [(20, 0, True), (10, 0, False), (20, 8, False)])
def test_a_bug_is_caught_if_alarms_are_likely_with_it_and_rare_without(caught, false_alarms, right):
    assert detection(caught, false_alarms).as_expected == right


def test_intervals_contain_the_rate():
    low, high = detection(10, 0).power
    assert low == pytest.approx(0.272, abs=1e-3)
    assert high == pytest.approx(0.728, abs=1e-3)
    assert detection(10, 0).false_alarm_rate[0] == 0
