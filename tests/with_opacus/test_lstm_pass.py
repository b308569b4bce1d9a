"""An LSTM that takes its time steps in one function: norms as one backward pass for each record finds them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.layers import DPLSTM
from opacus.layers.dp_rnn import DPLSTMCell
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from norms_by_autograd import loss, new_pass, norms_one_by_one

RECORDS = 6


class Whole(nn.Module):
    """All that an LSTM returns: h_t of all time steps, and the last h and c."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.lstm = DPLSTM(4, 5, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (h, c) = self.lstm(x.reshape(-1, 3, 4))
        return torch.cat([states.flatten(1), 2 * h.transpose(0, 1).flatten(1), 3 * c.transpose(0, 1).flatten(1)], dim=1)


class OnlyCells(Whole):
    """Nothing but the last c."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.reshape(-1, 3, 4))[1][1][0]


class FirstState(Whole):
    """Nothing but h_1: later time steps have gradients 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x.reshape(-1, 3, 4))[0][:, 0]


class TimeFirst(nn.Module):
    """An LSTM whose input has its time steps in front."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.lstm = nn.Linear(12, 12), DPLSTM(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(self.inner(x).reshape(-1, 3, 4).transpose(0, 1))[0].transpose(0, 1)


class Translator(nn.Module):
    """An LSTM that begins with the states in which another ended; trained layers lie below both."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.reader, self.writer = DPLSTM(4, 5, batch_first=True), DPLSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.inner(x.reshape(-1, 3, 4)))
        return self.writer(x[:, :2], self.reader(x)[1])[0]


class TwiceUsed(Whole):
    """One LSTM for two parts of a record."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 3, 4)
        return self.lstm(x[:, 1:])[0][:, -1] * self.lstm(x[:, :1])[0][:, -1]


class ChangedInPlace(Whole):
    """An output that is changed in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, (_, c) = self.lstm(x.reshape(-1, 3, 4))
        return states.mul_(2).flatten(1) * c.add_(1)[0].sum(dim=1, keepdim=True)


class StepByStep(Whole):
    """The LSTM is called for each time step, with its states of the step before."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.reshape(-1, 3, 4).split(1, dim=1):
            _, state = self.lstm(step, state)
        assert state is not None
        return state[0][0]


class HalfTrained(Whole):
    """Only what is done with h_{t-1} is trained: Opacus' loop is used."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm.cells[0].ih.requires_grad_(False)


def with_hook() -> nn.Module:
    """Return an LSTM whose user scales what a linear layer gives out."""
    model = Whole()
    model.lstm.cells[0].ih.register_forward_hook(lambda *inputs_and_output: 2 * inputs_and_output[2])
    return model


IN_ONE: dict[str, Callable[[], nn.Module]] = {
    "all outputs": Whole,
    "two layers, two directions": lambda: Whole(num_layers=2, bidirectional=True),
    "no bias": lambda: Whole(bias=False),
    "only cells": OnlyCells,
    "first state": FirstState,
    "time first": TimeFirst,
    "given states": Translator,
    "changed in place": ChangedInPlace,
    "used twice": TwiceUsed,
    "step by step": StepByStep,
}
IN_A_LOOP: dict[str, Callable[[], nn.Module]] = {"half trained": HalfTrained}


@pytest.fixture
def cell_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often Opacus' own time steps are taken."""
    calls, own = [0], DPLSTMCell.forward

    def counted(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        return own(*arguments, **options)

    monkeypatch.setattr(DPLSTMCell, "forward", counted)
    return calls


@pytest.mark.parametrize("name", [*IN_ONE, *IN_A_LOOP])
def test_norms_are_those_of_one_backward_pass_for_each_record(name: str, cell_calls: list[int]) -> None:
    torch.manual_seed(0)
    model = (IN_ONE | IN_A_LOOP)[name]().double()
    x = torch.randn(RECORDS, 12, dtype=torch.float64)
    expected = norms_one_by_one(model, x)
    assert cell_calls[0]
    cell_calls[0] = 0
    found = new_pass(model)
    for _ in range(2):  # a pass leaves nothing behind
        norms = found.norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)
        for by_parameter, oracle in zip(norms, expected, strict=True):
            assert torch.allclose(by_parameter, oracle, rtol=1e-9, atol=1e-13)
    assert bool(cell_calls[0]) == (name in IN_A_LOOP)


def test_single_precision_loses_no_more_than_in_a_loop() -> None:
    """Records that nearly close the gates, where a difference of almost equal numbers would lose digits."""
    torch.manual_seed(0)
    model, x = Whole(), 10 * torch.randn(100, 12)
    exact = torch.stack(norms_one_by_one(copy.deepcopy(model).double(), x.double()))
    looped = copy.deepcopy(model)
    looped.lstm.cells[0].register_forward_hook(lambda *_: None)

    def worst(module: nn.Module) -> float:
        norms = torch.stack(new_pass(module).norms(lambda hooked: loss(hooked, x), len(x), scale=len(x)))
        return float(((norms.double() - exact).abs() / exact).max())

    assert worst(model) <= max(2 * worst(looped), 1e-5)


def test_the_pass_itself_returns_what_opacus_returns() -> None:
    torch.manual_seed(0)
    model = Whole(num_layers=2, bidirectional=True).double()
    x = torch.randn(RECORDS, 12, dtype=torch.float64)
    expected = model(x)
    found: list[torch.Tensor] = []

    def kept(module: nn.Module) -> torch.Tensor:
        found.append(module(x))
        return found[0].sum()

    new_pass(model).norms(kept, RECORDS, scale=1)
    assert torch.allclose(found[0], expected, rtol=1e-12)


def test_hooks_of_the_user_are_called(cell_calls: list[int]) -> None:
    torch.manual_seed(0)
    model, x = with_hook(), torch.randn(RECORDS, 12)
    expected = loss(model, x)
    found: list[torch.Tensor] = []
    cell_calls[0] = 0

    def kept(module: nn.Module) -> torch.Tensor:
        found.append(loss(module, x))
        return found[0]

    new_pass(model).norms(kept, RECORDS, scale=RECORDS)
    assert cell_calls[0] == 3
    assert torch.allclose(found[0], expected)


def test_a_second_derivative_is_left_to_opacus() -> None:
    model, x = nn.Sequential(nn.Linear(12, 12), Whole()), torch.randn(RECORDS, 12)

    def penalised(module: Any) -> torch.Tensor:
        inner = module[0](x)
        output = module[1](inner).square().sum()
        return output + torch.autograd.grad(output, inner, create_graph=True)[0].square().sum()

    with pytest.raises(NotImplementedError):
        new_pass(model).norms(penalised, RECORDS, scale=1)


class Mixed(Whole):
    """Whole sequences, and packed ones that grow shorter, through one LSTM."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 3, 4)
        packed = pack_padded_sequence(x, (3 - torch.arange(len(x)) // 2).clamp(min=1), batch_first=True)
        return self.lstm(x)[1][0][0] + self.lstm(packed)[1][0][0]


def test_whole_and_packed_sequences_in_one_pass_are_left_to_opacus() -> None:
    model, x = Mixed(), torch.randn(RECORDS, 12)
    with pytest.raises(NotImplementedError, match="packed"):
        new_pass(model).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)


def test_half_precision_is_left_to_opacus() -> None:
    model, x = Whole(), torch.randn(RECORDS, 12)
    with pytest.raises(NotImplementedError, match="half precision"), torch.autocast("cpu", torch.bfloat16):
        new_pass(model).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)
