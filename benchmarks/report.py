"""The report of a long run: `python -m benchmarks.report`, results/report.json.

100,000 steps and 10,000 audit records, norms given at every step; how long the page takes, how large it is, and how
long a browser needs until its last chart is drawn.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np

from bayesdp import Ledger
from bayesdp.report import write_report
from benchmarks.machine import description

STEPS, RECORDS, KINDS, TARGET = 100_000, 10_000, 200, 20.0
RESULT = Path("results/report.json")


def long_run() -> Ledger:
    """Norms repeat after a while, so that making them does not take longer than recording them."""
    rng = np.random.default_rng(0)
    typical = np.exp(-1.5 + 0.8 * rng.standard_normal(RECORDS))
    norms = [typical * np.exp(0.3 * rng.standard_normal(RECORDS)) for _ in range(KINDS)]
    ledger = Ledger(data="a long run")
    for step in range(STEPS):
        ledger.step(noise_std=1.0, sample_rate=0.001, clip=1.0, audit=norms[step % KINDS])
    return ledger


def drawn_after(page: Path) -> float | None:
    """Seconds until a browser has drawn the last chart; None without one."""
    chromium = shutil.which("chromium")
    if chromium is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page()
        started = time.perf_counter()
        opened.goto(page.resolve().as_uri())
        opened.wait_for_selector("#chart-delta .main-svg")
        taken = time.perf_counter() - started
        browser.close()
    return taken


def main() -> None:
    started = time.perf_counter()
    ledger = long_run()
    recorded = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        started = time.perf_counter()
        write_report(ledger, page)
        seconds = time.perf_counter() - started
        found = {
            "steps": STEPS,
            "audit_records": RECORDS,
            "seconds_to_record": recorded,
            "seconds": seconds,
            "target_seconds": TARGET,
            "megabytes": page.stat().st_size / 1e6,
            "seconds_in_a_browser": drawn_after(page),
        }
    RESULT.write_text(json.dumps({"machine": description(), **found}, indent=2) + "\n")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
