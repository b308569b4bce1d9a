"""Draws in parts: a step of Lightning is a whole draw, and an epoch has as many as without parts."""

import copy

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from bayesdp import Ledger
from bayesdp.lightning import PrivacyCallback
from lightning_runs import AUDIT, PRIVATE, Classifier, loader, trainer
from opacus_runs import audit_norms, batch_norms

PARTS = {"max_physical_batch_size": 8}


class OneCycle(Classifier):
    """A module with a schedule over all steps, which fails if it is asked for more."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def fit(folder, module, *callbacks, data=None, unseen=None, given=None, checkpoint=None, **options):
    with Ledger(keep_norms=True) if given is None else Ledger.open(given) as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **(PARTS | PRIVATE))
        fitted = trainer(folder, callback, *callbacks, **options)
        fitted.fit(module, loader() if data is None else data, unseen, ckpt_path=checkpoint)
        return fitted, ledger.steps


def test_an_epoch_has_all_of_its_draws_whatever_their_sizes(tmp_path):
    """If it ended after a number of parts, the number of steps would depend on who was drawn."""
    for seed in range(3):
        fitted, steps = fit(tmp_path, OneCycle(), data=loader(seed=seed), max_epochs=3)
        assert fitted.global_step == steps == 30
        assert fitted.current_epoch == 3


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_steps": 7, "max_epochs": -1}, 7),
        ({"limit_train_batches": 3}, 3),
        ({"limit_train_batches": 0.5}, 5),
        ({"overfit_batches": 2}, 2),
        ({"val_check_interval": 0.25}, 10),
    ],
)
@pytest.mark.filterwarnings("ignore:You requested to overfit but")
def test_limits_are_numbers_of_draws(tmp_path, options, steps):
    fitted, counted = fit(tmp_path, Classifier(), unseen=loader(seed=5), **options)
    assert fitted.global_step == counted == steps
    assert fitted.limit_train_batches == options.get("limit_train_batches", options.get("overfit_batches", 1.0))
    assert fitted.val_check_interval == options.get("val_check_interval", 1.0)
    assert fitted.fit_loop.epoch_loop._accumulated_batches_reached()  # Lightning's own again


def test_nothing_is_trained_on_where_the_limit_is_nothing(tmp_path):
    assert fit(tmp_path, Classifier(), limit_train_batches=0)[1] == 0


def test_parts_of_one_draw_are_one_step(tmp_path):
    """The records trained on are the audit records."""
    with Ledger(keep_norms=True) as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **PARTS, **PRIVATE)
        trainer(tmp_path, callback).fit(Classifier(), DataLoader(copy.deepcopy(AUDIT), batch_size=len(AUDIT)))
        assert ledger.steps == 1
        assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
        assert ledger.history.caveats == []


@pytest.mark.filterwarnings("ignore:The dirpath has changed", "ignore:You're resuming from a checkpoint")
def test_a_checkpoint_within_an_epoch_goes_on_with_the_rest_of_it(tmp_path):
    Ledger.create(tmp_path / "a").close()

    def part(**options):
        keep = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)
        return fit(tmp_path, Classifier(), keep, given=tmp_path / "a", enable_checkpointing=True, **options)

    part()
    fitted, steps = part(checkpoint=tmp_path / "step=4.ckpt", max_epochs=2)
    assert (fitted.global_step, steps) == (20, 10 + 16)


def test_optimization_by_hand_takes_its_own_steps(tmp_path):
    class Steps(Classifier):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    def losses(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    with Ledger() as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, loss=losses, **PARTS, **PRIVATE)
        trainer(tmp_path, callback).fit(Steps(), loader())
        assert ledger.steps == 10
