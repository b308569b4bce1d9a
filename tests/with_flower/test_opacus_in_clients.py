"""Differential privacy for examples inside each client: Opacus trains, its ledger stays there, its claims travel."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed beside Flower; make test-flower installs it")
pytest.importorskip("opacus", reason="Opacus is not installed beside Flower; make test-flower installs it")

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

import bayesdp.opacus  # noqa: E402
from bayesdp import Ledger  # noqa: E402
from bayesdp.flower import ClientClaims, InProcessGrid, claims_record  # noqa: E402

CLIENTS, ROUNDS, BATCHES, NOISE = 3, 2, 4, {0: 1.0, 1: 0.8, 2: 1.5}
EXAMPLES = 80


def data(partition: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The examples of a client, of which the last 20 are its audit records."""
    values = np.random.default_rng(partition)
    x = values.normal(size=(EXAMPLES + 20, 5))
    y = (x[:, 0] + 0.3 * values.normal(size=len(x)) > 0).astype(np.int64)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def opacus_app(folder: Path, *, keep: bool = True) -> ClientApp:
    """Clients that train with Opacus and keep one ledger each, or begin a new one in every round."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context) -> Message:
        partition = int(context.node_config["partition-id"])
        x, y = data(partition)
        model = nn.Linear(5, 2)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        private, optimizer, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
            data_loader=DataLoader(TensorDataset(x[:EXAMPLES], y[:EXAMPLES]), batch_size=EXAMPLES // BATCHES),
            noise_multiplier=NOISE[partition],
            max_grad_norm=1.0,
        )
        path = folder / f"client-{partition}.ledger"
        if not keep:
            path.unlink(missing_ok=True)
        ledger = Ledger.open(path) if path.exists() else Ledger.create(path)
        criterion = nn.CrossEntropyLoss()
        audit = (x[EXAMPLES:], y[EXAMPLES:])
        with ledger, bayesdp.opacus.watch(private, optimizer, loader, ledger=ledger, audit=audit, loss=criterion) as w:
            for inputs, targets in loader:
                optimizer.zero_grad()
                criterion(private(inputs), targets).backward()
                optimizer.step()
            claims = w.claims(delta=1e-5, shares=[0.5], looks=ROUNDS)
        content = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": 1}),  # the number of examples has no noise
            "bayesdp-claims": claims_record(claims),
        }
        return Message(RecordDict(content), reply_to=message)

    return app


class Collects(FedAvg):
    """Flower's own averaging, with the claims of every round."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=CLIENTS, min_available_nodes=CLIENTS)
        self.claims, self.replies = ClientClaims(), []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.replies += replies
        self.claims = self.claims.after(replies)
        return super().aggregate_train(server_round, replies)


def run(app: ClientApp) -> tuple[Collects, ArrayRecord]:
    strategy = Collects()
    grid = InProcessGrid(app, [{"partition-id": i} for i in range(CLIENTS)])
    start = ArrayRecord(nn.Linear(5, 2).state_dict())
    return strategy, strategy.start(grid, start, num_rounds=ROUNDS).arrays


def test_claims_of_a_training_with_opacus_travel_to_the_server(tmp_path):
    strategy, model = run(opacus_app(tmp_path))
    assert torch.isfinite(model.to_torch_state_dict()["weight"]).all()
    assert strategy.claims.steps == dict.fromkeys((2, 3, 4), ROUNDS * BATCHES)
    for partition, noise in NOISE.items():
        ledger = Ledger.open(tmp_path / f"client-{partition}.ledger", write=False)
        assert ledger.steps == ROUNDS * BATCHES
        accountant = PLDAccountant()
        accountant.compose(PoissonSampledDpEvent(1 / BATCHES, GaussianDpEvent(noise)), ROUNDS * BATCHES)
        everyone, *_ = strategy.claims.by_node[2 + partition]
        assert everyone["epsilon"] == ledger.claims(delta=1e-5).everyone.epsilon
        assert everyone["epsilon"] == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
        shares = [c for c in strategy.claims.by_node[2 + partition] if c["audience"] == "share"]
        assert shares[0]["samples"] == 20
        assert shares[0]["epsilon"] < everyone["epsilon"]
    assert strategy.claims.everyone == max(c[0]["epsilon"] for c in strategy.claims.by_node.values())
    assert strategy.claims.everyone == strategy.claims.by_node[3][0]["epsilon"]  # the client with the least noise
    assert f"For every example of {CLIENTS} clients" in strategy.claims.statement()


def test_the_ledger_stays_with_the_client(tmp_path):
    """What travels besides the model: claims and the number of steps, no norm, histogram or number of examples."""
    strategy, _ = run(opacus_app(tmp_path))
    assert len(strategy.replies) == CLIENTS * ROUNDS
    for reply in strategy.replies:
        assert set(reply.content) == {"arrays", "metrics", "bayesdp-claims"}
        record = reply.content["bayesdp-claims"]
        assert set(record) == {"claims", "steps"}
        for claim in json.loads(record["claims"]):
            assert not claim["private"]
            assert "norms" not in claim


def test_a_client_that_begins_a_ledger_in_every_round_is_found(tmp_path):
    """Its claim is that of one round, whatever it lost before."""
    strategy, _ = run(opacus_app(tmp_path, keep=False))
    assert strategy.claims.everyone == math.inf
    assert sorted(strategy.claims.without) == [2, 3, 4]
