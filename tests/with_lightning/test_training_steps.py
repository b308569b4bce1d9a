"""Training steps that modules of Lightning have: audit records see what training does, or claims say so."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from bayesdp import Ledger
from bayesdp.lightning import PrivacyCallback
from lightning_runs import AUDIT, PRIVATE, Classifier, trainer
from opacus_runs import audit_norms, batch_norms


class CallsItsLayers(Classifier):
    """A module whose ``forward`` is never called."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)


class Doubles(Classifier):
    def on_after_backward(self):
        for parameter in self.parameters():
            parameter.grad_sample = 2 * parameter.grad_sample


class DoublesLayers(Doubles, CallsItsLayers):
    pass


def run(module, ledger, folder, epochs=1):
    callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE)
    train = DataLoader(copy.deepcopy(AUDIT), batch_size=len(AUDIT))
    trainer(folder, callback, max_epochs=epochs).fit(module, train)


@pytest.mark.parametrize(("made", "changed"), [(CallsItsLayers, False), (Doubles, True), (DoublesLayers, True)])
def test_gradients_that_are_changed_are_noticed(tmp_path, made, changed):
    with Ledger() as ledger:
        run(made(), ledger, tmp_path, epochs=2)
        assert ledger.history.caveats == ["changed-gradients"] * changed


class Anneals(Classifier):
    """A module whose loss has a weight among its hyperparameters that grows with the epoch."""

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"weight": 1.0})

    def on_train_epoch_start(self):
        self.hparams.weight = 1.0 + 4 * self.current_epoch

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.hparams.weight * self(x), y)


class LooksAtTheNumber(Classifier):
    """A module whose loss depends on the number of the batch, which is 0 at the first."""

    def training_step(self, batch, batch_idx):
        return (2 if batch_idx else 1) * super().training_step(batch, batch_idx)


def test_audit_records_see_the_same_settings(tmp_path):
    with Ledger(keep_norms=True) as ledger:
        run(Anneals(), ledger, tmp_path, epochs=3)
        for step in (1, 2, 3):
            assert np.allclose(audit_norms(ledger, step), batch_norms(ledger, step), rtol=1e-4)


def test_audit_records_see_the_number_of_the_batch(tmp_path):
    """Hardly anything is learned, so norms differ by the factor of the loss alone."""
    with Ledger(keep_norms=True) as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, max_grad_norm=1e6, noise_multiplier=1e-6)
        train = DataLoader(copy.deepcopy(AUDIT), batch_size=len(AUDIT) // 2)
        module = LooksAtTheNumber(lr=1e-6)
        trainer(tmp_path, callback).fit(module, train)
        assert np.allclose(audit_norms(ledger, 2), 2 * audit_norms(ledger, 1), rtol=1e-4)


def decorated(step):
    """Wrap a step as decorators do that pass on whatever they are given."""

    @functools.wraps(step)
    def wrapped(*arguments, **options):
        return step(*arguments, **options)

    return wrapped


class Decorated(Classifier):
    training_step = decorated(Classifier.training_step)


class TakesAll(Classifier):
    def training_step(self, *arguments):
        return super().training_step(*arguments)


class OnlyBatch(Classifier):
    def training_step(self, batch):
        return super().training_step(batch, 0)


class Head(Classifier):
    """A module that trains its last layer alone, without freezing the others."""

    def configure_optimizers(self):
        return torch.optim.SGD(list(self.layers.children())[-1].parameters(), lr=self.lr)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute")
@pytest.mark.parametrize("made", [Decorated, TakesAll, OnlyBatch, Head, "compiled"])
def test_steps_that_are_written_in_other_ways(tmp_path, made):
    module = torch.compile(CallsItsLayers(), backend="eager") if made == "compiled" else made()
    trained = [parameter.requires_grad for parameter in module.parameters()]
    with Ledger(keep_norms=True) as ledger:
        run(module, ledger, tmp_path, epochs=2)
        assert ledger.steps == 2
        assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-4)
    assert trained == [parameter.requires_grad for parameter in module.parameters()]
