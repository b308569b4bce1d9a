"""Norms of the gradients of single records with nothing but autograd, and a pass that is to find the same."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from bayesdp.opacus.norm_pass import NormPass


def loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the mean over records of a loss with another derivative in every coordinate."""
    output = torch.tanh(model(x)).flatten(1)
    return (output * output.cos().detach()).sum(dim=1).exp().log1p().mean()


def norms_one_by_one(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return norms by each trained parameter, each [b], with nothing but autograd and one record at a time."""
    model = copy.deepcopy(model)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rows = [[gradient.norm() for gradient in torch.autograd.grad(loss(model, row.unsqueeze(0)), wanted)] for row in x]
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def new_pass(model: nn.Module, **options: Any) -> NormPass:
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return NormPass(model, wanted, **({"batch_first": True, "force_functorch": False, "ghost": False} | options))
