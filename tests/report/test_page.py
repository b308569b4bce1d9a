"""The page, mostly in a real browser: charts, slider, keyboard, print, hostile names."""

import json
import re
import sys
import time

import pytest

from bayesdp.claims.record_figures import RecordFigures
from bayesdp.formatting import round_up
from bayesdp.optional import MissingLibraryError
from bayesdp.report import write_report
from bayesdp.report.chart_data import by_delta
from bayesdp.report.contents import SHARES, report_contents
from bayesdp.report.page import render
from bayesdp.report.single_file import _json
from report_runs import small_run

CHARTS = ["shares", "training", "exposure", "delta", "groups"]
SIZE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def run():
    return small_run(groups=["north"] * 300 + ["south"] * 300, data="the test data")


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(run, path)
    return path


@pytest.fixture(scope="module")
def opened(open_visit, report):
    """The report in one window, for all tests that do not need a fresh one."""
    visited = open_visit(report, viewport=SIZE, color_scheme="light")
    yield visited
    visited.close()


@pytest.fixture
def page(opened):
    """The open page as it was in the beginning; afterwards its console must still be empty."""
    page, slider = opened.page, opened.page.locator("#delta-slider")
    page.set_viewport_size(SIZE)
    page.emulate_media(media="screen", color_scheme="light")
    slider.fill(slider.get_attribute("value"))
    page.evaluate("scrollTo(0, 0)")
    yield page
    opened.check()


def test_the_policy_allows_two_scripts_and_nothing_else():
    text = render(report_contents(small_run(records=0)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    assert not re.search(r"(src|href)=[\"']?https?:", text[: text.index("<script>")])


def test_json_cannot_end_its_script():
    assert json.loads(_json({"a": "</script><!--&"})) == {"a": "</script><!--&"}
    assert "<" not in _json({"a": "</script><!--&"})


def test_a_missing_library_is_an_import_error_with_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"jinja2=missing: .* needs pip install 'bayesdp\[report\]'") as raised:
        write_report(small_run(records=0), tmp_path / "report.html")
    assert isinstance(raised.value, MissingLibraryError)
    assert raised.value.name == "jinja2"
    assert list(tmp_path.iterdir()) == []


def test_it_is_one_small_file(report):
    assert report.stat().st_size < 6_000_000
    assert list(report.parent.iterdir()) == [report]


def check_charts(page, ink):
    for name in CHARTS:
        assert page.locator(f"#chart-{name} .main-svg").count() >= 1
        points = page.locator(f"#chart-{name} .scatterlayer .trace path, #chart-{name} .scatterlayer .trace .point")
        assert points.count() >= 3, name
    assert page.evaluate("getComputedStyle(document.body).color") == ink


def test_every_chart_is_drawn(page):
    check_charts(page, "rgb(27, 31, 36)")


def test_every_chart_is_drawn_on_dark_screens(visit, report):
    check_charts(visit(report, color_scheme="dark"), "rgb(230, 237, 243)")


def test_the_first_screen_says_what_is_promised_to_whom(page, run):
    everyone, most_people = page.locator(".promise").all_inner_texts()
    assert f"≤ {round_up(run.worst_case().epsilon)}" in everyone
    assert "times in 100, where chance gets 50" in everyone
    assert "half" in most_people
    assert "99 %" in most_people
    assert page.locator("#before-release").bounding_box()["y"] < 900
    assert page.locator("#before-release li").count() == 5
    assert page.locator(".people circle").count() == 100 + 4
    assert "the test data" in page.title()


def test_the_contents_lead_to_every_section(page):
    targets = page.locator("nav a").evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert len(targets) == 5 + len(CHARTS)
    for target in targets:
        assert page.locator(target).count() == 1


def test_the_slider_shows_what_the_library_computes(page, run):
    worst = run.worst_case().epsilon
    deltas = page.evaluate("JSON.parse(document.getElementById('data').textContent).by_delta.deltas")
    table = by_delta(run, RecordFigures(run, 1e-5, worst), deltas, SHARES, 0.01)
    for place in (0, 3, len(deltas) - 1):
        page.locator("#delta-slider").fill(str(place))
        shown = page.locator("#delta-figures").inner_text()
        assert f"everyone {round_up(table.everyone[place])}" in shown
        for number, name in ((0, "half"), (1, "90 %"), (2, "99 %")):
            sure, estimate = round_up(table.ex_post[number][place]), round_up(table.estimate[number][place])
            if deltas[place] != 1e-5:
                assert f"{name} of people: sure if not used {sure}, estimate {estimate}" in shown
        claims = run.claims(deltas[place])
        assert table.everyone[place] == pytest.approx(claims.everyone.epsilon, rel=2e-3)
        assert table.ex_post[2][place] == pytest.approx(claims.share(0.99).ex_post.epsilon, rel=1e-9)
        assert table.estimate[2][place] == pytest.approx(claims.share(0.99).estimate.epsilon, rel=2e-3)


@pytest.mark.parametrize(
    ("typed", "taken"), [("2e-6", "delta = 1e-06;"), ("1e-6", "delta = 1e-06;"), ("0.5", "0.0003;")]
)
def test_a_delta_that_is_typed_goes_to_the_private_side(page, typed, taken):
    page.locator("#delta-number").fill(typed)
    page.locator("#delta-number").press("Enter")
    assert taken in page.locator("#delta-figures").inner_text()


@pytest.mark.parametrize("typed", ["1e-30", "much", "-1", "0"])
def test_a_delta_without_figures_is_refused(page, typed):
    page.locator("#delta-number").fill(typed)
    page.locator("#delta-number").press("Tab")
    assert "No figures for this delta" in page.locator("#delta-figures").inner_text()


def test_the_keyboard_reaches_every_control(visit, report):
    page = visit(report)
    wanted = page.locator("input, summary").count()
    reached = set()
    for _ in range(wanted + 10):
        page.keyboard.press("Tab")
        here = page.evaluate("[...document.querySelectorAll('input, summary')].indexOf(document.activeElement)")
        reached.add(here)
    assert reached >= set(range(wanted))
    page.locator("#delta-slider").focus()
    before = page.locator("#delta-figures").inner_text()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#delta-figures").inner_text() != before
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.get_attribute("open") is not None


def test_charts_have_words_and_colours_have_contrast(page):
    for name in CHARTS:
        assert len(page.locator(f"#chart-{name}").get_attribute("aria-label")) > 30
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for selector in (".lead", ".kind", ".caveat", "summary", ".facts dt", "figcaption", "nav a", ".print-all"):
            assert page.evaluate(CONTRAST, selector) >= 4.5


CONTRAST = """selector => {
  const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  let element = document.querySelector(selector), ground = element;
  while (ground && getComputedStyle(ground).backgroundColor === "rgba(0, 0, 0, 0)") ground = ground.parentElement;
  const one = light(parse(getComputedStyle(element).color));
  const other = light(parse(getComputedStyle(ground).backgroundColor));
  return (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
}"""


def test_the_print_view_fits(page):
    page.set_viewport_size({"width": 794, "height": 1123})  # A4 at 96 dots per inch
    page.emulate_media(media="print", color_scheme="dark")
    deadline = time.monotonic() + 10  # charts are laid out again meanwhile
    while page.evaluate("document.documentElement.scrollWidth") > 794 and time.monotonic() < deadline:
        page.wait_for_timeout(50)
    assert page.evaluate("document.documentElement.scrollWidth") <= 794
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.locator("#delta-slider").is_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")


def test_two_pages_are_printed(page):
    def pages():
        page.emulate_media(media="print")
        margin = dict.fromkeys(("top", "bottom", "left", "right"), "12mm")
        printed = page.pdf(format="A4", margin=margin).count(b"/Type /Page\n")
        page.emulate_media(media="screen")
        return printed

    assert pages() == 2
    page.locator("#print-all").check()
    assert pages() > 4
    page.locator("#print-all").uncheck()


def test_charts_fit_their_place_on_paper_and_nothing_is_folded(page):
    """As a browser prints everything: the event comes before the page is laid out for paper."""
    page.locator("#print-all").check()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})
    for chart in page.locator(".chart").all():
        place, drawn = chart.bounding_box(), chart.locator(".main-svg").first.bounding_box()
        assert (drawn["width"], drawn["height"]) == (place["width"], place["height"])
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="screen")
    page.set_viewport_size(SIZE)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_timeout(300)
    page.locator("#print-all").uncheck()
    assert page.locator("details[open]").count() == 0
    assert page.locator("#chart-training .main-svg").first.bounding_box()["width"] > 900


def test_what_is_shown_under_the_pointer_is_never_rounded_down(page):
    shown = page.evaluate(
        "[...document.querySelectorAll('.chart')].flatMap((chart) => chart.data.flatMap((line) =>"
        " line.y.map((y, n) => [y, line.customdata[n], line.hovertemplate])))"
    )
    assert len(shown) > 100
    for value, words, template in shown:
        assert template == "%{customdata}"
        assert words == "no claim" if value is None else float(words) >= value * (1 - 1e-11)


def test_nothing_sticks_out(page):
    assert page.evaluate("document.documentElement.scrollWidth") <= SIZE["width"]


def test_nothing_sticks_out_on_a_phone(visit, report):
    page = visit(report, viewport={"width": 360, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}</title>\"'&amp; Ünïcødé 名前 \u202e" + "long" * 400
)


def test_hostile_names_are_text(visit, tmp_path):
    groups = [HOSTILE + str(number % 2) for number in range(600)]
    run = small_run(groups=groups, data=HOSTILE, metadata={"name": HOSTILE, HOSTILE: HOSTILE, "nested": {"a": 1}})
    path = tmp_path / "report.html"
    write_report(run, path)
    page = visit(path, viewport={"width": 400, "height": 800})
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert HOSTILE[:60] in page.locator("h1").inner_text()
    assert "{{ 7*7 }}" in page.locator("h1").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    ticks = page.locator("#chart-groups .xtick text").all_text_contents()
    assert ticks[0].startswith("<script>alert(1)")


def test_without_audit_records_only_everyone_is_claimed(visit, tmp_path):
    write_report(small_run(records=0), tmp_path / "report.html")
    page = visit(tmp_path / "report.html")
    assert page.locator("#chart-shares, #chart-exposure, #chart-groups").count() == 0
    assert "there is no audit set" in page.locator("#most-people").inner_text()
    assert page.locator(".people").count() == 0
    assert page.locator("#chart-training .trace").count() == 1
