"""Noise and batches for Opacus from a cryptographic or a seeded generator."""

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesdp import Ledger
from bayesdp.opacus import SecureNoise, SecureSampler, watch
from bayesdp.randomness import Secure, Seeded


def test_every_record_is_drawn_by_itself_and_every_batch_anew():
    sampler = SecureSampler(num_samples=200, sample_rate=0.3, steps=50, randomness=Secure())
    drawn = np.zeros((50, 200))
    for row, batch in zip(drawn, sampler, strict=True):
        row[batch] = 1
    assert stats.binomtest(int(drawn.sum()), 10_000, 0.3).pvalue > 1e-6
    assert len(np.unique(drawn, axis=0)) == 50


def test_another_pass_goes_on_with_other_batches():
    whole = list(SecureSampler(num_samples=50, sample_rate=0.2, steps=10, randomness=Seeded(3)))
    sampler = SecureSampler(num_samples=50, sample_rate=0.2, steps=5, randomness=Seeded(3))
    assert [*sampler, *sampler] == whole


@pytest.mark.parametrize("batches", [Secure(), Seeded(0)])
@pytest.mark.parametrize("noise", [Secure(), Seeded(0)])
def test_whichever_is_seeded_is_said(batches, noise):
    model = GradSampleModule(nn.Linear(4, 2))
    optimizer = DPOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=10
    )
    SecureNoise(optimizer, noise)
    sampler = SecureSampler(num_samples=20, sample_rate=0.5, steps=2, randomness=batches)
    loader = DataLoader(TensorDataset(torch.randn(20, 4), torch.zeros(20, dtype=torch.int64)), batch_sampler=sampler)
    ledger = Ledger()
    with watch(model, optimizer, loader, ledger=ledger):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.CrossEntropyLoss()(model(inputs), targets).backward()
            optimizer.step()
    assert ledger.steps == 2
    assert ("seeded" in ledger.history.caveats) == (batches.reproducible or noise.reproducible)


def test_other_optimizers_are_refused():
    model = nn.Linear(4, 2)
    with pytest.raises(ValueError, match="optimizer='SGD'"):
        SecureNoise(torch.optim.SGD(model.parameters(), lr=0.1), Secure())
