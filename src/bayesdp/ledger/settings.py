"""The settings of a run: checked when they are given, kept as text, and the first link of the hash chain."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesdp.ledger import grid
from bayesdp.validation import refuse
from bayesdp.version import __version__

if TYPE_CHECKING:
    from bayesdp.gate import Gate


def new_settings(
    audit_ids: Sequence[str | int] | None,
    data: str | None,
    metadata: Mapping[str, Any] | None,
    keep_norms: bool,
    audit_groups: Sequence[str] | None = None,
    gate: Gate | None = None,
) -> dict[str, str]:
    """The settings of a new run, as they are kept and hashed."""
    if metadata is not None and not isinstance(metadata, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise refuse("metadata", metadata, "names and values")
    settings = {
        "bayesdp": __version__,
        "grid": str(grid.VERSION),
        "run": uuid.uuid4().hex,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "metadata": _json("metadata", dict(metadata or {})),
        "keep_norms": "true" if keep_norms else "false",
    }
    if data is not None:
        settings["data"] = checked_text("data", data)
    if audit_ids is not None:
        ids = [] if isinstance(audit_ids, str | bytes) or not hasattr(audit_ids, "__iter__") else list(audit_ids)
        if not ids or not all(type(one) in (str, int) for one in ids) or len(set(ids)) != len(ids):
            raise refuse("audit_ids", audit_ids, "different texts or whole numbers, at least one")
        settings["audit_ids"] = _json("audit_ids", ids)
    if audit_groups is not None:
        settings["audit_groups"] = _json("audit_groups", _checked_groups(audit_groups, audit_ids))
    if gate is not None:
        settings["gate"] = _checked_gate(gate, settings)
    return settings


def audit_size(settings: Mapping[str, str]) -> int | None:
    """How many audit records the settings name, if they do."""
    for name in ("audit_ids", "audit_groups"):
        if name in settings:
            return len(json.loads(settings[name]))
    return json.loads(settings["gate"])["records"] if "gate" in settings else None


def _checked_groups(groups: Any, audit_ids: Sequence[str | int] | None) -> list[str]:
    listed = [] if isinstance(groups, str | bytes) or not hasattr(groups, "__iter__") else list(groups)
    if not listed or not all(isinstance(one, str) and one and _encodes(one) for one in listed):
        raise refuse("audit_groups", groups, "the name of a group for each audit record")
    if audit_ids is not None and len(listed) != len(audit_ids):
        raise refuse("len(audit_groups)", len(listed), f"a group for each of the {len(audit_ids)} audit records")
    return [str(one) for one in listed]


def _checked_gate(gate: Any, settings: Mapping[str, str]) -> str:
    from bayesdp.gate import Gate

    if not isinstance(gate, Gate):
        raise refuse("gate", gate, "a Gate")
    named = audit_size(settings)
    if named not in (None, gate.records):
        raise refuse("gate.records", gate.records, f"the {named} audit records that are named")
    return gate.to_json()


def checked_path(path: Any) -> Path:
    """The path of a ledger, if it can be one."""
    expected = "the path of a file"
    if not isinstance(path, str | Path):
        raise refuse("path", path, expected)
    found = Path(path)
    if not found.name or "\0" in str(found) or not _encodes(str(found)):
        raise refuse("path", str(found), expected)
    return found


def checked_text(name: str, value: Any) -> str:
    """Text that a file can hold."""
    if not isinstance(value, str) or not _encodes(value):
        raise refuse(name, value, "text")
    return value


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
        raise refuse(name, value, f"what JSON can hold ({error})") from None
