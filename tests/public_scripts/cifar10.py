"""In the manner of Opacus' examples/cifar10.py: clipping by layer, a learning rate schedule, checkpoints."""

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus  # added


def convnet(num_classes):
    return nn.Sequential(
        nn.Conv2d(3, 4, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(kernel_size=2, stride=2),
        nn.Conv2d(4, 8, kernel_size=3, stride=1, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(start_dim=1, end_dim=-1),
        nn.Linear(8, num_classes, bias=True),
    )


def images(count):
    return TensorDataset(torch.rand(count, 3, 8, 8), torch.randint(0, 10, (count,)))


def train(model, train_loader, optimizer):
    model.train()
    criterion = nn.CrossEntropyLoss()
    for batch in train_loader:
        inputs, target = batch
        output = model(inputs)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    epochs, bound = 2, 1.0
    generator = torch.Generator().manual_seed(3)
    train_loader = DataLoader(images(300), batch_size=50, generator=generator)
    test_dataset = images(100)
    model = convnet(num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    layers = len([(name, p) for name, p in model.named_parameters() if p.requires_grad])
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=1.5,
        max_grad_norm=[bound / np.sqrt(layers)] * layers,
        clipping="per_layer",
        grad_sample_mode="hooks",
    )
    watched = bayesdp.opacus.watch(  # added
        model, optimizer, train_loader, ledger="run.ledger", audit=test_dataset, loss=nn.CrossEntropyLoss()
    )
    for epoch in range(1, epochs + 1):
        lr = 0.01 * 0.5 * (1 + np.cos(np.pi * epoch / (epochs + 1)))
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        train(model, train_loader, optimizer)
        torch.save({"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}, "a.tar")
    print(watched.statement())  # added
    return model
