"""Train one model on several processes: the ledger is on rank 0, the batches of all ranks are one step.

    torchrun --standalone --nproc-per-node 2 examples/several_processes.py

Everything that asks for the ledger is on rank 0; with ``report=`` nothing needs to ask.
"""

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from sklearn.datasets import load_digits
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus

distributed.init_process_group("gloo")  # "nccl" with a GPU for each rank
rank = distributed.get_rank()
torch.manual_seed(2024 + rank)  # each rank draws its own records: with equal seeds the first step is refused

pixels, labels = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
people, audit = bayesdp.opacus.split_audit(digits)  # the same people on every rank

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
model = DifferentiallyPrivateDistributedDataParallel(model)
criterion = nn.CrossEntropyLoss()
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    data_loader=DataLoader(people, batch_size=256),  # of all ranks together
    noise_multiplier=2.0,
    max_grad_norm=2.0,
)

with bayesdp.opacus.watch(
    model, optimizer, loader, ledger="ranks.ledger", audit=audit, loss=criterion, steps=30, report="report.html"
) as watched:
    for _ in range(5):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    if rank == 0:
        print(f"{distributed.get_world_size()} ranks, {watched.ledger.steps} steps in the ledger.")

distributed.destroy_process_group()
