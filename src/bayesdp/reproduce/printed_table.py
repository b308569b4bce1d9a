"""What Table 1 of the paper prints, and how its cells are written here."""

from __future__ import annotations

from bayesdp.properties import attack_success

PRINTED = {
    "mnist": {"baseline": 0.99, "accuracy": 0.96, "dp": 2.2, "dp_success": 0.898, "bdp": 0.95, "bdp_success": 0.721},
    "cifar10": {"baseline": 0.86, "accuracy": 0.73, "dp": 8.0, "dp_success": 0.999, "bdp": 0.76, "bdp_success": 0.681},
    "abalone": {"baseline": 0.77, "accuracy": 0.76, "dp": 7.6, "dp_success": 0.999, "bdp": 0.61, "bdp_success": 0.649},
    "adult": {"baseline": 0.81, "accuracy": 0.81, "dp": 0.5, "dp_success": 0.623, "bdp": 0.2, "bdp_success": 0.55},
}
"""The figures of the paper; its P(A) differs from 1/(1 + e^-epsilon) in the third digit here and there."""
COMPARABLE = 0.01
"""An accuracy that is lower than another by this much is still called as good."""


def percent(part: float) -> str:
    """Write a part of 1 in percent."""
    return f"{100 * part:.1f} %"


def with_success(epsilon: float | None) -> str:
    """Write an epsilon with the success of an attacker in parentheses; nothing where there is no epsilon."""
    if epsilon is None:
        return ""
    return f"{epsilon:,.0f} (1.000)" if epsilon > 100 else f"{epsilon:.3g} ({attack_success(epsilon):.3f})"
