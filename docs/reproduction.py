"""Writes docs/reproduction.md and its pictures from results/reproduction; run as `python docs/reproduction.py`."""

from __future__ import annotations

from pathlib import Path

from bayesdp.reproduce.document import page, read
from bayesdp.reproduce.targets import draw

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "reproduction"


def main() -> None:
    results = read(RESULTS)
    (HERE / "reproduction.md").write_text(page(results))
    for target, result in results.items():
        draw(target, result, HERE / "pictures" / f"reproduction-{target}.png")


if __name__ == "__main__":
    main()
