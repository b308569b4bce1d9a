"""Train with Lightning: an ordinary module and trainer, and one callback more."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp.lightning import PrivacyCallback


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


pixels, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, audit = bayesdp.opacus.split_audit(digits, seed=0)  # the first line
privacy = PrivacyCallback(  # the second
    ledger="digits.ledger", noise_multiplier=2.0, max_grad_norm=2.0, audit=audit, steps=55, report="report.html"
)
trainer = lightning.Trainer(max_epochs=5, accelerator="cpu", logger=False, callbacks=[privacy])
trainer.fit(Digits(), DataLoader(train, batch_size=128))
