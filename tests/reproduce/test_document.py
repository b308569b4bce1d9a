"""The documentation page says what the results say, and the results what the paper's experiments must show."""

import math
import sys
from dataclasses import asdict
from pathlib import Path

import jinja2
import pytest

from bayesdp.optional import MissingLibraryError
from bayesdp.properties import attack_success
from bayesdp.reproduce.document import page, read, story
from bayesdp.reproduce.targets import TARGETS, experiment

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "reproduction"


def test_every_experiment_has_a_whole_result():
    results = read(RESULTS)
    assert tuple(results) == TARGETS
    assert not any(result["small"] for result in results.values())


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_results_say_of_the_paper_is_what_the_program_says_now(target):
    result = read(RESULTS)[target]
    assert result["verdicts"] == [asdict(verdict) for verdict in experiment(target).verdicts(result)]


def test_the_page_comes_from_the_results():
    assert (ROOT / "docs" / "reproduction.md").read_text() == page(read(RESULTS))


def test_a_value_that_a_template_misses_is_an_error():
    result = read(RESULTS)["leakage"]
    del result["settings"]["pairs"]
    with pytest.raises(jinja2.UndefinedError, match="pairs"):
        story("leakage", result)


def test_a_missing_jinja_is_named_with_the_extra_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingLibraryError, match=r"^jinja2=missing: .* needs pip install 'bayesdp\[demo\]'\.$"):
        page(read(RESULTS))


def test_every_picture_of_the_page_is_there():
    for target in read(RESULTS):
        assert (ROOT / "docs" / "pictures" / f"reproduction-{target}.png").stat().st_size > 10_000


def verdicts(target):
    judged = experiment(target).verdicts(read(RESULTS)[target])
    return {verdict.says: (verdict.as_published, verdict.accounted_right) for verdict in judged}


def test_what_holds_of_the_synthetic_experiments():
    (composition,) = verdicts("composition").values()
    assert composition == (True, False)
    assert list(verdicts("sigma-epsilon").values()) == [(True, False), (False, True)]
    (order,) = verdicts("lambda-epsilon").values()
    assert order == (True, None)
    assert list(verdicts("motivation").values()) == [(None, True), (None, True)]


def test_what_the_story_of_composition_says():
    panels = read(RESULTS)["composition"]["panels"]
    last = {name: [panel[name][-1] for panel in panels] for name in ("bdp_published", "bdp_norms", "dp_rdp", "dp_pld")}
    assert len(set(last["dp_rdp"])) == 1
    assert last["bdp_published"] == sorted(last["bdp_published"], reverse=True)
    assert min(last["bdp_norms"]) > last["dp_rdp"][0]  # Student's t costs more than typical gradients save
    assert "noise at quantile 0.95; 99 % of them, nowhere" in words()


def words():
    return " ".join((ROOT / "docs" / "reproduction.md").read_text().split())


def test_table_1_as_published_reaches_what_was_printed():
    lines = read(RESULTS)["table1"]["as_published"]
    assert lines["mnist"]["accuracy"] >= 0.95
    assert lines["cifar10"]["accuracy"] >= 0.73
    for line in lines.values():
        assert line["before_the_first_step"] <= line["floor"] <= line["epsilon"]
        assert line["floor"] == pytest.approx(-math.log(1e-10) / line["best_lambda"])


def test_the_success_of_guessing_stands_beside_every_epsilon_of_table_1():
    results = read(RESULTS)
    epsilons = [line[name] for line in results["table1"]["as_published"].values() for name in ("epsilon", "worst_case")]
    epsilons += [
        min(line[name], line["worst_case"])  # no share is shown above everyone
        for line in results["recipes"]["ours"].values()
        for name in ("worst_case", "half_ex_post", "half_estimate")
    ]
    text = words()
    assert len(epsilons) == 20
    for epsilon in epsilons:
        if epsilon is not None:
            shown = f"{epsilon:,.0f}" if epsilon > 100 else f"{epsilon:.3g}"
            assert f"| {shown} ({attack_success(epsilon):.3f})" in text


def test_leakage_is_tested_on_independent_pairs_of_both_data_sets():
    result = read(RESULTS)["leakage"]
    assert [panel["name"] for panel in result["panels"]] == ["mnist", "cifar10"]
    for panel in result["panels"]:
        assert sum(panel["members"]) == sum(panel["others"]) == result["settings"]["pairs"] == 4000
        for tests in (panel, panel["as_published"], *panel["as_published"]["controls"]):
            assert 0 <= tests["t_test"] <= 1
            assert 0 <= tests["levene"] <= 1
        assert 0 < panel["auc_error"] < 0.01
    assert [panel["as_published"]["pairs"] for panel in result["panels"]] == [8 * 4950, 10 * 4950]
