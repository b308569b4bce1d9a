"""Everything a report says, as plain values: from the audit set and from settings, never from training members."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

import numpy as np

from bayesdp.claims import ClaimRequest, RunClaims, compute_claims
from bayesdp.claims.claim import Claim
from bayesdp.claims.clip_advice import ClipAdvice, clip_advice
from bayesdp.claims.everyone import guaranteed_clip_bound, ledger_caveats
from bayesdp.claims.request import DEFAULT_SHARES
from bayesdp.claims.risk import RunRisk
from bayesdp.formatting import finite_or_none
from bayesdp.ledger import MEMORY, StoredLedger, lasting_seal
from bayesdp.report.chart_data import ByDelta, OverTraining, by_delta, over_training, ranked
from bayesdp.report.clip_page import clip_data
from bayesdp.report.first_screen import FirstScreen, first_screen
from bayesdp.report.release_checks import ReleasedFile, release_checks
from bayesdp.report.summary import command_name
from bayesdp.validation import refuse
from bayesdp.version import __version__

_NAMES = {"reproducible": "noise from a seed"}
_DEEPEST = 3
SHARES = DEFAULT_SHARES
_FINE_SHARES = (*(round(0.05 * number, 2) for number in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999)
_MOST_GROUPS = 50
_DELTAS = tuple(float(f"{digit}e-{power}") for power in range(4, 10) for digit in (3, 1))


@dataclass(frozen=True)
class Contents:
    """Everything the page shows, before it is laid out."""

    title: str
    stamps: list[str]
    "What nobody may overlook: NOT FOR RELEASE, what weakens the claims, and notes of the ledger."
    first: FirstScreen
    facts: list[tuple[str, str]]
    claims: list[Claim]
    "All claims except those about groups, which have a table of their own."
    risk: RunRisk
    "What an attacker gains, for everyone and for shares."
    delta: float
    gamma: float
    shares: dict[str, Any]
    by_delta: ByDelta
    over_training: OverTraining
    clip: ClipAdvice | None
    "What other clip bounds would do for typical people; None if the statement has no advice about it."
    groups: list[dict[str, Any]]
    "The largest groups that have enough records for a figure."
    groups_left_out: int
    reproduce: list[tuple[str, str]]

    def data(self) -> dict[str, Any]:
        """Return what the charts and the slider need, as plain values for JSON."""
        return {
            "delta": self.delta,
            "shares": self.shares,
            "by_delta": {**asdict(self.by_delta), "shares": list(SHARES)},
            "over_training": {**asdict(self.over_training), "shares": list(SHARES)},
            "groups": self.groups,
            "clip": None if self.clip is None else clip_data(self.clip),
        }


def report_contents(
    ledger: StoredLedger,
    *,
    delta: float | None = None,
    gamma: float | None = None,
    title: str | None = None,
    claims: RunClaims | None = None,
    model: ReleasedFile | None = None,
) -> Contents:
    """Collect everything the report shows about one run: first screen, claims, tables.

    ``claims`` are computed unless they are given; then their delta and gamma are taken. Raises InvalidInputError for a
    delta or gamma out of range, and for ``claims`` that are not ``ledger.claims(delta, gamma)`` of the ledger as it is
    now: others could show figures that the rest of the page contradicts, or figures from training members.
    """
    asked = ClaimRequest() if claims is None else claims.request
    request = ClaimRequest(
        delta=asked.delta if delta is None else delta, gamma=asked.gamma if gamma is None else gamma, shares=SHARES
    )
    if claims is None:
        claims = compute_claims(ledger, request)
    elif claims.request != request:
        expected = f"ledger.claims(delta={request.delta!r}, gamma={request.gamma!r}) without other options"
        raise refuse("claims", claims.request, expected)
    elif claims.seal != ledger.seal:
        raise refuse("claims.seal", claims.seal, f"{ledger.seal}, the seal of the ledger: make the claims again")
    groups = _groups(claims)
    table = by_delta(ledger, claims.figures, sorted({*_DELTAS, request.delta}), SHARES, request.gamma)
    name = command_name(ledger)
    verify = None if ledger.path == MEMORY else f"bayesdp verify {name} --seal {lasting_seal(ledger)}"
    checks = release_checks(
        claims,
        guaranteed_clip_bound(ledger, claims.figures.clip_bound),
        verify=verify,
        ledger_name=name,
        tuning=_tuning(ledger.metadata),
        model=model,
    )
    first = first_screen(claims, checks)
    return Contents(
        title=title or _title(ledger),
        stamps=[*first.overview.stamps, *_stamps(ledger)],
        first=first,
        facts=_facts(ledger),
        claims=replace(claims, groups={}).all(),
        risk=claims.risk,
        delta=request.delta,
        gamma=request.gamma,
        shares=_by_share(claims, request.gamma) if ledger.audit_records else {},
        by_delta=_as_claimed(table, claims),
        over_training=over_training(ledger, claims.figures, request.delta, SHARES, request.gamma),
        clip=clip_advice(ledger, claims.figures, request.gamma) if claims.advice else None,
        groups=groups,
        groups_left_out=len(claims.groups) - len(groups),
        reproduce=_reproduce(ledger, name, verify, request, title, model),
    )


def _title(ledger: StoredLedger) -> str:
    name = ledger.metadata.get("name") or ledger.data or ledger.metadata.get("recipe")
    return f"Privacy of {name}" if name else "Privacy of a training run"


def _stamps(ledger: StoredLedger) -> list[str]:
    weakened = {
        "everything": "Every figure on this page is only an estimate",
        "audit": "Figures for shares of people are only estimates",
        "shares": "Figures for shares of people are only estimates",
    }
    return [
        f"{weakened[caveat.weakens]}. The reason: {caveat.text}."
        for caveat in ledger_caveats(ledger)
        if caveat.weakens in weakened
    ]


def _tuning(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a run says about the choice of its settings; empty if it says nothing."""
    noted: Any = metadata
    for name in ("settings", "tuning"):
        noted = cast("Mapping[str, Any]", noted).get(name) if isinstance(noted, Mapping) else None
    return cast("Mapping[str, Any]", noted) if isinstance(noted, Mapping) else {}


def _facts(ledger: StoredLedger) -> list[tuple[str, str]]:
    history = ledger.history
    facts = [("Steps", f"{history.steps:,}")]
    if ledger.declared_selection is not None:  # which has no times of its own
        facts.append(("Chosen among runs that began", f"{ledger.created.replace('T', ' ').partition('+')[0]} (UTC)"))
    elif history.first_time is not None and history.last_time is not None:
        facts.append(("Trained", f"{_time(history.first_time)} to {_time(history.last_time)} (UTC)"))
    for stretch in history.stretches[:3]:
        noise = (
            f"{stretch.noise_std:g}"
            if stretch.clip is None
            else f"{stretch.noise_multiplier:.4g} times the clip bound {stretch.clip:g}"
        )
        rate = (
            "all records at every step"
            if stretch.sample_rate == 1
            else f"each record with probability {stretch.sample_rate:.4g}"
        )
        facts.append((f"Noise, steps {stretch.first} to {stretch.first + stretch.steps - 1}", f"{noise}; {rate}"))
    if len(history.stretches) > 3:
        facts.append(("Noise", f"and {len(history.stretches) - 3} more changes of settings"))
    facts.append(("Audit records", f"{ledger.audit_records:,} people who were not trained on"))
    metadata = dict(ledger.metadata)
    if "seeded" in history.caveats and "seed" in metadata:
        metadata["seed"] = "set by hand; not shown, because the figures hold only against those who do not know it"
    return [*facts, *_metadata(metadata)]


def _metadata(given: Mapping[str, Any], within: str = "", depth: int = 0) -> list[tuple[str, str]]:
    """Return what the run says about itself as (readable name, value), nested values after the others."""
    facts: list[tuple[str, str]] = []
    nested: list[tuple[str, str]] = []
    for key, value in given.items():
        if isinstance(value, dict) and depth < _DEEPEST:
            nested += _metadata(cast("dict[str, Any]", value), f"{key}: " if depth else "", depth + 1)
        elif value is not None and not isinstance(value, dict | list):
            facts.append((within + _NAMES.get(key, str(key).replace("_", " ")), _short(value)))
    return [*facts, *nested]


def _by_share(claims: RunClaims, gamma: float) -> dict[str, Any]:
    most = (claims.left_out or claims.everyone).epsilon
    ex_post = ranked(np.minimum(claims.figures.ex_post, most), _FINE_SHARES, gamma)
    estimate = ranked(claims.figures.estimates, _FINE_SHARES, gamma)
    worst = finite_or_none(claims.everyone.epsilon)
    return {"shares": list(_FINE_SHARES), "ex_post": ex_post, "estimate": estimate, "everyone": worst}


def _as_claimed(table: ByDelta, claims: RunClaims) -> ByDelta:
    """Put the claims' own figures into the table at their delta: computed for one delta, they are a little tighter."""
    place = table.deltas.index(claims.everyone.delta)
    table.everyone[place] = finite_or_none(claims.everyone.epsilon)
    for number, pair in enumerate(claims.shares):
        for column, claim in ((table.ex_post[number], pair.ex_post), (table.estimate[number], pair.estimate)):
            column[place] = finite_or_none(claim.epsilon)
    return table


def _groups(claims: RunClaims) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for name, pairs in claims.groups.items():
        figures = [
            {
                "share": pair.ex_post.share,
                "ex_post": finite_or_none(pair.ex_post.epsilon),
                "estimate": finite_or_none(pair.estimate.epsilon),
            }
            for pair in pairs
        ]
        if any(figure["ex_post"] is not None for figure in figures):
            lines.append({"name": name, "records": pairs[0].ex_post.samples, "figures": figures})
    largest = sorted(lines, key=lambda line: -line["records"])[:_MOST_GROUPS]
    return [line for line in lines if line in largest]


def _reproduce(
    ledger: StoredLedger,
    name: str,
    verify: str | None,
    request: ClaimRequest,
    title: str | None,
    model: ReleasedFile | None,
) -> list[tuple[str, str]]:
    shares = ",".join(f"{share:g}" for share in request.shares)
    arguments = f"{name} --delta {request.delta!r} --gamma {request.gamma!r}"
    titled = "" if title is None else f" --title {shlex.quote(title)}"
    titled += "" if model is None else f" --model {shlex.quote(model.name)}"
    if verify is None:
        return [("Ledger", "kept in memory only"), ("Run", ledger.run), ("Written by", f"bayesdp {__version__}")]
    return [
        ("All claims", f"bayesdp claims {arguments} --shares {shares} --all"),
        ("This page again, to compare", f"bayesdp report {arguments}{titled} -o again.html"),
        ("Is the ledger complete and unchanged?", verify),
        ("Run", ledger.run),
        ("Written by", f"bayesdp {__version__}"),
    ]


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _short(value: object, most: int = 300) -> str:
    text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= most else text[:most] + " …"
