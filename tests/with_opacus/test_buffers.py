"""Buffers that passes in training change are named: noise is added to parameters only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayesdp import Ledger
from opacus_runs import CLASSES, FEATURES, private_run

KINDS = ["running mean", "replaced", "not saved", "counter", "constant"]


class Keeping(nn.Module):
    """A model that keeps something of what it has seen."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = nn.Linear(FEATURES, CLASSES), kind
        kept = torch.tensor(0) if kind == "counter" else torch.zeros(FEATURES)
        self.register_buffer("kept", kept, persistent=kind != "not saved")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.kind in ("running mean", "not saved"):
            self.kept.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        elif self.training and self.kind == "replaced":
            self.kept = x.detach().mean(0)
        elif self.training and self.kind == "counter":
            self.kept += 1
        return self.linear(x)


@pytest.mark.parametrize("kind", KINDS)
def test_what_passes_leave_in_the_model_is_named(kind: str, ledger: Ledger) -> None:
    run = private_run(Keeping(kind))
    run.watch(ledger)
    run.train(most=2)
    named = kind in ("running mean", "replaced")
    assert ledger.history.caveats == ["changed-buffers"] * named
    assert any("buffers of the model" in text for text in ledger.claims().everyone.assumptions) == named


def test_buffers_that_a_checkpoint_changes_are_not(ledger: Ledger) -> None:
    run = private_run(Keeping("constant"))
    run.watch(ledger)
    for _ in range(2):
        run.train(most=1)
        run.model._module.load_state_dict(run.model._module.state_dict())
    run.train(most=1)
    assert ledger.history.caveats == []
