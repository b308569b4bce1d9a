"""Go on with a run that was interrupted: model, optimizer and ledger together.

Run it twice. The first run stops after five epochs, as if it had been killed; the second goes on with run.ledger and
checkpoint.pt in the current folder. Steps taken between the last checkpoint and a crash were released: they stay in the
ledger, and are paid for again when they are repeated. Their noise must be new, so nothing is seeded here, and the
checkpoint has no state of PyTorch's generator.
"""

from pathlib import Path

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger

EPOCHS, STOP_AFTER = 10, 5
LEDGER, CHECKPOINT = Path("run.ledger"), Path("checkpoint.pt")

pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
audit, train = (x[:500], y[:500]), TensorDataset(x[500:], y[500:])

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(train, batch_size=256),
    noise_multiplier=2.0,
    max_grad_norm=2.0,
)

resumed = CHECKPOINT.exists()
ledger = Ledger.open(LEDGER) if resumed else Ledger.create(LEDGER)
with ledger, bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=audit, loss=criterion) as watched:
    first = 0
    if resumed:
        kept = torch.load(CHECKPOINT, weights_only=True)
        watched.load_state_dict(kept["watched"])  # refused if the ledger lacks steps from before the checkpoint
        model.load_state_dict(kept["model"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["epochs"]

    for epoch in range(first, EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        checkpoint = {
            "epochs": epoch + 1,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "watched": watched.state_dict(),
        }
        torch.save(checkpoint, CHECKPOINT)
        if not resumed and epoch + 1 == STOP_AFTER:
            print(f"Interrupted after {epoch + 1} epochs, {ledger.steps} steps in the ledger. Run me again.")
            raise SystemExit

    print(f"{EPOCHS} epochs, {ledger.steps} steps in the ledger.")
    print(watched.claims().everyone.statement())
