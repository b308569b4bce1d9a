"""Checkpoints of runs whose ledgers are numbered."""

import pytest

from bayesdp import Ledger, LedgerError
from bayesdp.lightning import PrivacyCallback
from lightning_runs import PRIVATE, Classifier, loader, trainer


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_finds_its_ledger_among_numbered_ones(tmp_path):
    def fit(epochs, checkpoint=None, name="run-{n}.ledger"):
        fitted = trainer(tmp_path, PrivacyCallback(ledger=tmp_path / name, **PRIVATE), max_epochs=epochs)
        fitted.fit(Classifier(), loader(), ckpt_path=checkpoint)
        return fitted

    fit(1)
    fit(1).save_checkpoint(tmp_path / "ckpt")
    fit(1)
    fit(2, tmp_path / "ckpt")
    steps = []
    for number in (1, 2, 3):
        with Ledger.open(tmp_path / f"run-{number}.ledger", write=False) as ledger:
            steps.append(ledger.steps)
    assert steps == [10, 20, 10]
    assert not (tmp_path / "run-4.ledger").exists()
    for name in ("other-{n}.ledger", "other.ledger"):
        with pytest.raises(LedgerError, match=r"does not exist; expected the ledger of run \w+, to which"):
            fit(2, tmp_path / "ckpt", name)
