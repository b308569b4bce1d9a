"""The page of the documentation is what the results say."""

from pathlib import Path

from bayesdp.reproduce.page import page, read

ROOT = Path(__file__).parents[2]


def test_the_page_comes_from_the_results():
    assert (ROOT / "docs" / "reproduction.md").read_text() == page(read(ROOT / "results" / "reproduction"))


def test_every_picture_of_the_page_is_there():
    for target in read(ROOT / "results" / "reproduction"):
        assert (ROOT / "docs" / "pictures" / f"reproduction-{target}.png").stat().st_size > 10_000
