"""bayesdp inside Hugging Face's Trainer: ``PrivateTrainer`` trains with Opacus and keeps the ledger with checkpoints.

    trainer = PrivateTrainer(model, args, train_dataset=people, noise_multiplier=1.0, max_grad_norm=1.0,
                             ledger="run.ledger", audit=audit)
    trainer.train()

private_trainer.py  ``PrivateTrainer``: what it does differently from ``Trainer``
whole_draws.py      a draw in parts that fit into memory, as one step of the Trainer
record_loss.py      the loss of tokens as a mean over records, each of which has its own part
"""

from __future__ import annotations

from bayesdp.optional import needs

with needs("transformers", "bayesdp.transformers"):
    from bayesdp.transformers.private_trainer import PrivateTrainer

__all__ = ["PrivateTrainer"]
