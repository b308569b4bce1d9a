"""bayesdp inside Flower: differential privacy for clients, with a ledger of every round.

    app = ClientApp(mods=[bayesdp.flower.AuditMod()])  # in the clients; the rest of the app stays as it is
    ...
    strategy = bayesdp.flower.PrivateFedAvg(ledger="run.ledger", clip=1.0, noise_multiplier=1.0, ...)
    result = strategy.start(grid, initial_arrays, num_rounds=100)  # in the server
    print(strategy.ledger.claims().statement())

A record is a client. The files, in the order in which a round passes through them:

strategy.py         ``PrivateFedAvg``: what Flower calls in each round; the step is on disk before the model changes
roster.py           which clients there are: asked for their role, trained on or audited, whenever a new one connects
client_draws.py     which clients a round draws, and what is accounted for that
audit_mod.py        ``AuditMod``, in the client: an audit client answers with the norm of its update and nothing else
private_sum.py      clipping, the sum, its noise; answers that cannot be used contribute nothing
run_files.py        the ledger and the model of a run, opened again after a crash

Beside it: local_claims.py, claims that travel where each client trains with differential privacy itself; in_process.py,
a grid without a network, for experiments and tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bayesdp.optional import needs

with needs("flower", "bayesdp.flower"):
    importlib.import_module("flwr.app")

if TYPE_CHECKING:
    from bayesdp.flower.audit_mod import AuditMod
    from bayesdp.flower.client_draws import FixedSizeClients, PoissonClients
    from bayesdp.flower.in_process import InProcessGrid
    from bayesdp.flower.local_claims import ClientClaims, claims_record
    from bayesdp.flower.strategy import PrivateFedAvg

_HOME = {
    "AuditMod": "audit_mod",
    "ClientClaims": "local_claims",
    "FixedSizeClients": "client_draws",
    "InProcessGrid": "in_process",
    "PoissonClients": "client_draws",
    "PrivateFedAvg": "strategy",
    "claims_record": "local_claims",
}
"""Where each name comes from. Flower starts a process for every message to a client, which should not wait for what
only the server needs."""

__all__ = [
    "AuditMod",
    "ClientClaims",
    "FixedSizeClients",
    "InProcessGrid",
    "PoissonClients",
    "PrivateFedAvg",
    "claims_record",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'bayesdp.flower' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"bayesdp.flower.{_HOME[name]}"), name)
    globals()[name] = value
    return value
