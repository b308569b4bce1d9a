"""A federated server that is killed at random rounds, in real Flower processes, and started again each time.

    python -m benchmarks.flower_process_kills [--kills 20] [--clients 20] [--seed 0]

The process of the ServerApp, which holds model and ledger, is killed; SuperLink and SuperNodes go on. Clients write
down which model they were sent in which round. After each kill the ledger on disk must have every round whose model
anybody has seen: at least as many steps as there are models, and all rounds before the newest that was sent. In the end
the ledger must have the planned rounds, and dp-accounting's epsilon for them. Prints and writes
results/flower_process_kills.json; exit code 1 if a round is missing. Needs Flower (make test-flower installs it);
takes about half an hour on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from bayesdp import Ledger
from benchmarks.machine import description

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from flower_processes import Federation  # noqa: E402

RESULT = ROOT / "results" / "flower_process_kills.json"
RATE, AUDIT, DELTA = 0.1, 3, 1e-5


def main() -> int:
    """Kill, compare, go on; print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rounds = -(-3 * options.kills // 2)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with Federation(Path(folder) / "federation", options.clients, AUDIT) as federation:
            kills = [kill(federation, number, rounds, options.seed) for number in range(options.kills)]
            federation.run(**run_of(rounds))
            federation.wait_until_done(3600)
            newest, models = federation.seen()
        ledger = Ledger.open(Path(folder) / "federation" / "run" / "run.ledger", write=False)
        steps, claimed = ledger.steps, ledger.claims(delta=DELTA).everyone.epsilon
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(1.0)), rounds)
    missing = sum(entry["missing"] for entry in kills) + max(models - steps, 0)
    result = {
        "command": " ".join(["python -m benchmarks.flower_process_kills", *sys.argv[1:]]),
        "settings": vars(options) | {"rate": RATE, "audit": AUDIT, "rounds": rounds, "noise_multiplier": 1.0},
        "versions": description() | {"flwr": version("flwr")},
        "kills": kills,
        "applied_rounds_missing": missing,
        "end": {"steps": steps, "rounds_sent": newest, "models_seen": models},
        "epsilon": {"ledger": claimed, "dp_accounting": accountant.get_epsilon(DELTA), "delta": DELTA},
        "seconds": round(time.perf_counter() - begin),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{len(kills)} kills, {missing} applied rounds missing, {steps} of {rounds} steps, epsilon {claimed:.4f}")
    return 0 if not missing and steps == rounds else 1


def kill(federation: Federation, number: int, rounds: int, seed: int) -> dict[str, Any]:
    """Start the run, kill it after up to two more rounds and a moment, and compare the ledger with what was seen."""
    random = np.random.default_rng([seed, number])
    federation.run(**run_of(rounds))
    before = federation.steps()
    federation.wait_for_steps(min(before + int(random.integers(0, 3)), rounds - 1), 1200)
    time.sleep(float(random.uniform(0, 3)))
    federation.wait_for_kill(300)
    steps = federation.steps()
    newest, models = federation.seen()
    entry = {"steps_before": before, "steps": steps, "newest_round_sent": newest, "models_seen": models}
    entry["missing"] = max(newest - 1 - steps, models - steps, 0)
    print(f"kill {number + 1}: {entry}", flush=True)
    return entry


def run_of(rounds: int) -> dict[str, Any]:
    """Settings of a run; a client that is slow because the machine is busy has five minutes for a round."""
    return {"rounds": rounds, "rate": RATE, "timeout": 300.0}


if __name__ == "__main__":
    sys.exit(main())
