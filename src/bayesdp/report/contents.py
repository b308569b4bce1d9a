"""Everything that stands on a report, as plain values: from the audit set and from settings, never from members."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from bayesdp.claims import ClaimRequest, RunClaims, run_claims
from bayesdp.claims.claim import Claim
from bayesdp.formatting import finite_or_none
from bayesdp.ledger import StoredLedger
from bayesdp.ledger.caveats import CAVEATS
from bayesdp.report.cards import Card, cards, summary
from bayesdp.report.tables import ByDelta, OverTraining, by_delta, over_training, ranked
from bayesdp.validation import refuse
from bayesdp.version import __version__

_NAMES = {
    "seed": "seed of the split",
    "reproducible": "noise from a seed",
}
_DEEPEST = 3
SHARES = (0.5, 0.9, 0.99)
_FINE_SHARES = (*(round(0.05 * number, 2) for number in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999)
_MOST_GROUPS = 50
_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(4, 10) for digit in (3, 1))


@dataclass(frozen=True)
class Contents:
    """What the page shows."""

    title: str
    summary: str
    stamps: list[str]
    "What must not be overlooked: NOT FOR RELEASE, what weakens the claims, and notes of the ledger."
    cards: list[Card]
    facts: list[tuple[str, str]]
    claims: list[Claim]
    "All but those for groups, which have a table of their own."
    delta: float
    gamma: float
    shares: dict[str, Any]
    by_delta: ByDelta
    over_training: OverTraining
    groups: list[dict[str, Any]]
    "The largest of those with enough records for a figure."
    groups_left_out: int
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


def contents(
    ledger: StoredLedger,
    *,
    delta: float = 1e-5,
    gamma: float = 0.01,
    title: str | None = None,
    claims: RunClaims | None = None,
) -> Contents:
    """Collect everything the report shows about one run: claims, cards, tables.

    ``claims`` are those of the ledger at this delta, gamma and ``SHARES``, if they were computed already.
    """
    asked = ClaimRequest(delta=delta, gamma=gamma, shares=SHARES)
    found = run_claims(ledger, asked) if claims is None else claims
    if found.everyone.delta != asked.delta or found.average.gamma != asked.gamma:
        raise refuse("claims", "of another delta or gamma", f"those at delta={delta!r}, gamma={gamma!r}")
    groups = _groups(found)
    table = by_delta(ledger, found.figures, sorted({*_DELTAS, asked.delta}), SHARES, asked.gamma)
    return Contents(
        title=title or _title(ledger),
        summary=summary(found),
        stamps=[*_stamps(ledger), *ledger.notes],
        cards=cards(found, table, SHARES),
        facts=_facts(ledger),
        claims=replace(found, groups={}).all(),
        delta=asked.delta,
        gamma=asked.gamma,
        shares=_by_share(found, asked.gamma) if ledger.audit_records else {},
        by_delta=_as_claimed(table, found),
        over_training=over_training(ledger, found.figures, asked.delta, SHARES, asked.gamma),
        groups=groups,
        groups_left_out=len(found.groups) - len(groups),
        reproduce=_reproduce(ledger, asked, title),
    )


def _title(ledger: StoredLedger) -> str:
    name = ledger.metadata.get("name") or ledger.data or ledger.metadata.get("recipe")
    return f"Privacy of {name}" if name else "Privacy of a training run"


def _stamps(ledger: StoredLedger) -> list[str]:
    weakened = {
        "everything": "No figure on this page is more than an estimate",
        "audit": "Figures for shares of people are no more than estimates",
    }
    caveats = ledger.history.caveats
    seeded = "NOT FOR RELEASE: noise came from a seed that was given, and whoever knows it can subtract the noise."
    listed = [CAVEATS[name] for name in caveats]
    said = [
        f"{weakened[one.weakens]}, also where it says sure. The reason: {one.text}."
        for one in listed
        if one.weakens in weakened
    ]
    return [seeded] * ("seeded" in caveats) + said


def _facts(ledger: StoredLedger) -> list[tuple[str, str]]:
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
    return [*facts, *_metadata(ledger.metadata)]


def _metadata(given: Mapping[str, Any], within: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """What the run says about itself, what is nested after the rest, with readable names."""
    facts: list[tuple[str, str]] = []
    nested: list[tuple[str, str]] = []
    for key, value in given.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            nested += _metadata(cast("dict[str, Any]", value), f"{key}: " if depth else "", depth + 1)
        elif value is not None and not isinstance(value, dict | list):
            facts.append((within + _NAMES.get(key, str(key).replace("_", " ")), _short(value)))
    return [*facts, *nested]


def _by_share(found: RunClaims, gamma: float) -> dict[str, Any]:
    ex_post = ranked(found.figures.ex_post, _FINE_SHARES, gamma)
    estimate = ranked(found.figures.estimates, _FINE_SHARES, gamma)
    worst = finite_or_none(found.everyone.epsilon)
    return {"shares": list(_FINE_SHARES), "ex_post": ex_post, "estimate": estimate, "everyone": worst}


def _as_claimed(table: ByDelta, found: RunClaims) -> ByDelta:
    """At the delta of the claims, the figures of the claims: computed alone they are a little tighter."""
    place = table.deltas.index(found.everyone.delta)
    table.everyone[place] = finite_or_none(found.everyone.epsilon)
    for number, pair in enumerate(found.shares):
        for column, claim in ((table.ex_post[number], pair.ex_post), (table.estimate[number], pair.estimate)):
            column[place] = finite_or_none(claim.epsilon)
    return table


def _groups(found: RunClaims) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, pairs in found.groups.items():
        figures = [
            {
                "share": pair.ex_post.share,
                "ex_post": finite_or_none(pair.ex_post.epsilon),
                "estimate": finite_or_none(pair.estimate.epsilon),
            }
            for pair in pairs
        ]
        if any(one["ex_post"] is not None for one in figures):
            rows.append({"name": name, "records": pairs[0].ex_post.samples, "figures": figures})
    largest = sorted(rows, key=lambda row: -row["records"])[:_MOST_GROUPS]
    return [row for row in rows if row in largest]


def _reproduce(ledger: StoredLedger, asked: ClaimRequest, title: str | None) -> list[tuple[str, str]]:
    shares = ",".join(f"{share:g}" for share in asked.shares)
    same = f"run.ledger --delta {asked.delta!r} --gamma {asked.gamma!r}"
    titled = "" if title is None else f" --title {shlex.quote(title)}"
    return [
        ("All claims", f"bayesdp claims {same} --shares {shares}"),
        ("This page", f"bayesdp report {same}{titled} -o report.html"),
        ("Is the ledger complete and unchanged?", f"bayesdp verify run.ledger --seal {ledger.seal}"),
        ("Run", ledger.run),
        ("Written by", f"bayesdp {__version__}"),
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _short(value: object, most: int = 300) -> str:
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= most else text[:most] + " …"
