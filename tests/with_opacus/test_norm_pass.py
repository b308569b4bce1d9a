"""Norms without gradients of parameters: as one backward pass for each record finds them, for layers of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from bayesdp import Ledger
from norms_by_autograd import loss, new_pass, norms_one_by_one
from opacus_runs import audit_norms, batch_norms, private_run, random_data

RECORDS = 6


class Shaped(nn.Module):
    """Twelve numbers in another shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(len(x), *self.shape)


class Words(nn.Module):
    """Twelve numbers as words, some of which come more than once."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 3, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words((x.abs() * 3).long().clamp(max=4))


class Scaled(nn.Module):
    """A layer that Opacus does not know, with another inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.ones(12)), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(x) * self.scale)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], **options: Any) -> None:
        super().__init__()
        self.layers = kind(4, 5, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x.reshape(-1, 3, 4))[0]


class Packed(nn.Module):
    """Sequences of different lengths, the longest first; a record's first number is the length of its sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lengths = (3 - torch.arange(len(x)) // 2).clamp(min=1) if len(x) > 1 else torch.tensor([int(x[0, 0])])
        packed = pack_padded_sequence(x[:, 1:].reshape(-1, 3, 4), lengths, batch_first=True)
        return self.lstm(packed)[1][0][0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(-1, 3, 4)
        return self.attention(x, x, x, need_weights=False)[0]


class Twice(nn.Module):
    """A layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.inner(torch.tanh(self.inner(x))))


def frozen_below() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.LayerNorm(6))
    for parameter in (*model[0].parameters(), model[2].bias):
        parameter.requires_grad_(False)
    return model


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(12, 5),
    "short sequences": lambda: nn.Sequential(Shaped(2, 6), nn.Linear(6, 9), nn.Tanh()),
    "long sequences": lambda: nn.Sequential(Shaped(6, 2), nn.Linear(2, 3), nn.Tanh()),
    "more axes": lambda: nn.Sequential(Shaped(2, 2, 3), nn.Linear(3, 4, bias=False), nn.Tanh()),
    "words": Words,
    "one word": lambda: nn.Sequential(Shaped(1, 12), nn.Flatten(0, 1), Words()),
    "convolution": lambda: nn.Sequential(Shaped(3, 2, 2), nn.Conv2d(3, 4, 2, stride=2, padding=1), nn.Tanh()),
    "dilated": lambda: nn.Sequential(Shaped(1, 3, 4), nn.Conv2d(1, 4, 2, dilation=2, padding="same"), nn.Tanh()),
    "large convolution": lambda: nn.Sequential(Shaped(1, 3, 4), nn.Conv2d(1, 30, 3, bias=False), nn.Tanh()),
    "groups": lambda: nn.Sequential(Shaped(2, 2, 3), nn.Conv2d(2, 4, 2, groups=2), nn.Tanh()),
    "one axis": lambda: nn.Sequential(Shaped(2, 6), nn.Conv1d(2, 3, 3), nn.Tanh()),
    "three axes": lambda: nn.Sequential(Shaped(1, 3, 2, 2), nn.Conv3d(1, 2, 2), nn.Tanh()),
    "normalised": lambda: nn.Sequential(Shaped(4, 3), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4, affine=True)),
    "in place": lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(inplace=True), nn.Linear(8, 4), nn.ReLU(inplace=True)),
    "unknown to Opacus": Scaled,
    "lstm": lambda: Recurrent(DPLSTM, num_layers=2, bidirectional=True),
    "gru": lambda: Recurrent(DPGRU),
    "attention": Attention,
    "twice": Twice,
    "frozen below": frozen_below,
}


@pytest.mark.filterwarnings("ignore:In CPU autocast")  # by Opacus, for words with torch.func
@pytest.mark.parametrize("functorch", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_norms_are_those_of_one_backward_pass_for_each_record(name: str, functorch: bool) -> None:
    torch.manual_seed(0)
    model = LAYERS[name]().double()
    x = torch.randn(RECORDS, 12, dtype=torch.float64)
    expected = norms_one_by_one(model, x)
    found = new_pass(model, force_functorch=functorch)
    for _ in range(2):  # a pass leaves nothing behind
        norms = found.norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)
        for by_parameter, oracle in zip(norms, expected, strict=True):
            assert torch.allclose(by_parameter, oracle, rtol=1e-7, atol=1e-12)
    assert all(parameter.grad is None and not parameter.requires_grad for parameter in model.parameters())


def test_packed_sequences() -> None:
    torch.manual_seed(0)
    model = Packed().double()
    x = torch.randn(RECORDS, 13, dtype=torch.float64)
    x[:, 0] = torch.tensor([3, 3, 2, 2, 1, 1])
    expected = norms_one_by_one(model, x)
    norms = new_pass(model).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)
    for by_parameter, oracle in zip(norms, expected, strict=True):
        assert torch.allclose(by_parameter, oracle, rtol=1e-7)


def test_norms_in_half_precision_are_left_to_opacus() -> None:
    model, x = nn.Linear(12, 5), torch.randn(RECORDS, 12)
    with pytest.raises(NotImplementedError, match="half precision"), torch.autocast("cpu", torch.bfloat16):
        new_pass(model).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)


class Shared(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 12), nn.Linear(12, 12)
        self.outer.weight = self.inner.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


class Leftover(nn.Module):
    """A layer on whose output nothing depends."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.outer(x)
        return self.inner(x)


class Changing(nn.Module):
    """An input that is changed after it was used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        output = self.inner(x)
        x.mul_(2)
        return output + x


class ByKeyword(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(input=x)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layers, x, use_reentrant=False)


class OneRow(nn.Module):
    """Positions that all records share."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(12, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.positions(torch.arange(12).unsqueeze(0)).squeeze(-1)


class Evaluated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@pytest.mark.parametrize("make", [Shared, Leftover, Changing, ByKeyword, Checkpointed, OneRow, Evaluated])
def test_what_may_have_other_norms_is_left_to_opacus(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(RECORDS, 12)
    with pytest.raises(NotImplementedError):
        new_pass(model).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)


@pytest.mark.parametrize("make", [Twice, lambda: nn.Sequential(Shaped(2, 2, 3), nn.Linear(3, 4))])
def test_what_ghost_clipping_does_not_take_is_left_to_opacus(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(RECORDS, 12)
    with pytest.raises(NotImplementedError):
        new_pass(model, ghost=True).norms(lambda module: loss(module, x), RECORDS, scale=RECORDS)


class Classifier(nn.Module):
    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.inner, self.out = inner, nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.inner(x)).flatten(1))


@pytest.mark.parametrize(
    ("make", "width", "way"),
    [
        (lambda: Words(padding_idx=0), 36, "norms only"),  # counted by Opacus, though its derivative is 0
        (lambda: nn.Sequential(Shaped(1, 3, 4), nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular")), 48, None),
        (lambda: Recurrent(DPLSTM), 15, "norms only"),
        (Attention, 12, "norms only"),
        (Shared, 12, "gradients"),
    ],
)
def test_norms_are_those_that_opacus_clips(make: Callable[[], nn.Module], width: int, way: str | None) -> None:
    torch.manual_seed(0)
    data = random_data(20)
    run, ledger = private_run(Classifier(make(), width), data=data, batch=20), Ledger(keep_norms=True)
    watched = run.watch(ledger, audit=data, loss=run.loss)
    run.train(2)
    assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-4)
    assert way is None or watched._audit._audit._ways[0] == way
