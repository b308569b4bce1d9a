"""Numbers as text: a printed figure never looks better than the computed one."""

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.formatting import confidence, finite_or_none, percent, percent_digits, percent_up, round_up


@given(st.floats(1e-12, 1e6), st.integers(1, 6))
def test_printed_figures_are_never_below_themselves(value, digits):
    shown = float(round_up(value, digits))
    assert shown >= value * (1 - 1e-9)
    assert shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12341, "0.124"), (2.0, "2"), (2.0000000000000004, "2"), (0.0, "0"), (math.inf, "inf"), (5e-324, "5e-324")],
)
def test_figures_are_rounded_up_but_not_for_rounding_errors(value, text):
    assert round_up(value) == text


def test_percentages_are_never_too_small():
    assert [percent_up(share) for share in (0.5, 0.50001, 0.7311, 1.0)] == ["50 %", "50.1 %", "73.2 %", "100 %"]


@given(st.floats(0, 1))
def test_percentages_have_all_digits(share):
    assert Decimal(percent(share).removesuffix(" %")) == 100 * Decimal(repr(share))


@given(st.floats(1e-300, 0.999))
def test_confidence_is_rounded_down_by_at_most_a_tenth_of_gamma(gamma):
    exact = 100 - 100 * Decimal(repr(gamma))
    shown = Decimal(confidence(gamma).removesuffix(" %"))
    assert 0 <= exact - shown <= 10 * Decimal(repr(gamma))


def test_what_json_cannot_express_is_none():
    assert [finite_or_none(value) for value in (0.5, math.inf, -math.inf, math.nan)] == [0.5, None, None, None]


@pytest.mark.parametrize(
    ("value", "text"), [(0.0004012, "0.0402 %"), (0.05, "5 %"), (1e-9, "0.0000001 %"), (1.0, "100 %"), (0, "0 %")]
)
def test_small_percentages_keep_their_digits(value, text):
    assert percent_digits(value) == text
