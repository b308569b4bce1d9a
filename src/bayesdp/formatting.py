"""Numbers as text, rounded so that a printed privacy figure never looks better than the computed one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_FLOOR, Context, Decimal


def finite_or_none(value: float) -> float | None:
    """Return ``value``, or None if it is infinite or NaN, which JSON cannot express."""
    return value if math.isfinite(value) else None


def round_up(value: float, digits: int = 3) -> str:
    """Write ``value`` with ``digits`` significant digits, never below it: 0.12341 becomes "0.124".

    An excess of 1e-12 or less, relative to ``value``, counts as rounding error: 2.0000000000000004 stays "2".
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    if step == 0:  # the smallest floats have fewer digits than this
        return repr(value)
    rounded = math.ceil(value / step * (1 - 1e-12)) * step
    return f"{rounded:.{digits}g}"


def percent(share: float) -> str:
    """Write a share in per cent with all its digits, unrounded: 0.999 becomes "99.9 %"."""
    return f"{(100 * Decimal(repr(float(share)))).normalize():f} %"


def percent_up(probability: float) -> str:
    """Write a probability in per cent with one decimal, never below it: 0.50001 becomes "50.1 %"."""
    return f"{math.ceil(1000 * probability) / 10:g} %"


def percent_digits(probability: float, digits: int = 3) -> str:
    """Write a probability in per cent with ``digits`` significant digits, never below it: 0.0004012 is "0.0402 %"."""
    return f"{Decimal(round_up(100 * probability, digits)):f} %"


def confidence(gamma: float) -> str:
    """Write 1 - gamma in per cent, rounded down: "99 %", "99.9999 %".

    It has as few digits as keep the rounding error below a tenth of gamma.
    """
    exact = 100 - 100 * Decimal(repr(float(gamma)))
    for digits in range(400):
        rounded = exact.quantize(Decimal(1).scaleb(-digits), rounding=ROUND_FLOOR, context=Context(prec=800))
        if exact - rounded <= 10 * Decimal(repr(float(gamma))):
            return f"{rounded:f} %"
    return "almost 100 %"


def guesses(success: float) -> str:
    """Write how often guesses are right, never below it: "80 times in 100, where chance gets 50"."""
    tries = 100 if success >= 0.55 else 1000
    return f"{math.ceil(tries * success * (1 - 1e-12))} times in {tries:,}, where chance gets {tries // 2}"


def listed(parts: Sequence[str]) -> str:
    """Join phrases as a sentence does: "a", "a and b", "a, b and c"."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
