"""Statement, first screen, JSON and charts of a run say the same, and nothing is above the guarantee; in a browser."""

import json
import re

import numpy as np
import pytest

from bayesdp import Ledger, Plan
from bayesdp.formatting import round_up
from bayesdp.report import write_report

STEP = {"noise_std": 1.0, "sample_rate": 0.1, "clip": 1.0}
PLAN = Plan(steps=40, **STEP)


def run(path, steps=40, records=600, loudness=-1.5, **declared):
    rng = np.random.default_rng(0)
    level = rng.lognormal(loudness, 0.8, records)
    with Ledger.create(path, training_records=5000, **declared) as ledger:
        for _ in range(steps):
            ledger.step(**STEP, audit=level * rng.lognormal(0, 0.3, records) if records else None)
        claims = ledger.claims()
        write_report(ledger, path.with_suffix(".html"), claims=claims)
    return claims


RUNS = {
    "plan met": {"plan": PLAN},
    "stopped early": {"plan": PLAN, "steps": 12},
    "no audit": {"plan": PLAN, "records": 0},
    "worst case below every share": {"plan": Plan(steps=40, **{**STEP, "sample_rate": 1.0}), "loudness": 2.0},
    "estimates only": {"plan": PLAN, "audit_used_for": "the learning rate"},
}


@pytest.fixture(scope="module", params=list(RUNS))
def seen(request, tmp_path_factory, open_visit):
    """The claims of a run, and its report in a browser."""
    options, folder = dict(RUNS[request.param]), tmp_path_factory.mktemp("story")
    claims = run(folder / "run.ledger", **options)
    visited = open_visit(folder / "run.html", viewport={"width": 1280, "height": 1000})
    yield claims, visited.page
    visited.check()
    visited.close()


def text_of(page, selector):
    return " ".join(page.locator(selector).inner_text().split())


def test_the_first_screen_and_the_table_are_the_statement(seen):
    claims, page = seen
    first, table = text_of(page, "header"), text_of(page, "#statement")
    for label, sentences in claims.overview().lines():
        shown = table if label in ("It rests on", "Caution", "Trained", "Not covered") else first
        assert " ".join(sentences.split()) in table
        if label == "Guarantee for everyone":
            said = claims.overview()
            assert all(part in shown for part in (said.everyone, said.guessing) if part)
        elif label != "Not covered":
            assert sentences in shown
    for phrase in claims.overview().not_covered:
        assert phrase in first
    assert f"≤ {round_up(claims.everyone.epsilon)}" in text_of(page, "#everyone")


def test_no_epsilon_on_the_first_screen_is_above_the_guarantee(seen):
    claims, page = seen
    most = float(round_up(claims.everyone.epsilon))
    said = text_of(page, "#everyone") + text_of(page, "#most-people")
    if claims.shares:
        said += text_of(page, "figcaption")
    found = re.findall(r"(?:at most|about|epsilon =|up to|≤) (\d+(?:\.\d+)?)(?![\d.]*\d)(?! times)", said)
    assert all(float(number) <= most for number in found), found


def test_no_line_of_a_chart_crosses_the_guarantee(seen):
    claims, page = seen
    lines = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.chart')].filter((chart) => chart.id !== 'chart-exposure')"
        ".map((chart) => [chart.id, chart.data.map((line) => [line.name, line.x, line.y])]))"
    )
    for name, drawn in lines.items():
        [ceiling] = [line for line in drawn if line[0].startswith("everyone")]
        for label, places, heights in drawn:
            for place, height in zip(places, heights, strict=True):
                at = ceiling[1].index(place) if place in ceiling[1] else 0  # in one chart the ceiling has two points
                if height is not None:
                    assert height <= ceiling[2][at] * (1 + 1e-9), (name, label, place)
    worst = claims.everyone.epsilon
    assert lines["chart-training"][0][2][-1] == pytest.approx(worst, rel=1e-9)


def test_charts_and_json_have_the_figures_of_the_claims(seen):
    claims, page = seen
    data = json.loads(page.locator("#data").text_content())
    values = claims.to_dict()
    place = data["by_delta"]["deltas"].index(1e-5)
    assert data["by_delta"]["everyone"][place] == values["worst_case"]["epsilon"] == claims.everyone.epsilon
    for number, share in enumerate(values["shares"]):
        assert data["by_delta"]["ex_post"][number][place] == share["epsilon"]
        assert data["by_delta"]["estimate"][number][place] == share["estimate_epsilon"]
        drawn = data["shares"]["shares"].index(share["share"])
        assert data["shares"]["ex_post"][drawn] == pytest.approx(share["epsilon"], rel=1e-12)
        assert data["shares"]["estimate"][drawn] == pytest.approx(share["estimate_epsilon"], rel=1e-12)
        assert data["over_training"]["ex_post"][number][-1] == pytest.approx(share["epsilon"], rel=1e-12)
    assert values["statement"]["everyone"] == claims.overview().everyone
