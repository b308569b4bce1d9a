"""A step of the linear probe against Opacus: `python -m benchmarks.linear_probe`, results/linear_probe.json.

The same layer (3,969 features, 10 classes) and Poisson batches of 4,096 expected records, drawn from the same 20,000:
Opacus with gradients of each record, Opacus with ghost clipping, and the probe. A step is whole: gather the batch,
forward, clip, sum, noise, update; without data loader and without accounting. The three take turns in one process.
`--profile` measures instead where the probe's own time goes, in processor time on one thread, and keeps the rest of the
results as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesdp.randomness import Secure, gaussian, poisson_batch
from bayesdp.recipes.descent import Descent, SgdSettings
from bayesdp.recipes.linear_probe import ProbeRows, new_weights
from benchmarks.machine import description

RECORDS, FEATURES, CLASSES, BATCH, TURNS = 20_000, 3_969, 10, 4_096, 15
CLIP, NOISE, LEARNING_RATE = 0.5, 5.0, 1.0
RESULT = Path("results/linear_probe.json")
Step = Callable[[np.ndarray], None]


def opacus_step(x: torch.Tensor, y: torch.Tensor, mode: str) -> Step:
    layer = nn.Linear(FEATURES, CLASSES, bias=False)
    parts = PrivacyEngine().make_private(
        module=layer,
        optimizer=torch.optim.SGD(layer.parameters(), lr=LEARNING_RATE, momentum=0.9),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=BATCH),
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=NOISE,
        max_grad_norm=CLIP,
        grad_sample_mode=mode,
    )
    model, optimizer = parts[0], parts[1]
    criterion = parts[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step(rows: np.ndarray) -> None:
        drawn = torch.from_numpy(rows)
        optimizer.zero_grad()
        criterion(model(x.index_select(0, drawn)), y[drawn]).backward()
        optimizer.step()

    return step


def probe_step(x: torch.Tensor, y: torch.Tensor) -> Step:
    rows = ProbeRows(x.numpy(), y.numpy(), CLASSES)
    settings = SgdSettings(
        steps=1, sample_rate=BATCH / RECORDS, clip=CLIP, noise_multiplier=NOISE, learning_rate=LEARNING_RATE
    )
    descent = Descent(new_weights(FEATURES, CLASSES), settings)

    def step(drawn: np.ndarray) -> None:
        total = rows.clipped_sum(descent.weights, CLIP, drawn, sample_rate=BATCH / RECORDS)
        descent.update((total + gaussian(Secure(), total.shape, NOISE * CLIP, step=0)) / BATCH, 0)

    return step


def profile() -> dict[str, float]:
    """Processor time on one thread, in microseconds per record: a whole step, and parts that no step can do without."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x, y = nn.functional.normalize(torch.randn(RECORDS, FEATURES)), torch.randint(0, CLASSES, (RECORDS,))
    drawn, weights = poisson_batch(Secure(), RECORDS, BATCH / RECORDS, step=0), torch.zeros(CLASSES, FEATURES)
    blocks, room = torch.from_numpy(drawn).split(256), torch.empty(256, FEATURES)

    def gather() -> None:
        for block in blocks:
            torch.index_select(x, 0, block, out=room[: len(block)])

    def products() -> None:  # of a block that is in the processor's cache: scores, and the sum of gradients
        for block in blocks:
            weights @ room[: len(block)].T @ room[: len(block)]

    step = probe_step(x, y)
    parts: dict[str, Callable[[], object]] = {
        "step": lambda: step(drawn),
        "gather": gather,
        "two_products": products,
        "noise": lambda: gaussian(Secure(), (CLASSES, FEATURES), NOISE * CLIP, step=0),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for turn in range(-2, TURNS):
        for name, part in parts.items():
            started = time.process_time()
            part()
            if turn >= 0:
                seconds[name].append((time.process_time() - started) / len(drawn))
    return {name: 1e6 * statistics.median(times) for name, times in seconds.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--profile", action="store_true", help="only where the time of the probe goes")
    if options.parse_args().profile:
        result = json.loads(RESULT.read_text())
        result["profile_microseconds_per_record"] = profile()
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
        print(json.dumps(result["profile_microseconds_per_record"], indent=2))
        return
    earlier = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    torch.manual_seed(0)
    x = nn.functional.normalize(torch.randn(RECORDS, FEATURES))
    y = torch.randint(0, CLASSES, (RECORDS,))
    steps = {
        "probe": probe_step(x, y),
        "opacus": opacus_step(x, y, "hooks"),
        "ghost": opacus_step(x, y, "ghost"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(-2, TURNS):  # two to warm up
        drawn = poisson_batch(Secure(), RECORDS, BATCH / RECORDS, step=0)
        for name, step in steps.items():
            started = time.perf_counter()
            step(drawn)
            if turn >= 0:
                seconds[name].append((time.perf_counter() - started) / len(drawn))
    micro = {name: 1e6 * statistics.median(times) for name, times in seconds.items()}
    ratios = {
        name: sorted(other / own for other, own in zip(seconds[name], seconds["probe"], strict=True))
        for name in ("opacus", "ghost")
    }
    result = {
        "machine": {**description(), "torch": torch.__version__, "threads": torch.get_num_threads()},
        "features": FEATURES,
        "classes": CLASSES,
        "batch": BATCH,
        "turns": TURNS,
        "microseconds_per_record": micro,
        "times_faster": {
            name: {"median": statistics.median(of), "quartiles": [of[TURNS // 4], of[3 * TURNS // 4]]}
            for name, of in ratios.items()
        },
        **{key: value for key, value in earlier.items() if key == "profile_microseconds_per_record"},
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
