"""bayesdp inside Opacus: ``watch`` what a training run does, and an accountant with the name "bayesdp".

    model, optimizer, data_loader = privacy_engine.make_private(...)
    watched = bayesdp.opacus.watch(model, optimizer, data_loader, ledger="run.ledger")
    ...
    print(watched.statement())

Importing this module registers the accountant, so that ``PrivacyEngine(accountant="bayesdp")`` finds it.
"""

from __future__ import annotations

from bayesdp.optional import needs

with needs("opacus", "bayesdp.opacus"):
    from opacus.accountants import register_accountant

from bayesdp.opacus.accountant import Accountant
from bayesdp.opacus.audit import AuditNorms
from bayesdp.opacus.sampling import SamplingWarning
from bayesdp.opacus.secure import SecureNoise, SecureSampler
from bayesdp.opacus.watching import BudgetReachedWarning, Watch, watch

__all__ = [
    "Accountant",
    "AuditNorms",
    "BudgetReachedWarning",
    "SamplingWarning",
    "SecureNoise",
    "SecureSampler",
    "Watch",
    "watch",
]

register_accountant(Accountant.mechanism(), Accountant, force=True)
