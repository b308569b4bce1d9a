"""The first screen: what the figures mean for someone who guesses, and what is said where they are weaker."""

import re

import numpy as np
import pytest
from scipy.stats import norm

from bayesdp import Ledger, Plan
from bayesdp.formatting import percent_up
from bayesdp.report.cards import guessing_success
from bayesdp.report.contents import report_contents
from report_runs import small_run


@pytest.mark.parametrize("epsilon", [0.0, 0.001, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_no_guess_succeeds_more_often_than_its_reading(epsilon, delta):
    """All tests on a grid, by the share that they flag of people who were in the data and of others."""
    flagged, wrongly = np.meshgrid(np.linspace(0, 1, 2001), np.linspace(0, 1, 2001))
    success = (flagged + 1 - wrongly) / 2
    without = 1 - wrongly <= np.exp(epsilon) * (1 - flagged) + delta  # what the direction "out" says of not flagging
    both = without & (flagged <= np.exp(epsilon) * wrongly + delta)
    for direction, allowed in (("out", without), ("both", both)):
        most = success[allowed].max()
        assert most - 1e-12 <= guessing_success(epsilon, delta, direction) <= most + 0.001 + delta / 2


def test_guessing_succeeds_as_often_as_the_distance_of_outputs_says():
    """Without sampling, all steps are one Gaussian release: a guess succeeds with probability Phi(mu / 2)."""
    ledger = Ledger()
    for _ in range(9):
        ledger.step(noise_std=4.0, sample_rate=1.0, clip=1.0, audit=np.full(500, 0.4))
    everyone, _, half = report_contents(ledger).cards
    assert f"at most {percent_up(norm.cdf(3 / 4 / 2) + 1e-9)} of" in everyone.reading
    assert f"about {percent_up(norm.cdf(0.4 * 3 / 4 / 2) + 1e-4)} of" in half.beside  # norms are rounded up


@pytest.mark.parametrize(
    ("caveat", "words", "card"),
    [
        ("sampling-mismatch", "Every figure on this page is only an estimate", 0),
        ("earlier-norms", "Figures for shares of people are only estimates", 2),
    ],
)
def test_what_weakens_claims_is_stamped_and_said_on_cards(caveat, words, card):
    ledger = Ledger()
    for _ in range(3):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(600, 0.1), caveats=[caveat])
    page = report_contents(ledger)
    assert any(words in stamp for stamp in page.stamps)
    assert "not a bound" in page.cards[card].kind
    assert "every person" not in page.cards[card].beside
    assert "at most" not in page.cards[card].reading


def test_an_ex_post_figure_promises_no_rate_of_success_of_its_own():
    """Over runs of the procedure only what holds for everyone bounds it: with two steps, the second decided by the
    first, guessing succeeds 74.8 % of the time where the ex-post epsilon of a quiet run would say 53.8 %."""
    ledger = Ledger(plan=Plan(steps=60, noise_std=2.0, sample_rate=0.1, clip=1.0))
    for _ in range(60):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=[0.01] * 600)
    everyone, _, half = report_contents(ledger).cards
    assert half.kind.startswith("Sure for the run")
    assert float(half.figure) < float(everyone.figure) / 2
    rate = re.search(r"at most ([\d.]+) %", everyone.reading)[1]
    assert f"at most {rate} %" in half.reading
    assert "(as for everyone)" in half.reading


def test_the_condition_of_a_run_without_a_plan_is_on_the_card():
    everyone = report_contents(small_run()).cards[0]
    assert everyone.kind == "Proved if the number of steps and the settings did not depend on earlier results"
