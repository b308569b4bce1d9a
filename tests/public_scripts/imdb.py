"""In the manner of Opacus' examples/imdb.py: a mean of embeddings, a shuffled loader without Poisson sampling.

The original pads a batch to its longest text and takes the mean over padding too, so that the gradient of a text
depends on the others in its batch. ``padded_collate`` pads to the length to which texts are cut anyway.
"""

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import bayesdp.opacus  # added

MAX_SEQUENCE_LENGTH = 12


class SampleNet(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.emb = nn.Embedding(vocab_size, 16)
        self.pool = nn.AdaptiveAvgPool1d(1)
        self.fc1 = nn.Linear(16, 16)
        self.fc2 = nn.Linear(16, 2)

    def forward(self, x):
        x = self.pool(self.emb(x).transpose(1, 2)).squeeze()
        return self.fc2(nn.functional.relu(self.fc1(x)))


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([elem["input_ids"] for elem in batch], batch_first=True, padding_value=padding_idx)
    x = nn.functional.pad(x, (0, MAX_SEQUENCE_LENGTH - x.shape[1]))  # added
    y = torch.stack([elem["label"] for elem in batch]).long()
    return x, y


def texts(count):
    lengths = torch.randint(3, MAX_SEQUENCE_LENGTH + 1, (count,)).tolist()
    return [{"input_ids": torch.randint(1, 50, (n,)), "label": torch.randint(0, 2, ())} for n in lengths]


def train(model, train_loader, optimizer):
    criterion = nn.CrossEntropyLoss()
    model = model.train()
    for data, label in train_loader:
        optimizer.zero_grad()
        predictions = model(data).squeeze(1)
        loss = criterion(predictions, label)
        loss.backward()
        optimizer.step()


def main():
    train_loader = DataLoader(texts(200), batch_size=40, collate_fn=padded_collate, pin_memory=False, shuffle=True)
    test_loader = DataLoader(texts(60), batch_size=40, shuffle=False, collate_fn=padded_collate)
    model = SampleNet(vocab_size=50)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=train_loader,
        noise_multiplier=0.56,
        max_grad_norm=1.0,
        poisson_sampling=False,
    )
    watched = bayesdp.opacus.watch(  # added
        model, optimizer, train_loader, ledger="run.ledger", audit=test_loader, loss=nn.CrossEntropyLoss()
    )
    for _epoch in range(2):
        train(model, train_loader, optimizer)
    print(watched.statement())  # added
    return model
