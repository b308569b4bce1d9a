"""The server: it goes on where the ledger and the saved model in its folder left off."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from bayesdp.flower import PoissonClients, PrivateFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what is left of the planned rounds, and leave a file when all are done."""
    config = context.run_config
    folder = Path(str(config["folder"]))
    strategy = PrivateFedAvg(
        ledger=folder / "run.ledger",
        clip=1.0,
        noise_multiplier=1.0,
        draws=PoissonClients(float(config["rate"])),
        divisor=5.0,
        wait_for=int(config["clients"]),
        checkpoint=folder / "model.npz",
    )
    model = ArrayRecord({"w": Array(np.zeros(4))})
    strategy.start(grid, model, num_rounds=int(config["rounds"]), timeout=float(config["timeout"]))
    strategy.ledger.close()
    (folder / "done").write_text(str(strategy.ledger.steps))
