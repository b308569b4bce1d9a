"""The noise that keeps an attacker below a true-positive rate, by a search that ends on the private side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.special import ndtri

from bayesdp import validation
from bayesdp.formatting import round_up
from bayesdp.guarantees.clip_bound import ClipBound
from bayesdp.guarantees.trade_off import Risk, attacker_sentence, clip_bound_risk
from bayesdp.guarantees.worst_case import WorstCase, epsilon
from bayesdp.validation import refuse

_CLOSE = 1e-3  # what is left of the gap between the two rates that the target allows
_LEAST, _MOST = 1e-2, 1e7  # noise multipliers that are tried


@dataclass(frozen=True, kw_only=True)
class RiskCalibration:
    """A noise multiplier with the ``risk`` it leaves, whose true-positive rate is at most the target."""

    noise_multiplier: float
    target_tpr: float
    risk: Risk
    worst_case: WorstCase

    def statement(self) -> str:
        """Return the result in words; figures are rounded up, so that the printed noise reaches the target too."""
        noise, sentence = round_up(self.noise_multiplier, 6), attacker_sentence(self.risk)
        return f"Noise multiplier {noise}. {sentence} {self.worst_case.statement()}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: noise, rates, advantage and mu, and those of ``WorstCase.to_dict``."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "target_tpr": self.target_tpr,
            "fpr": self.risk.fpr[0],
            "tpr": self.risk.tpr[0],
            "advantage": self.risk.advantage,
            "mu": self.risk.mu,
            **self.worst_case.to_dict(),
        }


def calibrate_risk(*, tpr: float, fpr: float, sample_rate: float, steps: int, delta: float = 1e-5) -> RiskCalibration:
    """Return a noise multiplier, close to the least, that keeps every attacker's true-positive rate at most ``tpr``.

    For ``steps`` steps of DP-SGD at ``sample_rate``, and attackers whose false-positive rate is ``fpr``; ``delta`` is
    that of the worst-case epsilon which stands beside the result. Without sampling the least noise is
    sqrt(steps) / (Phi^-1(tpr) - Phi^-1(fpr)), and with sampling it suffices too: the search goes down from there.

    Formal guarantee: the noise multiplier returned was itself evaluated, so its true-positive rate, as ``attack_risk``
    computes it, is at most ``tpr`` whatever the search did. It ends where less than 0.1 % of tpr - fpr is left, where
    the root is known to 1e-4 relative, or at a noise multiplier of 0.01.

    Raises InvalidInputError for arguments out of range, unless ``fpr`` < ``tpr`` (an attacker who guesses at random
    reaches tpr = fpr), and for a target that no noise multiplier below 1e7 reaches.
    """
    fpr, tpr = validation.probability("fpr", fpr), validation.probability("tpr", tpr)
    if not fpr < tpr:
        raise refuse("tpr", tpr, f"a rate above fpr={fpr!r}, which guessing at random reaches")
    rate = validation.sample_rate(sample_rate)
    steps = validation.count("steps", steps, minimum=1)
    delta = validation.probability("delta", delta)

    def exact(noise: float) -> Risk:
        return clip_bound_risk(ClipBound.of([(noise, rate, steps)]), delta, [fpr])

    gap = float(ndtri(tpr) - ndtri(fpr))
    high = max(math.sqrt(steps) / gap * (1 + 1e-9), _LEAST) if gap > 0 else math.inf
    best, low = exact(min(high, _MOST)), 0.0
    if high > _MOST or best.tpr[0] > tpr:
        raise refuse("tpr", tpr, f"a rate that a noise multiplier below {_MOST:g} reaches at fpr={fpr!r}")
    while tpr - best.tpr[0] > _CLOSE * (tpr - fpr) and high > _LEAST and high - low > 1e-4 * high:
        # Halve until the target is exceeded, then close in.
        guess = math.sqrt(low * high) if low else max(high / 2, _LEAST)
        tried = exact(guess)
        if tried.tpr[0] <= tpr:
            high, best = guess, tried
        else:
            low = guess
    worst = epsilon(noise_multiplier=high, sample_rate=rate, steps=steps, delta=delta)
    return RiskCalibration(noise_multiplier=high, target_tpr=tpr, risk=best, worst_case=worst)
