"""The page of the documentation is what the results say."""

from dataclasses import asdict
from pathlib import Path

import pytest

from bayesdp.reproduce.page import page, read
from bayesdp.reproduce.run import TARGETS, experiment

ROOT = Path(__file__).parents[2]


RESULTS = ROOT / "results" / "reproduction"


@pytest.mark.parametrize("target", TARGETS[:4])
def test_what_the_results_say_of_the_paper_is_what_the_program_says_now(target):
    found = read(RESULTS)[target]
    assert found["verdicts"] == [asdict(one) for one in experiment(target).verdicts(found)]


def test_the_page_comes_from_the_results():
    assert (ROOT / "docs" / "reproduction.md").read_text() == page(read(ROOT / "results" / "reproduction"))


def test_every_picture_of_the_page_is_there():
    for target in read(ROOT / "results" / "reproduction"):
        assert (ROOT / "docs" / "pictures" / f"reproduction-{target}.png").stat().st_size > 10_000


def verdicts(target):
    found = read(ROOT / "results" / "reproduction")[target]
    return {one.says: (one.as_published, one.accounted_right) for one in experiment(target).verdicts(found)}


def test_what_holds_of_the_synthetic_experiments():
    (composition,) = verdicts("composition").values()
    assert composition == (True, False)
    assert list(verdicts("sigma-epsilon").values()) == [(True, False), (False, True)]
    (order,) = verdicts("lambda-epsilon").values()
    assert order == (True, None)
    assert list(verdicts("motivation").values()) == [(None, True), (None, True)]


def test_what_the_story_of_composition_says():
    panels = read(ROOT / "results" / "reproduction")["composition"]["panels"]
    last = {name: [panel[name][-1] for panel in panels] for name in ("bdp_published", "bdp_norms", "dp_rdp", "dp_pld")}
    assert len(set(last["dp_rdp"])) == 1
    assert last["bdp_published"] == sorted(last["bdp_published"], reverse=True)
    assert min(last["bdp_norms"]) > last["dp_rdp"][0]  # Student's t costs more than typical gradients save
    assert "noise at quantile 0.95; 99 % of them, nowhere" in words()


def words():
    return " ".join((ROOT / "docs" / "reproduction.md").read_text().split())
