"""A caveat that is added to the last step changes nothing else, and one that cannot be added changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bayesdp import InvalidInputError, Ledger
from bayesdp.ledger import LedgerError


def record(ledger: Ledger, steps: int) -> Ledger:
    for _ in range(steps):
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=np.full(4, 0.3))
    return ledger


@pytest.mark.parametrize("reopened", [False, True])
def test_norms_stay_as_they_are(tmp_path: Path, reopened: bool) -> None:
    ledger = record(Ledger.create(tmp_path / "a"), 3)
    if reopened:
        ledger.close()
        ledger = Ledger.open(tmp_path / "a")
    costs, seal = ledger.costs([1, 8]), ledger.seal
    ledger.note_caveat("skipped-batches")
    noted = ledger.seal
    assert noted != seal
    ledger.note_caveat("skipped-batches")
    assert ledger.seal == noted
    ledger.close()
    with Ledger.open(tmp_path / "a", write=False) as opened:
        assert opened.history.caveats == ["skipped-batches"]
        assert (opened.costs([1, 8]) == costs).all()


def test_what_cannot_be_noted_changes_nothing(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "a") as ledger:
        with pytest.raises(LedgerError, match="has no step that could be noted as 'seeded'"):
            ledger.note_caveat("seeded")
        record(ledger, 2)
    before = (tmp_path / "a").read_bytes()
    with Ledger.open(tmp_path / "a") as ledger:
        with pytest.raises(InvalidInputError, match="caveats='nonsense': expected names among"):
            ledger.note_caveat("nonsense")
        assert not list(tmp_path.glob("a-*wal"))
    assert (tmp_path / "a").read_bytes() == before
