"""Calibration: close to the target, on the private side of it."""

import math
from functools import cache

import pytest

import bayesdp
from bayesdp.profiles import gaussian_epsilon


@cache
def calibrated(target, rate, steps):
    return bayesdp.calibrate(target_epsilon=target, sample_rate=rate, steps=steps, delta=1e-5)


@pytest.mark.parametrize(
    ("target", "rate", "steps"),
    [
        (1, 0.1, 100),
        (0.1, 0.07, 300),
        (2, 1.0, 20),
        (40, 0.9, 400),
        *[
            pytest.param(*setting, marks=pytest.mark.slow)
            for setting in [(2, 0.01, 1000), (8, 1.0, 20), (0.01, 0.001, 10), (40, 0.1, 50)]
        ],
    ],
)
def test_calibration_lands_on_the_private_side_and_close(target, rate, steps):
    calibration = calibrated(target, rate, steps)
    noise = calibration.noise_multiplier
    again = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=1e-5)
    assert again == calibration.worst_case
    assert 0.99 * target <= again.epsilon <= target
    less = bayesdp.epsilon(noise_multiplier=0.99 * noise, sample_rate=rate, steps=steps, delta=1e-5)
    assert less.epsilon > again.epsilon


@pytest.mark.parametrize(
    ("target", "steps", "delta"),
    [(0.01, 1, 1e-9), (1e-4, 1, 1e-12), (1e-6, 100, 1e-15), (1, 10**9, 1e-30), (50, 3, 1e-9)],
)
def test_extreme_targets_without_sampling_against_the_exact_profile(target, steps, delta):
    noise = bayesdp.calibrate(target_epsilon=target, sample_rate=1.0, steps=steps, delta=delta).noise_multiplier
    assert 0.998 * target <= gaussian_epsilon(math.sqrt(steps) / noise, delta) <= target


@pytest.mark.parametrize(
    ("target", "rate", "steps", "delta"),
    [
        (0.01, 0.01, 1000, 1e-9),
        (1, 0.5, 10, 1e-20),
        pytest.param(1, 1e-6, 10**6, 1e-7, marks=pytest.mark.slow),
        pytest.param(1e-3, 1e-6, 1, 1e-9, marks=pytest.mark.slow),
    ],
)
def test_extreme_targets_with_sampling(target, rate, steps, delta):
    calibration = bayesdp.calibrate(target_epsilon=target, sample_rate=rate, steps=steps, delta=delta)
    settings = {"sample_rate": rate, "steps": steps, "delta": delta}
    again = bayesdp.epsilon(noise_multiplier=calibration.noise_multiplier, **settings)
    assert again == calibration.worst_case
    assert 0.99 * target <= again.epsilon <= target


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"target_epsilon": -1}, "target_epsilon=-1"),
        ({"target_epsilon": 0}, "target_epsilon=0"),
        ({"steps": 0}, "steps=0"),
        ({"sample_rate": 2}, "sample_rate=2"),
        ({"delta": 1}, "delta=1"),
        ({"target_epsilon": 1e-13, "delta": 1e-14}, "target_epsilon=1e-13"),
    ],
)
def test_bad_targets_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        bayesdp.calibrate(**{"target_epsilon": 1, "sample_rate": 0.1, "steps": 10, "delta": 1e-5, **change})


def test_printed_figures_stay_on_the_private_side():
    calibration = calibrated(1, 0.1, 100)
    printed = float(calibration.statement().split()[2].rstrip("."))
    assert calibration.noise_multiplier <= printed <= calibration.noise_multiplier * (1 + 1e-5)
    shown = float(calibration.worst_case.statement().split()[4])
    assert calibration.worst_case.epsilon <= shown <= calibration.worst_case.epsilon * (1 + 1e-3)
