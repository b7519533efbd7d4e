"""Settings of an audit as a ``lowchurn.toml`` gives them: their names and types, written down once."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from typing import Any

from lowchurn._checks import unknown_name
from lowchurn._reading import check_structure, read_toml
from lowchurn.audit._gate import Gate

Names = str | list[str]


@dataclass(frozen=True)
class Settings:
    """The table ``[audit]``; see :func:`lowchurn.audit.audit` for the meaning of each.

    Examples
    --------
    >>> from lowchurn.audit._settings import Settings
    >>> Settings(label="y").confidence is None
    True
    """

    id: Names | None = None
    label: str | None = None
    by: Names | None = None
    features: Names | None = None
    weight: str | None = None
    group: str | None = None
    prediction: Names | None = None
    score: Names | None = None
    threshold: float | list[float] | None = None
    proba: list[str] | dict[str, str] | None = None
    classes: list[str | int | float | bool] | None = None
    on_mismatch: str | None = None
    confidence: float | None = None
    bootstrap: int | None = None
    sample: int | None = None
    seed: int | None = None
    memory_limit: str | None = None
    threads: int | None = None
    temp_directory: str | None = None
    old_name: str | None = None
    new_name: str | None = None
    partitions: bool | None = None
    remote: bool | None = None
    views: bool | None = None


NAMES = tuple(f.name for f in fields(Settings))


def read_config(path: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """The tables ``[audit]`` and ``[gate]`` of a ``lowchurn.toml``, with names, types and limits checked.

    Examples
    --------
    >>> from lowchurn.audit import read_config
    >>> read_config("no-such.toml")
    Traceback (most recent call last):
    ...
    ValueError: audit: cannot read 'no-such.toml': No such file or directory.
    """
    who = f"audit: {os.fspath(path)!r}"
    found = read_toml("audit", path, dict[str, Any])
    for name, table in found.items():
        if name not in ("audit", "gate"):
            raise unknown_name(who, "table", name, ("audit", "gate"))
        if not isinstance(table, dict):
            raise ValueError(f"{who}: [{name}] must be a table, got {table!r}.")
    audit, gate = found.get("audit", {}), found.get("gate", {})
    for name in audit:
        if name not in NAMES:
            raise unknown_name(who, "setting", name, NAMES)
    check_structure("audit", f"[audit] of {os.fspath(path)!r}", audit, Settings)
    try:
        Gate.from_dict(gate)
    except ValueError as error:
        # The limit is named as the file has it: gate.slices.country.max_churn.
        shown = re.sub(r"^(gate[^:]*): (?=[a-z_]+ must)", r"\1.", str(error))
        raise ValueError(f"{who}: {shown}") from None
    return {"audit": audit, "gate": gate}
