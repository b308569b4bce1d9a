"""What does a run with Opacus cost everyone, and what does it cost typical people?

Prints the statement and writes digits.ledger and report.html into the current folder.
"""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus

# Data: 500 people are set aside as the audit set. They are like the others and never trained on.
pixels, labels = load_digits(return_X_y=True)
x, y = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels)
audit, train = (x[:500], y[:500]), TensorDataset(x[500:], y[500:])

# An ordinary script with Opacus. The clip bound is above most gradient norms, so that typical people stay below it.
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.5), nn.CrossEntropyLoss()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(train, batch_size=256),
    noise_multiplier=2.0,
    max_grad_norm=4.0,
)

# The plan is declared before training: its guarantee holds whenever training ends.
steps = 10 * len(loader)
with bayesdp.opacus.watch(
    model, optimizer, loader, ledger="digits.ledger", audit=audit, loss=criterion, steps=steps
) as watched:
    for _ in range(10):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()

# The ledger is closed, so the seal on the report covers everything.
claims = watched.claims(delta=1e-5)
watched.ledger.report("report.html", claims=claims)
print(claims.statement())
print(f"For everyone: {claims.everyone.epsilon:.2f}. For half of the people, estimated: ", end="")
print(f"{claims.share(0.5).estimate.epsilon:.2f}.")
