"""The line that is shown during training: true, and cheap."""

import io

import numpy as np
import pytest

from bayesdp import Budget, Ledger, Plan
from bayesdp.formatting import round_up
from bayesdp.report.live import LiveView

UNPLANNED = "(delta 1e-05, if steps did not depend on results)"


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def stepped(ledger, steps=1, records=500):
    rng = np.random.default_rng(ledger.steps)
    for _ in range(steps):
        ledger.step(noise_std=3.0, sample_rate=0.1, clip=1.0, audit=0.3 * rng.random(records) if records else None)


def test_it_says_what_the_claims_say():
    ledger = Ledger()
    assert LiveView(ledger).line() == "Training"
    stepped(ledger, 50)
    line = LiveView(ledger).line()
    claims = ledger.claims()
    sure, everyone = claims.share(0.99).ex_post, claims.everyone
    assert line.startswith("Step 50: epsilon ")
    assert float(line.split()[3]) == pytest.approx(everyone.epsilon, rel=0.01)
    assert line.endswith(f"{round_up(min(sure.epsilon, everyone.epsilon))} for 99 % of people {UNPLANNED}")


@pytest.mark.parametrize("records", [0, 10])
def test_without_enough_audit_records_it_speaks_of_everyone_only(records):
    ledger = Ledger()
    stepped(ledger, 3, records)
    assert LiveView(ledger).line().endswith(f"for everyone {UNPLANNED}")


def test_without_a_clip_bound_there_is_no_figure():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=None)
    assert LiveView(ledger).line() == "Step 1: epsilon without bound for everyone (delta 1e-05)"


def test_a_kept_plan_needs_no_condition_and_a_budget_that_is_exceeded_has_one():
    settings = {"noise_std": 5.0, "sample_rate": 1.0, "clip": 1.0}
    planned = Ledger(plan=Plan(steps=1, **settings))
    planned.step(**settings)
    assert LiveView(planned).line().endswith("for everyone (delta 1e-05)")
    planned.step(**settings)
    assert LiveView(planned).line().endswith(f"for everyone {UNPLANNED}")
    budgeted = Ledger(budget=Budget(epsilon=1.0, delta=1e-5))
    for noise_std, kept in ((5.0, True), (1.0, False)):
        budgeted.step(**settings | {"noise_std": noise_std})
        assert LiveView(budgeted).line().endswith(f"for everyone {'(delta 1e-05)' if kept else UNPLANNED}")


def test_a_seeded_run_is_stamped():
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=1.0, caveats=["seeded"])
    assert LiveView(ledger).line().endswith("NOT FOR RELEASE")


@pytest.mark.parametrize("clip", [1.0, None])
def test_a_figure_for_everyone_that_is_no_bound_is_called_an_estimate(clip):
    ledger = Ledger()
    ledger.step(noise_std=1.0, sample_rate=1.0, clip=clip, caveats=["low-precision"])
    line = LiveView(ledger).line()
    assert (", an estimate, for everyone" in line) == (clip is not None)
    assert ledger.claims().everyone.kind == "estimate"


def test_figures_take_a_small_part_of_the_time(monkeypatch):
    ledger, clock = Ledger(), Clock()
    stepped(ledger)
    view = LiveView(ledger, clock=clock)
    computed = []
    words = LiveView._words

    def slow(self):
        computed.append(clock.now)
        clock.now += 0.1
        return words(self)

    monkeypatch.setattr(LiveView, "_words", slow)
    while clock.now < 60:
        view.line()
        clock.now += 0.01
    assert 0.1 * len(computed) <= 0.02 * 60 + 0.2
    assert len(computed) >= 10


@pytest.mark.parametrize("wrong", [{"delta": 2}, {"share": 0}, {"gamma": 1}])
def test_bad_input_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LiveView(Ledger(), **wrong)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_it_is_shown_on_a_terminal_only(monkeypatch):
    ledger, clock = Ledger(), Clock()
    for stream, lines in ((Terminal(), 3), (io.StringIO(), 0)):  # the last one with its end
        monkeypatch.setattr("sys.stderr", stream)
        view = LiveView(ledger, clock=clock)
        for _ in range(2):
            stepped(ledger)
            clock.now += 100
            view.show()
        view.show()
        view.end()
        assert stream.getvalue().count("\r\x1b[KStep ") == lines
        assert stream.getvalue().endswith("\n") == bool(lines)


def clipped(ledger, steps, records=100):
    rng = np.random.default_rng(ledger.steps)
    for _ in range(steps):
        ledger.step(noise_std=3.0, sample_rate=0.1, clip=1.0, audit=2 + rng.random(records))


def test_advice_stands_above_the_line_once(monkeypatch):
    ledger, clock, stream = Ledger(), Clock(), Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    view = LiveView(ledger, clock=clock)
    clipped(ledger, 5)
    view.show()
    assert view.advice() == ""  # too few steps to say it
    for _ in range(3):
        clipped(ledger, 10)
        clock.now += 1000
        view.show()
    view.end()
    said = stream.getvalue()
    assert (
        said.count("\r\x1b[KAdvice: 100 % of the gradients of audit records are clipped at the clip bound 1, so") == 1
    )
    assert said.index("Advice") < said.index("Step 15")
    assert view.advice() + "\n" in said


def test_there_is_no_advice_where_few_are_clipped():
    ledger = Ledger()
    stepped(ledger, 20, 50)
    view = LiveView(ledger)
    view.line()
    assert view.advice() == ""
