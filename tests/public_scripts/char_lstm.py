"""In the manner of Opacus' examples/char-lstm-classification.py: names of different lengths, a recurrent network.

The original pads a batch to its longest name and reads the last state, so that the gradient of a name depends on the
others in its batch. ``padded_collate`` pads to a fixed length instead.
"""

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import bayesdp.opacus  # added

LONGEST = 8


class CharNNClassifier(nn.Module):
    def __init__(self, rnn_type, embedding_size, hidden_size, output_size):
        super().__init__()
        self.embedding = nn.Embedding(30, embedding_size)
        self.rnn = rnn_type(embedding_size, hidden_size, num_layers=1, bidirectional=False, batch_first=True)
        self.out_layer = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden=None):
        x, _ = self.rnn(self.embedding(x), hidden)
        return self.out_layer(x[:, -1, :])


def padded_collate(batch, padding_idx=0):
    x = pad_sequence([elem[0] for elem in batch], batch_first=True, padding_value=padding_idx)
    x = nn.functional.pad(x, (0, LONGEST - x.shape[1]))  # added
    y = torch.stack([elem[1] for elem in batch]).long()
    return x, y


def names(count):
    lengths = torch.randint(2, LONGEST + 1, (count,)).tolist()
    return [(torch.randint(1, 30, (length,)), torch.randint(0, 4, ())) for length in lengths]


def train(model, criterion, optimizer, train_loader):
    model.train()
    for x, y in train_loader:
        logits = model(x)
        loss = criterion(logits, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main():
    ds = names(200)
    train_ds, test_ds = torch.utils.data.random_split(ds, [160, 40])
    model = CharNNClassifier(DPLSTM, 8, 8, 4)
    train_loader = DataLoader(train_ds, batch_size=40, collate_fn=padded_collate)
    test_loader = DataLoader(test_ds, batch_size=80, shuffle=False, collate_fn=padded_collate)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0, max_grad_norm=1.5
    )
    watched = bayesdp.opacus.watch(  # added
        model, optimizer, train_loader, ledger="run.ledger", audit=test_loader, loss=criterion
    )
    train(model, criterion, optimizer, train_loader)
    print(watched.statement())  # added
    return model
