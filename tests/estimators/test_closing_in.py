"""Roots from above: never below the root, as close as asked for, whatever the shape of the function."""

import math

import pytest

from bayesdp.estimators.closing_in import root_from_above


@pytest.mark.parametrize("close", [1e-6, 1e-13])
@pytest.mark.parametrize("root", [1e-9, 0.1, 0.7, 1 - 1e-9])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x,
        lambda x: math.copysign(abs(x) ** 5, x),
        lambda x: math.copysign(abs(x) ** 0.2, x),
        lambda x: math.copysign(1.0, x),
        lambda x: math.expm1(min(500 * x, 700)),
        lambda x: x if x < 0 else math.inf,
    ],
)
def test_never_below_the_root_and_close(shape, root, close):
    looks = []

    def function(x):
        looks.append(x)
        return shape(x - root) if x != root else 0.0

    found = root_from_above(function, 0.0, 1.0, close)
    assert root <= found <= root * (1 + 2 * close) + 1e-300
    assert all(0 < x < 1 for x in looks)
    assert len(looks) < 200


def test_a_root_at_either_end():
    assert root_from_above(lambda x: 1.0, 0.5, 1.0, 1e-9) == pytest.approx(0.5, rel=1e-8)
    assert root_from_above(lambda x: -1.0, 0.5, 1.0, 1e-9) == 1.0
    assert root_from_above(lambda x: -1.0, 1.0, 1.0, 1e-9) == 1.0


def test_a_function_that_is_nan_ends_on_the_safe_side():
    looks = []

    def function(x):
        looks.append(x)
        assert len(looks) < 500
        return math.nan if x < 0.5 else 1.0

    assert 0.5 <= root_from_above(function, 0.0, 1.0, 1e-13) <= 0.5 * (1 + 1e-12)
    looks.clear()
    assert root_from_above(lambda x: function(x) * math.nan, 0.0, 1.0, 1e-13) == 1.0
