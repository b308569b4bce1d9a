"""The first screen: three figures, what each of them means for someone who guesses, and a summary in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bayesdp.claims import RunClaims, ShareClaims
from bayesdp.claims.claim import NO_BETTER, Claim
from bayesdp.formatting import confidence, percent_up, round_up
from bayesdp.properties import attack_success
from bayesdp.report.chart_data import ByDelta

_WHOM = {0.99: "99 % of people", 0.5: "half of the people"}
_KINDS = {
    "proved": "Proved",
    "ex-post": "Sure for the run that took place",
    "estimate": "Estimate, not a bound",
    "model-based": "Model-based, not a bound",
}
_EVERYONE = {
    "proved": "It holds for every data set and every person, whoever they are.",
    "estimate": "It rests on something that is not certain: see the note above.",
}


@dataclass(frozen=True)
class Card:
    """One of the three figures, for the people named in ``whom``."""

    whom: str
    figure: str | None
    "Epsilon; None if nothing can be claimed, and then ``reading`` says why."
    reading: str
    "What the figure means: how often someone who guesses can be right."
    kind: str = ""
    beside: str = ""
    "The other figure for the same people, in a sentence."


def cards(claims: RunClaims, table: ByDelta, shares: Sequence[float]) -> list[Card]:
    """Return the cards for everyone, for 99 % and for half of the people.

    A share for which the figure for everyone is the smaller one has that figure.
    """
    everyone, most = claims.everyone, (1 + table.everyone_distance) / 2
    listed = [_card("For everyone", everyone, _EVERYONE.get(everyone.kind, ""), most, "")]
    for share, whom in _WHOM.items():
        whom = f"For {whom}"
        pair = _pair(claims, share)
        if pair is None:
            listed.append(Card(whom, None, "No audit records: only the figure for everyone can be given."))
            continue
        beside = _estimate_words(pair.estimate, table.distance[shares.index(share)])
        if pair.ex_post.reason:
            listed.append(Card(whom, None, f"No claim: {pair.ex_post.reason}.", "", beside))
        elif pair.ex_post.own_epsilon is not None:
            listed.append(_card(whom, everyone, f"No better than for everyone. {beside}".strip(), most, ""))
        else:
            listed.append(_card(whom, pair.ex_post, beside, most, " (as for everyone)"))
    return listed


def lead(claims: RunClaims) -> str:
    """Return the claims for everyone and for half of the people in two sentences."""
    everyone = claims.everyone
    if math.isinf(everyone.epsilon):
        sentences = [f"Nothing can be promised to everyone: {everyone.reason}."]
    else:
        words = _kind_words(everyone)
        kind = words[0].lower() + words[1:]
        sentences = [f"For everyone, epsilon is at most {round_up(everyone.epsilon)} ({kind})."]
    half = _pair(claims, 0.5)
    if half is not None and half.ex_post.own_epsilon is not None:
        estimate = round_up(half.estimate.epsilon)
        sentences.append(f"For half of the people it is {NO_BETTER}; the estimate is {estimate}.")
    elif half is not None and half.ex_post.reason is None:
        sure, surely = half.ex_post, confidence(half.ex_post.gamma or 0.0)
        sentences.append(
            f"For at least half of people like those in the audit set, with {surely} confidence, it is at"
            f" most {round_up(sure.epsilon)} ({_KINDS[sure.kind].lower()}); the estimate is"
            f" {round_up(half.estimate.epsilon)}."
        )
    return " ".join(sentences)


def _pair(claims: RunClaims, share: float) -> ShareClaims | None:
    return next((pair for pair in claims.shares if pair.ex_post.share == share), None)


def _card(whom: str, claim: Claim, beside: str, most: float, if_most: str) -> Card:
    """Return the card of a claim.

    ``most`` bounds how often guessing succeeds for anyone; ``if_most`` is added to the reading where that bound is the
    smaller one.
    """
    if math.isinf(claim.epsilon):
        return Card(whom, None, f"No claim: {claim.reason}.")
    own = guessing_success(claim.epsilon, claim.delta, claim.direction)
    if claim.kind == "ex-post":
        own = 1.0  # an epsilon that depends on the run bounds no rate of success over runs of the procedure
    at_most = "at most" if claim.kind in ("proved", "ex-post") else "about"
    reading = (
        f"Guessing whether a person was in the data succeeds {at_most} {percent_up(min(most, own))} of the time, "
        f"instead of 50 %{if_most if most <= own else ''}."
    )
    return Card(whom, round_up(claim.epsilon), reading, _kind_words(claim), beside)


def _kind_words(claim: Claim) -> str:
    return _KINDS[claim.kind] if claim.condition is None else f"{_KINDS[claim.kind]} {claim.condition}"


def guessing_success(epsilon: float, delta: float, direction: str) -> float:
    """Return how often a guess can be right about whether a person was in the data, starting from even odds.

    An upper bound from (epsilon, delta) alone: e^epsilon / (1 + e^epsilon) + delta / 2 if it holds in both directions.
    One direction alone bounds less: a test that flags a fraction t of the people who were in the data and nobody else
    has 1 - t >= (1 - delta) e^-epsilon, and is right in (1 + t) / 2 of all cases.
    """
    if direction == "both":
        return min(1.0, attack_success(epsilon) + delta / 2)
    return 1 - (1 - delta) * math.exp(-epsilon) / 2


def _estimate_words(estimate: Claim, distance: float | None) -> str:
    if estimate.reason or distance is None:
        return ""
    success = percent_up((1 + distance) / 2)
    return f"Estimate: {round_up(estimate.epsilon)}, at which guessing succeeds about {success} of the time."
