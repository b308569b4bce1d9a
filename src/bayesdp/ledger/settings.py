"""The settings of a run: checked when they are given, kept as text, and the first link of the hash chain."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bayesdp.ledger import grid
from bayesdp.validation import refuse
from bayesdp.version import __version__


def new_settings(
    audit_ids: Sequence[str | int] | None, data: str | None, metadata: Mapping[str, Any] | None, keep_norms: bool
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
    return settings


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
