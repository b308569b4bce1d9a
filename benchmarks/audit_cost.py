"""What auditing m records beside a batch of B costs, for models in the structure of public scripts, one thread.

    python -m benchmarks.audit_cost [--only NAME ...] [--turns N] [--label before]        (or: make bench)

For each script, way of clipping and batch size several runs take turns, step by step, in an order that changes: Opacus
alone, Opacus alone again (the control), watched, and watched with audit sets of several sizes. In each turn, what an
audit adds is the processor time of its optimizer's step less that of the watched run, where the audit takes place. The
medians over turns are fitted by a line over m, added = fixed + slope m, and

    price = slope B / (seconds of a step alone)

is what the audit costs in units of m/B of a step: 1 means that an audit record costs as much as a record of the batch.
Sizes go from 8 up: the fixed part is what an audit of few records costs, and a line through large sizes only would say
little about it. (Figures under "before" are from B, or B/2 where B is 16, up.) Intervals contain 95 % of what the
fit gives on turns drawn again with replacement.

A line holds if the price is at most its limit, and an audit of m records adds at most limit m/B of a step and 2 ms, for
every size of at least 16 (fewer than 44 are too few for a claim about 90 % of people). ``over_milliseconds`` is the
most by which any of them exceeds limit m/B of a step.

An audit of few records is a forward and a backward pass, and small matrix products are slow, so a line through passes
of the bare model in PyTorch alone has a fixed part as well, which nobody can save who makes a pass of its own. It is
measured with the same numbers of records, in the same turns, and stands beside that of audits ("before" has none).

Prints and writes results/audit_cost.json under "after", or under another --label; other labels in it are kept. Exit
code 1 if a line fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
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
from benchmarks.example_models import SCRIPTS, Script
from benchmarks.machine import description

MODES = ("hooks", "ghost")
OVER_LIMIT = 2.0  # milliseconds
JUDGED_FROM = 16  # audit records
TURNS, WARM_UP, DRAWN_AGAIN = 15, 1, 1000
RESULT = Path(__file__).parents[1] / "results" / "audit_cost.json"


def new_run(script: Script, mode: str, batch: int, audit: int | None) -> Callable[[], tuple[float, float]]:
    """Return a function that takes one step and returns its processor seconds: all, and those of ``optimizer.step``.

    Every batch is all of the data. ``audit``: how many audit records there are; None for Opacus alone.
    """
    torch.manual_seed(0)
    model: Any = script.model()
    model.train()
    made: Any = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01),
        data_loader=DataLoader(TensorDataset(*script.data(batch)), batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
        criterion=nn.CrossEntropyLoss(),
    )
    if mode == "ghost":
        model, optimizer, loss, loader = made
    else:
        (model, optimizer, loader), loss = made, nn.CrossEntropyLoss()
    if audit is not None:
        records = script.data(audit) if audit else None
        bayesdp.opacus.watch(model, optimizer, loader, ledger=Ledger(), audit=records, loss=loss if audit else None)
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

    return step


def new_plain_pass(script: Script, records: int) -> Callable[[], float]:
    """Return a function that takes so many records through the bare model and back: its processor seconds."""
    torch.manual_seed(0)
    model: Any = script.model()
    model.train()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    (x, y), loss = script.data(records), nn.CrossEntropyLoss()

    def plain_pass() -> float:
        begin = time.process_time()
        torch.autograd.grad(loss(model(x), y), weights)
        return time.process_time() - begin

    return plain_pass


def measure(script: Script, mode: str, batch: int, turns: int) -> dict[str, Any]:
    """Return what audits cost in one script, at one way of clipping and one batch size."""
    audits = (None, None, 0, *script.audits)  # alone, control, watched, audited
    runs = [new_run(script, mode, batch, audit) for audit in audits]
    passes = [new_plain_pass(script, records) for records in script.audits]
    seconds, plain = np.zeros((turns, len(runs), 2)), np.zeros((turns, len(passes)))
    rng = np.random.default_rng(0)
    for turn in range(-WARM_UP, turns):
        for number in rng.permutation(len(runs) + len(passes)):
            if number < len(runs):
                seconds[max(turn, 0), number] = runs[number]()
            else:
                plain[max(turn, 0), number - len(runs)] = passes[number - len(runs)]()
    alone = seconds[:, 0, 0]
    added = seconds[:, 3:, 1] - seconds[:, 2:3, 1]

    judged = np.array(script.audits) >= JUDGED_FROM
    expected = script.limit * np.array(script.audits) / batch  # in steps

    def fitted(chosen: np.ndarray) -> tuple[float, float, float, float]:
        """Return the price, the fixed parts of audits and of plain passes, and what is over: in milliseconds."""
        of_step, of_audits = np.median(alone[chosen]), np.median(added[chosen], axis=0)
        slope, fixed = np.polyfit(script.audits, of_audits, 1)
        _, fixed_of_plain = np.polyfit(script.audits, np.median(plain[chosen], axis=0), 1)
        over = np.max((of_audits - expected * of_step)[judged])
        return slope * batch / of_step, 1e3 * fixed, 1e3 * fixed_of_plain, 1e3 * over

    values = fitted(np.arange(turns))
    again = np.array([fitted(rng.integers(turns, size=turns)) for _ in range(DRAWN_AGAIN)])
    price, fixed, fixed_of_plain, over = (
        {"value": value, "low": float(low), "high": float(high)}
        for value, low, high in zip(values, *np.quantile(again, [0.025, 0.975], axis=0), strict=True)
    )
    price["limit"], over["limit"] = script.limit, OVER_LIMIT
    return {
        "script": script.name,
        "mode": mode,
        "batch": batch,
        "milliseconds_alone": 1e3 * float(np.median(alone)),
        "control_over_alone": float(np.median(seconds[:, 1, 0] / alone)),
        "audit_milliseconds": {
            str(m): 1e3 * float(np.median(column)) for m, column in zip(script.audits, added.T, strict=True)
        },
        "price": price,
        "fixed_milliseconds": fixed,
        "fixed_milliseconds_of_plain_passes": fixed_of_plain,
        "over_milliseconds": over,
        "holds": all(each["value"] <= each["limit"] for each in (price, over)),
    }


def shown(line: dict[str, Any]) -> str:
    """Return a measurement as a line of text."""
    price, fixed, over = line["price"], line["fixed_milliseconds"], line["over_milliseconds"]
    return (
        f"{line['script']:12} {line['mode']:6} B {line['batch']:4}: {line['milliseconds_alone']:7.1f} ms alone "
        f"(control {line['control_over_alone']:.3f}); audit {price['value']:.2f} [{price['low']:.2f}, "
        f"{price['high']:.2f}] m/B of a step, limit {price['limit']}; fixed {fixed['value']:6.2f} "
        f"[{fixed['low']:.2f}, {fixed['high']:.2f}] ms; over {over['value']:.2f} [{over['low']:.2f}, "
        f"{over['high']:.2f}] ms, limit {over['limit']}: "
        f"{'holds' if line['holds'] else 'FAILS'}"
    )


def table(result: dict[str, Any]) -> str:
    """Return the figures of both labels as the table that the documentation shows."""
    rows = ["| script | clipping | before | after | fixed part | that of plain passes |", "|---|---|---|---|---|---|"]
    before = {(line["script"], line["mode"], line["batch"]): line for line in result["before"]["lines"]}
    for line in result["after"]["lines"]:
        earlier = before[line["script"], line["mode"], line["batch"]]["price"]["value"]
        price, fixed, of_plain = (
            line[key]["value"] for key in ("price", "fixed_milliseconds", "fixed_milliseconds_of_plain_passes")
        )
        clipping = "flat" if line["mode"] == "hooks" else "ghost"
        rows.append(
            f"| {line['script']} | {clipping} | {earlier:.2f} | {price:.2f} | {max(fixed, 0):.1f} ms "
            f"| {max(of_plain, 0):.1f} ms |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--label", default="after", help="under which name the figures are written")
    parser.add_argument("--only", nargs="*", default=[script.name for script in SCRIPTS], help="names of scripts")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Secure RNG turned off|Full backward hook")
    torch.set_num_threads(1)
    holds = True
    for script, mode in itertools.product([script for script in SCRIPTS if script.name in options.only], MODES):
        for batch in script.batches:
            line = measure(script, mode, batch, options.turns)
            print(shown(line), flush=True)
            write(line, options.label, options.turns)
            holds &= line["holds"]
    return 0 if holds else 1


def write(line: dict[str, Any], label: str, turns: int) -> None:
    """Put a measurement into the file of results, in the place of an earlier one of the same kind."""
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    kinds = ("script", "mode", "batch")
    earlier = result.get(label, {}).get("lines", [])
    kept = [old for old in earlier if any(old[kind] != line[kind] for kind in kinds)]
    names = [script.name for script in SCRIPTS]
    result[label] = {
        "command": f"python -m benchmarks.audit_cost --label {label}",
        "settings": {"turns": turns, "threads": 1, "seed": 0},
        "versions": description() | {"torch": torch.__version__, "opacus": opacus.__version__},
        "lines": sorted([*kept, line], key=lambda each: (names.index(each["script"]), MODES.index(each["mode"]))),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
