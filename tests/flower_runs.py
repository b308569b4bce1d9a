"""A small Flower app and grids of it, for the tests with Flower: each client pulls the model towards its own target."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bayesdp.flower import AuditMod, InProcessGrid, PoissonClients, PrivateFedAvg
from bayesdp.randomness import Seeded

SIZE = 4


def target(partition: int) -> np.ndarray:
    """Where a client wants the model to be."""
    return np.random.default_rng(partition).normal(size=SIZE)


def arrays(values=None) -> ArrayRecord:
    return ArrayRecord({"w": Array(np.zeros(SIZE) if values is None else np.asarray(values))})


def client_app(train=None, *, mods=None) -> ClientApp:
    """An app whose clients go half of the way to their target, or do what ``train(w, context)`` says."""
    app = ClientApp(mods=[AuditMod()] if mods is None else mods)

    @app.train()
    def answer(message, context):
        w = message.content["arrays"]["w"].numpy()
        move = train or (lambda w, context: w + 0.5 * (target(context.node_config["partition-id"]) - w))
        content = {"arrays": arrays(move(w, context)), "metrics": MetricRecord({"num-examples": 1, "loss": 0.25})}
        return Message(RecordDict(content), reply_to=message)

    return app


def grid_of(training: int, audit: int, app: ClientApp | None = None, **options) -> InProcessGrid:
    """A grid whose first clients are trained on, and whose last are audit clients."""
    configs = [{"partition-id": i, "audit": i >= training} for i in range(training + audit)]
    return InProcessGrid(app or client_app(), configs, **options)


def strategy(ledger, **changes) -> PrivateFedAvg:
    settings = {
        "clip": 1.0,
        "noise_multiplier": 1.0,
        "draws": PoissonClients(0.5),
        "divisor": 10.0,
        "randomness": Seeded(0),
    }
    return PrivateFedAvg(ledger=ledger, **{**settings, **changes})
