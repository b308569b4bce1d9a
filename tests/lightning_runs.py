"""Small private runs with Lightning, as its users write them."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from opacus_runs import CLASSES, FEATURES, random_data, small_model

PRIVATE: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
AUDIT = TensorDataset(*random_data(30, seed=9))


class Classifier(lightning.LightningModule):
    """A module whose ``training_step`` computes and logs its loss."""

    def __init__(self, layers: nn.Module | None = None, lr: float = 0.1) -> None:
        super().__init__()
        self.layers = small_model() if layers is None else layers
        self.lr = lr

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("accuracy", (self(x).argmax(1) == y).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr)


def loader(records: int = 200, batch: int = 20, seed: int = 0) -> DataLoader[Any]:
    """Return the loader of ``opacus_runs.private_run``, before it is made private."""
    draws = torch.Generator().manual_seed(seed + 1)
    return DataLoader(TensorDataset(*random_data(records, seed)), batch_size=batch, generator=draws)


def trainer(folder: Any, *callbacks: Any, **options: Any) -> lightning.Trainer:
    """Return a trainer that shows and keeps nothing unless it is asked for."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "max_epochs": 1, "num_sanity_val_steps": 0}
    return lightning.Trainer(default_root_dir=folder, callbacks=list(callbacks), **(quiet | options))


__all__ = ["AUDIT", "CLASSES", "FEATURES", "PRIVATE", "Classifier", "loader", "trainer"]
