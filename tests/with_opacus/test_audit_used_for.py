"""``watch(audit_used_for=)``: audit records that were used to choose settings, declared with the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from bayesdp import InvalidInputError, Ledger
from opacus_runs import private_run, random_data

USE = "learning rate"


def test_claims_from_audit_records_are_estimates(tmp_path: Path) -> None:
    run, path = private_run(noise_multiplier=4.0, max_grad_norm=100.0), tmp_path / "run.ledger"
    watched = run.watch(path, audit=random_data(40, seed=1), loss=run.loss, audit_used_for=USE)
    run.train(most=3)
    share = watched.claims(shares=(0.5,)).share(0.5).ex_post
    assert share.kind == "estimate"
    assert any(text.endswith(f"were used for: {USE}") for text in share.assumptions)
    watched.close()
    with Ledger.open(path, write=False) as ledger:
        assert ledger.audit_used_for == USE


def test_of_a_ledger_that_exists_it_was_declared_already() -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match=r"audit_used_for='learning rate': .*Ledger.create\(audit_used_for="):
        run.watch(Ledger(), audit_used_for=USE)
