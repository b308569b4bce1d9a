"""A federated server that is killed at random rounds and started again each time: no applied round may be missing.

    python -m benchmarks.flower_kills [--kills 20] [--rounds 100] [--seed 0]

The server is a process with strategy, ledger and model; its clients, in the same process, note every model that they
are sent. After each kill (SIGKILL) the ledger on disk must have every round whose model a client has seen. In the end
it must have the planned rounds, and dp-accounting's epsilon for them. Prints and writes results/flower_kills.json; exit
code 1 if a round is missing. The same with SuperLink and SuperNodes: benchmarks/flower_process_kills.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from bayesdp import Ledger
from benchmarks.machine import description

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from flower_kills import kill_storm  # noqa: E402

RESULT = ROOT / "results" / "flower_kills.json"
DELTA = 1e-5


def main() -> int:
    """Kill, compare, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        kills = kill_storm(Path(folder), options.kills, options.rounds, options.seed)
        ledger = Ledger.open(Path(folder) / "run.ledger", write=False)
        steps, claimed = ledger.steps, ledger.claims(delta=DELTA).everyone.epsilon
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0)), options.rounds)
    missing = sum(kill.missing for kill in kills)
    result = {
        "command": " ".join(["python -m benchmarks.flower_kills", *sys.argv[1:]]),
        "settings": vars(options) | {"sample_rate": 0.5, "noise_multiplier": 1.0},
        "versions": description() | {"flwr": version("flwr")},
        "kills": [asdict(kill) for kill in kills],
        "applied_rounds_missing": missing,
        "steps": steps,
        "epsilon": {"ledger": claimed, "dp_accounting": accountant.get_epsilon(DELTA), "delta": DELTA},
        "seconds": round(time.perf_counter() - begin),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{len(kills)} kills, {missing} applied rounds missing, {steps} steps; epsilon {result['epsilon']}")
    return 0 if not missing and steps == options.rounds and len(kills) == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
