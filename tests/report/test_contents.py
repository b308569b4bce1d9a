"""What a report says, without a browser: edges, privacy, the command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.stats import norm

from bayesdp import Ledger
from bayesdp.report import write_report
from bayesdp.report.cards import guessing_success, percent_up
from bayesdp.report.contents import contents
from bayesdp.report.page import _json, render
from report_runs import small_run

PROGRAM = Path(sys.executable).parent / "bayesdp"


def test_nothing_comes_from_training_members():
    def run(batch_scale):
        rng = np.random.default_rng(0)
        ledger = Ledger()
        for _ in range(20):
            audit = rng.lognormal(-1.5, 0.8, 50)
            batch = batch_scale * rng.lognormal(0, 1, 30)
            ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=audit, batch=batch)
        return contents(ledger)

    quiet, loud = run(0.01), run(100.0)
    assert quiet.data() == loud.data()
    assert quiet.cards == loud.cards
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
        page = contents(ledger)
        found.append([page.shares["ex_post"][:-3], page.by_delta.ex_post[:2], page.over_training.ex_post[:2]])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(np.array(one, float), np.array(other, float), rtol=0.01)


def test_percentages_are_never_too_small():
    assert [percent_up(one) for one in (0.5, 0.50001, 0.7311, 1.0)] == ["50 %", "50.1 %", "73.2 %", "100 %"]


@pytest.mark.parametrize("epsilon", [0.0, 0.001, 1.0, 5.0, 50.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.01])
def test_no_guess_succeeds_more_often_than_its_reading(epsilon, delta):
    """All tests on a grid, by the share that they flag of people who were in the data and of others."""
    flagged, wrongly = np.meshgrid(np.linspace(0, 1, 2001), np.linspace(0, 1, 2001))
    success = (flagged + 1 - wrongly) / 2
    without = 1 - wrongly <= np.exp(epsilon) * (1 - flagged) + delta  # what the direction "out" says of not flagging
    both = without & (flagged <= np.exp(epsilon) * wrongly + delta)
    for direction, allowed in (("out", without), ("both", both)):
        most = success[allowed].max()
        assert most - 1e-12 <= guessing_success(epsilon, delta, direction) <= most + 0.001 + delta / 2


def test_guessing_succeeds_as_often_as_the_distance_of_outputs_says():
    """Without sampling, all steps are one Gaussian release: a guess succeeds with probability Phi(mu / 2)."""
    ledger = Ledger()
    for _ in range(9):
        ledger.step(noise_std=4.0, sample_rate=1.0, clip=1.0, audit=np.full(500, 0.4))
    everyone, _, half = contents(ledger).cards
    assert f"at most {percent_up(norm.cdf(3 / 4 / 2) + 1e-9)} of" in everyone.reading
    assert f"about {percent_up(norm.cdf(0.4 * 3 / 4 / 2) + 1e-4)} of" in half.beside  # norms are rounded up


def test_the_distance_of_outputs_with_sampling():
    ledger = Ledger()
    for _ in range(20):
        ledger.step(noise_std=1.0, sample_rate=0.2, clip=1.0, audit=np.full(500, 0.5))
    found = contents(ledger).by_delta
    for distance, exposure in ((found.everyone_distance, 1.0), (found.distance[0], 0.5)):
        loss = from_gaussian_mechanism(1 / exposure, sampling_prob=0.2, value_discretization_interval=1e-4)
        expected = loss.self_compose(20).get_delta_for_epsilon(0.0)
        assert expected <= distance * (1 + 1e-6)
        assert distance == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_run_at_the_edges(rate):
    empty = Ledger()
    assert "0" in contents(empty).cards[0].figure
    render(contents(empty))
    one = Ledger()
    one.step(noise_std=1.0, sample_rate=rate, clip=1.0, audit=[0.0, 0.5])
    page = contents(one)
    assert page.over_training.steps == [1]
    render(page)
    unclipped = Ledger()
    unclipped.step(noise_std=1.0, sample_rate=rate, clip=None, audit=np.full(500, 0.5))
    page = contents(unclipped)
    assert page.cards[0].figure is None
    assert "clip bound" in page.cards[0].reading
    assert page.cards[0].kind == page.cards[0].beside == ""
    assert page.over_training.clipped == [None]
    assert page.by_delta.everyone == [None] * len(page.by_delta.deltas)
    render(page)
    several = Ledger()
    for noise in (1.0, 2.0, 3.0, 4.0, 5.0):
        several.step(noise_std=noise, sample_rate=rate, clip=1.0)
    assert ("Noise", "and 2 more changes of settings") in contents(several).facts


def test_seeded_runs_are_stamped():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, caveats=["seeded"])
    assert "NOT FOR RELEASE" in contents(ledger).stamps[0]


def test_epsilon_over_training_ends_where_the_claims_are():
    ledger = small_run()
    page, claims = contents(ledger), ledger.claims()
    assert page.over_training.steps[-1] == 60
    assert page.over_training.everyone[-1] == pytest.approx(claims[0].epsilon, rel=2e-3)
    for number, claim in enumerate(one for one in claims if one.kind == "ex-post"):
        at_the_end = page.over_training.ex_post[number][-1]
        assert claim.epsilon * (1 - 1e-9) <= at_the_end <= 1.02 * claim.epsilon
    for column in (page.over_training.everyone, *page.over_training.ex_post):
        assert np.all(np.diff(column) > -1e-12)


def test_exposures_are_what_was_put_in():
    ledger = Ledger()
    norms = np.r_[np.full(360, 0.2), np.full(140, 0.7), np.full(100, 3.0)]
    for _ in range(40):
        ledger.step(noise_std=20.0, sample_rate=1.0, clip=1.0, audit=norms)
    run = contents(ledger).over_training
    assert run.exposure[0][-1] == pytest.approx(0.2, rel=0.01)
    assert run.exposure[2][-1] == pytest.approx(1.0, rel=0.01)
    assert run.clipped == [pytest.approx(1 / 6)] * len(run.steps)


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_exposures_of_people_who_become_quiet_are_not_below_the_truth(rate):
    ledger = Ledger()
    norms = [1.0] * 32 + [0.05] * 32
    for norm_now in norms:
        ledger.step(noise_std=2.0, sample_rate=rate, clip=1.0, audit=np.full(600, norm_now))
    run = contents(ledger).over_training
    for step, exposure in zip(run.steps, run.exposure[0], strict=True):
        assert np.sqrt(np.mean(np.square(norms[:step]))) <= exposure * 1.001 <= 1.01  # costs are not quite squares


def test_no_line_is_that_of_one_record():
    ledger = Ledger()
    for step in range(5):
        ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, audit=[0.1 * step])
    assert contents(ledger).over_training.exposure == [[None] * 5] * 3


@pytest.mark.parametrize(
    ("caveat", "words", "card"),
    [
        ("sampling-mismatch", "No figure on this page is more than an estimate", 0),
        ("earlier-norms", "Figures for shares of people are no more than estimates", 2),
    ],
)
def test_what_weakens_claims_is_stamped_and_said_on_cards(caveat, words, card):
    ledger = Ledger()
    for _ in range(3):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(600, 0.1), caveats=[caveat])
    page = contents(ledger)
    assert any(words in stamp for stamp in page.stamps)
    assert "not a bound" in page.cards[card].kind
    assert "every person" not in page.cards[card].beside
    assert "at most" not in page.cards[card].reading


def test_many_groups_and_small_ones_stay_in_their_table():
    names = [f"large {number % 60}" for number in range(1200)] + ["Jane Doe"] + ["two"] * 2
    page = contents(small_run(records=len(names), groups=names))
    assert len(page.groups) == 50
    assert page.groups_left_out == 12
    text = render(page)
    assert "Jane Doe" not in text
    assert "12 more with fewer records" in text
    assert not any(claim.group for claim in page.claims)


def test_what_a_run_says_of_itself_is_shown():
    metadata = {"recipe": "digits", "seed": 0, "settings": {"trained_on": "9 rows", "tuning": {"before": "by hand"}}}
    facts = contents(small_run(records=0, metadata=metadata)).facts
    assert ("trained on", "9 rows") in facts
    assert ("tuning: before", "by hand") in facts


def test_the_slider_starts_at_the_claims():
    ledger = Ledger()
    for _ in range(5):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.5))
    page = contents(ledger, delta=1e-12)
    claimed = ledger.worst_case(1e-12).epsilon
    assert page.by_delta.everyone[page.by_delta.deltas.index(1e-12)] == claimed
    assert "--delta 1e-12 " in page.reproduce[0][1]


def test_the_policy_allows_two_scripts_and_nothing_else():
    text = render(contents(small_run(records=0)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1].replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.count("sha256-") == 2
    assert "unsafe-eval" not in policy
    assert not re.search(r"(src|href)=[\"']?https?:", text[: text.index("<script>")])


def test_json_cannot_end_its_script():
    assert json.loads(_json({"a": "</script><!--&"})) == {"a": "</script><!--&"}
    assert "<" not in _json({"a": "</script><!--&"})


def command(*arguments):
    return subprocess.run([PROGRAM, "report", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_the_command_writes_the_page(tmp_path):
    with Ledger.create(tmp_path / "run.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0, audit=np.full(500, 0.5))
        ledger.report(tmp_path / "own.html", title="My own")
    assert "<h1>My own</h1>" in (tmp_path / "own.html").read_text()
    result = command(tmp_path / "run.ledger", "-o", tmp_path / "report.html", "--title", "A <b>model</b>")
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "report.html")
    assert "<h1>A &lt;b&gt;model&lt;/b&gt;</h1>" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.ledger"], "none.ledger"),
        (["run.ledger", "--delta", "2"], "delta=2"),
        (["run.ledger", "--gamma", "0"], "gamma=0"),
        (["run.ledger", "-o", "no/such/folder.html"], "output='no/such/folder.html'"),
        (["run.ledger", "-o", "/dev/full/x"], "output='/dev/full/x'"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with Ledger.create("run.ledger") as ledger:
        ledger.step(noise_std=1.0, sample_rate=0.1, clip=1.0)
    before = sorted(tmp_path.iterdir())
    result = command(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


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
