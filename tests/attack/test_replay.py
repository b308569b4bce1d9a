"""Replays: a right run stands, and every planted bug is noticed by the finding that is about it."""

import numpy as np
import pytest

from bayesdp.attack import draw_laws
from bayesdp.attack.opacus_replay import opacus_run
from bayesdp.attack.replay import BUGS, MODES, alarm

NOTICED_BY = {
    "noise 20 % too small": "the noise is what the ledger says",
    "the noise of a sum on a mean": "the noise is what the ledger says",
    "the same noise at every step": "noise is fresh at every step",
    "a denominator that is the drawn batch size": "an audit record's norm is what the record changes",
    "rate reported at half": "records are drawn as often as the ledger says",
    "one step in ten missing": "every update is recorded before it is applied",
    "written after the update": "every update is recorded before it is applied",
    "rounding down": "costs in the ledger are not rounded down (lambda = 8)",
    "shuffled batches told as Poisson samples": draw_laws.STATISTICS[0],
    "records that are always drawn together": draw_laws.STATISTICS[2],
}


@pytest.mark.parametrize("mode", MODES)
def test_a_right_run_stands_and_the_replay_is_close(mode):
    findings = {finding.claim: finding for finding in opacus_run(0, steps=20, mode=mode).findings()}
    assert [finding.line() for finding in findings.values() if not finding.stands] == []
    tight = ("no record changes a sum by more than the clip bound", "an audit record's norm is what the record changes")
    for claim in tight:  # the ledger hardly says more than what was seen; Opacus' own clipping leaves out a millionth
        assert findings[claim].bound == pytest.approx(findings[claim].claimed, rel=3e-6)
    assert (
        findings["the noise is what the ledger says"].bound
        > 0.9 * findings["the noise is what the ledger says"].claimed
    )


def test_hundreds_of_runs_do_not_repeat_what_opacus_warns_of(recwarn):
    opacus_run(0, steps=2)
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed_by_what_is_about_it(bug):
    assert NOTICED_BY[bug.name] in {finding.claim for finding in bug.run(1).findings() if not finding.stands}


def shuffled(rng, steps, records, size):
    """Batches of one size; everybody comes once in an epoch."""
    orders = [rng.permutation(records) for _ in range(-(-steps * size // records))]
    return np.concatenate(orders)[: steps * size].reshape(steps, size)


def families_in_batches_of_the_right_size(rng, steps, records, rate):
    """Four neighbours always come together; the sizes of batches are binomial, rounded to fours."""
    for size in rng.binomial(records, rate, steps):
        first = 4 * rng.choice(records // 4, round(size / 4), replace=False)
        yield np.concatenate([first, first + 1, first + 2, first + 3])


def test_each_statistic_of_draws_notices_what_the_others_do_not():
    rng, steps, records, rate = np.random.default_rng(0), 60, 200, 0.1
    found = {
        "fixed size": [rng.choice(records, 20, replace=False) for _ in range(steps)],
        "shuffled": shuffled(rng, steps, records, 20),
        "together": list(families_in_batches_of_the_right_size(rng, steps, records, rate)),
    }
    outside = {name: draw_laws.surely_correlated(drawn, records, rate) > 0 for name, drawn in found.items()}
    assert {name: noticed.tolist() for name, noticed in outside.items()} == {
        "fixed size": [True, False, False],
        "shuffled": [True, True, False],
        "together": [False, False, True],
    }


def test_independent_draws_raise_no_alarm():
    rng, runs = np.random.default_rng(1), 300
    draws = [[np.flatnonzero(rng.random(200) < 0.1) for _ in range(40)] for _ in range(runs)]
    assert sum((draw_laws.surely_correlated(drawn, 200, 0.1) > 0).any() for drawn in draws) <= 1
    assert 3 * draw_laws.LEVEL < 2e-4


def test_statistics_of_draws_have_mean_0_under_the_law():
    rng = np.random.default_rng(2)
    values = draw_laws._correlations(rng.random((4000, 30, 50)) < 0.2, 0.2)
    assert (np.abs(values.mean(axis=0)) < 5 * values.std(axis=0) / 4000**0.5).all()
    families = np.repeat(rng.random((4000, 30, 25)) < 0.2, 2, axis=2)
    assert draw_laws._correlations(families, 0.2)[:, 0].mean() == pytest.approx(1 / 49, rel=0.02)


def test_no_alarm_without_a_bug():
    assert not alarm(2)
