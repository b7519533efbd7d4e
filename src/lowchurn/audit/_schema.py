"""The JSON that audits and histories write: its version, and the JSON Schema files that describe it."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema of ``"audit"``, ``"numbers"`` or ``"history"``."""
    found: dict[str, Any] = json.loads(files("lowchurn.audit").joinpath("schema", f"{kind}.json").read_text("utf-8"))
    return found


def version_of(kind: str) -> int:
    """The version of the schema: it grows where a field is removed or means something else, not where one is added."""
    return int(schema(kind)["properties"]["schema_version"]["const"])
