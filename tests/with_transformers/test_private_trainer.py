"""The Trainer of Hugging Face: the run is that of Opacus, and all of it is in the ledger."""

import copy
import json
from itertools import islice

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from opacus import PrivacyEngine
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from bayesdp import Budget, InvalidInputError, Ledger, LedgerError
from bayesdp.opacus import BudgetReachedWarning
from bayesdp.opacus.precision import CLIPPED
from bayesdp.transformers import PrivateTrainer
from bayesdp.transformers.record_loss import record_losses
from opacus_runs import audit_norms, batch_norms, settings
from transformers_runs import PRIVATE, Sentences, arguments, classifier, collate

AUDIT = Sentences(20, seed=1)


def private_trainer(folder, ledger, *, model=None, people=None, **options):
    given = {"audit": AUDIT, "train_dataset": Sentences(80) if people is None else people, "data_collator": collate}
    model = classifier() if model is None else model
    args = options.pop("args", None) or arguments(folder)
    return PrivateTrainer(model, args, ledger=ledger, **(given | PRIVATE | options))


def trained(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad]).numpy()


def plain_run(steps, batch):
    """Train as Opacus' users do, with draws and noise from seeds 1 and 2."""
    model = classifier().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(1)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(Sentences(80), batch_size=batch, collate_fn=collate, generator=draws),
        noise_generator=torch.Generator().manual_seed(2),
        **PRIVATE,
    )
    batches = (inputs for _ in range(steps) for inputs in loader)
    for inputs in islice(batches, steps):
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()
    return trained(model)


class Drawn(PrivateTrainer):
    """Draws from a seed, to compare runs."""

    def _get_dataloader(self, *args, **options):
        loader = super()._get_dataloader(*args, **options)
        loader.base_dataloader.generator = torch.Generator().manual_seed(1)
        return loader


@pytest.mark.parametrize("parts", [1, 8])
def test_the_run_is_that_of_opacus(tmp_path, parts):
    """To the last bit if a draw is one batch; in parts up to the order of additions."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    args = arguments(
        tmp_path,
        per_device_train_batch_size=64 if parts == 1 else 4,
        gradient_accumulation_steps=1 if parts == 1 else 16,
    )
    with Ledger() as ledger:
        run = Drawn(
            model,
            args,
            train_dataset=Sentences(80),
            data_collator=collate,
            optimizers=(optimizer, scheduler),
            ledger=ledger,
            audit=AUDIT,
            secure=False,
            noise_generator=torch.Generator().manual_seed(2),
            **PRIVATE,
        )
        assert run.train().global_step == ledger.steps == 3
        expected = plain_run(3, 64)
        if parts == 1:
            assert ledger.history.stretches[0].sample_rate == pytest.approx(1 / 2)
        assert np.allclose(trained(model), expected, rtol=0, atol=0 if parts == 1 else 1e-5)
    assert run.optimizer is optimizer


@pytest.mark.parametrize("factor", [1.0, 30.0])
def test_a_loss_that_is_scaled_scales_the_norms_of_audit_records(tmp_path, factor):
    with Ledger(keep_norms=True) as ledger:
        args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=20)
        run = private_trainer(tmp_path, ledger, args=args, people=Sentences(20, seed=1))
        backward = run.accelerator.backward
        run.accelerator.backward = lambda loss: backward(factor * loss)
        run.train()
        assert np.allclose(audit_norms(ledger, 1), batch_norms(ledger, 1), rtol=1e-3)
        assert ledger.history.caveats == []


def test_checkpoints_go_on_with_their_ledger(tmp_path):
    args = arguments(tmp_path, save_strategy="steps", save_steps=2, max_steps=4)
    first = private_trainer(tmp_path, tmp_path / "a", args=args)
    first.train()
    assert not any(layer._forward_hooks for layer in first.model.modules())
    again = private_trainer(
        tmp_path, tmp_path / "a", args=arguments(tmp_path, max_steps=6, save_strategy="steps"), steps=20
    )
    assert again.train(resume_from_checkpoint=True).global_step == 6
    with Ledger.open(tmp_path / "a", write=False) as ledger:
        assert ledger.steps == 6
    with Ledger.create(tmp_path / "b"):
        pass
    with pytest.raises(LedgerError, match="is of run"):
        private_trainer(tmp_path, tmp_path / "b").train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {}}))
    with pytest.raises(InvalidInputError, match="expected a checkpoint that PrivateTrainer saved"):
        private_trainer(tmp_path, tmp_path / "c").train(resume_from_checkpoint=str(tmp_path / "other"))


def test_epsilon_is_logged_and_nothing_without_noise(tmp_path, capsys):
    with Ledger() as ledger:
        run = private_trainer(tmp_path, ledger, report=tmp_path / "p", eval_dataset=Sentences(10, seed=3))
        run.train()
        claims = ledger.claims()
        assert "Guarantee for everyone: epsilon at most" in capsys.readouterr().out
        assert run.evaluate()["eval_loss"] > 0
    logged = [row for row in run.state.log_history if "epsilon" in row]
    assert logged[0]["step"] == 1
    assert claims.everyone.epsilon <= logged[-1]["epsilon"] * (1 + 1e-9) <= 1.02 * claims.everyone.epsilon
    assert all(0 < row["epsilon_half"] <= row["epsilon"] for row in logged)
    assert not any("grad_norm" in row or row.get("total_flos") for row in run.state.log_history)


@pytest.mark.slow
def test_training_ends_when_the_budget_is_spent(tmp_path):
    run = private_trainer(
        tmp_path,
        tmp_path / "a",
        audit=None,
        args=arguments(tmp_path, max_steps=500),
        budget=Budget(epsilon=4.0),
        steps=900,
    )
    with pytest.warns(BudgetReachedWarning):
        result = run.train()
    with Ledger.open(tmp_path / "a", write=False) as ledger:
        assert 3.8 < ledger.worst_case().epsilon <= 4.0
        assert 5 < result.global_step == ledger.steps < 500


def test_empty_batches_are_steps(tmp_path):
    args = arguments(tmp_path, per_device_train_batch_size=1, max_steps=12)
    with Ledger(keep_norms=True) as ledger:
        private_trainer(tmp_path, ledger, args=args, people=Sentences(40)).train()
        assert ledger.steps == 12
        assert min(len(ledger.private_norms(step)[1]) for step in range(1, 13)) == 0
        assert ledger.history.caveats == []


def test_the_first_batch_may_be_empty(tmp_path):
    args = arguments(tmp_path, per_device_train_batch_size=1, max_steps=1)
    trainer = private_trainer(tmp_path, Ledger(), args=args, people=Sentences(40))
    trainer.args = copy.copy(trainer.args)  # as inside train
    loader = trainer.get_train_dataloader()
    empty = loader.collate_fn([])
    assert {name: len(rows) for name, rows in empty.items()} == dict.fromkeys(loader.collate_fn([Sentences(40)[0]]), 0)
    trainer.watched.close()


def test_adapters_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["query", "value"], r=2, lora_dropout=0.0, task_type="SEQ_CLS")
    model = peft.get_peft_model(classifier(), config)
    before = trained(model)
    with Ledger() as ledger:
        private_trainer(tmp_path, ledger, model=model).train()
        assert ledger.steps == 3
        assert ledger.history.caveats == []
    assert not np.array_equal(trained(model), before)


class TestTokens:
    """Labels of tokens: each record has a loss of its own, however long the others are."""

    def test_losses_of_records(self):
        logits, labels = torch.randn(3, 5, 7), torch.randint(0, 7, (3, 5))
        labels[0, 3:] = labels[2] = -100
        losses = record_losses(logits, labels, shifted=True, smoothing=0.0)
        alone = torch.nn.functional.cross_entropy(logits[0, :2], labels[0, 1:3])
        assert losses[0] == pytest.approx(float(alone), rel=1e-6)
        assert losses[2] == 0
        smooth = record_losses(logits, labels, shifted=False, smoothing=0.2)
        alone = torch.nn.functional.cross_entropy(logits[1], labels[1], label_smoothing=0.2)
        assert smooth[1] == pytest.approx(float(alone), rel=1e-6)

    @pytest.mark.parametrize("smoothing", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
    def test_a_language_model(self, tmp_path, smoothing):
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0)
        config.embd_pdrop = config.attn_pdrop = 0.0
        model = GPT2LMHeadModel(config)
        model.transformer.wpe.requires_grad_(False)
        model.transformer.wte.requires_grad_(False)
        args = arguments(tmp_path, max_steps=2, label_smoothing_factor=smoothing)
        with Ledger(keep_norms=True) as ledger:
            run = private_trainer(
                tmp_path,
                ledger,
                model=model,
                args=args,
                people=Sentences(80, tokens=True),
                audit=Sentences(20, seed=1, tokens=True),
            )
            run.train()
            assert ledger.steps == 2


class Head(PrivateTrainer):
    """Creates an optimizer whenever it is asked for one; it trains the last layer alone."""

    def create_optimizer(self, *_, **__):
        self.optimizer = torch.optim.SGD(self.model.classifier.parameters(), lr=0.1)
        return self.optimizer


def test_a_subclass_with_an_optimizer_for_some_of_the_parameters(tmp_path):
    with Ledger(keep_norms=True) as ledger:
        args = arguments(tmp_path, max_steps=2, per_device_train_batch_size=20)
        given = {"train_dataset": Sentences(20, seed=1), "data_collator": collate, "audit": AUDIT}
        run = Head(classifier(), args, ledger=ledger, **given, **PRIVATE)
        wanted = [parameter.requires_grad for parameter in run.model.parameters()]
        run.train()
        assert ledger.steps == 2
        assert np.allclose(audit_norms(ledger, 2), batch_norms(ledger, 2), rtol=1e-3)
        assert wanted == [parameter.requires_grad for parameter in run.model.parameters()]
        assert type(run.optimizer) is torch.optim.SGD


def test_a_search_for_settings_sets_the_number_of_batches(tmp_path):
    """As a trial does: when ``train`` has begun."""

    class Trial(PrivateTrainer):
        def _hp_search_setup(self, trial):
            self.args.gradient_accumulation_steps = 1
            super()._hp_search_setup(trial)

    for made, rate in ((PrivateTrainer, 0.4), (Trial, 0.1)):
        with Ledger() as ledger:
            args = arguments(tmp_path, max_steps=2, gradient_accumulation_steps=4)
            given = {"train_dataset": Sentences(80), "data_collator": collate}
            made(classifier(), args, ledger=ledger, **given, **PRIVATE).train()
            assert ledger.steps == 2
            assert ledger.history.stretches[0].sample_rate == pytest.approx(rate, abs=0.11)
            assert args.gradient_accumulation_steps == 4


class TestRefusals:
    """What cannot be accounted is refused before training."""

    def test_a_loss_that_couples_records(self, tmp_path):
        def total(outputs, labels, num_items_in_batch=None):
            return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum")

        with pytest.raises(InvalidInputError, match="loss_reduction"):
            private_trainer(tmp_path, tmp_path / "a", compute_loss_func=total).train()
        assert not (tmp_path / "a").exists()

    def test_options(self, tmp_path):
        with pytest.raises(TypeError, match="unexpected keyword argument 'clip'"):
            private_trainer(tmp_path, tmp_path / "a", clip=1.0)
        with pytest.raises(InvalidInputError, match="auto_find_batch_size=True"):
            private_trainer(tmp_path, tmp_path / "a", args=arguments(tmp_path, auto_find_batch_size=True))

    def test_choices_by_audit_records(self, tmp_path):
        chosen = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
        args = arguments(tmp_path, **chosen)
        with pytest.raises(InvalidInputError, match=r"validation rows choose here \(load_best_model_at_end\)"):
            private_trainer(tmp_path, Ledger(), args=args, eval_dataset={"a": AUDIT}).train()
        declared = {"eval_dataset": AUDIT, "audit_used_for": "the best checkpoint"}
        private_trainer(tmp_path, tmp_path / "a", args=args, **declared).train()

    def test_methods_of_a_subclass_that_go_past_draws(self, tmp_path):
        class OwnLoader(PrivateTrainer):
            def get_train_dataloader(self):
                return DataLoader(self.train_dataset, batch_size=8, collate_fn=collate)

        class OwnStep(PrivateTrainer):
            def training_step(self, model, inputs, num_items_in_batch=None):
                loss = self.compute_loss(model, self._prepare_inputs(inputs))
                self.accelerator.backward(loss)
                return loss.detach()

        for made, method in ((OwnLoader, "get_train_dataloader"), (OwnStep, "training_step")):
            given = {"train_dataset": Sentences(80), "data_collator": collate}
            run = made(classifier(), arguments(tmp_path), ledger=Ledger(), **given, **PRIVATE)
            with pytest.raises(InvalidInputError, match=f"{method}='Own.*: expected that of PrivateTrainer"):
                run.train()

    @pytest.mark.slow
    def test_a_run_that_fails_leaves_a_whole_ledger(self, tmp_path):
        run = private_trainer(tmp_path, tmp_path / "a")
        run.lr_scheduler, compute = None, run.compute_loss
        asked = []

        def fails(model, inputs, **options):
            asked.append(model)
            if len(asked) > 40:
                raise RuntimeError("out of memory")
            return compute(model, inputs, **options)

        run.compute_loss, run.args.max_steps = fails, 500
        with pytest.raises(RuntimeError, match="out of memory"):
            run.train()
        with Ledger.open(tmp_path / "a", write=False) as ledger:
            assert ledger.steps > 0
        assert not any(layer._forward_hooks for layer in run.model.modules())


@pytest.mark.parametrize(("precision", "rounded"), [("bf16", True), ("fp16", False)])
def test_mixed_precision_is_seen_and_makes_estimates(tmp_path, precision, rounded):
    """Accelerate enters autocast inside ``forward`` once training begins; for float16 it does nothing on a CPU."""
    with Ledger(keep_norms=True) as ledger:
        args = arguments(tmp_path, max_steps=1, per_device_train_batch_size=20, **{precision: True})
        private_trainer(tmp_path, ledger, args=args, people=Sentences(20, seed=1)).train()
        AcceleratorState._reset_state(True)  # it keeps the precision for the whole process
        assert settings(ledger) == [(1.0, 1.0, CLIPPED if rounded else 1.0, 1)]
        assert ledger.history.caveats == ["low-precision"] * rounded
        assert ledger.claims().everyone.kind == ("estimate" if rounded else "proved")
        audit, batch = audit_norms(ledger, 1), batch_norms(ledger, 1)
        if rounded:
            assert np.all((batch * 0.98 < audit) & (audit < batch * CLIPPED * 1.02))
            assert not np.allclose(audit, batch, rtol=1e-3)  # raised above what was rounded
        else:
            assert np.allclose(audit, batch, rtol=1e-3)
