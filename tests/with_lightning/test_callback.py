"""The callback of Lightning: the run is that of Opacus, and all of it is in the ledger."""

import copy

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader

from bayesdp import Budget, InvalidInputError, Ledger, LedgerError
from bayesdp.lightning import PrivacyCallback
from bayesdp.opacus import BudgetReachedWarning
from bayesdp.opacus.precision import CLIPPED
from lightning_runs import AUDIT, PRIVATE, Classifier, lightning, loader, trainer
from opacus_runs import audit_norms, batch_norms, private_run, settings


def parameters(module):
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()


def test_the_run_is_that_of_opacus_to_the_last_bit(tmp_path):
    plain = private_run()
    plain.train(epochs=2)
    module = Classifier()
    noise = torch.Generator().manual_seed(2)
    callback = PrivacyCallback(ledger=tmp_path / "a", audit=AUDIT, secure=False, noise_generator=noise, **PRIVATE)
    trainer(tmp_path, callback, max_epochs=2).fit(module, loader())
    assert np.array_equal(parameters(module), plain.parameters)
    with Ledger.open(tmp_path / "a") as ledger:
        assert (ledger.steps, ledger.audit_records) == (20, 30)


def test_audit_norms_are_those_of_the_training_step(tmp_path):
    module = Classifier()
    before = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}

    def loss(values, x, y):
        return nn.functional.cross_entropy(functional_call(module, values, x[None]), y[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(before, *AUDIT.tensors)
    exact = torch.cat([each.flatten(1) for each in gradients.values()], dim=1).norm(dim=1)
    with Ledger(keep_norms=True) as ledger:
        trainer(tmp_path, PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE), max_steps=1).fit(module, loader())
        assert ledger.private_norms(1)[0] == pytest.approx(exact.numpy(), rel=1e-5)


def test_everything_is_as_before_when_fit_is_over(tmp_path, capsys):
    module = Classifier()
    names = list(module.state_dict())
    train, unseen = loader(), loader(seed=5)
    fitted = trainer(tmp_path, PrivacyCallback(ledger=tmp_path / "a", audit=AUDIT, report=tmp_path / "p", **PRIVATE))
    fitted.fit(module, train, unseen)
    assert "Guarantee for everyone: epsilon at most" in capsys.readouterr().out
    assert (tmp_path / "p").read_text().startswith("<!doctype html>")
    assert list(module.state_dict()) == names
    assert not any(layer._forward_hooks for layer in module.modules())
    assert fitted.validate(module, unseen, verbose=False)[0]["accuracy"] > 0
    fitted.fit_loop.max_epochs = 2
    fitted.fit(module, train)  # goes on, with the same ledger
    with Ledger.open(tmp_path / "a") as ledger:
        assert ledger.steps == 20


class Kept(lightning.pytorch.loggers.Logger):
    """A logger that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.rows = []

    name, version = "kept", 0

    def log_metrics(self, metrics, step):
        self.rows.append((step, dict(metrics)))

    def log_hyperparams(self, *_, **__):
        pass


def test_epsilon_is_logged_at_its_own_step_and_at_the_end(tmp_path):
    kept = Kept()
    with Ledger() as ledger:
        fitted = trainer(tmp_path, PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE), logger=kept, max_epochs=2)
        fitted.fit(Classifier(), loader())
        claims = ledger.claims()
        rows = [(step, row) for step, row in kept.rows if "epsilon" in row]
        assert [rows[0][0], rows[-1][0]] == [1, 20]
        assert claims.everyone.epsilon <= rows[-1][1]["epsilon"] * (1 + 1e-9) <= 1.02 * claims.everyone.epsilon
        assert all(0 < row["epsilon_half"] <= row["epsilon"] for _, row in rows)
        first = Ledger()
        first.step(noise_std=1.0, sample_rate=ledger.history.stretches[0].sample_rate, clip=1.0)
        assert rows[0][1]["epsilon"] >= first.claims().everyone.epsilon
        shown = {name: float(value) for name, value in fitted.progress_bar_metrics.items()}
        assert shown["epsilon_step"] == 20
        assert shown["epsilon"] == pytest.approx(rows[-1][1]["epsilon"])


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_goes_on_with_its_ledger(tmp_path):
    first = trainer(tmp_path, PrivacyCallback(ledger=tmp_path / "a", audit=AUDIT, **PRIVATE), max_epochs=2)
    first.fit(Classifier(), loader())
    first.save_checkpoint(tmp_path / "ckpt")

    def resume(ledger, **options):
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE, **options)
        trainer(tmp_path, callback, max_epochs=3).fit(Classifier(), loader(), ckpt_path=tmp_path / "ckpt")

    with Ledger.create(tmp_path / "b") as other:
        other.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    with pytest.raises(LedgerError, match="is of run"):
        resume(tmp_path / "b")
    resume(tmp_path / "a", steps=20)  # the plan belongs to the beginning
    with Ledger.open(tmp_path / "a") as ledger:
        assert ledger.steps == 30


def test_a_checkpoint_without_a_ledger_is_refused(tmp_path):
    plain = trainer(tmp_path)
    plain.fit(Classifier(), loader())
    plain.save_checkpoint(tmp_path / "ckpt")
    callback = PrivacyCallback(ledger=tmp_path / "a", **PRIVATE)
    with pytest.raises(InvalidInputError, match=r"ckpt_path=.*: expected a checkpoint that was saved with"):
        trainer(tmp_path, callback, max_epochs=2).fit(Classifier(), loader(), ckpt_path=tmp_path / "ckpt")
    assert not (tmp_path / "a").exists()


def test_training_ends_when_the_budget_is_spent(tmp_path):
    callback = PrivacyCallback(ledger=tmp_path / "a", budget=Budget(epsilon=4.0), steps=1000, **PRIVATE)
    fitted = trainer(tmp_path, callback, max_epochs=50)
    with pytest.warns(BudgetReachedWarning):
        fitted.fit(Classifier(), loader())
    with Ledger.open(tmp_path / "a") as ledger:
        assert 3.9 < ledger.worst_case().epsilon <= 4.0
        assert 10 < fitted.global_step == ledger.steps < 500


class AsInTheTutorial(Classifier):
    """A module that calls make_private itself, as the tutorial of Opacus does."""

    def configure_optimizers(self):
        self.trainer.fit_loop.setup_data()
        data_loader = self.trainer.train_dataloader
        model, optimizer, _ = PrivacyEngine().make_private(
            module=self,
            optimizer=super().configure_optimizers(),
            data_loader=data_loader,
            poisson_sampling=isinstance(data_loader, DPDataLoader),
            **PRIVATE,
        )
        self.dp = {"model": model}
        return optimizer


class PrivateData(lightning.LightningDataModule):
    def train_dataloader(self):
        return DPDataLoader.from_data_loader(loader())


def test_a_module_that_made_itself_private(tmp_path):
    callback = PrivacyCallback(ledger=tmp_path / "a", audit=AUDIT)
    trainer(tmp_path, callback, max_epochs=2).fit(AsInTheTutorial(), datamodule=PrivateData())
    with Ledger.open(tmp_path / "a") as ledger:
        assert ledger.steps == 20
        assert ledger.history.stretches[0].sample_rate == pytest.approx(0.1)
    with pytest.raises(InvalidInputError, match="optimizer='DPOptimizer': expected an optimizer that is not private"):
        trainer(tmp_path, PrivacyCallback(ledger=Ledger(), **PRIVATE)).fit(AsInTheTutorial(), datamodule=PrivateData())


class ByHand(Classifier):
    automatic_optimization = False


class TwoOptimizers(Classifier):
    def configure_optimizers(self):
        return [super(TwoOptimizers, self).configure_optimizers() for _ in range(2)], []

    automatic_optimization = False  # Lightning itself refuses several optimizers otherwise


class Interrupted(Classifier):
    def training_step(self, batch, batch_idx):
        if batch_idx == 3:
            raise RuntimeError("out of memory")
        return super().training_step(batch, batch_idx)


class TestRefusals:
    """What cannot be accounted is refused before training, and leaves nothing behind."""

    def test_accumulated_draws(self, tmp_path):
        callback = PrivacyCallback(ledger=tmp_path / "a", **PRIVATE)
        with pytest.raises(InvalidInputError, match="accumulate_grad_batches=2: expected 1, as batches are drawn by"):
            trainer(tmp_path, callback, accumulate_grad_batches=2).fit(Classifier(), loader())

    def test_several_optimizers(self, tmp_path):
        with pytest.raises(InvalidInputError, match=r"optimizers.=2: expected one optimizer"):
            self.fit(tmp_path, TwoOptimizers())

    def fit(self, tmp_path, module, data=None, **options):
        callback = PrivacyCallback(ledger=tmp_path / "a", **({"audit": AUDIT} | PRIVATE | options))
        trainer(tmp_path, callback).fit(module, loader() if data is None else data)

    def test_optimization_by_hand_needs_a_loss(self, tmp_path):
        with pytest.raises(InvalidInputError, match="automatic_optimization=False: expected True; or loss="):
            self.fit(tmp_path, ByHand())
        assert not (tmp_path / "a").exists()

    def test_several_loaders(self, tmp_path):
        with pytest.raises(InvalidInputError, match="train_dataloader='list': expected one DataLoader"):
            self.fit(tmp_path, Classifier(), [loader(), loader()])

    def test_no_clip_bound(self, tmp_path):
        with pytest.raises(InvalidInputError, match="max_grad_norm=None: expected a number"):
            trainer(tmp_path, PrivacyCallback(ledger=tmp_path / "a", noise_multiplier=1.0)).fit(Classifier(), loader())

    def test_two_sources_of_noise(self, tmp_path):
        with pytest.raises(InvalidInputError, match="secure=True: expected False, if noise is to come from"):
            self.fit(tmp_path, Classifier(), noise_generator=torch.Generator())

    def test_unknown_options(self):
        with pytest.raises(TypeError, match="unexpected keyword argument 'noise_multiplyer'"):
            PrivacyCallback(ledger="a", noise_multiplyer=1.0)

    def test_a_loss_that_couples_records(self, tmp_path):
        class Sum(Classifier):
            def training_step(self, batch, batch_idx):
                return len(batch[0]) * super().training_step(batch, batch_idx)

        with pytest.raises(InvalidInputError, match="loss_reduction"):
            self.fit(tmp_path, Sum())

    def test_a_run_that_fails_leaves_a_whole_ledger(self, tmp_path, capsys):
        module = Interrupted()
        with pytest.raises(RuntimeError, match="out of memory"):
            self.fit(tmp_path, module, report=tmp_path / "p")
        with Ledger.open(tmp_path / "a") as ledger:
            assert ledger.steps == 3
        assert "Guarantee" not in capsys.readouterr().out
        assert not any(layer._forward_hooks for layer in module.modules())


def test_loaders_of_a_data_module_and_hooks_for_batches(tmp_path):
    class Data(lightning.LightningDataModule):
        def train_dataloader(self):
            return DataLoader(loader().dataset, batch_size=20, shuffle=True)

        def on_after_batch_transfer(self, batch, dataloader_idx):
            return batch[0] / 2, batch[1]

    norms = []
    for data in ({"train_dataloaders": loader()}, {"datamodule": Data()}):
        with Ledger(keep_norms=True) as ledger:
            module = Classifier()
            trainer(tmp_path, PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE), max_steps=1).fit(module, **data)
            norms.append(ledger.private_norms(1)[0])
    assert (norms[1] < norms[0]).all()


class CallsItsLayers(Classifier):
    """A module whose ``forward`` is never called."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)


@pytest.mark.parametrize("made", [Classifier, CallsItsLayers])
def test_mixed_precision_is_seen_and_makes_estimates(tmp_path, made):
    """Lightning enters autocast around ``training_step``. The records trained on are the audit records."""
    train = DataLoader(copy.deepcopy(AUDIT), batch_size=30)
    with Ledger(keep_norms=True) as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE)
        trainer(tmp_path, callback, precision="bf16-mixed").fit(made(), train)
        assert settings(ledger) == [(1.0, 1.0, CLIPPED, 1)]
        assert ledger.history.caveats == ["low-precision"]
        assert ledger.claims().everyone.kind == "estimate"
        audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
        assert np.all((batch * 0.99 < audit) & (audit < batch * CLIPPED * 1.01))


class Scaled(Classifier):
    """A module that scales its loss."""

    factor = 30.0

    def backward(self, loss):
        (self.factor * loss).backward()


class Weighted(Classifier):
    """A module whose ``training_step`` returns a multiple of its loss."""

    def training_step(self, batch, batch_idx):
        return 30 * super().training_step(batch, batch_idx)


def losses(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize("made", [Classifier, Scaled, Weighted])
@pytest.mark.parametrize("given", [losses, nn.CrossEntropyLoss()])
def test_a_loss_that_was_given_is_an_assumption(tmp_path, made, given):
    """What ``training_step`` returns may be any multiple of it."""
    with Ledger() as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, loss=given, **PRIVATE)
        trainer(tmp_path, callback).fit(made(), loader())
        assert ledger.history.caveats == ["given-loss"]


@pytest.mark.parametrize("made", [Classifier, Scaled, Weighted])
def test_a_loss_that_is_scaled_scales_the_norms_of_audit_records(tmp_path, made):
    with Ledger(keep_norms=True) as ledger:
        callback = PrivacyCallback(ledger=ledger, audit=AUDIT, **PRIVATE)
        trainer(tmp_path, callback).fit(made(), DataLoader(copy.deepcopy(AUDIT), batch_size=30))
        assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-4)
        assert ledger.history.caveats == []
