"""What a report says, without a browser: edges, privacy, claims that were computed already."""

import importlib

import numpy as np
import pytest

from bayesdp import Ledger, Plan
from bayesdp.claims.risk import MEANING
from bayesdp.formatting import percent_digits
from bayesdp.report import write_report
from bayesdp.report.contents import report_contents
from bayesdp.report.page import render
from report_runs import small_run


def test_nothing_comes_from_training_members():
    def run(batch_scale):
        rng = np.random.default_rng(0)
        ledger = Ledger()
        for _ in range(20):
            audit = rng.lognormal(-1.5, 0.8, 50)
            batch = batch_scale * rng.lognormal(0, 1, 30)
            ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=audit, batch=batch)
        return report_contents(ledger)

    quiet, loud = run(0.01), run(100.0)
    assert quiet.data() == loud.data()
    assert quiet.first == loud.first
    assert quiet.claims == loud.claims


def test_one_loud_audit_record_shows_only_in_the_largest_share():
    found = []
    for loudest in (0.1, 1.0):
        ledger = Ledger()
        rng = np.random.default_rng(0)
        for _ in range(20):
            norms = 0.1 * rng.random(500)
            norms[7] = loudest
            ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=norms)
        page = report_contents(ledger)
        found.append([page.shares["ex_post"][:-3], page.by_delta.ex_post[:2], page.over_training.ex_post[:2]])
    for quiet, loud in zip(*found, strict=True):
        np.testing.assert_allclose(np.array(quiet, float), np.array(loud, float), rtol=0.01)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_run_at_the_edges(rate):
    empty = Ledger()
    assert report_contents(empty).first.figure == "0"
    render(report_contents(empty))
    short = Ledger()
    short.step(noise_std=1.0, sample_rate=rate, clip=1.0, audit=[0.0, 0.5])
    page = report_contents(short)
    assert page.over_training.steps == [1]
    render(page)
    unclipped = Ledger()
    unclipped.step(noise_std=1.0, sample_rate=rate, clip=None, audit=np.full(500, 0.5))
    page = report_contents(unclipped)
    assert page.first.figure is None
    assert page.first.overview.guessing is None
    assert "clip bound" in page.first.overview.everyone
    assert page.first.bands == []
    assert page.over_training.clipped == [None]
    assert page.by_delta.everyone == [None] * len(page.by_delta.deltas)
    render(page)
    several = Ledger()
    for noise in (1.0, 2.0, 3.0, 4.0, 5.0):
        several.step(noise_std=noise, sample_rate=rate, clip=1.0)
    assert ("Noise", "and 2 more changes of settings") in report_contents(several).facts


def test_seeded_runs_are_stamped():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, caveats=["seeded"])
    assert "NOT FOR RELEASE" in report_contents(ledger).stamps[0]


def test_many_groups_and_small_ones_stay_in_their_table():
    names = [f"large {number % 60}" for number in range(1200)] + ["Jane Doe"] + ["two"] * 2
    page = report_contents(small_run(records=len(names), groups=names))
    assert len(page.groups) == 50
    assert page.groups_left_out == 12
    text = render(page)
    assert "Jane Doe" not in text
    assert "12 more with fewer records" in text
    assert not any(claim.group for claim in page.claims)


def test_what_a_run_says_of_itself_is_shown():
    metadata = {"recipe": "digits", "seed": 0, "settings": {"trained_on": "9 rows", "tuning": {"before": "by hand"}}}
    facts = report_contents(small_run(records=0, metadata=metadata)).facts
    assert ("trained on", "9 rows") in facts
    assert ("tuning: before", "by hand") in facts


def test_the_slider_starts_at_the_claims(tmp_path):
    ledger = Ledger.create(tmp_path / "run.ledger")
    for _ in range(5):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.5))
    page = report_contents(ledger, delta=1e-12)
    claimed = ledger.worst_case(1e-12).epsilon
    assert page.by_delta.everyone[page.by_delta.deltas.index(1e-12)] == claimed
    assert "--delta 1e-12 " in page.reproduce[0][1]


def test_an_old_report_stays_if_a_new_one_cannot_be_written(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("the old one")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_report(small_run(records=0), path)
    assert path.read_text() == "the old one"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def counted(monkeypatch):
    """How often claims are computed, by whomever: each time an average among them."""
    module, calls = importlib.import_module("bayesdp.claims.run_claims"), []
    compute = module.average_claim
    monkeypatch.setattr(module, "average_claim", lambda *arguments: calls.append(arguments) or compute(*arguments))
    return calls


def test_claims_that_were_computed_already_are_not_computed_again(tmp_path, counted):
    ledger = small_run(groups=["north"] * 300 + ["south"] * 300)
    claims = ledger.claims(1e-6, 0.05)
    write_report(ledger, tmp_path / "given.html", delta=1e-6, gamma=0.05, claims=claims)
    assert len(counted) == 1
    write_report(ledger, tmp_path / "computed.html", delta=1e-6, gamma=0.05)
    assert len(counted) == 2
    assert (tmp_path / "given.html").read_text() == (tmp_path / "computed.html").read_text()


def test_training_computes_claims_once(tmp_path, counted):
    from bayesdp.recipes import train
    from recipe_data import write_adult

    write_adult(tmp_path / "data")
    trained = train("adult", data=tmp_path / "data", target_epsilon=3, output=tmp_path / "out")
    assert len(counted) == 1
    assert trained.claims.overview().trained in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("options", "given"),
    [
        ({"delta": 1e-6}, {"delta": 1e-5}),
        ({"gamma": 0.05}, {"gamma": 0.01}),
        ({"shares": (0.5, 0.9)}, {}),
        ({"joint": True}, {}),
        ({"private": True}, {}),
    ],
)
def test_claims_of_another_request_are_refused(tmp_path, options, given):
    ledger = small_run(records=30)
    with pytest.raises(ValueError, match=r"claims=.*: expected ledger.claims\(delta=1e-05, gamma=0.01\)"):
        write_report(ledger, tmp_path / "report.html", claims=ledger.claims(**options), **given)
    assert list(tmp_path.iterdir()) == []


def test_claims_bring_their_own_delta_and_gamma(tmp_path):
    ledger = small_run(records=30)
    write_report(ledger, tmp_path / "report.html", claims=ledger.claims(1e-6, 0.05))
    write_report(ledger, tmp_path / "same.html", delta=1e-6, gamma=0.05)
    assert (tmp_path / "report.html").read_text() == (tmp_path / "same.html").read_text()


def test_claims_of_an_earlier_step_are_refused(tmp_path):
    ledger = small_run(records=30)
    claims = ledger.claims()
    ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0)
    with pytest.raises(ValueError, match=r"claims\.seal=.*: expected .*make the claims again"):
        write_report(ledger, tmp_path / "report.html", claims=claims)
    assert list(tmp_path.iterdir()) == []


def test_the_page_says_what_an_attacker_gains():
    ledger = Ledger()
    for _ in range(5):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.5))
    contents = report_contents(ledger)
    assert contents.risk == ledger.claims().risk
    page = render(contents)
    shown = percent_digits(contents.risk.everyone.risk.tpr[1])
    assert f"<td>For everyone</td><td>{percent_digits(contents.risk.everyone.risk.tpr[0])}</td><td>{shown}</td>" in page
    assert MEANING in page


def test_figures_that_a_guarantee_caps_name_its_condition():
    """Curves of shares end at the guarantee; without a plan that holds only if nobody looked."""
    settings = {"noise_std": 2.0, "sample_rate": 0.1, "clip": 1.0}
    pages = {}
    for plan in (None, Plan(steps=5, **settings)):
        ledger = Ledger(plan=plan)
        for _ in range(5):
            ledger.step(**settings, audit=np.full(500, 0.5))
        pages[plan] = render(report_contents(ledger))
    sentence = "Where a figure is that of a guarantee, it holds only if the number of steps and the settings did not"
    assert [page.count(sentence) for page in pages.values()] == [3, 0]
