"""Sentences about figures that are computed as asked, and that hardly anybody should promise or ask for."""

from __future__ import annotations

LARGE_EPSILON = 10.0
"""A rule of thumb, as in the guide of TensorFlow Privacy: less than this is usual, and less than 1 stringent."""
_TINY_EPSILON, _LARGE_DELTA = 0.01, 1e-3


def about_epsilon(epsilon: float | None) -> list[str]:
    """Return a sentence about a guarantee that is too weak to mean much; nothing for any other, or for none."""
    if epsilon is None or not LARGE_EPSILON < epsilon < float("inf"):
        return []
    return [f"epsilon={epsilon:.4g} is above {LARGE_EPSILON:g}: by itself it promises hardly anything."]


def about_delta(delta: float | None, records: int | None) -> list[str]:
    """Return a sentence about a delta that is too large for the number of training records, if that is known."""
    if delta is None or (delta < _LARGE_DELTA if records is None else delta * records < 1):
        return []
    if records is None:
        return [f"delta={delta:g} is large: choose a delta well below 1 / number of training records."]
    return [
        f"delta={delta:g} is at least 1 / {records} records: publishing one of them outright would be within it; "
        f"choose a delta well below {1 / records:.1g}."
    ]


def about_target(epsilon: float | None) -> list[str]:
    """Return a sentence about a target that promises next to nothing, or more than any model can keep."""
    if epsilon is None or _TINY_EPSILON <= epsilon <= LARGE_EPSILON or epsilon <= 0:
        return []
    if epsilon > LARGE_EPSILON:
        return [
            f"target_epsilon={epsilon:g} is above {LARGE_EPSILON:g}: by itself it promises hardly anything; usual "
            "targets are 1 to 8."
        ]
    return [
        f"target_epsilon={epsilon:g} needs so much noise that hardly any model learns something; 0.1 is already very "
        "strict."
    ]
