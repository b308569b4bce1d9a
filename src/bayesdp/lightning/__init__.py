"""bayesdp inside Lightning: a callback that makes a run private, watches it, and keeps its ledger with checkpoints.

    trainer = Trainer(callbacks=[PrivacyCallback(ledger="run.ledger", noise_multiplier=1.0, max_grad_norm=1.0)])
    trainer.fit(module, train_loader)

callback.py         ``PrivacyCallback``: when Lightning calls what
parts_of_draws.py   draws in parts that fit into memory, each draw one step of Lightning
other_callbacks.py  what other callbacks will do: choose, search, accumulate
library.py          Lightning, by whichever name it is installed
training_loss.py    the loss of audit records, from the module's own ``training_step``
"""

from __future__ import annotations

from bayesdp.optional import needs

with needs("lightning", "bayesdp.lightning"):
    from bayesdp.lightning.callback import PrivacyCallback

__all__ = ["PrivacyCallback"]
