"""What other callbacks do: choices by audit records are declared or refused, and so is training without noise."""

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
)
from torch.utils.data import DataLoader, Subset

from bayesdp import InvalidInputError, Ledger
from bayesdp.lightning import PrivacyCallback
from lightning_runs import AUDIT, PRIVATE, Classifier, loader, trainer

REFUSED = "audit='rows of the validation data': expected people by whom nothing is chosen.*audit_used_for="


class Plateau(Classifier):
    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "accuracy"}}


class Data(lightning.LightningDataModule):
    def train_dataloader(self):
        return loader()

    def val_dataloader(self):
        return [loader(seed=5), DataLoader(Subset(AUDIT, [0, 1]), batch_size=2)]


def fit(folder, *callbacks, module=None, unseen=AUDIT, audit_used_for=None, **options):
    with Ledger.create(folder / "a", audit_used_for=audit_used_for) as ledger:
        watching = PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE)
        fitted = trainer(folder, watching, *callbacks, **({"enable_checkpointing": True} | options))
        data = {"datamodule": Data()}
        if unseen is not None:
            data = {"train_dataloaders": loader(), "val_dataloaders": DataLoader(unseen, batch_size=30)}
        fitted.fit(Classifier() if module is None else module, **data)
        return ledger.steps


def stops():
    return EarlyStopping("accuracy", mode="max")


@pytest.mark.parametrize("chooses", [stops, lambda: ModelCheckpoint(monitor="accuracy"), None])
def test_choices_by_audit_records_are_refused(tmp_path, chooses):
    callbacks, module = ([], Plateau()) if chooses is None else ([chooses()], None)
    with pytest.raises(InvalidInputError, match=REFUSED):
        fit(tmp_path, *callbacks, module=module)


def test_choices_by_some_of_the_audit_records_in_a_data_module_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=REFUSED):
        fit(tmp_path, stops(), unseen=None)


def test_other_choices_are_not_refused(tmp_path):
    for number, (callback, options) in enumerate(
        [
            (stops(), {"unseen": loader(seed=5).dataset}),
            (stops(), {"audit_used_for": "early stopping"}),
            (EarlyStopping("train_loss"), {}),
            (ModelCheckpoint(), {}),
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert fit(folder, callback, **options) == 10


def test_training_without_noise_inside_of_fit_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="callbacks='LearningRateFinder': expected none that trains without"):
        fit(tmp_path, LearningRateFinder())


def test_batches_that_will_be_accumulated_are_refused(tmp_path):
    with pytest.raises(InvalidInputError, match="accumulate_grad_batches=4: expected 1"):
        fit(tmp_path, GradientAccumulationScheduler({0: 1, 3: 4}))
