"""The settings of a run: checked when they are given, kept as text, and hashed as the first link of the chain."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayesdp.ledger import exposure_grid as grid
from bayesdp.mechanisms.order_mixture import KEPT_BY_0_1_0, WIDE_IN, WIDE_OUT, OrderMixture
from bayesdp.validation import count, refuse
from bayesdp.version import __version__

UNITS = ("row", "person")
"""What one record can be: a row of data, of which a person may have several, or everything there is of a person."""


def new_settings(
    *,
    audit_ids: Sequence[str | int] | None = None,
    audit_groups: Sequence[str] | None = None,
    data: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    keep_norms: bool = False,
    gate: str | None = None,
    plan: str | None = None,
    budget: str | None = None,
    selection: str | None = None,
    audit_used_for: str | None = None,
    training_records: int | None = None,
    unit: str = "row",
    mixture: OrderMixture = WIDE_OUT,
    mixture_in: OrderMixture = WIDE_IN,
    grid_version: int = grid.VERSION,
) -> dict[str, str]:
    """Check the settings of a new run and return them as text, as they are kept and hashed.

    ``bayesdp.Ledger.create`` says what they mean. ``gate``, ``plan``, ``budget`` and ``selection`` are the texts that
    their ``to_json`` gave: the ledger keeps them, and reads from them only how many audit records the gate is about.
    ``mixture`` has the orders at which costs are kept along the run, ``mixture_in`` those for people who were in the
    data; ``grid_version`` says what the keys of exposures mean. Raises InvalidInputError for a value that the file
    cannot hold, if ids, groups and gate name different numbers of audit records, and for a selection without a plan, or
    with a gate or budget.
    """
    if metadata is not None and not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse("metadata", metadata, "names and values")
    settings = {
        "bayesdp": __version__,
        "grid": str(grid_version),
        "run": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "metadata": _json("metadata", dict(metadata or {})),
        "keep_norms": "true" if keep_norms else "false",
        "mixture": mixture.to_json(),
        "mixture_in": mixture_in.to_json(),
    }
    if data is not None:
        settings["data"] = checked_text("data", data)
    if audit_ids is not None:
        ids = [] if isinstance(audit_ids, str | bytes) or not hasattr(audit_ids, "__iter__") else list(audit_ids)
        if not ids or not all(type(name) in (str, int) for name in ids) or len(set(ids)) != len(ids):
            raise refuse("audit_ids", audit_ids, "different texts or whole numbers, at least one")
        settings["audit_ids"] = _json("audit_ids", ids)
    if audit_groups is not None:
        settings["audit_groups"] = _json("audit_groups", _checked_groups(audit_groups, audit_ids))
    if gate is not None:
        named, declared = audit_size(settings), json.loads(gate)["records"]
        if named not in (None, declared):
            raise refuse("gate.records", declared, f"the {named} audit records that were named")
        settings["gate"] = gate
    if plan is not None:
        settings["plan"] = plan
    if budget is not None:
        settings["budget"] = budget
    if selection is not None:
        settings["created"] = json.loads(selection).get("began") or settings["created"]
        if plan is None or gate is not None or budget is not None:
            raise refuse("selection", selection, "a run with a plan, and without a gate or budget")
        settings["selection"] = selection
    if audit_used_for is not None:
        settings["audit_used_for"] = _checked_use(audit_used_for)
    if training_records is not None:
        settings["training_records"] = str(count("training_records", training_records, minimum=1))
    if unit not in UNITS:
        raise refuse("unit", unit, "what one record is: " + " or ".join(repr(known) for known in UNITS))
    if unit != "row":
        settings["unit"] = unit
    return settings


def audit_size(settings: Mapping[str, str]) -> int | None:
    """Return the number of audit records according to the settings; None if they do not say it."""
    for name in ("audit_ids", "audit_groups"):
        if name in settings:
            return len(json.loads(settings[name]))
    return json.loads(settings["gate"])["records"] if "gate" in settings else None


class RunDescription:
    """The settings of a run as properties, read from the text in ``_settings`` that ``new_settings`` made."""

    _settings: Mapping[str, str]

    @property
    def run(self) -> str:
        """The identifier of the run: 32 hexadecimal digits, different for every run."""
        return self._settings["run"]

    @property
    def created(self) -> str:
        """When the ledger was created, or the choice that its run may come from began: UTC, in ISO 8601 form."""
        return self._settings["created"]

    @property
    def step_time(self) -> float:
        """The time to record a step with, in seconds since 1970: the present one.

        For a run that may be chosen among others it is that of ``created`` at every step: how long steps took tells
        whether the run was the first of them, and what is claimed holds only if nobody knows.
        """
        if self.declared_selection is None:
            return time.time()
        return datetime.fromisoformat(self.created).timestamp()

    @property
    def data(self) -> str | None:
        """The name of the training data; None if it was not given."""
        return self._settings.get("data")

    @property
    def metadata(self) -> dict[str, Any]:
        """The notes about the run that were given when its ledger was created; empty if there were none."""
        return json.loads(self._settings["metadata"])

    @property
    def keep_norms(self) -> bool:
        """Whether all norms are kept as they were given too, as private content."""
        return self._settings["keep_norms"] == "true"

    @property
    def audit_ids(self) -> list[str | int] | None:
        """The ids of the audit records, in the order of their norms; None if they were not given."""
        ids = self._settings.get("audit_ids")
        return None if ids is None else json.loads(ids)

    @property
    def audit_groups(self) -> list[str] | None:
        """The group of each audit record, in the order of their norms; None if groups were not given."""
        groups = self._settings.get("audit_groups")
        return None if groups is None else json.loads(groups)

    @property
    def declared_gate(self) -> str | None:
        """The gate that was declared before the run, as JSON text; None if there is none."""
        return self._settings.get("gate")

    @property
    def declared_plan(self) -> str | None:
        """The plan that was declared before the run, as the JSON text that is kept, if there is one."""
        return self._settings.get("plan")

    @property
    def declared_selection(self) -> str | None:
        """The selection that the run may come from, as the JSON text that is kept; None if there was none."""
        return self._settings.get("selection")

    @property
    def audit_used_for(self) -> str | None:
        """What the audit records were used for besides the audit, as it was declared; None if for nothing."""
        return self._settings.get("audit_used_for")

    @property
    def training_records(self) -> int | None:
        """How many records are trained on, as it was declared to be public; None if it was not."""
        declared = self._settings.get("training_records")
        return None if declared is None else int(declared)

    @property
    def unit(self) -> str:
        """What one record is: "row", of which a person may have several, or "person"."""
        return self._settings.get("unit", "row")

    @property
    def declared_budget(self) -> str | None:
        """The budget that was declared before the run, as the JSON text that is kept, if there is one."""
        return self._settings.get("budget")

    @property
    def mixture(self) -> OrderMixture:
        """The orders at which costs are kept along the run, fixed before its first step."""
        return _kept_mixture(self._settings.get("mixture"))

    @property
    def mixture_in(self) -> OrderMixture:
        """The same for bounds about people who were in the data."""
        return _kept_mixture(self._settings.get("mixture_in"))

    @property
    def composed_of(self) -> list[dict[str, Any]]:
        """The runs that this ledger was composed of (run, created, steps, seal, metadata); empty for a single run."""
        return json.loads(self._settings.get("composed_of", "[]"))

    @property
    def notes(self) -> list[str]:
        """Sentences that a reader of the claims should know; composition adds them."""
        return json.loads(self._settings.get("notes", "[]"))


def _kept_mixture(text: str | None) -> OrderMixture:
    """Return the mixture of orders from the settings; that of version 0.1.0 if they have none."""
    return KEPT_BY_0_1_0 if text is None else OrderMixture.from_json(text)


def checked_path(path: Any) -> Path:
    """Return the path of a ledger. Raises InvalidInputError if no file can have it."""
    expected = "the path of a file"
    if not isinstance(path, str | Path):
        raise refuse("path", path, expected)
    checked = Path(path)
    if not checked.name or "\0" in str(checked) or not _encodes(str(checked)):
        raise refuse("path", str(checked), expected)
    return checked


def checked_text(name: str, value: Any) -> str:
    """Return text that a file can hold. Raises InvalidInputError for anything else."""
    if not isinstance(value, str) or not _encodes(value):
        raise refuse(name, value, "text")
    return value


def _checked_use(value: Any) -> str:
    text = " ".join(checked_text("audit_used_for", value).split()).rstrip(" .;")
    if not text:
        raise refuse("audit_used_for", value, "what the audit records were used for, in words; None if for nothing")
    return text


def _checked_groups(groups: Any, audit_ids: Sequence[str | int] | None) -> list[str]:
    listed = [] if isinstance(groups, str | bytes) or not hasattr(groups, "__iter__") else list(groups)
    if not listed or not all(isinstance(group, str) and group and _encodes(group) for group in listed):
        raise refuse("audit_groups", groups, "the name of a group for each audit record")
    if audit_ids is not None and len(listed) != len(audit_ids):
        raise refuse("len(audit_groups)", len(listed), f"a group for each of the {len(audit_ids)} audit records")
    return [str(group) for group in listed]


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise refuse(name, value, f"values that JSON can hold ({error})") from None
