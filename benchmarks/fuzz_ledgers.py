"""Fuzzed ledgers: random steps, claims, compositions, reports; files that were damaged in any way."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import InvalidInputError, Ledger, Plan, account
from bayesdp import epsilon as worst_case
from bayesdp.guarantees.selection import Selection
from benchmarks.fuzz_judge import are_figures, is_figure, require
from benchmarks.fuzz_values import Values

RECORDS = 12
SETTINGS = ((2.0, 0.1, 1.0), (1.0, 0.1, 1.0), (4.0, 1.0, 0.5))
"""Noise, rate and clip bound of most steps: claims of equal settings are computed once."""


def random_ledger(values: Values, path: Path | None = None) -> Ledger:
    """Return a ledger in memory, or at a path, whose settings are mostly in order."""
    options: dict[str, Any] = {}
    if values.chance(0.2):
        options["audit_ids"] = values.one_of((list(range(RECORDS)), ["a"], [], [1, 1], "abc", None, [1.5], [None]))
    if values.chance(0.1):
        options["audit_groups"] = values.one_of((["a", "b"] * (RECORDS // 2), ["a"], [], [1], "ab", [""]))
    if values.chance(0.1):
        options["metadata"] = values.one_of(
            (
                {"a": math.nan},
                {"a": {"b": [1, 2]}},
                {},
                None,
                5,
                {"seed": 1},
                {"name": values.text()},
                {1: 2},
                {"a": object()},
            )
        )
    if values.chance(0.1):
        options["data"] = values.text()
    if values.chance(0.1):
        options["audit_used_for"] = values.text()
    if values.chance(0.1):
        options["training_records"] = values.count(1000)
    if values.chance(0.05):
        options["unit"] = values.one_of(("person", "row", "", None, 5))
    options["keep_norms"] = values.chance(0.2)
    return Ledger(**options) if path is None else Ledger.create(path, **options)


def random_step(ledger: Ledger, values: Values) -> None:
    """Record a step with arguments that may be wrong; a step that is refused must change nothing."""
    noise, rate, clip = values.one_of(SETTINGS)
    before = ledger.steps, ledger.history.hash
    audit = values.norms((*(RECORDS,) * 30, 1, 0)) if values.chance(0.8) else None
    batch = values.norms((0, 3, 9)) if values.chance(0.3) else None
    try:
        number = ledger.step(
            noise_std=noise if values.chance(0.9) else values.positive(),
            sample_rate=rate if values.chance(0.9) else values.rate(),
            clip=clip if values.chance(0.9) else values.one_of((None, values.positive())),
            audit=audit,
            batch=batch,
            planned_batch=None if values.chance(0.9) else values.positive(),
            source="fuzz" if values.chance(0.95) else values.text(),
            caveats=()
            if values.chance(0.9)
            else values.one_of((("zero-out",), ("none",), "zero-out", 5, None, [None])),
        )
    except InvalidInputError:
        require((ledger.steps, ledger.history.hash) == before, "a refused step changed the ledger", before)
        raise
    require(number == before[0] + 1 == ledger.steps, "the number of a step", number, before)


def ledger_steps(values: Values) -> None:
    """A few steps in memory, and the costs of audit records, which never fall."""
    ledger = random_ledger(values)
    last: Any = None
    for _ in range(int(values.rng.integers(1, 5))):
        random_step(ledger, values)
        costs = ledger.costs([1, 8])
        are_figures(costs, "costs")
        require(
            last is None or last.shape != costs.shape or (costs >= last * (1 - 1e-12)).all(), "costs fell", last, costs
        )
        last = costs
    if values.chance(0.3):
        ledger.amend(values.count(4), audit=values.norms((RECORDS, 1)))
    if values.chance(0.3):
        ledger.costs(values.orders())
    if values.chance(0.2):
        ledger.private_batch(values.count(3))


def ledger_claims(values: Values) -> None:
    """All claims of a small run: figures in range, none for a share above the one for everyone, valid JSON."""
    ledger = random_ledger(values)
    for _ in range(int(values.rng.integers(0, 4))):
        random_step(ledger, values)
    if values.chance(0.2):
        other = random_ledger(values)
        random_step(other, values)
        ledger = ledger.then(other)
    claims = ledger.claims(
        1e-5 if values.chance(0.8) else values.probability(),
        0.01 if values.chance(0.8) else values.probability(),
        (0.5, 0.9) if values.chance(0.8) else values.one_of(((), (values.probability(),), None, 0.5, ("a",), (1.0,))),
        joint=values.chance(0.3),
        fixed_exposures=values.chance(0.3),
        private=values.chance(0.3),
        rows=1 if values.chance(0.9) else values.count(3),
        looks=1 if values.chance(0.8) else values.count(100),
        form=values.one_of(("hockey-stick", "hockey-stick", "markov", "other")),
        estimator=values.one_of(("betting", "betting", "kullback-leibler", "empirical-bernstein", "other")),
    )
    check_claims(claims)


def chosen_run(values: Values) -> None:
    """A run that is the best of a random number of runs: everyone pays at least for one run alone."""
    noise, rate, clip = values.one_of(SETTINGS[1:])
    noise = noise if values.chance(0.5) else values.positive(0.1, 1e3)
    exposure = None if values.chance(0.5) else values.positive(1e-3, 10)
    plan = Plan(steps=2, noise_std=noise, sample_rate=1.0 if values.chance(0.9) else rate, clip=clip)
    selection = Selection(mean=values.one_of((2.0, 5.0, values.positive(1, 1e6))), exposure=exposure)
    ledger = Ledger(plan=plan, selection=selection)
    for _ in range(2):
        ledger.step(noise_std=plan.noise_std, sample_rate=plan.sample_rate, clip=clip, audit=[clip, 0.5 * clip] * 6)
    delta = 1e-5 if values.chance(0.7) else values.probability()
    claims = ledger.claims(delta, shares=(0.5,))
    check_claims(claims)
    alone = worst_case(noise_multiplier=plan.noise_multiplier, sample_rate=plan.sample_rate, steps=2, delta=delta)
    require(claims.everyone.epsilon >= alone.epsilon * (1 - 1e-3), "choosing made a run cheaper", claims, alone)


def check_claims(claims: Any) -> None:
    """Check figures, words and JSON of claims."""
    most = is_figure(claims.everyone.epsilon, "epsilon for everyone")
    for pair in claims.shares:
        for claim in (pair.ex_post, pair.estimate):
            found = is_figure(claim.epsilon, "epsilon of a share")
            require(math.isinf(found) or found <= most * (1 + 1e-9), "a share above everyone", found, most)
            require(math.isfinite(found) or claim.reason, "an infinite epsilon without a reason", claim)
    text = json.dumps(claims.to_dict(), allow_nan=False)
    said = f"{claims.statement()} {claims.to_markdown(all=True)}"
    for bad in ("NaN", " nan", "=nan", "Infinity"):
        require(bad not in text and bad not in said, f"{bad} in words", said)


def accounted(values: Values) -> None:
    """``account`` on an array of norms."""
    steps = values.one_of((0, 1, 3))
    norms = values.array(lambda n: values.rng.exponential(1.0, n), (steps * RECORDS,))
    if isinstance(norms, np.ndarray) and norms.size == steps * RECORDS and values.chance(0.9):
        norms = norms.reshape(steps, RECORDS)
    noise = {"noise_std": 2.0} if values.chance(0.7) else {"noise_multiplier": values.positive()}
    claims = account(
        norms,
        clip=1.0 if values.chance(0.8) else values.positive(),
        sample_rate=0.1 if values.chance(0.8) else values.rate(),
        planned_steps=None if values.chance(0.8) else values.count(5),
        groups=None if values.chance(0.9) else values.one_of((["a"] * RECORDS, [], ["b"], 5)),
        **noise,
    )
    check_claims(claims)


@contextmanager
def folder_of_case(root: Path) -> Iterator[Path]:
    """Make an empty folder for one case."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@cache
def _originals(root: Path) -> tuple[tuple[bytes, str], ...]:
    """Return the bytes of two closed ledgers and a hash of what each says."""
    found: list[tuple[bytes, str]] = []
    for number in range(2):
        values = Values(np.random.default_rng(number))
        path = root / f"original-{number}.ledger"
        path.unlink(missing_ok=True)
        with Ledger.create(path, keep_norms=bool(number)) as ledger:
            for _ in range(6):
                norms = values.rng.exponential(1.0, RECORDS)
                ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=norms, batch=norms[:3])
        with Ledger.open(path, write=False) as ledger:
            found.append((path.read_bytes(), _content(ledger)))
    return tuple(found)


def _content(ledger: Ledger) -> str:
    steps = [(stored.hash.hex(), stored.batch, stored.norms) for stored in ledger.stored_steps()]
    return repr((ledger.run, ledger.seal, ledger.costs([1, 8]).tobytes(), steps))


def damaged_file(values: Values, root: Path) -> str:
    """Open a ledger that was damaged in one place: it is refused, or says exactly what it said before."""
    content, expected = values.one_of(_originals(root))
    data = bytearray(content)
    at, length = int(values.rng.integers(len(data))), int(values.rng.integers(1, 1 << int(values.rng.integers(1, 13))))
    if values.chance(0.4):
        at = min(len(data) - 1, at - at % 4096 + int(values.rng.integers(120)))
    kind = int(values.rng.integers(6))
    if kind <= 1:
        data[at] ^= 1 << int(values.rng.integers(8))
    elif kind == 2:
        data[at : at + length] = values.rng.bytes(len(data[at : at + length]))
    elif kind == 3:
        del data[at:]
    elif kind == 4:
        data[at:at] = values.rng.bytes(length)
    else:
        data[at : at + length] = bytes(len(data[at : at + length]))
    with folder_of_case(root / "damaged") as folder:
        path = folder / "run.ledger"
        path.write_bytes(bytes(data))
        with Ledger.open(path, write=values.chance(0.5)) as ledger:
            require(_content(ledger) == expected, "a damaged ledger says something else")
    return "identical"


def report(values: Values, root: Path) -> None:
    """The page of a random run: one file, with every text of the ledger escaped."""
    with folder_of_case(root / "report") as folder:
        ledger = random_ledger(values, folder / "run.ledger")
        for _ in range(int(values.rng.integers(0, 4))):
            random_step(ledger, values)
        if values.chance(0.5):
            ledger.close()
        ledger.report(folder / "report.html", title=values.one_of((None, "<script>x</script>", "é")))
        page = (folder / "report.html").read_text("utf-8")
        require("<script>x" not in page and "NaN" not in page.split("plotly", 1)[0], "the page of a run")
        ledger.close()
