"""A ledger in figures: what ``bayesdp show`` prints, and a notebook shows.

Nothing comes from training members unless it is requested.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from bayesdp import validation
from bayesdp.claims.everyone import guaranteed_worst_case
from bayesdp.claims.rounding import rounding_added
from bayesdp.claims.selected import CHOSEN, declared_selection
from bayesdp.formatting import finite_or_none, round_up
from bayesdp.ledger import StoredLedger, Stretch, lasting_seal
from bayesdp.validation import FloatArray

QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)
_MOST_STRETCHES = 100


def summary(ledger: StoredLedger, *, delta: float = 1e-5, private: bool = False) -> dict[str, Any]:
    """Return steps, settings, worst case at ``delta`` and audit figures of a ledger as plain values for JSON.

    ``private`` adds what the batches reveal about training members. Raises InvalidInputError for a bad delta.
    """
    history, delta = ledger.history, validation.probability("delta", delta)
    chosen = ledger.declared_selection is not None  # such a run has no times of its own
    stretches = [_stretch(stretch) for stretch in history.stretches]
    shown = len(stretches) if len(stretches) <= _MOST_STRETCHES + 1 else _MOST_STRETCHES  # never "and 1 more"
    values: dict[str, Any] = {
        "ledger": ledger.path,
        "run": ledger.run,
        "created": ledger.created,
        "data": ledger.data,
        "metadata": ledger.metadata,
        "audit_used_for": ledger.audit_used_for,
        "composed_of": ledger.composed_of,
        "notes": ledger.notes,
        "selection": _selection(ledger),
        "steps": history.steps,
        "first_step": None if chosen else _time(history.first_time),
        "last_step": None if chosen else _time(history.last_time),
        "seal": lasting_seal(ledger),
        "worst_case": guaranteed_worst_case(ledger, delta).to_dict_with_kind(),
        "settings": stretches[:shown],
        "settings_left_out": len(stretches) - shown,
        "audit": _audit(ledger, delta),
    }
    if private:
        values["private"] = _private(ledger)
    return values


def words(values: dict[str, Any]) -> str:
    """Return the most important figures of a ``summary`` as lines of text."""
    (path, what), *others = table(values)
    return "\n".join([f"{path}: {what}", *(f"  {name}: {value}" if name else f"  {value}" for name, value in others)])


def table(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the same as lines (name, value), the file first; a value that says it all has an empty name."""
    worst = values["worst_case"]
    epsilon = "none" if worst["epsilon"] is None else f"{round_up(worst['epsilon'], 4)} at delta = {worst['delta']:g}"
    held = f", {worst['kind']} {worst['condition'] or ''}".rstrip()
    if worst["kind"] == "estimate":
        held = ", estimated: the true value may be higher"
    lines = [
        (str(values["ledger"]), f"{values['steps']} steps, created {values['created']}"),
        *(("", str(note)) for note in values["notes"]),
        ("for everyone", f"epsilon = {epsilon} ({worst['accountant']}{held if worst['epsilon'] is not None else ''})"),
    ]
    if values["selection"] is not None:
        mean = f"the best of a random number of runs, {values['selection']['mean']:g} on average"
        lines.append(("chosen" if values["selection"]["chosen"] else "not marked as chosen", mean))
    for stretch in values["settings"]:
        clip = "no clip" if stretch["clip"] is None else f"clip {stretch['clip']:g}"
        last = stretch["first"] + stretch["steps"] - 1
        where = f"steps {stretch['first']} to {last}"
        lines.append((where, f"noise {stretch['noise_std']:g}, {clip}, sampling rate {stretch['sample_rate']:g}"))
    if values["settings_left_out"]:
        lines.append(("", f"... and {values['settings_left_out']} more changes of settings"))
    audit = values["audit"]
    if audit["records"]:
        shown = {q: "infinite" if e is None else round_up(e) for q, e in audit["exposure_quantiles"].items()}
        used = values["audit_used_for"]
        used_for = "" if used is None else f"; used for: {used}, so what rests on them is an estimate"
        lines.append(("", f"{audit['records']} audit records, norms at {audit['steps']} steps{used_for}"))
        lines.append(("exposure", ", ".join(f"{float(q):.0%} up to {e}" for q, e in shown.items())))
        if audit["share_clipped"] is not None:
            lines.append(("above the clip bound", f"{audit['share_clipped']:.1%} of their norms"))
        if audit["rounding_at_most"] is not None:
            lines.append(("", f"rounding added at most {round_up(100 * audit['rounding_at_most'], 2)} % to epsilon"))
    else:
        lines.append(("no audit records", "the worst case is all that can be claimed"))
    return lines


def command_name(ledger: StoredLedger) -> str:
    """Return the name of the ledger's file as a command takes it in the folder of the file, quoted for a shell."""
    name = Path(ledger.path).name
    return shlex.quote(f"./{name}" if name.startswith("-") else name)


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {
        "first": stretch.first,
        "steps": stretch.steps,
        "noise_std": stretch.noise_std,
        "clip": stretch.clip,
        "noise_multiplier": stretch.noise_multiplier,
        "sample_rate": stretch.sample_rate,
        "planned_batch": stretch.planned_batch,
        "source": stretch.source,
    }


def _selection(ledger: StoredLedger) -> dict[str, Any] | None:
    """Return what the run says about being chosen among others, and what its claims then assume; None if nothing."""
    selection = declared_selection(ledger)
    if selection is None:
        return None
    return {**asdict(selection), "chosen": ledger.history.chosen, "assumption": CHOSEN}


def _audit(ledger: StoredLedger, delta: float) -> dict[str, Any]:
    history, records = ledger.history, ledger.audit_records
    norms = history.audited_steps * records
    points, costs = ledger.snapshots()
    return {
        "records": records,
        "ids": ledger.audit_ids is not None,
        "steps": history.audited_steps,
        "share_clipped": history.audit_clipped / norms if norms else None,
        "exposure_quantiles": _exposure_quantiles(ledger),
        "rounding_at_most": finite_or_none(rounding_added(ledger, delta)),
        "lambdas": list(ledger.mixture.orders),
        "costs_over_time": [
            {"step": point, "costs": {f"{q:g}": _finite(_quantile(at, q)) for q in QUANTILES}}
            for point, at in zip(points, costs, strict=True)
        ],
    }


def _exposure_quantiles(ledger: StoredLedger) -> dict[str, float | None]:
    exposures, counts = ledger.exposure_counts()
    if not len(counts):
        return {}
    reached = np.cumsum(counts) / counts.sum()
    quantiles = [exposures[min(int(np.searchsorted(reached, q - 1e-12)), len(exposures) - 1)] for q in QUANTILES]
    return {f"{q:g}": None if math.isinf(e) else float(e) for q, e in zip(QUANTILES, quantiles, strict=True)}


def _quantile(costs: FloatArray, share: float) -> FloatArray:
    """Return the costs [L] that a share of the records [m, L] does not exceed, at each order."""
    rank = math.ceil(share * len(costs) - 1e-9)
    return np.sort(costs, axis=0)[rank - 1]


def _finite(values: FloatArray) -> list[float | None]:
    return [finite_or_none(float(value)) for value in values]


def _private(ledger: StoredLedger) -> dict[str, Any]:
    batches = [batch for number in range(1, ledger.steps + 1) if (batch := ledger.private_batch(number)) is not None]
    drawn = [batch.drawn for batch in batches]
    return {
        "not_for_release": "computed from training members",
        "batches": len(batches),
        "drawn_mean": sum(drawn) / len(drawn) if drawn else None,
        "drawn_least": min(drawn, default=None),
        "drawn_most": max(drawn, default=None),
        "share_clipped": sum(batch.clipped for batch in batches) / sum(drawn) if sum(drawn) else None,
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
