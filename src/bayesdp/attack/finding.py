"""What an attack found: a claim beside a lower bound of the truth; how often a planted bug was caught; rankings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from scipy.stats import beta

from bayesdp.claims.claim import Kind
from bayesdp.formatting import round_up

Unit = Literal["delta", "epsilon", "probability", "norm", "exposure", "cost", "steps", "correlation"]
BETWEEN = "what lies between: "
"""The beginning of a note that says what the gap between claim and lower bound is made of."""
_ROUND_OFF = 1e-9  # relative: what a claim computed in floating point may be below an exact value


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, and the most that an attacker could show against it.

    ``claimed`` and ``bound`` are in the same ``unit`` and the claim is an upper bound of it: the delta at the claimed
    epsilon against the failure that an adversary reaches; the claimed epsilon at a delta against a lower bound of it;
    a claimed failure probability gamma against a lower bound of how often the claim failed.

    Attributes:
        subject: What was attacked, in words, with its settings.
        attacker: How, in words.
        claim: Which claim: "everyone", "half, ex-post", "the gate".
        kind: The kind of the claim.
        claimed: What is claimed.
        bound: A lower bound of the truth.
        unit: Of both.
        confidence: With which ``bound`` is below the truth; 1 for exact computations.
        should_break: Whether this claim is one that theory says is no bound (as published, or an estimate in a trap):
            then the lab is right only if it breaks.
        note: What the gap between the two is due to, if that is known.
    """

    subject: str
    attacker: str
    claim: str
    kind: Kind
    claimed: float
    bound: float
    unit: Unit
    confidence: float = 1.0
    should_break: bool = False
    note: str = ""

    @property
    def stands(self) -> bool:
        """Whether the claim is not below the lower bound. A NaN never stands."""
        return self.bound <= self.claimed * (1 + _ROUND_OFF)

    @property
    def as_expected(self) -> bool:
        """Whether the verdict is what theory says it must be."""
        return self.stands != self.should_break

    def line(self) -> str:
        """Return the finding as one line of text."""
        verdict = "stands" if self.stands else "BROKEN"
        expected = "" if self.as_expected else "  <- NOT AS EXPECTED"
        surely = "" if self.confidence == 1 else f" ({self.confidence:.4g} confidence)"
        return (
            f"{verdict}: {self.subject}; {self.claim} ({self.kind}): {self.unit} {round_up(self.claimed)} claimed, "
            f"at least {self.bound:.3g} by {self.attacker}{surely}{expected}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes and the verdict as plain values for JSON."""
        return {**asdict(self), "stands": self.stands, "as_expected": self.as_expected}


@dataclass(frozen=True, kw_only=True)
class Detection:
    """How often an attack raised the alarm on a broken copy, and on the right mechanism.

    Attributes:
        bug: What was planted.
        attacker: Which attack looked for it.
        level: The stated false-alarm rate of one look: the alarm means a p-value, or one minus a confidence, below it.
        caught: In how many of ``trials`` with the bug the alarm was raised.
        trials: How many broken copies were attacked, each with fresh random numbers.
        false_alarms: How often it was raised in ``right_trials`` on the right mechanism.
        right_trials: How often the right mechanism was attacked.
        exact: Whether the attacker computes and does not sample: then no false alarm is possible, so none is counted as
            luck, and ``level`` says nothing.
    """

    bug: str
    attacker: str
    level: float
    caught: int
    trials: int
    false_alarms: int
    right_trials: int
    exact: bool = False
    note: str = ""

    @property
    def power(self) -> tuple[float, float]:
        """A 95 % interval (Clopper-Pearson) for the probability of catching the bug."""
        return _interval(self.caught, self.trials)

    @property
    def false_alarm_rate(self) -> tuple[float, float]:
        """A 95 % interval (Clopper-Pearson) for the probability of an alarm on the right mechanism."""
        return _interval(self.false_alarms, self.right_trials)

    @property
    def as_expected(self) -> bool:
        """Whether the bug is surely caught more often than not, and false alarms are surely as rare as stated."""
        rare = not self.false_alarms if self.exact else self.false_alarm_rate[1] <= self.level
        return self.power[0] > 0.5 and rare

    def line(self, *, judged: bool = True) -> str:
        """Return the detection as one line of text; without a verdict where there were too few trials for one."""
        verdict = "not judged" if not judged else "caught" if self.as_expected else "MISSED"
        return f"{verdict}: {self.bug}: {self.caught} of {self.trials} by {self.attacker}; {self.right()}"

    def right(self) -> str:
        """Return in words what happened on the right mechanism."""
        if self.exact:
            stood = self.right_trials - self.false_alarms
            return f"exact: no false alarm is possible, and {stood} of {self.right_trials} right copies stood"
        return (
            f"false alarms {self.false_alarms} of {self.right_trials}, a rate of at most "
            f"{self.false_alarm_rate[1]:.2g}; stated rate {self.level:g}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes, both intervals and the verdict as plain values for JSON."""
        intervals = {"power": self.power, "false_alarm_rate": self.false_alarm_rate}
        return {**asdict(self), **intervals, "as_expected": self.as_expected}


def rate_at_least(events: int, trials: int, level: float) -> float:
    """Return the lower end of Clopper and Pearson's one-sided interval: above the true rate with probability level."""
    return 0.0 if events == 0 else float(beta.ppf(level, events, trials - events + 1))


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Whether people with a larger claimed epsilon leak more: a rank correlation with its interval.

    Attributes:
        subject: Whose epsilons.
        attacker: Whose success.
        figure: Which epsilon was claimed.
        records: How many people were ranked.
        correlation: Spearman's, between claimed epsilon and the attacker's success.
        low: Lower end of a 95 % bootstrap interval over people.
        high: Its upper end.
        must_agree: Whether theory says that they go together: the attacker sees all that the claim is about.
    """

    subject: str
    attacker: str
    figure: str
    records: int
    correlation: float
    low: float
    high: float
    must_agree: bool = True

    @property
    def agrees(self) -> bool:
        """Whether larger claims surely go with larger leaks."""
        return self.low > 0

    @property
    def as_expected(self) -> bool:
        """Whether they agree where they must."""
        return self.agrees or not self.must_agree

    def line(self, *, judged: bool = True) -> str:
        """Return the ranking as one line of text; without a verdict where there were too few people for one."""
        verdict = "agrees" if self.agrees else "UNCLEAR" if self.must_agree else "unclear, as it may be"
        verdict = verdict if judged else "not judged"
        return (
            f"{verdict}: {self.figure} of {self.records} {self.subject} against {self.attacker}: rank correlation "
            f"{self.correlation:.2f} ({self.low:.2f} to {self.high:.2f})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes and the verdict as plain values for JSON."""
        return {**asdict(self), "agrees": self.agrees, "as_expected": self.as_expected}


def _interval(events: int, trials: int, outside: float = 0.05) -> tuple[float, float]:
    low = rate_at_least(events, trials, outside / 2)
    high = 1.0 if events == trials else float(beta.ppf(1 - outside / 2, events + 1, trials - events))
    return low, high
