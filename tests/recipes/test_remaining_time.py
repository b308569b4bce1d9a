"""The progress bar of the extraction is right about the remaining time, also when a killed run is resumed."""

import numpy as np
import pytest
import rich.progress

from bayesdp.cli.output import _with_bar
from bayesdp.recipes.feature_cache import cached_in_parts

AT_ONCE, SECONDS = 8, 0.57
ROWS = [np.arange(4000 * 4, dtype=np.uint8).reshape(4000, 4), np.arange(1000 * 4, dtype=np.uint8).reshape(1000, 4)]


class Clock:
    """A clock that stands still except while features are computed."""

    def __init__(self):
        self.now = 100.0
        self.bar = None
        self.first = 30.0  # seconds in which a network is loaded, before the first features
        self.calls = 0
        self.shown = []

    def compute(self, rows):
        """Take as long as a network would; note the time that the bar predicted just before."""
        if self.bar is not None:
            self.shown.append((self.now, self.bar.tasks[0].time_remaining))
        self.now += SECONDS + (0 if self.calls else self.first)
        self.calls += 1
        return rows.astype(np.float32)


@pytest.fixture
def clock(monkeypatch, tmp_path):
    clock = Clock()

    class Timed(rich.progress.Progress):
        def __init__(self, **options):
            super().__init__(**options, get_time=lambda: clock.now)
            clock.bar = self

    monkeypatch.setattr(rich.progress, "Progress", Timed)
    monkeypatch.setenv("BAYESDP_CACHE", str(tmp_path))
    return clock


def extraction(compute):
    return cached_in_parts("network", 1, ROWS, compute, AT_ONCE, "float16", lambda items: _with_bar(items, "Features"))


def assert_right(clock):
    """From the third call on, the predicted time is within two percent, and a second, of what was really left."""
    predicted = [(at, remaining) for at, remaining in clock.shown if remaining is not None]
    assert len(clock.shown) - len(predicted) <= 3
    for at, remaining in predicted:
        assert remaining == pytest.approx(clock.now - at, rel=0.02, abs=1.0)


def test_the_remaining_time_is_right_from_the_start(clock):
    extraction(clock.compute)
    assert clock.calls == 5000 // AT_ONCE
    assert_right(clock)


def test_the_remaining_time_counts_only_what_a_killed_run_left_to_compute(clock):
    def killed(rows):
        if clock.calls == 3000 // AT_ONCE:
            raise KeyboardInterrupt
        return clock.compute(rows)

    with pytest.raises(KeyboardInterrupt):
        extraction(killed)
    clock.calls, clock.shown = 0, []
    development, audit = extraction(clock.compute)
    assert clock.calls == (5000 - 2048) // AT_ONCE
    assert_right(clock)
    assert np.array_equal(development, ROWS[0].astype(np.float32))
    assert np.array_equal(audit, ROWS[1].astype(np.float32))
