"""Pictures of a report for README and docs: `python docs/pictures/screenshots.py REPORT.html`, with chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
WIDTHS = {1280: 1000, 420: 900}
"""Width and height of the window."""


def main() -> None:
    """Take the pictures."""
    report = Path(sys.argv[1]).resolve()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for width, height in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(report.as_uri())
            page.wait_for_selector("#chart-delta .main-svg")
            page.screenshot(path=HERE / f"report-{width}.png")
        browser.close()


if __name__ == "__main__":
    main()
