"""Planted bugs: does the lab raise the alarm on a broken copy, and stay silent on the right one?

Each bug has the attacker that fits it. A look at one copy gives a p-value under what the ledger says, exact or
conservative; the alarm means a p-value below a twentieth of ``LEVEL``, so that counting alarms on right copies can show
that they are as rare as stated. Every look has fresh random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bayesdp.attack import detectors
from bayesdp.attack.finding import Detection
from bayesdp.attack.lab import AttackOptions

TITLE = "Planted bugs"
SECONDS = 240.0
LEVEL = 0.01
"""The stated false-alarm rate of one look."""
_ALARM = LEVEL / 20


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A bug, and the attacker that looks for it: ``look(rng, broken)`` returns a p-value.

    ``trials`` broken copies are looked at, and ``right_trials`` right ones. Attackers that are ``exact`` compute
    whether the claim stands: no false alarm is possible, and few copies are enough.
    """

    name: str
    attacker: str
    look: Callable[[np.random.Generator, bool], float]
    trials: int = 50
    right_trials: int = 1000
    exact: bool = False


BUGS = (
    Bug(name="noise 20 % too small", attacker="variance of what is left of the sums", look=detectors.little_noise),
    Bug(name="the sum's noise on a mean", attacker="variance of what is left of the sums", look=detectors.mean_noise),
    Bug(name="rate reported at half", attacker="how often a canary is drawn", look=detectors.half_rate),
    Bug(name="one step in ten missing", attacker="variance of the final model", look=detectors.missing_steps),
    Bug(
        name="denominators that leak the batch size",
        attacker="variance of each step",
        look=detectors.own_batch_size,
    ),
    Bug(
        name="exposures rounded down",
        attacker="exact costs",
        look=detectors.rounded_down,
        right_trials=50,
        exact=True,
    ),
    Bug(name="gamma dropped", attacker="how often a share's epsilon is below the quantile", look=detectors.no_gamma),
    Bug(
        name="audit set trained on",
        attacker="ranks of the audit records' costs among other people's",
        look=detectors.audit_trained_on,
    ),
    Bug(
        name="equal seeds on ranks",
        attacker="whether two canaries on two ranks show together",
        look=detectors.equal_seeds,
    ),
    Bug(
        name="stopping by looking claimed as proved",
        attacker="the best strategy, exact",
        look=detectors.stopping,
        trials=10,
        right_trials=10,
        exact=True,
    ),
    Bug(
        name="dropout charged at one draw",
        attacker="the law of the mixture, exact",
        look=detectors.dropout,
        trials=10,
        right_trials=10,
        exact=True,
    ),
    Bug(
        name="a budget by PLD with adaptive settings",
        attacker="the best strategy, exact",
        look=detectors.budget_by_pld,
        trials=6,
        right_trials=6,
        exact=True,
    ),
)


def attack(options: AttackOptions) -> Iterator[Detection]:
    """Yield how often each bug was caught; the small version looks twice at each."""
    for number, bug in enumerate(options.track(BUGS)):
        yield detect(bug, options.seed, number, small=options.small)


def detect(bug: Bug, seed: int, number: int, *, small: bool) -> Detection:
    """Return how often ``bug``, the bug of this number, was caught, with random numbers of its own for each look."""
    counts = {True: min(bug.trials, 2) if small else bug.trials, False: 2 if small else bug.right_trials}
    alarms = {
        broken: sum(
            bug.look(np.random.default_rng([seed, number, broken, trial]), broken) < _ALARM for trial in range(count)
        )
        for broken, count in counts.items()
    }
    return Detection(
        bug=bug.name,
        attacker=bug.attacker,
        level=LEVEL,
        caught=alarms[True],
        trials=counts[True],
        false_alarms=alarms[False],
        right_trials=counts[False],
        exact=bug.exact,
    )
