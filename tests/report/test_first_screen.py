"""The first screen: what is promised to everyone and to most people, in frequencies, dots and questions."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.stats import norm

from bayesdp import Ledger, Plan
from bayesdp.formatting import guesses
from bayesdp.report.contents import report_contents
from bayesdp.report.first_screen import people_bands
from bayesdp.report.page import render
from bayesdp.report.pictures import dots, dots_in_words, scale
from report_runs import small_run


def test_guessing_succeeds_as_often_as_the_distance_of_outputs_says():
    """Without sampling, all steps are one Gaussian release: a guess succeeds with probability Phi(mu / 2)."""
    ledger = Ledger()
    for _ in range(9):
        ledger.step(noise_std=4.0, sample_rate=1.0, clip=1.0, audit=np.full(500, 0.4))
    first = report_contents(ledger).first
    assert f"at most {guesses(norm.cdf(3 / 4 / 2))};" in first.overview.guessing
    assert f"about {guesses(norm.cdf(0.4 * 3 / 4 / 2))}:" in first.typical_guessing


def test_guessing_with_sampling():
    ledger = Ledger()
    for _ in range(20):
        ledger.step(noise_std=1.0, sample_rate=0.2, clip=1.0, audit=np.full(500, 0.5))
    first = report_contents(ledger).first
    for exposure, sentence in ((1.0, first.overview.guessing), (0.5, first.typical_guessing)):
        loss = from_gaussian_mechanism(1 / exposure, sampling_prob=0.2, value_discretization_interval=1e-4)
        expected = loss.self_compose(20).get_delta_for_epsilon(0.0)
        assert guesses((1 + expected) / 2) in sentence


@pytest.mark.parametrize(
    ("caveat", "words"),
    [
        ("sampling-mismatch", "Every figure on this page is only an estimate"),
        ("earlier-norms", "Figures for shares of people are only estimates"),
    ],
)
def test_what_weakens_claims_is_stamped_and_said(caveat, words):
    ledger = Ledger(plan=Plan(steps=3, noise_std=2.0, sample_rate=0.1, clip=1.0))
    for _ in range(3):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(600, 0.1), caveats=[caveat])
    page = report_contents(ledger)
    assert any(words in stamp for stamp in page.stamps)
    said = dict(page.first.most_people)
    assert said["This run, people whose data was used"].startswith("nothing is sure")
    assert said["This run, people whose data was not used"].startswith("nothing is sure for half, 90 % and 99 %")
    doubtful = caveat == "sampling-mismatch"
    assert (page.first.figure is None) == (page.first.overview.guessing is None) == doubtful
    assert ("none. It is estimated at epsilon = " in page.first.overview.everyone) == doubtful
    assert (page.first.bands == []) == doubtful  # their caption names the guarantee
    assert (page.first.checks[0].answer == "There is no guarantee for everyone.") == doubtful
    assert ('class="scale"' in render(page)) == (not doubtful)


def test_an_ex_post_figure_promises_no_rate_of_success_of_its_own():
    """Over runs of the procedure only what holds for everyone bounds it: with two steps, the second decided by the
    first, guessing succeeds 74.8 % of the time where the ex-post epsilon of a quiet run would say 53.8 %."""
    ledger = Ledger(plan=Plan(steps=60, noise_std=2.0, sample_rate=0.1, clip=1.0))
    for _ in range(60):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=[0.01] * 600)
    first = report_contents(ledger).first
    assert "right at most" in first.overview.guessing
    for label, text in first.most_people:
        assert "right" not in text, label
    assert "right about" in first.typical_guessing  # an estimate, and says so


def test_the_condition_of_a_run_without_a_plan_is_on_the_first_screen():
    said = report_contents(small_run()).first.overview
    assert "(proved if the number of steps and the settings did not depend on earlier results)" in said.everyone
    assert "However steps and settings were chosen" in said.anytime


def test_dots_count_people_by_what_is_estimated():
    ledger = Ledger(plan=Plan(steps=30, noise_std=5.0, sample_rate=1.0, clip=1.0))
    norms = np.r_[np.full(700, 0.2), np.full(200, 0.45), np.full(600, 1.0)]  # epsilon is nearly proportional here
    for _ in range(30):
        ledger.step(noise_std=5.0, sample_rate=1.0, clip=1.0, audit=norms)
    bands = people_bands(ledger.claims())
    assert sum(band.people for band in bands) == 100
    quarter, half, three, whole = (band.people for band in bands)
    assert 40 <= quarter <= 46  # 46.7 % of the records, less what confidence takes
    assert 53 <= quarter + half <= 60
    assert three == 0
    assert whole >= 40
    places = dots(bands)
    assert len({(x, y) for x, y, _ in places}) == 100
    assert [number for _, _, number in places].count(0) == quarter
    assert dots_in_words(bands).startswith(f"Of 100 people: {quarter} with epsilon up to ")


def test_without_audit_or_guarantee_there_are_no_dots():
    assert people_bands(Ledger().claims()) == []
    assert report_contents(small_run(records=0)).first.bands == []


@pytest.mark.parametrize(
    ("epsilon", "tier"), [(0.5, "strong"), (1.0, "strong"), (3.0, "reasonable"), (10.0, "reasonable"), (12.0, "weak")]
)
def test_the_scale_agrees_with_the_words(epsilon, tier):
    place = scale(epsilon)
    edges = [0.0, place.strong, place.reasonable, 1000.0]
    tiers = ["strong", "reasonable", "weak"]
    assert edges[tiers.index(tier)] <= place.here <= edges[tiers.index(tier) + 1]
    assert scale(math.inf) is None


def test_the_first_question_names_the_tier_of_the_guarantee():
    loud = Ledger()
    loud.step(noise_std=0.3, sample_rate=1.0, clip=1.0)
    page = report_contents(loud)
    assert "counts as weak" in page.first.checks[0].answer
    [caution] = page.first.overview.cautions
    assert "is above 10: by itself it promises hardly anything" in caution
    assert f">Caution: {caution}</p>" in render(page)
    assert page.first.overview.trained.startswith("1 step, at")
    assert "counts as reasonable" in report_contents(small_run()).first.checks[0].answer
