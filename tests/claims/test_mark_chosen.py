"""`Ledger.mark_chosen`: a ledger with a selection claims nothing before it, and the mark changes nothing else."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.claims.selected import NOT_CHOSEN
from bayesdp.ledger import LedgerError, LedgerFile, verify
from bayesdp.report.chart_data import over_training
from selected_runs import SETTINGS, STEPS, recorded


@pytest.fixture(scope="module")
def chosen():
    return recorded().claims()


def nothing_is_claimed(ledger):
    claims = ledger.claims()
    assert claims.everyone.reason == claims.risk.everyone.reason == NOT_CHOSEN
    assert f"Tuning: not covered, because {NOT_CHOSEN}." in claims.statement()
    assert math.isinf(ledger.worst_case().epsilon)
    assert all(math.isinf(claim.epsilon) and claim.reason for claim in claims)
    assert np.isinf(claims.figures.ex_post).all()
    assert np.isinf(claims.figures.ex_post_in).all()
    along = over_training(ledger, claims.figures, 1e-5, (0.5,), 0.01)
    assert set(along.everyone) | set(along.ex_post[0]) == {None}
    json.dumps(claims.to_dict(), allow_nan=False)


def test_a_trial_that_was_not_chosen_claims_nothing(tmp_path, chosen):
    """A choice that never finished leaves ledgers of trials: what one of them proves alone is not what it declares."""
    path = tmp_path / "trial.ledger"
    with recorded(path=path, marked=False) as ledger:
        assert not ledger.chosen
        nothing_is_claimed(ledger)
    with Ledger.open(path, write=False) as ledger:
        nothing_is_claimed(ledger)
        ledger.report(tmp_path / "report.html")
    assert "does not say that it was" in (tmp_path / "report.html").read_text()
    with Ledger.open(path) as ledger:
        ledger.mark_chosen()
        assert ledger.chosen
        assert ledger.claims().everyone == chosen.everyone
    with Ledger.open(path, write=False) as ledger:
        assert ledger.chosen
        assert ledger.claims().statement() == chosen.statement()


@pytest.mark.parametrize("closed", [False, True])
def test_the_mark_changes_nothing_but_the_last_step(tmp_path, closed):
    path, plain = tmp_path / "run.ledger", recorded(marked=False)
    ledger = recorded(path=path, marked=False)
    if closed:
        ledger.close()
        ledger = Ledger.open(path)
    before = ledger.stored_steps()
    ledger.mark_chosen()
    seal = ledger.seal
    ledger.mark_chosen()
    assert ledger.seal == seal
    ledger.close()
    with Ledger.open(path, write=False) as opened:
        after = opened.stored_steps()
        assert after[:-1] == before[:-1]
        last = before[-1].step
        assert after[-1].step == replace(last, caveats="chosen")
        assert (opened.costs([1, 8]) == plain.costs([1, 8])).all()
        assert verify(opened, opened.seal).covered is None
    assert {file.name for file in tmp_path.iterdir()} == {"run.ledger"}


def test_a_step_after_the_mark_takes_it_away():
    ledger = recorded(steps=STEPS - 1)
    assert ledger.chosen
    ledger.step(**SETTINGS)
    assert not ledger.chosen
    assert ledger.claims().everyone.reason == NOT_CHOSEN


def test_what_cannot_be_marked(tmp_path):
    with pytest.raises(LedgerError, match="cannot be marked as chosen"):
        recorded(None).mark_chosen()
    with pytest.raises(LedgerError, match="cannot be marked as chosen"):
        recorded(steps=0, marked=False).mark_chosen()
    recorded(path=tmp_path / "run.ledger", marked=False).close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as ledger, pytest.raises(LedgerError, match="reading only"):
        ledger.mark_chosen()


def test_a_mark_that_the_disk_refuses_is_not_there(tmp_path, monkeypatch):
    ledger = recorded(path=tmp_path / "run.ledger", marked=False)

    def failing(self, stored):
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "insert", failing)
        with pytest.raises(OSError, match="no space"):
            ledger.mark_chosen()
    assert not ledger.chosen
    ledger.mark_chosen()
    ledger.close()
    with Ledger.open(tmp_path / "run.ledger", write=False) as opened:
        assert opened.chosen
        assert opened.steps == STEPS
