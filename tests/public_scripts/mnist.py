"""In the manner of Opacus' examples/mnist.py: a convolutional network, Poisson sampling, flat clipping."""

import numpy as np
import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus  # added


class SampleConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 4, 2, padding=1)
        self.conv2 = nn.Conv2d(4, 8, 2)
        self.fc1 = nn.Linear(8 * 2 * 2, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2, 1)
        return self.fc2(F.relu(self.fc1(x.view(-1, 8 * 2 * 2))))


def images(count):
    return TensorDataset(torch.rand(count, 1, 8, 8), torch.randint(0, 10, (count,)))


def train(model, train_loader, optimizer, privacy_engine, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss()
    losses = []
    for _batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        loss = criterion(model(data), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Train Epoch: {epoch} Loss: {np.mean(losses):.4f} epsilon {privacy_engine.get_epsilon(1e-5):.2f}")


def test(model, test_loader):
    model.eval()
    with torch.no_grad():
        return np.mean([(model(data).argmax(1) == target).float().mean() for data, target in test_loader])


def main():
    train_loader = DataLoader(images(300), batch_size=50)
    test_loader = DataLoader(images(100), batch_size=50, shuffle=True)
    model = SampleConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    watched = bayesdp.opacus.watch(  # added
        model, optimizer, train_loader, ledger="run.ledger", audit=test_loader, loss=nn.CrossEntropyLoss()
    )
    for epoch in range(1, 3):
        train(model, train_loader, optimizer, privacy_engine, epoch)
    print(test(model, test_loader))
    print(watched.statement())  # added
    return model
