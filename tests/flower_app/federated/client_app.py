"""The client: it notes which model it was sent, and moves half of the way to its target."""

import hashlib
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from bayesdp.flower import AuditMod

app = ClientApp(mods=[AuditMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model, moved towards the target of this client."""
    w = message.content["arrays"]["w"].numpy()
    partition = int(context.node_config["partition-id"])
    with open(Path(str(context.run_config["folder"])) / f"seen-{partition}.txt", "a") as seen:
        seen.write(f"{message.content['config']['server-round']} {hashlib.sha256(w.tobytes()).hexdigest()}\n")
    target = np.random.default_rng(partition).normal(size=w.shape)
    content = {"arrays": ArrayRecord({"w": Array(w + 0.5 * (target - w))})}
    return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
