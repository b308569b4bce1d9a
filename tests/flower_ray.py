"""500 clients in Flower's own simulation, with Ray: a program, as Ray starts processes that import what they run.

python tests/flower_ray.py LEDGER CLIENTS AUDIT ROUNDS
"""

from __future__ import annotations

import sys

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from bayesdp.flower import AuditMod, PoissonClients, PrivateFedAvg


def app_of(trained: int) -> ClientApp:
    """Clients that move towards a target of their own; the simulation gives them numbers, and no other config."""
    app = ClientApp(mods=[AuditMod(lambda context: int(context.node_config["partition-id"]) >= trained)])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w = message.content["arrays"]["w"].numpy()
        target = np.random.default_rng(int(context.node_config["partition-id"])).normal(size=w.shape)
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w + 0.2 * (target - w))})}), reply_to=message)

    return app


def server_of(ledger: str, clients: int, rounds: int) -> ServerApp:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = PrivateFedAvg(
            ledger=ledger,
            clip=1.0,
            noise_multiplier=1.0,
            draws=PoissonClients(0.1),
            divisor=20.0,
            wait_for=clients,
        )
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=rounds)
        strategy.ledger.close()

    return server


if __name__ == "__main__":
    clients, audit, rounds = map(int, sys.argv[2:])
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_of(sys.argv[1], clients, rounds), app_of(clients - audit), clients, backend_config=resources)
