"""What would fail or be wrong after training is refused before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bayesdp import InvalidInputError, Ledger
from opacus_runs import Run, private_run


def places(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "file").touch()
    return {
        "no folder": tmp_path / "none" / "report.html",
        "a folder": tmp_path,
        "below a file": str(tmp_path / "file" / "report.html"),
        "no path": 7,
    }


@pytest.mark.parametrize("place", ["no folder", "a folder", "below a file", "no path"])
def test_a_report_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match=r"^report=.*: expected the path of a file.*\.$"):
        run.watch(tmp_path / "run.ledger", report=places(tmp_path)[place])
    assert not (tmp_path / "run.ledger").exists()
    assert "pre_step" not in vars(run.optimizer)


def test_a_report_in_a_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("report.html", str(tmp_path / "again.html")):
        run = private_run()
        with run.watch(Ledger(), report=name):
            run.train(most=1)
        assert Path(name).is_file()


def by_someone_else(run: Run) -> Any:
    class Norms:
        records = 20

        def due(self) -> bool:
            return True

        def norms(self) -> torch.Tensor:
            return torch.full((20,), 0.5)

    return Norms()


@pytest.mark.parametrize("audit", [lambda run: None, by_someone_else])
@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.CrossEntropyLoss(weight=torch.ones(3)), r"loss\.weight='a tensor': expected no weights"),
        (nn.CrossEntropyLoss(reduction="sum"), r"loss\.reduction='sum': expected 'mean'"),
    ],
)
def test_a_criterion_that_couples_records_is_refused_without_audit(audit: Any, loss: Any, message: str) -> None:
    run = private_run()
    with pytest.raises(InvalidInputError, match=message):
        run.watch(Ledger(), audit=audit(run), loss=loss)
    run.watch(Ledger(), audit=audit(run), loss=nn.CrossEntropyLoss())


def test_the_criterion_of_ghost_clipping_is_looked_into() -> None:
    run = private_run(mode="ghost")
    run.loss.criterion.weight = torch.ones(3)
    with pytest.raises(InvalidInputError, match=r"loss\.weight='a tensor'"):
        run.watch(Ledger(), loss=run.loss)


def test_other_losses_are_not_needed_without_audit() -> None:
    run = private_run()
    run.watch(Ledger(), loss=lambda output, target: nn.functional.cross_entropy(output, target))
    run.train(most=1)
