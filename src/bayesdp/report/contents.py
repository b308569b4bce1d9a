"""Everything that stands on a report, as plain values: from the audit set and from settings, never from members."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from bayesdp.claim import Claim, round_up
from bayesdp.claims import Asked, LedgerClaims, ledger_claims
from bayesdp.ledger import Ledger
from bayesdp.properties import attack_success
from bayesdp.report.tables import ByDelta, OverTraining, by_delta, over_training, ranked
from bayesdp.version import __version__

SHARES = (0.5, 0.9, 0.99)
_FINE_SHARES = (*(round(0.05 * number, 2) for number in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999)
_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(4, 10) for digit in (3, 1))


@dataclass(frozen=True)
class Card:
    """One of the three figures on the first screen."""

    whom: str
    figure: str
    reading: str
    kind: str
    beside: str
    "The other figure for the same people, or why there is none."


@dataclass(frozen=True)
class Contents:
    """What the page shows."""

    title: str
    stamps: list[str]
    "What must not be overlooked: NOT FOR RELEASE, and notes of the ledger."
    cards: list[Card]
    facts: list[tuple[str, str]]
    claims: list[Claim]
    delta: float
    gamma: float
    shares: dict[str, Any]
    by_delta: ByDelta
    over_training: OverTraining
    groups: list[dict[str, Any]]
    reproduce: list[tuple[str, str]]

    def data(self) -> dict[str, Any]:
        """What charts and slider need, for JSON."""
        return {
            "delta": self.delta,
            "shares": self.shares,
            "by_delta": {**asdict(self.by_delta), "shares": list(SHARES)},
            "over_training": {**asdict(self.over_training), "shares": list(SHARES)},
            "groups": self.groups,
        }


def contents(ledger: Ledger, *, delta: float = 1e-5, gamma: float = 0.01, title: str | None = None) -> Contents:
    """Of a run."""
    asked = Asked(delta=delta, gamma=gamma, shares=SHARES)
    found = ledger_claims(ledger, asked)
    table = by_delta(ledger, found.figures, sorted({*_DELTAS, asked.delta}), SHARES, asked.gamma)
    return Contents(
        title=title or _title(ledger),
        stamps=[*_stamps(found), *ledger.notes],
        cards=_cards(found, table),
        facts=_facts(ledger),
        claims=found.all(),
        delta=asked.delta,
        gamma=asked.gamma,
        shares=_by_share(found, asked.gamma) if ledger.audit_records else {},
        by_delta=_as_claimed(table, found),
        over_training=over_training(ledger, asked.delta, SHARES, asked.gamma),
        groups=_groups(found),
        reproduce=_reproduce(ledger, asked),
    )


def _title(ledger: Ledger) -> str:
    name = ledger.metadata.get("name") or ledger.data or ledger.metadata.get("recipe")
    return f"Privacy of {name}" if name else "Privacy of a training run"


def _stamps(found: LedgerClaims) -> list[str]:
    seeded = any("NOT FOR RELEASE" in text for text in found.everyone.assumptions)
    return [
        "NOT FOR RELEASE: noise came from a seed that was given, and whoever knows it can subtract the noise."
    ] * seeded


def _cards(found: LedgerClaims, table: ByDelta) -> list[Card]:
    everyone, most = found.everyone, (1 + table.everyone_distance) / 2
    cards = [_card("For everyone", everyone, "It holds for every data set and every person, whoever they are.", most)]
    for share, whom in ((0.99, "For 99 % of people"), (0.5, "For half of the people")):
        pair = next((one for one in found.shares if one.ex_post.share == share), None)
        if pair is None:
            cards.append(Card(whom, "–", "No audit records: only the figure for everyone can be given.", "", ""))
            continue
        sure, estimate = pair.ex_post, pair.estimate
        beside = _estimate_words(estimate, table.distance[SHARES.index(share)])
        if sure.reason:
            cards.append(Card(whom, "–", f"No claim: {sure.reason}.", "", beside))
        elif sure.epsilon > everyone.epsilon:
            # the worst case covers these people too, and is smaller
            note = "The figure for everyone; what is known of this run for sure is not smaller."
            cards.append(_card(whom, everyone, f"{note} {beside}".strip(), most))
        else:
            cards.append(_card(whom, sure, beside, most))
    return cards


def _card(whom: str, claim: Claim, beside: str, most: float) -> Card:
    """``most`` is how often guessing succeeds at most for anyone."""
    if math.isinf(claim.epsilon):
        return Card(whom, "–", f"No claim: {claim.reason}.", claim.kind, beside)
    success = percent_up(min(most, guessing_success(claim.epsilon, claim.delta, claim.direction)))
    reading = f"Guessing whether a person was in the data succeeds at most {success} of the time, instead of 50 %."
    return Card(whom, round_up(claim.epsilon), reading, _KINDS[claim.kind], beside)


_KINDS = {
    "proved": "proved",
    "ex-post": "sure for the run that took place",
    "estimate": "estimate",
    "model-based": "model-based",
}


def guessing_success(epsilon: float, delta: float, direction: str) -> float:
    """How often a guess at even odds whether a person was in the data can be right, if only (epsilon, delta) is known.

    One direction alone bounds less: a test that flags t of those who were in the data and none of the others has
    1 - t >= (1 - delta) e^-epsilon.
    """
    if direction == "both":
        return min(1.0, attack_success(epsilon) + delta / 2)
    return 1 - (1 - delta) * math.exp(-epsilon) / 2


def percent_up(part: float) -> str:
    """Of a probability, never too small."""
    return f"{math.ceil(1000 * part) / 10:g} %"


def _estimate_words(estimate: Claim, distance: float | None) -> str:
    if estimate.reason or distance is None:
        return ""
    return f"Estimate: {round_up(estimate.epsilon)}; guessing succeeds {percent_up((1 + distance) / 2)} of the time."


def _facts(ledger: Ledger) -> list[tuple[str, str]]:
    history = ledger.history
    facts = [("Steps", f"{history.steps:,}")]
    if history.first_time is not None and history.last_time is not None:
        facts.append(("Trained", f"{_time(history.first_time)} to {_time(history.last_time)} (UTC)"))
    for one in history.stretches[:3]:
        noise = (
            f"{one.noise_std:g}"
            if one.clip is None
            else f"{one.noise_std / one.clip:.4g} times the clip bound {one.clip:g}"
        )
        rate = (
            "all records at every step"
            if one.sample_rate == 1
            else f"each record with probability {one.sample_rate:.4g}"
        )
        facts.append((f"Noise, steps {one.first} to {one.first + one.steps - 1}", f"{noise}; {rate}"))
    if len(history.stretches) > 3:
        facts.append(("Noise", f"and {len(history.stretches) - 3} more changes of settings"))
    facts.append(("Audit records", f"{ledger.audit_records:,} people who were not trained on"))
    facts += [(str(key), _short(value)) for key, value in ledger.metadata.items() if not isinstance(value, dict | list)]
    return facts


def _by_share(found: LedgerClaims, gamma: float) -> dict[str, Any]:
    ex_post = ranked(found.figures.ex_post, _FINE_SHARES, gamma)
    estimate = ranked(found.figures.estimates, _FINE_SHARES, gamma)
    worst = None if math.isinf(found.everyone.epsilon) else found.everyone.epsilon
    return {"shares": list(_FINE_SHARES), "ex_post": ex_post, "estimate": estimate, "everyone": worst}


def _as_claimed(table: ByDelta, found: LedgerClaims) -> ByDelta:
    """At the delta of the claims, the figures of the claims: computed alone they are a little tighter."""
    place = table.deltas.index(found.everyone.delta)
    for number, pair in enumerate(found.shares):
        for column, claim in ((table.ex_post[number], pair.ex_post), (table.estimate[number], pair.estimate)):
            column[place] = None if math.isinf(claim.epsilon) else claim.epsilon
    return table


def _groups(found: LedgerClaims) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, pairs in found.groups.items():
        figures = [
            {
                "share": pair.ex_post.share,
                "ex_post": None if math.isinf(pair.ex_post.epsilon) else pair.ex_post.epsilon,
                "estimate": None if math.isinf(pair.estimate.epsilon) else pair.estimate.epsilon,
            }
            for pair in pairs
        ]
        rows.append({"name": name, "records": pairs[0].ex_post.samples, "figures": figures})
    return rows


def _reproduce(ledger: Ledger, asked: Asked) -> list[tuple[str, str]]:
    shares = ",".join(f"{share:g}" for share in asked.shares)
    return [
        ("All claims", f"bayesdp claims run.ledger --delta {asked.delta:g} --gamma {asked.gamma:g} --shares {shares}"),
        ("This page", f"bayesdp report run.ledger --delta {asked.delta:g} --gamma {asked.gamma:g} -o report.html"),
        ("Is the ledger complete and unchanged?", f"bayesdp verify run.ledger --seal {ledger.seal}"),
        ("Run", ledger.run),
        ("Written by", f"bayesdp {__version__}"),
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _short(value: object, most: int = 300) -> str:
    text = str(value)
    return text if len(text) <= most else text[:most] + " …"
