"""The two pictures on the first screen that need no script: 100 people as dots, and where epsilon lies on a scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bayesdp.cautions import LARGE_EPSILON
from bayesdp.formatting import round_up
from bayesdp.report.first_screen import Band
from bayesdp.report.release_checks import STRONG_EPSILON

_WIDTH = 1000
_PER_LINE = 50
_LEAST, _MOST = 0.01, 100.0  # ends of the scale, which is logarithmic


def dots(bands: Sequence[Band]) -> list[tuple[float, float, int]]:
    """Return the place (x, y) of a dot for each of 100 people, and the number of their band."""
    numbers = [number for number, band in enumerate(bands) for _ in range(band.people)]
    apart = _WIDTH / _PER_LINE
    return [
        (round(apart * (place % _PER_LINE + 0.5), 1), 10.0 + 20 * (place // _PER_LINE), number)
        for place, number in enumerate(numbers)
    ]


def dots_in_words(bands: Sequence[Band]) -> str:
    """Return what the dots show, for those who cannot see them."""
    return "Of 100 people: " + "; ".join(f"{band.people} with epsilon {band.label}" for band in bands) + "."


@dataclass(frozen=True)
class Scale:
    """Places on a picture of the scale of epsilons, in its own units from 0 to 1000."""

    here: float
    strong: float
    reasonable: float
    ticks: list[tuple[float, str, str]]
    "Place, text and alignment of the labels below."
    alt: str


def scale(epsilon: float) -> Scale | None:
    """Return where ``epsilon`` lies among the tiers of guarantees; None if it is not finite."""
    if not math.isfinite(epsilon):
        return None
    strong, reasonable = _place(STRONG_EPSILON), _place(LARGE_EPSILON)
    ticks = [
        (0.0, "0.01", "start"),
        (strong / 2, "strong", "middle"),
        (strong, "1", "middle"),
        ((strong + reasonable) / 2, "reasonable", "middle"),
        (reasonable, "10", "middle"),
        ((reasonable + _WIDTH) / 2, "weak", "middle"),
        (float(_WIDTH), "100", "end"),
    ]
    alt = f"A scale of epsilon: up to 1 strong, up to 10 reasonable, above weak. This guarantee: {round_up(epsilon)}."
    return Scale(_place(epsilon), strong, reasonable, ticks, alt)


def _place(epsilon: float) -> float:
    within = min(max(epsilon, _LEAST), _MOST)
    return round(_WIDTH * math.log(within / _LEAST) / math.log(_MOST / _LEAST), 1)
