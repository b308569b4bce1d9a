"""In the manner of Flower's example with Opacus: what a client does in a round; records come as dictionaries."""

import torch
import torch.nn.functional as F
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

import bayesdp.opacus  # added


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(4 * 3 * 3, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        return self.fc1(x.view(-1, 4 * 3 * 3))


def load_data():
    images = [{"img": torch.rand(3, 8, 8), "label": int(torch.randint(0, 10, ()))} for _ in range(200)]
    return DataLoader(images[:160], batch_size=32, shuffle=True), DataLoader(images[160:], batch_size=32)


def train(net, train_loader, privacy_engine, optimizer, target_delta, epochs=1):
    criterion = torch.nn.CrossEntropyLoss()
    net.train()
    for _ in range(epochs):
        for batch in train_loader:
            images = batch["img"]
            labels = batch["label"]
            optimizer.zero_grad()
            criterion(net(images), labels).backward()
            optimizer.step()
    return privacy_engine.get_epsilon(delta=target_delta)


def main():
    train_loader, test_loader = load_data()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    privacy_engine = PrivacyEngine(secure_mode=False)
    private_model, optimizer, private_train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0, max_grad_norm=1.0
    )
    watched = bayesdp.opacus.watch(  # added
        private_model,
        optimizer,
        private_train_loader,
        ledger="run.ledger",
        audit=test_loader,
        loss=lambda model, batch: F.cross_entropy(model(batch["img"]), batch["label"], reduction="none"),
    )
    epsilon = train(private_model, private_train_loader, privacy_engine, optimizer, 1e-5, epochs=1)
    print(f"epsilon {epsilon:.2f}")
    print(watched.statement())  # added
    return private_model
