"""The figures behind the charts."""

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.report.contents import report_contents
from report_runs import small_run


def test_epsilon_over_training_ends_where_the_claims_are():
    ledger = small_run()
    page, claims = report_contents(ledger), ledger.claims()
    assert page.over_training.steps[-1] == 60
    assert page.over_training.everyone[-1] == pytest.approx(claims.everyone.epsilon, rel=2e-3)
    for number, share in enumerate((0.5, 0.9, 0.99)):
        claim, at_the_end = claims.share(share).ex_post, page.over_training.ex_post[number][-1]
        assert claim.epsilon * (1 - 1e-9) <= at_the_end <= 1.02 * claim.epsilon
    for column in (page.over_training.everyone, *page.over_training.ex_post):
        assert np.all(np.diff(column) > -1e-12)


def test_exposures_are_what_was_put_in():
    ledger = Ledger()
    norms = np.r_[np.full(360, 0.2), np.full(140, 0.7), np.full(100, 3.0)]
    for _ in range(40):
        ledger.step(noise_std=20.0, sample_rate=1.0, clip=1.0, audit=norms)
    run = report_contents(ledger).over_training
    assert run.exposure[0][-1] == pytest.approx(0.2, rel=0.01)
    assert run.exposure[2][-1] == pytest.approx(1.0, rel=0.01)
    assert run.clipped == [pytest.approx(1 / 6)] * len(run.steps)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_exposures_of_people_who_become_quiet_are_not_below_the_truth(rate):
    ledger = Ledger()
    norms = [1.0] * 32 + [0.05] * 32
    for norm_now in norms:
        ledger.step(noise_std=2.0, sample_rate=rate, clip=1.0, audit=np.full(600, norm_now))
    run = report_contents(ledger).over_training
    for step, exposure in zip(run.steps, run.exposure[0], strict=True):
        assert np.sqrt(np.mean(np.square(norms[:step]))) <= exposure * 1.001 <= 1.01  # costs are not quite squares


def test_no_line_is_that_of_one_record():
    ledger = Ledger()
    for step in range(5):
        ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=[0.1 * step])
    assert report_contents(ledger).over_training.exposure == [[None] * 5] * 3


def test_the_chart_over_training_ends_at_the_figure_of_the_claims():
    ledger = Ledger()
    for number in range(6):  # more settings than dp-accounting composes
        ledger.step(noise_std=2.0 + number / 100, sample_rate=0.1, clip=1.0, audit=[0.1] * 60)
    page = report_contents(ledger)
    assert page.over_training.everyone[-1] == ledger.claims().everyone.epsilon
