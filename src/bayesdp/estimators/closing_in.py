"""The root of an increasing function from above, in fewer looks than a bisection takes."""

from __future__ import annotations

import math
from collections.abc import Callable


def root_from_above(function: Callable[[float], float], low: float, high: float, close: float) -> float:
    """Return an end ``high`` of an interval of at most ``close`` times itself that holds the root, or neighbours.

    ``function`` increases, is below 0 at ``low`` and at least 0 at ``high``, which is taken for granted; where it is
    NaN it counts as below 0. What is returned is that ``high``, or a point at which the function was seen to be at
    least 0: never below the root, wherever the search looks. It looks next to both ends, then where a straight line
    between them meets 0 (regula falsi; the value of an end that stays is halved, "Illinois"), and in the middle if two
    looks did not halve the interval.
    """
    below = above = math.nan
    side, width, looks = 0, math.inf, 0
    while high - low > close * high and low < (middle := 0.5 * (low + high)) < high:
        at, inside = middle, 0.25 * close * high
        if math.isnan(above) or math.isnan(below):
            at = high - inside if math.isnan(above) else low + inside
        elif looks == 2 and high - low > 0.5 * width:
            looks = 0
        elif math.isfinite(below) and math.isfinite(above):
            if looks in (0, 2):
                looks, width = 0, high - low
            guess = low + (high - low) * (below / (below - above))
            at = min(max(guess, low + inside), high - inside)
            looks += 1
        at = at if low < at < high else middle
        value = function(at)
        if math.isnan(value):  # not known to be at least 0, and NaN stands for an end that was not looked at
            value = -math.inf
        if value >= 0:
            below = 0.5 * below if side > 0 else below
            high, above, side = at, value, 1
        else:
            above = 0.5 * above if side < 0 else above
            low, below, side = at, value, -1
    return high
