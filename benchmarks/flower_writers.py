"""Typical clients of a federated run: MNIST, split into synthetic writers as FEMNIST is into real ones.

    python -m benchmarks.flower_writers [--data FOLDER] [--writers 2000] [--audit 500] [--rounds 60] [--seed 1]

Each writer has a hand of their own (slant, turn, size, weight of the pen), favourite digits and a number of pages. Some
writers, drawn at random, are audit clients; the others are trained on, with differential privacy for each writer. The
model is a softmax regression on 14 x 14 pixels; a client takes five full gradient steps, which draw no random numbers.
Prints and writes results/flower_writers.json: accuracy, the claim for everyone, shares of writers, writers with several
devices, and what fewer audit clients could have said. The clip bound was chosen on writers of another seed, 0.
Noise and draws are seeded: an experiment, not for release. The
folder is that of the recipe mnist (BAYESDP_DATA). Needs Flower (make test-flower installs it).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy.ndimage import affine_transform

import bayesdp
from bayesdp.estimators import records_needed
from bayesdp.flower import AuditMod, InProcessGrid, PoissonClients, PrivateFedAvg
from bayesdp.randomness import Seeded
from bayesdp.recipes.datasets import load
from benchmarks.machine import description

RESULT = Path(__file__).parents[1] / "results" / "flower_writers.json"
RATE, NOISE, CLIP, SERVER_RATE, LOCAL_STEPS, LOCAL_RATE = 0.1, 2.0, 1.0, 1.0, 5, 0.2
DELTA, GAMMA, SHARES, DEVICES = 1e-5, 0.01, (0.5, 0.9, 0.99), (2, 3)


def main() -> int:
    """Train, claim, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("BAYESDP_DATA"))
    parser.add_argument("--writers", type=int, default=2000)
    parser.add_argument("--audit", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    begin = time.perf_counter()
    writers, test = split(options)
    training = options.writers - options.audit
    grid = InProcessGrid(app(writers), [{"partition-id": i, "audit": i >= training} for i in range(options.writers)])
    accuracy: list[float] = []

    def evaluate(_: int, model: ArrayRecord) -> None:
        scores = test[0] @ model["w"].numpy()
        accuracy.append(float((scores.argmax(1) == test[1]).mean()))

    with tempfile.TemporaryDirectory() as folder:
        strategy = PrivateFedAvg(
            ledger=Path(folder) / "run.ledger",
            clip=CLIP,
            noise_multiplier=NOISE,
            draws=PoissonClients(RATE),
            divisor=RATE * training,
            server_rate=SERVER_RATE,
            randomness=Seeded(options.seed),
            ledger_options={"keep_norms": True, "unit": "person"},
        )
        strategy.start(grid, ArrayRecord({"w": Array(np.zeros((197, 10)))}), options.rounds, evaluate_fn=evaluate)
        ledger = strategy.ledger
        claims = ledger.claims(delta=DELTA, gamma=GAMMA, shares=SHARES)
        several = {str(rows): ledger.claims(delta=DELTA, shares=[0.5], rows=rows).for_rows for rows in DEVICES}
        norms = np.array([ledger.private_norms(step)[0] for step in range(1, options.rounds + 1)])
        ledger.close()
    print(claims.statement())
    fewer = bayesdp.account(
        norms[:, :100], noise_std=NOISE * CLIP, clip=CLIP, sample_rate=RATE, delta=DELTA, gamma=GAMMA, shares=SHARES
    )
    result: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.flower_writers", *sys.argv[1:]]),
        "settings": {name: value for name, value in vars(options).items() if name != "data"}
        | {"rate": RATE, "noise_multiplier": NOISE, "clip": CLIP, "local_steps": LOCAL_STEPS, "delta": DELTA},
        "versions": description() | {"flwr": version("flwr")},
        "accuracy": {"first": accuracy[0], "last": accuracy[-1]},
        "everyone": claims.everyone.to_dict(),
        "shares": {str(share): shown(claims.share(share)) for share in SHARES},
        "devices_of_one_person": {rows: claim.epsilon for rows, claim in several.items() if claim is not None},
        "audit_clients_needed": {str(share): records_needed(share, GAMMA) for share in SHARES},
        "with_100_audit_clients": {str(share): shown(fewer.share(share)) for share in SHARES},
        "norms_of_audit_clients": {
            str(level): [
                round(float(value), 4) for value in np.quantile(norms[[0, len(norms) // 2, -1]], level, axis=1)
            ]
            for level in (0.1, 0.5, 0.9)
        },
        "seconds": round(time.perf_counter() - begin),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"accuracy {accuracy[-1]:.3f}; {result['seconds']} seconds")
    return 0


def shown(share: Any) -> dict[str, Any]:
    """The two figures about a share, null with a reason where there is none."""
    ex_post, estimate = share.ex_post.to_dict(), share.estimate.to_dict()
    return {"ex_post": ex_post["epsilon"], "estimate": estimate["epsilon"], "reason": ex_post.get("reason")}


def split(options: argparse.Namespace) -> tuple[list[tuple[Any, Any]], tuple[Any, Any]]:
    """The pages of each writer, in a random order of writers, and unseen digits in hands of their own."""
    data = load("mnist", options.data)
    random = np.random.default_rng(options.seed)
    images, labels = (np.asarray(part) for part in (data.development.x, data.development.y))
    images = images.reshape(-1, 28, 28).astype(np.float32)
    left = [list(random.permutation(np.flatnonzero(labels == digit))) for digit in range(10)]
    writers = []
    for _ in range(options.writers):
        hand, taste = style(random), random.dirichlet(np.full(10, 2.0))
        wanted = random.multinomial(int(np.clip(random.lognormal(3.2, 0.35), 8, 60)), taste)
        rows = [left[digit].pop() for digit in range(10) for _ in range(min(wanted[digit], len(left[digit])))]
        writers.append((written(images[rows], hand), labels[rows]))
    unseen = np.asarray(data.audit.x).reshape(-1, 28, 28).astype(np.float32)
    hands = [style(random) for _ in range(100)]
    pages = np.concatenate([written(unseen[i::100], hand) for i, hand in enumerate(hands)])
    return writers, (pages, np.concatenate([np.asarray(data.audit.y)[i::100] for i in range(100)]))


def style(random: np.random.Generator) -> tuple[Any, float]:
    """How somebody writes: a linear map of the page, and the weight of the pen."""
    turn, slant, size = random.normal(0, 0.15), random.normal(0, 0.2), random.normal(1, 0.08, 2)
    rotation = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    return rotation @ np.array([[1, 0], [slant, 1]]) @ np.diag(size), float(np.exp(random.normal(0, 0.3)))


def written(images: Any, hand: tuple[Any, float]) -> Any:
    """Digits in somebody's hand, as 14 x 14 pixels and a constant, [n, 197]."""
    shape, weight = hand
    offset = np.array([13.5, 13.5]) - shape @ np.array([13.5, 13.5])
    turned = [affine_transform(image, shape, offset, order=1) for image in images / images.max(initial=1)]
    pixels = np.clip(np.array(turned).reshape(-1, 28, 28) ** weight, 0, 1)
    small = pixels.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(-1, 196) - 0.13
    return np.concatenate([small, np.ones((len(small), 1))], axis=1)


def app(writers: list[tuple[Any, Any]]) -> ClientApp:
    """The app of all clients: five steps of gradient descent on their own pages."""
    clients = ClientApp(mods=[AuditMod()])

    @clients.train()
    def train(message: Message, context: Any) -> Message:
        x, y = writers[int(context.node_config["partition-id"])]
        w = message.content["arrays"]["w"].numpy()
        for _ in range(LOCAL_STEPS):
            scores = x @ w
            chances = np.exp(scores - scores.max(1, keepdims=True))
            chances /= chances.sum(1, keepdims=True)
            chances[np.arange(len(y)), y] -= 1
            w = w - LOCAL_RATE * x.T @ chances / max(len(y), 1)
        return Message(RecordDict({"arrays": ArrayRecord({"w": Array(w)})}), reply_to=message)

    return clients


if __name__ == "__main__":
    sys.exit(main())
