"""Train with Accelerate: prepare first, then make_private and watch, so that Opacus' own objects are in the loop.

The order matters. ``prepare`` wraps optimizer and loader, and Opacus would take the wrappers for the real ones; a
loader that is prepared after make_private is no longer the one that draws. So Accelerate prepares the model (device and
precision), and optimizer and loader are those of Opacus. One process: Accelerate does not know Opacus' DDP.
"""

import torch
from accelerate import Accelerator
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus

pixels, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
train, audit = bayesdp.opacus.split_audit(digits, seed=0)

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)))
optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(train, batch_size=128),
    noise_multiplier=2.0,
    max_grad_norm=2.0,
)
with bayesdp.opacus.watch(
    model, optimizer, loader, ledger="digits.ledger", audit=audit, loss=criterion, steps=55, report="report.html"
):
    for _ in range(5):
        for inputs, targets in loader:
            optimizer.zero_grad()
            inputs, targets = inputs.to(accelerator.device), targets.to(accelerator.device)
            accelerator.backward(criterion(model(inputs), targets))
            optimizer.step()
