"""What summing over ranks costs: two processes (gloo) train the CNN of 26,010 parameters together by DDP.

    python -m benchmarks.ranks_overhead

Four runs take turns, step by step, in an order that changes: Opacus alone, Opacus alone again (the control: whatever
differs is noise), watched, and watched without summing (each rank records its own batch in a ledger of its own, and
waits for nobody). Summing costs the difference between the last two: two collectives, one with all norms, one after the
commit; and counting the norms of two ranks. Each rank has batches of 512, as in opacus_overhead.py. Ledgers are in
memory.

Times are processor times of rank 0, so that other programs count less; those by the clock are beside them. As in
opacus_overhead.py, forward and backward pass are the same code in all runs, so the optimizer's own step is compared.
Judged by the 95 % confidence interval of the median. Prints and writes results/ranks_overhead.json; exit code 1 if the
target is missed.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import opacus
import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger
from bayesdp.ledger import OPACUS, StepSource
from bayesdp.opacus.recording import PoissonSteps
from benchmarks.machine import description
from benchmarks.opacus_overhead import median_with_interval, network, shown

RANKS, BATCH, TURNS, WARM_UP = 2, 512, 1000, 4
LIMIT = 0.02
RESULT = Path(__file__).parents[1] / "results" / "ranks_overhead.json"
KINDS = ("alone", "control", "summed", "apart")


def new_run(kind: str) -> Callable[[], list[float]]:
    """A function that takes one step and returns processor and clock seconds: of the step, of the optimizer's part."""
    generator = torch.Generator().manual_seed(0)
    records = RANKS * BATCH
    data = torch.randn(records, 1, 28, 28, generator=generator), torch.randint(0, 10, (records,), generator=generator)
    wrapped: Any = DifferentiallyPrivateDistributedDataParallel(network())
    torch.manual_seed(distributed.get_rank())
    model, optimizer, loader = PrivacyEngine().make_private(
        module=wrapped,
        optimizer=torch.optim.SGD(wrapped.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(*data), batch_size=records),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    if kind in ("summed", "apart"):
        watched: Any = bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger())
        if kind == "apart":  # as if this rank were the only one
            watched._over_ranks.ranks.rank, watched._over_ranks.ranks.size = 0, 1
            watched._recorder = PoissonSteps(Ledger(), watched._sampling, StepSource(OPACUS), late=False)
            watched._resumed = False
    loss = nn.CrossEntropyLoss()
    batches = itertools.chain.from_iterable(iter(lambda: loader, None))

    def step() -> list[float]:
        x, y = next(batches)
        optimizer.zero_grad()
        distributed.barrier()
        begin = time.process_time(), time.perf_counter()
        loss(model(x), y).backward()
        distributed.barrier()
        passed = time.process_time(), time.perf_counter()
        optimizer.step()
        end = time.process_time(), time.perf_counter()
        return [end[0] - begin[0], end[0] - passed[0], end[1] - begin[1], end[1] - passed[1]]

    return step


def be_rank(rank: int, meeting: str) -> None:
    """Take all turns; rank 0 prints the seconds."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    runs = {kind: new_run(kind) for kind in KINDS}
    seconds: dict[str, list[list[float]]] = {kind: [] for kind in KINDS}
    orders = list(itertools.permutations(KINDS))
    for turn in range(WARM_UP + TURNS):
        for kind in orders[(turn * 7) % len(orders)]:
            taken = runs[kind]()
            if turn >= WARM_UP:
                seconds[kind].append(taken)
    if rank == 0:
        print(json.dumps(seconds))
    distributed.barrier()


def main() -> int:
    """Start the ranks, compare, print, write, and say whether the target holds."""
    if len(sys.argv) == 3:
        be_rank(int(sys.argv[1]), sys.argv[2])
        return 0
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.ranks_overhead"]
        ranks = [
            subprocess.Popen([*command, str(rank), f"{folder}/meeting"], stdout=subprocess.PIPE, text=True)
            for rank in range(RANKS)
        ]
        printed = [rank.communicate()[0] for rank in ranks]
        if any(rank.returncode for rank in ranks):
            return 1
    seconds = {kind: np.array(values) for kind, values in json.loads(printed[0]).items()}

    def added(kind: str, to: str, column: int) -> dict[str, float]:
        whole = np.median(seconds["alone"][:, column - 1])
        return median_with_interval((seconds[kind][:, column] - seconds[to][:, column]) / whole)

    result: dict[str, Any] = {
        "command": "python -m benchmarks.ranks_overhead",
        "settings": {
            "ranks": RANKS,
            "batch_of_a_rank": BATCH,
            "parameters": 26_010,
            "turns": TURNS,
            "threads": 1,
            "seed": 0,
        },
        "versions": description() | {"torch": torch.__version__, "opacus": opacus.__version__},
        "limit": LIMIT,
    }
    for name, column in (("processor", 1), ("clock", 3)):
        result[name] = {
            "milliseconds_of_a_step": 1e3 * float(np.median(seconds["alone"][:, column - 1])),
            "summing_over_step": added("summed", "apart", column),
            "watching_over_step": added("summed", "alone", column),
            "control": added("control", "alone", column),
        }
        lines = result[name]
        print(
            f"{name}: {lines['milliseconds_of_a_step']:.0f} ms alone; summing adds {shown(lines['summing_over_step'])} "
            f"of a step, watching in all {shown(lines['watching_over_step'])}, control {shown(lines['control'])}"
        )
    result["holds"] = result["processor"]["summing_over_step"]["high"] <= LIMIT
    print("holds" if result["holds"] else "FAILS")
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
