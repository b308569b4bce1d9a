"""What the attacks must show is shown by files in results/, which commands wrote: nothing rests on a lucky seed."""

import json
from pathlib import Path

import pytest

from bayesdp.attack import ATTACKS
from bayesdp.attack.replay import BUGS

RESULTS = Path(__file__).parents[2] / "results"
PLANTED = (
    "noise 20 % too small",
    "rate reported at half",
    "one step in ten missing",
    "exposures rounded down",
    "gamma dropped",
    "audit set trained on",
    "equal seeds on ranks",
    "denominators that leak the batch size",
    "the sum's noise on a mean",
    "stopping by looking claimed as proved",
    "dropout charged at one draw",
    "a budget by PLD with adaptive settings",
)


def kept(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ATTACKS)
def test_every_bound_that_is_claimed_as_one_stands(name):
    for finding in kept(f"attack/{name}")["findings"]:
        if finding["kind"] in ("proved", "ex-post") and not finding["should_break"]:
            assert finding["bound"] <= finding["claimed"] * (1 + 1e-9), finding


@pytest.mark.parametrize("name", ["coverage", "simulation"])
def test_the_accountant_as_published_visibly_fails(name):
    findings = [finding for finding in kept(f"attack/{name}")["findings"] if "published" in finding["claim"]]
    assert any(finding["bound"] > 1.5 * finding["claimed"] for finding in findings)


def assert_caught(detection):
    assert detection["power"][0] > 0.5  # the lower end of a 95 % interval
    assert detection["trials"] >= 6
    assert detection["right_trials"] >= 6
    if detection["exact"]:
        assert detection["false_alarms"] == 0
    else:
        assert detection["false_alarm_rate"][1] <= detection["level"] <= 0.01  # the upper end


def test_each_bug_that_is_planted_into_a_replay_is_caught():
    detections = kept("attack/replay")["detections"]
    assert [detection["bug"] for detection in detections] == [bug.name for bug in BUGS]
    for detection in detections:
        assert_caught(detection)


@pytest.mark.parametrize("bug", PLANTED)
def test_each_planted_bug_is_caught_at_a_false_alarm_rate_that_was_measured(bug):
    [detection] = [detection for detection in kept("attack/power")["detections"] if detection["bug"] == bug]
    assert_caught(detection)


@pytest.mark.parametrize("recipe", ["digits", "mnist"])
def test_each_claim_of_the_demo_and_of_mnist_has_its_bound(recipe):
    findings = [one for one in kept("attack/tightness")["findings"] if f"recipe {recipe}" in one["subject"]]
    claims = {finding["claim"] for finding in findings}
    wanted = {f"{share} % of people, {kind}" for share in (50, 90, 99) for kind in ("ex-post", "estimate")}
    assert claims >= {"everyone", "on average", "50 % of members, ex-post", *wanted}
    assert all(finding["note"] for finding in findings)


@pytest.mark.parametrize("promise", ["the gate", "everyone, with a plan", "everyone, with a budget"])
def test_promises_are_attacked_from_end_to_end(promise):
    findings = [finding for finding in kept("attack/coverage")["findings"] if finding["claim"] == promise]
    assert len(findings) >= 4
    assert max(finding["bound"] / finding["claimed"] for finding in findings) > (0.01 if promise == "the gate" else 0.5)
