"""Whether ledger and commit cost the same whatever the size of the model: from 10^4 to 10^8 parameters.

    python -m benchmarks.parameters_scale

An embedding and a linear layer with ghost clipping (no gradients by record), batches of 64 of 256 records, a ledger on
disk. Measured at each step: the time inside ``Ledger.step``, which counts, chains, writes and syncs. Sizes take turns,
so that whatever else the machine does meets all of them. A pass through a large model leaves nothing of the program in
the processor's caches, and whatever follows it takes several times as long. That is not what is asked here, so a large
array is written before each measurement, and all sizes find the caches as empty. Bar: the median of ledger and commit
at 10^8 parameters is at most 1.5 times that at 10^4. Prints and writes results/parameters_scale.json; exit code 1 if it
is not.
"""

from __future__ import annotations

import itertools
import json
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus
from bayesdp import Ledger
from benchmarks.machine import description
from benchmarks.opacus_overhead import median_with_interval

SIZES = (10**4, 10**5, 10**6, 10**7, 10**8)
RECORDS, BATCH, WIDTH, CLASSES, TURNS, WARM_UP = 256, 64, 16, 4, 20, 1
LIMIT = 1.5
RESULT = Path(__file__).parents[1] / "results" / "parameters_scale.json"
_LARGER_THAN_CACHES = np.zeros(2**24)  # 128 MB


def new_run(parameters: int, folder: Path) -> Callable[[], dict[str, float]]:
    """A function that takes one step and returns seconds: of the whole step, and of ledger and commit in it."""
    words = parameters // WIDTH
    torch.manual_seed(0)
    inputs = torch.randint(0, words, (RECORDS, 4))
    model: Any = nn.Sequential(nn.Embedding(words, WIDTH), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES))
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        data_loader=DataLoader(TensorDataset(inputs, torch.randint(0, CLASSES, (RECORDS,))), batch_size=BATCH),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    model, optimizer, loss, loader = made
    ledger = Ledger.create(folder / f"{parameters}.ledger")
    bayesdp.opacus.watch(model, optimizer, loader, ledger=ledger)
    own, spent, emptying = ledger.step, [0.0], [0.0]

    def timed(**options: Any) -> int:
        before = time.perf_counter()
        np.add(_LARGER_THAN_CACHES, 1, out=_LARGER_THAN_CACHES)
        begin = time.perf_counter()
        number = own(**options)
        spent[0], emptying[0] = time.perf_counter() - begin, begin - before
        return number

    ledger.step = timed
    batches = itertools.chain.from_iterable(iter(lambda: loader, None))

    def step() -> dict[str, float]:
        x, y = next(batches)
        begin = time.perf_counter()
        loss(model(x), y).backward()
        optimizer.step()
        return {"step": time.perf_counter() - begin - emptying[0], "ledger_and_commit": spent[0]}

    return step


def main() -> int:
    """Take turns, print, write, and say whether the bar is met."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=RESULT.parent) as folder:
        runs = {size: new_run(size, Path(folder)) for size in SIZES}
        taken: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
        for turn in range(WARM_UP + TURNS):
            for size in SIZES if turn % 2 else SIZES[::-1]:
                seconds = runs[size]()
                if turn >= WARM_UP:
                    taken[size].append(seconds)
    sizes = []
    for size in SIZES:
        line: dict[str, Any] = {"parameters": size}
        for part in ("step", "ledger_and_commit"):
            milliseconds = 1e3 * np.array([seconds[part] for seconds in taken[size]])
            line[f"{part}_milliseconds"] = median_with_interval(milliseconds)
        sizes.append(line)
        step, ledger = line["step_milliseconds"]["median"], line["ledger_and_commit_milliseconds"]["median"]
        print(f"{size:>11,} parameters: {step:.1f} ms a step, of these {ledger:.2f} ms for ledger and commit")
    first, last = (sizes[end]["ledger_and_commit_milliseconds"]["median"] for end in (0, -1))
    result = {
        "command": "python -m benchmarks.parameters_scale",
        "settings": {"records": RECORDS, "batch": BATCH, "turns": TURNS, "threads": 1, "seed": 0},
        "versions": description() | {"torch": torch.__version__, "opacus": opacus.__version__},
        "sizes": sizes,
        "largest_over_smallest": last / first,
        "limit": LIMIT,
        "holds": last / first <= LIMIT,
    }
    print(f"ledger and commit at {SIZES[-1]:,} over those at {SIZES[0]:,}: {last / first:.2f}", end=" ")
    print("holds" if result["holds"] else "FAILS")
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
