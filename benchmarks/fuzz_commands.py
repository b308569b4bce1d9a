"""Fuzzed commands, in this process: random options, files, locales and time zones."""

from __future__ import annotations

import locale
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import Ledger
from benchmarks.fuzz_judge import require
from benchmarks.fuzz_ledgers import RECORDS, folder_of_case, random_ledger, random_step
from benchmarks.fuzz_locales import EFFECTIVE
from benchmarks.fuzz_values import Values

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from command_line import run, strict_json

NUMBERS = (
    "0.1",
    "1",
    "0",
    "-1",
    "1e-5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "abc",
    "",
    "0,5",
    "１",
    "1_0",
    "10**3",
    "0x10",
    "é",
)
ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Kiritimati", "nowhere", "", "XXX-25")
LOCALES = ("C", "C.UTF-8", "de_DE.UTF-8", "tr_TR.UTF-8", "ar_EG.UTF-8", "POSIX", "", "nowhere")
PLAIN = {"noise-multiplier": "2", "noise-std": "2", "sample-rate": "0.1", "steps": "10", "delta": "1e-5", "clip": "1"}
PLAIN |= {"target-epsilon": "3", "gamma": "0.01", "shares": ".5,.9", "rows": "2", "looks": "3", "planned-steps": "9"}
PLAIN |= {"title": "<script>x</script>"}
COMMANDS: dict[str, tuple[str, ...]] = {
    "epsilon": ("noise-multiplier", "sample-rate", "steps", "delta"),
    "calibrate": ("target-epsilon", "sample-rate", "steps", "delta"),
    "account": ("noise-std", "clip", "sample-rate", "delta", "gamma", "shares", "rows", "looks", "planned-steps"),
    "claims": ("delta", "gamma", "shares", "rows", "looks"),
    "show": ("delta",),
    "verify": (),
    "advise": ("delta", "gamma"),
    "compose": (),
    "report": ("delta", "gamma", "title"),
    "no-such-command": (),
}
REQUIRED = {"epsilon": 4, "calibrate": 4, "account": 4}
"""How many of the options of a command must be given."""
FLAGS = {
    "account": ("--joint", "--fixed-exposures", "--all"),
    "claims": ("--joint", "--all", "--markdown", "--private"),
}
FLAGS |= {"show": ("--private",)}


def command(values: Values, root: Path) -> str:
    """Run a command: exit code 0 with valid JSON or words, or 2 with one line on standard error."""
    name = values.one_of(tuple(COMMANDS))
    json_ = values.chance(0.5)
    with folder_of_case(root / "command") as folder:
        arguments = [name, *_files(name, values, folder)]
        for number, option in enumerate(COMMANDS[name]):
            if values.chance(0.95 if number < REQUIRED.get(name, 0) else 0.2):
                value = PLAIN[option] if values.chance(0.9) else values.one_of(NUMBERS)
                arguments += [f"--{option}={value}"] if values.chance(0.3) else [f"--{option}", value]
        arguments += [flag for flag in FLAGS.get(name, ()) if values.chance(0.2)]
        arguments += ["--json"] * json_ + ["--no-such-option"] * values.chance(0.02)
        before = set(folder.iterdir())
        with _Elsewhere(values):
            done = run(*arguments, cwd=folder)
        require(done.returncode in (0, 2), "an exit code", done.returncode, arguments)
        require("Traceback" not in done.stderr + done.stdout, "a traceback", arguments)
        if done.returncode == 2:
            lines = done.stderr.splitlines()
            require(len(lines) == 1 and lines[0].startswith("bayesdp: "), "more than one line", done.stderr, arguments)
            require(set(folder.iterdir()) == before and not done.stdout, "a refused command wrote", arguments)
            return "refused"
        require(done.stdout.strip(), "no output", arguments)
        if json_ and "--markdown" not in arguments:
            strict_json(done.stdout)
    return "value"


def _files(name: str, values: Values, folder: Path) -> list[Any]:
    """Write the files that a command reads; return its arguments without options."""
    if name in ("epsilon", "calibrate", "no-such-command"):
        return []
    if values.chance(0.05):
        return [values.one_of(("missing", "", ".", "a\nb", "é.ledger", "x" * 300))] * (2 if name == "compose" else 1)
    if name == "account":
        path = folder / values.one_of(("norms.npy", "norms.csv", "norms.npy", "norms.txt", "norms.parquet"))
        norms = values.rng.exponential(1.0, (int(values.rng.integers(0, 4)), RECORDS))
        if path.suffix == ".npy" and values.chance(0.9):
            np.save(path, norms)
        elif values.chance(0.5):
            path.write_text("\n".join(",".join(map(str, row)) for row in norms))
        else:
            path.write_bytes(values.rng.bytes(50))
        return [path]
    paths = [folder / f"{number}.ledger" for number in range(2 if name == "compose" else 1)]
    for path in paths:
        _write_ledger(values, path)
    pages = {"compose": "both.ledger", "report": "report.html", "advise": "advice.html"}
    if name in pages and (name != "advise" or values.chance(0.3)):
        return [*paths, "-o", folder / pages[name]]
    return [*paths]


def _write_ledger(values: Values, path: Path) -> None:
    """Write a ledger with a few steps that are in order; notes and names may be odd."""
    ordinary = Values(values.rng)
    try:
        ledger = random_ledger(values, path)
    except ValueError:
        ledger = Ledger.create(path)
    with ledger:
        for _ in range(int(values.rng.integers(0, 3))):
            try:
                random_step(ledger, ordinary)
            except ValueError:
                continue


class _Elsewhere:
    """Another time zone, locale and width of the terminal for one command."""

    def __init__(self, values: Values) -> None:
        self._zone, self._locale, self._columns = (
            values.one_of(ZONES),
            values.one_of(LOCALES),
            values.one_of(("1", "80", "x")),
        )

    def __enter__(self) -> None:
        self._environment = dict(os.environ)
        self._was = locale.setlocale(locale.LC_ALL)
        os.environ |= {"TZ": self._zone, "LC_ALL": self._locale, "LANG": self._locale, "COLUMNS": self._columns}
        time.tzset()
        try:
            locale.setlocale(locale.LC_ALL, "")
        except locale.Error:  # not installed here
            locale.setlocale(locale.LC_ALL, "C")
        EFFECTIVE[locale.setlocale(locale.LC_CTYPE)] += 1

    def __exit__(self, *_: object) -> None:
        os.environ.clear()
        os.environ.update(self._environment)
        locale.setlocale(locale.LC_ALL, self._was)
        time.tzset()
