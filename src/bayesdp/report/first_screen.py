"""The first screen: what is promised to everyone and to most people, what is not covered, what to check before release.

Its sentences are those of the statement (``Overview``), so that they cannot disagree with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayesdp.cautions import LARGE_EPSILON
from bayesdp.claims import RunClaims
from bayesdp.claims.overview import Overview
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import guesses, round_up

_PARTS = (0.25, 0.5, 0.75)
_PART_NAMES = ("a quarter", "half", "three quarters")
STRONG_EPSILON = 1.0
"""Up to this a guarantee is strong, by the same tiers as ``LARGE_EPSILON``."""
COVERED = (
    "whether one person's record was in the training data, against someone who knows everything else",
    "what the record says, as far as the model reveals it only because the record was used",
    "whatever is done with this model later: no further use of it reveals more than the figures say",
)
SCALE = (
    (0.0, "nothing can be learned"),
    (STRONG_EPSILON, "strong"),
    (LARGE_EPSILON, "reasonable, and common for machine learning"),
    (math.inf, "weak, unless other evidence is added"),
)
"""Largest epsilon of each tier, and its name; the borders are those of ``LARGE_EPSILON``'s rule of thumb."""
PUBLISHED = (
    "Others have published, for units of their own that cannot be compared directly: Apple 2 to 16 for a user's data "
    "of one day, private image classifiers 1 to 2 for an image (Tramèr & Boneh 2021, De et al. 2022)."
)


@dataclass(frozen=True)
class Band:
    """People of 100 whose epsilon lies within a part of the figure for everyone."""

    people: int
    label: str


@dataclass(frozen=True)
class Check:
    """A question to answer before the model is released, what is known about it, and a command that helps."""

    question: str
    answer: str
    command: str | None = None


@dataclass(frozen=True)
class FirstScreen:
    """What the first screen shows.

    ``figure`` is epsilon for everyone as it is printed, None if nothing is guaranteed. ``most_people`` are sentences
    about typical people, and ``typical_guessing`` an estimate in natural frequencies. ``bands``
    divide 100 people like the audit set by their estimated epsilon, in ascending order, and are empty without an audit
    set; ``bands_caption`` says how to read them.
    """

    overview: Overview
    figure: str | None
    most_people: list[tuple[str, str]]
    typical_guessing: str | None
    bands: list[Band]
    bands_caption: str
    covered: Sequence[str]
    checks: list[Check]


def first_screen(
    claims: RunClaims, *, verify: str | None, ledger_name: str, configurations: int | None = None
) -> FirstScreen:
    """Return what the first screen shows.

    ``verify`` is the command that checks the ledger, None if it has no file. ``configurations`` is how many settings
    were compared to choose those of the run, None if the run does not say.
    """
    said, bands = claims.overview(), people_bands(claims)
    return FirstScreen(
        overview=said,
        figure=round_up(claims.everyone.epsilon) if _guaranteed(claims) else None,
        most_people=[line for line in said.lines() if line[0].startswith(("This run", "Estimated"))],
        typical_guessing=typical_guessing(claims),
        bands=bands,
        bands_caption=_bands_caption(claims) if bands else "",
        covered=COVERED,
        checks=_checks(claims, verify, ledger_name, configurations),
    )


def _guaranteed(claims: RunClaims) -> bool:
    return math.isfinite(claims.everyone.epsilon) and claims.everyone.kind == "proved"


def people_bands(claims: RunClaims) -> list[Band]:
    """Divide 100 people like those in the audit set by estimated epsilon, as parts of the one for everyone.

    The first bands together have as many people as the largest share, in per cent, whose estimate is within them.
    Empty where there is no audit set, or no guarantee for everyone to compare with.
    """
    most = claims.everyone.epsilon
    if not claims.shares or not _guaranteed(claims) or most == 0:
        return []
    gamma = claims.shares[0].estimate.gamma
    epsilons = [share_epsilon(claims.figures.estimates, number / 100, gamma) for number in range(1, 100)]
    within = [sum(epsilon is not None and epsilon <= part * most for epsilon in epsilons) for part in _PARTS]
    counts = np.diff([0, *within, 100]).tolist()
    labels = [f"up to {round_up(part * most)}, {name} of it" for part, name in zip(_PARTS, _PART_NAMES, strict=True)]
    return [Band(count, label) for count, label in zip(counts, [*labels, f"up to {round_up(most)}"], strict=True)]


def _bands_caption(claims: RunClaims) -> str:
    return (
        f"Estimate: 100 people like the {claims.facts.audit_records:,} in the audit set, whether their data was used "
        f"or not, by their epsilon. The guarantee for everyone, {round_up(claims.everyone.epsilon)}, is the ceiling."
    )


def typical_guessing(claims: RunClaims) -> str | None:
    """Return how often a guess about half of the people is right, as an estimate; None if there is no figure."""
    halves = [claim for claim in claims.risk.shares if claim.share == 0.5 and claim.risk is not None]
    if not halves or halves[0].risk is None:
        return None
    often = guesses((1 + halves[0].risk.advantage) / 2)
    return f"For half of them such a guess is right about {often}: an estimate, not to be quoted as a guarantee."


def _checks(claims: RunClaims, verify: str | None, ledger_name: str, configurations: int | None) -> list[Check]:
    everyone, facts = claims.everyone, claims.facts
    if _guaranteed(claims):
        tier = next(name for most, name in SCALE if everyone.epsilon <= most)
        acceptable = f"By a common rule of thumb, {round_up(everyone.epsilon)} counts as {tier}. {PUBLISHED}"
    else:
        acceptable = "There is no guarantee for everyone."
    rows = (
        Check("Is each record one person?", "It was declared that nobody has more than one record.")
        if facts.unit == "person"
        else Check(
            "Does anyone have more than one row?",
            "The figures are for one row. For a person with up to three, this gives the guarantee:",
            f"bayesdp claims {ledger_name} --rows 3",
        )
    )
    return [
        Check("Is this epsilon acceptable?", acceptable),
        rows,
        _delta_check(everyone.delta, facts.training_records),
        Check(
            "Were other models trained on the same data to choose this one?",
            f"{_compared(configurations)}They reveal something too, and are not part of these figures. Count them, or "
            "choose settings on other data.",
        ),
        Check(
            "Is the ledger, the log that was written during training, complete and unchanged?",
            "It was kept in memory only: nobody can check it."
            if verify is None
            else 'The answer to this command must say "complete and unchanged". A seal that was noted elsewhere when '
            "training ended also shows that the ledger is the right one:",
            verify,
        ),
    ]


def _delta_check(delta: float, records: int | None) -> Check:
    question = "Is delta small enough?"
    rule = f"It should be well below 1 in the number of people; it is {delta:g}"
    if records is None:
        return Check(question, f"{rule}, and how many were trained on is not known here.")
    return Check(question, f"{rule}, {1 / (delta * records):.3g} times less than 1 in {records:,}.")


def _compared(configurations: int | None) -> str:
    if configurations is None:
        return ""
    return f"This run says so: {configurations} configurations were compared. "
