"""Train until a declared budget is spent: the loader gives no further batch, and no step beyond it changes anything."""

import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Budget

BUDGET = 2.0

pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(TensorDataset(x, y), batch_size=256),
    noise_multiplier=2.0,
    max_grad_norm=2.0,
)

warnings.simplefilter("ignore", bayesdp.opacus.BudgetReachedWarning)  # it says what is printed below
watching = bayesdp.opacus.watch(
    model,
    optimizer,
    loader,
    ledger="budget.ledger",
    budget=Budget(epsilon=BUDGET, delta=1e-5),
    steps=10_000,  # more than will fit: with the settings declared, the budget allows the most steps
)
with watching as watched:
    while not watched.stopped:
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    print(f"Stopped after {watched.ledger.steps} steps. {watched.ledger.worst_case(delta=1e-5).statement()}")
