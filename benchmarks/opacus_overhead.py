"""What watching costs against Opacus alone: a CNN of 26,010 parameters, batches of 512, one thread.

    python -m benchmarks.opacus_overhead        (or: make bench)

Four runs take turns, step by step, in an order that changes: Opacus alone, Opacus alone again (the control: whatever
differs is noise), watched, and watched with as many audit records as there are in a batch. The ledger is in memory;
what a step on disk adds is measured beside it.

Times are processor times, so that other programs count less. Forward and backward pass are the same code in all runs,
and vary by a tenth on a shared machine. So two ratios are taken in each turn: of whole steps, and of steps where only
the optimizer's own step, where watching takes place, is that of the other run. Judged by the 95 % confidence interval
of the median of the second.

Prints and writes results/opacus_overhead.json; exit code 1 if a line fails its target.
"""

from __future__ import annotations

import itertools
import json
import statistics
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
from scipy.stats import binom
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger
from benchmarks.machine import description

BATCH, TURNS, WARM_UP = 512, 208, 4
LIMITS = {"hooks": 1.03, "ghost": 1.01}
AUDIT_LIMIT = 1.3  # times the share that audit records are of a batch
RESULT = Path(__file__).parents[1] / "results" / "opacus_overhead.json"


def network() -> nn.Module:
    """The network of Opacus' MNIST example."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def new_run(mode: str, *, watched: bool, audit: bool) -> tuple[Callable[[], tuple[float, float]], Ledger]:
    """A function that takes one step and returns its processor seconds: all, and those of the optimizer's step.

    Every batch is the whole of 512 records.
    """
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(BATCH, 1, 28, 28, generator=generator), torch.randint(0, 10, (BATCH,), generator=generator)
    model: Any = network()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(*data), batch_size=BATCH),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    if mode == "ghost":
        model, optimizer, loss, loader = made
    else:
        (model, optimizer, loader), loss = made, nn.CrossEntropyLoss()
    ledger = Ledger()
    if watched:
        records = tuple(each.clone() for each in data) if audit else None
        bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger, audit=records, loss=loss)
    batches = itertools.chain.from_iterable(iter(lambda: loader, None))

    def step() -> tuple[float, float]:
        x, y = next(batches)
        begin = time.process_time()
        optimizer.zero_grad()
        loss(model(x), y).backward()
        passed = time.process_time()
        optimizer.step()
        end = time.process_time()
        return end - begin, end - passed

    return step, ledger


def median_with_interval(values: np.ndarray, confidence: float = 0.95) -> dict[str, float]:
    """The median and an interval that contains the true one with this confidence, by order statistics."""
    ordered = np.sort(values)
    low = int(binom.ppf((1 - confidence) / 2, len(ordered), 0.5))
    return {"median": float(np.median(ordered)), "low": float(ordered[low]), "high": float(ordered[-1 - low])}


def measure(mode: str) -> dict[str, Any]:
    """Ratios of one way of clipping."""
    kinds = {
        "alone": new_run(mode, watched=False, audit=False),
        "control": new_run(mode, watched=False, audit=False),
        "watched": new_run(mode, watched=True, audit=False),
        "audited": new_run(mode, watched=True, audit=True),
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    orders = list(itertools.permutations(kinds))
    for turn in range(WARM_UP + TURNS):
        for name in orders[(turn * 7) % len(orders)]:
            taken = kinds[name][0]()
            if turn >= WARM_UP:
                seconds[name].append(taken)
    whole = {name: np.array(values)[:, 0] for name, values in seconds.items()}
    steps = {name: np.array(values)[:, 1] for name, values in seconds.items()}

    def added(name: str, to: str) -> np.ndarray:
        return (steps[name] - steps[to]) / whole["alone"]

    ratios = {name: median_with_interval(1 + added(name, "alone")) for name in ("control", "watched")}
    audit = median_with_interval(added("audited", "watched"))
    assert kinds["audited"][1].history.audited_steps == WARM_UP + TURNS
    return {
        "mode": mode,
        "milliseconds_alone": 1e3 * float(np.median(whole["alone"])),
        "whole_step": {name: median_with_interval(whole[name] / whole["alone"]) for name in ("control", "watched")},
        "control": ratios["control"],
        "watched": ratios["watched"],
        "audit_over_step_at_one_batch": audit,
        "limit_watched": LIMITS[mode],
        "limit_audit": AUDIT_LIMIT,
        "holds": ratios["watched"]["high"] <= LIMITS[mode] and audit["high"] <= AUDIT_LIMIT,
    }


def shown(figure: dict[str, float]) -> str:
    """A median and its interval."""
    return f"{figure['median']:.4f} [{figure['low']:.4f}, {figure['high']:.4f}]"


def commit_milliseconds() -> float:
    """What a step on disk takes more than one in memory, median."""
    rng = np.random.default_rng(0)
    norms = [rng.lognormal(0, 0.5, BATCH) for _ in range(200)]
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "run.ledger") as on_disk:
        ledgers, taken = (Ledger(), on_disk), ([], [])
        for batch in norms:
            for ledger, times in zip(ledgers, taken, strict=True):
                begin = time.perf_counter()
                ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0, batch=batch)
                times.append(time.perf_counter() - begin)
    return 1e3 * (statistics.median(taken[1]) - statistics.median(taken[0]))


def main() -> int:
    warnings.filterwarnings("ignore", message="Secure RNG turned off|Full backward hook")
    torch.set_num_threads(1)
    modes = [measure(mode) for mode in LIMITS]
    for mode in modes:
        print(
            f"{mode['mode']}: {mode['milliseconds_alone']:.0f} ms alone; watched {shown(mode['watched'])}, control "
            f"{shown(mode['control'])}; whole steps {shown(mode['whole_step']['watched'])}, control "
            f"{shown(mode['whole_step']['control'])}; {BATCH} audit records add "
            f"{shown(mode['audit_over_step_at_one_batch'])} of a step: {'holds' if mode['holds'] else 'FAILS'}"
        )
    commit = commit_milliseconds()
    print(f"a step on disk takes {commit:.2f} ms more than one in memory")
    result = {
        "command": "python -m benchmarks.opacus_overhead",
        "settings": {"batch": BATCH, "parameters": 26_010, "turns": TURNS, "threads": 1, "seed": 0},
        "versions": description() | {"torch": torch.__version__, "opacus": opacus.__version__},
        "modes": modes,
        "commit_milliseconds": commit,
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if all(mode["holds"] for mode in modes) else 1


if __name__ == "__main__":
    sys.exit(main())
