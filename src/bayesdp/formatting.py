"""Numbers as text for readers, rounded so that a printed privacy figure is never better than the computed one."""

from __future__ import annotations

import math
from decimal import ROUND_FLOOR, Context, Decimal


def finite_or_none(value: float) -> float | None:
    """Return ``value``, or None where it is infinite or NaN: JSON has neither."""
    return value if math.isfinite(value) else None


def round_up(value: float, digits: int = 3) -> str:
    """Write ``value`` with a few significant digits, never below it: 0.12341 becomes "0.124"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    if step == 0:  # too small for a few digits
        return repr(value)
    rounded = math.ceil(value / step * (1 - 1e-12)) * step
    return f"{rounded:.{digits}g}"


def percent(share: float) -> str:
    """Write a share in per cent with all its digits: 0.999 becomes "99.9 %"."""
    return f"{(100 * Decimal(repr(float(share)))).normalize():f} %"


def percent_up(probability: float) -> str:
    """Write a probability in per cent with one decimal, never below it."""
    return f"{math.ceil(1000 * probability) / 10:g} %"


def confidence(gamma: float) -> str:
    """Write 1 - gamma in per cent, never rounded up: "99 %", "99.9999 %"."""
    exact = 100 - 100 * Decimal(repr(float(gamma)))
    for digits in range(400):
        rounded = exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR, context=Context(prec=800))
        if exact - rounded <= 10 * Decimal(repr(float(gamma))):
            return f"{rounded:f} %"
    return "almost 100 %"
