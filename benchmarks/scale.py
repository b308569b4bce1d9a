"""What a watched step and the claims cost as a run grows: a model fitted to measurements, and carried further.

    python -m benchmarks.scale        writes results/scale.json and the tables of docs/scale.md
    python -m benchmarks.scale --table        writes the tables again, without measuring

Measured: ``Ledger.step`` on disk over audit records m and batch B (processor time, the wait for the disk, bytes,
memory), the claims of a ledger over m, and what it takes to bring n numbers from all ranks together and to wait for
rank 0's answer (gloo, processes on this machine). The processor time of a step is fitted by non-negative least squares
of relative errors to

    fixed + audit * m + batch * B + folded * m / interval(m),

where every interval(m) steps the journal is folded into the histograms of m records. Points with larger m and B than
any in the fit say how far off the model is where it was not fitted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.multiprocessing
from scipy.optimize import nnls

from bayesdp import Ledger, Plan
from bayesdp.ledger.histograms import AuditHistograms
from benchmarks.machine import description
from benchmarks.tables import write_between

ROOT = Path(__file__).parents[1]
RESULT, PAGE = ROOT / "results" / "scale.json", ROOT / "docs" / "scale.md"
MARKS = "<!-- scale: written by python -m benchmarks.scale --table -->", "<!-- end of scale -->"
SETTINGS = {"noise_std": 4.0, "sample_rate": 0.01, "clip": 1.0}
SEED, STEPS = 0, 96
FOLDED_FROM = 10_000  # audit records; with fewer, folding is rare and cheap
FITTED = [(m, b) for m in (100, 1_000, 10_000, 100_000) for b in (64, 4_096, 65_536)]
HELD_OUT = [(300_000, 262_144)]
CLAIMED = (500, 2_000, 8_000)
CLAIMED_HELD_OUT = 24_000
RANKS = (2, 3, 4)
NUMBERS = (1_000, 100_000, 1_000_000)
EXCHANGES = 40
TARGETS = [
    {"ranks": 1, "audit": 459, "batch": 4_096, "parameters": 10**7},
    {"ranks": 8, "audit": 10_000, "batch": 16_384, "parameters": 10**8},
    {"ranks": 64, "audit": 100_000, "batch": 65_536, "parameters": 10**9},
    {"ranks": 1_000, "audit": 1_000_000, "batch": 1_000_000, "parameters": 10**10},
]


def ledger_steps(audit: int, batch: int) -> dict[str, float]:
    """Take steps of a ledger on disk, through two foldings if there are many records; return what they took."""
    rng = np.random.default_rng(SEED)
    people = np.exp(-1 + 0.9 * rng.standard_normal(audit))
    drawn = np.exp(-1 + 0.9 * rng.standard_normal(batch))
    with tempfile.TemporaryDirectory(dir=RESULT.parent) as folder:
        path = Path(folder, "run.ledger")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        processor, waiting = [], []
        interval = folding_interval(audit)
        steps = 2 * interval + interval // 4 if audit >= FOLDED_FROM else STEPS
        with Ledger.create(path, plan=Plan(steps=steps, **SETTINGS)) as ledger:
            for _ in range(steps):
                norms = people * rng.lognormal(0, 0.5)
                begin, begun = time.perf_counter(), time.process_time()
                ledger.step(**SETTINGS, audit=norms, batch=drawn)
                processor.append(time.process_time() - begun)
                waiting.append(time.perf_counter() - begin - processor[-1])
            running = sum(file.stat().st_size for file in path.parent.iterdir())
        closed = path.stat().st_size
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "audit": audit,
        "batch": batch,
        "folded": audit / interval,
        "steps": steps,
        "processor_milliseconds": 1e3 * statistics.fmean(processor),
        "waiting_milliseconds": 1e3 * statistics.median(waiting),
        "running_megabytes": running / 1e6,
        "closed_megabytes": closed / 1e6,
        "memory_megabytes": memory,
    }


def folding_interval(audit: int) -> int:
    """Return every how many steps a ledger with so many audit records folds its journal."""
    histograms = AuditHistograms()
    histograms.set_records(audit)
    return histograms.interval


def ledger_claims(audit: int) -> dict[str, float]:
    """Return what all claims of a ledger in memory take: seconds, and megabytes beyond those of the ledger."""
    rng = np.random.default_rng(SEED)
    people = np.exp(-1 + 0.9 * rng.standard_normal(audit))
    ledger = Ledger(plan=Plan(steps=STEPS, **SETTINGS))
    for _ in range(STEPS):
        ledger.step(**SETTINGS, audit=people * np.exp(0.5 * rng.standard_normal(audit)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    ledger.claims()
    seconds = time.perf_counter() - begin
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"audit": audit, "seconds": seconds, "memory_megabytes": memory}


def exchange(rank: int, ranks: int, port: int, numbers: int, written: str) -> None:
    """Bring ``numbers`` float32 to all ranks together and wait for rank 0's answer, as a watched step does."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    share, answer = torch.zeros(numbers // ranks), torch.zeros(1)
    gathered = [torch.empty_like(share) for _ in range(ranks)]
    times = []
    for _ in range(EXCHANGES):
        torch.distributed.barrier()
        begin = time.perf_counter()
        torch.distributed.all_gather(gathered, share)
        torch.distributed.broadcast(answer, 0)
        times.append(time.perf_counter() - begin)
    if rank == 0:
        Path(written).write_text(str(1e3 * statistics.median(times)))
    torch.distributed.destroy_process_group()


def exchanges(ranks: int, numbers: int) -> dict[str, float]:
    """Return the median milliseconds of an exchange."""
    with tempfile.TemporaryDirectory() as folder:
        written = str(Path(folder, "milliseconds"))
        port = 29_500 + 10 * ranks + NUMBERS.index(numbers)
        torch.multiprocessing.spawn(exchange, (ranks, port, numbers, written), nprocs=ranks)
        return {"ranks": ranks, "numbers": numbers, "milliseconds": float(Path(written).read_text())}


def fit(rows: list[dict[str, float]], value: str, names: tuple[str, ...]) -> dict[str, float]:
    """Return non-negative coefficients of 1 and ``names`` with least squared relative errors."""
    design = np.array([[1.0, *(row[name] for name in names)] for row in rows])
    values = np.array([row[value] for row in rows])
    scale = design.max(axis=0)  # so that the solver sees numbers of one size
    found, _ = nnls(design / scale / values[:, None], np.ones(len(rows)))
    return dict(zip(("fixed", *names), (found / scale).tolist(), strict=True))


def predicted(model: dict[str, float], row: dict[str, float]) -> float:
    """Return what a model says about a point."""
    return model["fixed"] + sum(value * row[name] for name, value in model.items() if name != "fixed")


def measure() -> dict[str, Any]:
    """Measure everything, each point in a process of its own, and fit."""
    steps = [child("ledger_steps", point) for point in FITTED]
    unseen = [child("ledger_steps", point) for point in HELD_OUT]
    claims = [child("ledger_claims", (audit,)) for audit in CLAIMED]
    claims_unseen = child("ledger_claims", (CLAIMED_HELD_OUT,))
    exchanged = [exchanges(ranks, numbers) for ranks in RANKS for numbers in NUMBERS]
    models = {
        "step_milliseconds": fit(steps, "processor_milliseconds", ("audit", "batch", "folded")),
        "closed_megabytes": fit(steps, "closed_megabytes", ("audit", "batch")),
        "memory_megabytes": fit([row for row in steps if row["memory_megabytes"] > 1], "memory_megabytes", ("audit",)),
        "claims_seconds": fit(claims, "seconds", ("audit",)),
        "exchange_milliseconds": fit(exchanged, "milliseconds", ("ranks", "numbers")),
    }
    checks = [
        {"what": "step_milliseconds", **row, "measured": row["processor_milliseconds"]}
        | {"predicted": predicted(models["step_milliseconds"], row)}
        for row in unseen
    ] + [
        {"what": "claims_seconds", **claims_unseen, "measured": claims_unseen["seconds"]}
        | {"predicted": predicted(models["claims_seconds"], claims_unseen)}
    ]
    return {
        "command": "python -m benchmarks.scale",
        "versions": {**description(), "torch": torch.__version__},
        "settings": {"steps": STEPS, "seed": SEED, **SETTINGS, "exchanges": EXCHANGES, "backend": "gloo"},
        "steps": steps,
        "waiting_milliseconds": statistics.median(row["waiting_milliseconds"] for row in steps),
        "claims": claims,
        "exchanges": exchanged,
        "models": models,
        "outside_the_fit": checks,
    }


def child(function: str, arguments: tuple[int, ...]) -> dict[str, float]:
    """Measure a point in a process of its own, so that memory and caches of others do not count."""
    call = f"import json, benchmarks.scale as s; print(json.dumps(s.{function}(*{arguments!r})))"
    done = subprocess.run([sys.executable, "-c", call], check=True, capture_output=True, text=True, cwd=ROOT)
    return json.loads(done.stdout)


def carried(models: dict[str, dict[str, float]], target: dict[str, int]) -> dict[str, float]:
    """Return what the models say about a run: per step, and at its end."""
    sent = target["audit"] + target["batch"]
    numbers = 2 * sent  # a norm is sent with 8 bytes, and numbers of 4 bytes were measured
    row = {**target, "numbers": numbers, "folded": target["audit"] / folding_interval(target["audit"])}
    step = predicted(models["step_milliseconds"], row)
    exchanged = predicted(models["exchange_milliseconds"], row) if target["ranks"] > 1 else 0.0
    return {
        **target,
        "exchanged_megabytes": 8e-6 * sent,
        "exchange_milliseconds": exchanged,
        "step_milliseconds": step,
        "journal_megabytes_a_step": 2e-6 * target["audit"],
        "closed_megabytes": predicted(models["closed_megabytes"], row),
        "memory_megabytes": predicted(models["memory_megabytes"], row),
        "claims_minutes": predicted(models["claims_seconds"], row) / 60,
        "whole_model_gigabytes": 4e-9 * target["parameters"],
    }


def tables(result: dict[str, Any]) -> str:
    """Return the tables of the page."""
    models = result["models"]
    step, sent, claims = models["step_milliseconds"], models["exchange_milliseconds"], models["claims_seconds"]
    lines = [
        "| part | model, fitted |",
        "|---|---|",
        f"| a step of the ledger, processor time in ms | {step['fixed']:.2g} + {1e6 * step['audit']:.2g} for each "
        f"million audit records + {1e6 * step['batch']:.2g} for each million records in the batch + "
        f"{1e3 * step['folded']:.2g} for each thousand audit records that are folded in a step |",
        f"| its wait for the disk, in ms | {result['waiting_milliseconds']:.2g} |",
        f"| bringing numbers of all ranks together and waiting for rank 0, in ms | {sent['fixed']:.2g} + "
        f"{sent['ranks']:.2g} for each rank + {1e6 * sent['numbers']:.2g} for each million numbers of 4 bytes |",
        f"| all claims, in seconds | {claims['fixed']:.2g} + {1e4 * claims['audit']:.2g} for each 10,000 audit "
        "records |",
        f"| the closed ledger, in MB | {models['closed_megabytes']['fixed']:.2g} + "
        f"{1e4 * models['closed_megabytes']['audit']:.2g} for each 10,000 audit records |",
        "",
        "| outside the fit | measured | predicted |",
        "|---|---|---|",
    ]
    for check in result["outside_the_fit"]:
        batch = f", batch of {check['batch']:,}" if "batch" in check else ""
        unit = "ms for a step" if check["what"] == "step_milliseconds" else "s for all claims"
        lines.append(
            f"| {check['audit']:,} audit records{batch} | {check['measured']:.3g} {unit} | {check['predicted']:.3g} |"
        )
    lines += [
        "",
        "| ranks | audit records | batch | parameters | exchange, MB | exchange, ms | ledger's step, ms | ledger, MB | "
        "memory of rank 0, MB | claims, minutes | FSDP2: the whole model, GB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for target in TARGETS:
        row = carried(models, target)
        lines.append(
            f"| {row['ranks']:,} | {row['audit']:,} | {row['batch']:,} | {row['parameters']:.0e} | "
            f"{row['exchanged_megabytes']:.2g} | {row['exchange_milliseconds']:.2g} | {row['step_milliseconds']:.2g} | "
            f"{row['closed_megabytes']:.2g} | {row['memory_megabytes']:.2g} | {row['claims_minutes']:.2g} | "
            f"{row['whole_model_gigabytes'] if row['ranks'] > 1 else 0:.2g} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure unless only the tables are wanted; write both."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--table", action="store_true", help="write the tables of docs/scale.md, without measuring")
    if not options.parse_args().table:
        RESULT.write_text(json.dumps(measure(), indent=2) + "\n")
    written = tables(json.loads(RESULT.read_text()))
    write_between(PAGE, MARKS, written)
    print(written)


if __name__ == "__main__":
    main()
