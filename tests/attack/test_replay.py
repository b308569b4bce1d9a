"""Replays: a right run stands, and every planted bug is noticed by the finding that is about it."""

import pytest

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


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed_by_what_is_about_it(bug):
    run = opacus_run(1, steps=20, plant=bug.plant, ledger=bug.ledger(keep_norms=True))
    assert NOTICED_BY[bug.name] in {finding.claim for finding in run.findings() if not finding.stands}


def test_no_alarm_without_a_bug():
    assert not alarm(2)
