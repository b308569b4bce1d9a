"""A ledger is continued, and composed, with the audit records that its earlier steps had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from bayesdp import InvalidInputError, Ledger, compose
from bayesdp.opacus import split_audit
from bayesdp.opacus.same_people import rows_digest
from opacus_runs import private_run, random_data

DATA = TensorDataset(*random_data(300, seed=9))


def trained(ledger: Ledger, audit: Any, seed: int = 0) -> Ledger:
    """Return the ledger with two more steps."""
    run = private_run(seed=seed)
    with run.watch(ledger, audit=audit, loss=run.loss):
        run.train(most=2)
    return ledger


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_script_that_splits_anew_cannot_continue_its_ledger(shuffle: bool, tmp_path: Path) -> None:
    """Without a seed, people who were audit records are trained on, and the other way round."""
    path = tmp_path / "run.ledger"
    with trained(Ledger.create(path), split_audit(DATA, records=60, seed=0)[1]) as ledger:
        assert ledger.history.stretches[0].source == "opacus"
    with Ledger.open(path) as ledger:
        with pytest.raises(InvalidInputError, match="audit='other rows': expected the audit records of its earlier"):
            trained(ledger, split_audit(DATA, records=60)[1], seed=5)
        assert ledger.steps == 2
        trained(ledger, split_audit(DATA, records=60, seed=0)[1], seed=5)
        trained(ledger, random_data(60), seed=10)  # of which nothing is known
        assert ledger.steps == 6


def test_rows_are_told_apart_where_they_are_known() -> None:
    first, second = Subset(DATA, [1, 2]), Subset(DATA, [1, 3])
    assert rows_digest(first) == rows_digest(DataLoader(Subset(Subset(DATA, [0, 1, 2]), [1, 2]))) != ()
    assert len({rows_digest(audit) for audit in (first, second, Subset(DATA, [2, 1]))}) == 3
    assert rows_digest(DATA) == rows_digest(random_data(5)) == rows_digest(ConcatDataset([first, second])) == ()


@pytest.mark.parametrize(("seeds", "ids", "kept"), [((0, 0), range(60), True), ((0, 1), range(60), False)])
def test_runs_with_other_splits_are_composed_for_everyone_only(seeds: tuple[int, int], ids: range, kept: bool) -> None:
    runs = [
        trained(Ledger(audit_ids=ids), split_audit(DATA, records=60, seed=seed)[1], seed=5 * number)
        for number, seed in enumerate(seeds)
    ]
    both = compose(runs)
    assert both.audit_records == (60 if kept else 0)
    assert both.notes == (
        [] if kept else ["Worst case only: the audit records of these runs are different rows of the data."]
    )
