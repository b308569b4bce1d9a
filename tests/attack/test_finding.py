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


def detection(caught, false_alarms, right_trials=400, exact=False):
    return Detection(
        bug="b",
        attacker="a",
        level=0.01,
        caught=caught,
        trials=20,
        false_alarms=false_alarms,
        right_trials=right_trials,
        exact=exact,
    )


@pytest.mark.parametrize(("caught", "false_alarms", "right"), [(20, 0, True), (10, 0, False), (20, 8, False)])
def test_a_bug_is_caught_if_alarms_are_likely_with_it_and_rare_without(caught, false_alarms, right):
    assert detection(caught, false_alarms).as_expected == right


def test_a_stated_rate_of_false_alarms_must_have_been_shown():
    """It is the upper end of the interval that counts: none in 200 says no more than that the rate is below 1.9 %."""
    assert detection(20, 0, 200).false_alarm_rate[1] == pytest.approx(0.0183, abs=1e-4)
    assert not detection(20, 0, 200).as_expected
    assert detection(20, 0, 400).as_expected
    assert "a rate of at most 0.0092; stated rate 0.01" in detection(20, 0, 400).line()


def test_an_exact_attacker_has_no_false_alarms_by_luck():
    exact = detection(20, 0, 6, exact=True)
    assert exact.as_expected
    assert "exact: no false alarm is possible, and 6 of 6 right copies stood" in exact.line()
    assert not detection(20, 1, 6000, exact=True).as_expected


def test_intervals_contain_the_rate():
    low, high = detection(10, 0).power
    assert low == pytest.approx(0.272, abs=1e-3)
    assert high == pytest.approx(0.728, abs=1e-3)
    assert detection(10, 0).false_alarm_rate[0] == 0
