"""The first screen: what is promised to everyone and to most people, what is not covered, what to check before release.

Its sentences are those of the statement (``Overview``), so that they cannot disagree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bayesdp.claims import RunClaims
from bayesdp.claims.overview import Overview
from bayesdp.claims.shares import share_epsilon
from bayesdp.formatting import guesses, round_up
from bayesdp.report.release_checks import Check, guaranteed, unsettled

_PARTS = (0.25, 0.5, 0.75)
COVERED = (
    "whether one person's record was in the training data, against someone who knows everything else",
    "what the record says, as far as the model reveals it only because the record was used",
    "whatever is done with this model later: no further use of it reveals more. Another model trained on the same data "
    "does",
)


@dataclass(frozen=True)
class Band:
    """People of 100 whose epsilon lies within a part of the figure for everyone."""

    people: int
    label: str


@dataclass(frozen=True)
class FirstScreen:
    """What the first screen shows.

    ``whom`` says who everyone is, and ``figure`` is their epsilon as it is printed, None if nothing is guaranteed.
    ``most_people`` are sentences about typical people, and ``typical_guessing`` an estimate in natural frequencies.
    ``bands`` divide 100 people like the audit set by their estimated epsilon, in ascending order, and are empty without
    an audit set; ``bands_caption`` says how to read them. ``checks`` are the questions before a release, ``unsettled``
    how many of them are not settled.
    """

    overview: Overview
    whom: str
    figure: str | None
    most_people: list[tuple[str, str]]
    typical_guessing: str | None
    bands: list[Band]
    bands_caption: str
    covered: Sequence[str]
    checks: Sequence[Check]
    unsettled: str


def first_screen(claims: RunClaims, checks: Sequence[Check]) -> FirstScreen:
    """Return what the first screen shows; ``checks`` are the questions before a release."""
    said, bands = claims.overview(), people_bands(claims)
    return FirstScreen(
        overview=said,
        whom="Everyone" if claims.facts.unit == "person" else "Everyone with one row of data",
        figure=round_up(claims.everyone.epsilon) if guaranteed(claims) else None,
        most_people=[line for line in said.lines() if line[0].startswith(("This run", "Estimated"))],
        typical_guessing=typical_guessing(claims),
        bands=bands,
        bands_caption=_bands_caption(claims) if bands else "",
        covered=COVERED,
        checks=checks,
        unsettled=unsettled(checks),
    )


def people_bands(claims: RunClaims) -> list[Band]:
    """Divide 100 people like those in the audit set by estimated epsilon, as parts of the one for everyone.

    The first bands together have as many people as the largest share, in per cent, whose estimate is within them.
    Empty where there is no audit set, or no guarantee for everyone to compare with.
    """
    most = claims.everyone.epsilon
    if not claims.shares or not guaranteed(claims) or most == 0:
        return []
    gamma = claims.shares[0].estimate.gamma
    epsilons = [share_epsilon(claims.figures.estimates, number / 100, gamma) for number in range(1, 100)]
    within = [sum(epsilon is not None and epsilon <= part * most for epsilon in epsilons) for part in _PARTS]
    counts = np.diff([0, *within, 100]).tolist()
    ends = [round_up(part * most) for part in (*_PARTS, 1.0)]
    labels = [f"up to {ends[0]}", *(f"{low} to {high}" for low, high in pairwise(ends))]
    return [Band(count, label) for count, label in zip(counts, labels, strict=True)]


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
    return f"Such a guess about half of them is right about {often}: do not quote this estimate as a guarantee."
