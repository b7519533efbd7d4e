"""What was audited and how: models, tables, checksums, settings, versions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

from lowchurn.audit import Audit, Source
from lowchurn.report._markup import Markup, data_table, join, section, tag


def compared(audit: Audit) -> str:
    """Both models in one line, by their names or else their files; empty where neither is known."""
    told = audit.provenance
    names = [side.name or (PurePath(side.path).name if side.path else "") for side in (told.old, told.new)]
    return f"{names[0] or 'base'} → {names[1] or 'candidate'}" if any(names) else ""


def audited_section(audit: Audit) -> Markup:
    """Both sides, and the settings that are not the default, with those from a file marked."""
    told, made = audit.provenance, audit.made()
    sides = tag(
        "div",
        _side("Base (old)", told.old, made["old"], audit.rows.old, made["decision_old"]),
        _side("Candidate (new)", told.new, made["new"], audit.rows.new, made["decision_new"]),
        class_="sides",
    )
    parts: list[Any] = [sides]
    if told.config:
        parts.append(tag("p", "Settings were read from ", told.config, "."))
    if told.settings:
        rows = [
            (name, _value(value), "configuration file" if name in told.from_config else "given")
            for name, value in told.settings.items()
        ]
        table = data_table("Settings that are not the default", ("setting", "value", "from"), rows)
        number = f"{len(rows)} setting{'s' if len(rows) > 1 else ''}"
        parts.append(
            tag("details", tag("summary", f"{number} that {'are' if len(rows) > 1 else 'is'} not the default"), table)
        )
    else:
        parts.append(tag("p", "All settings have their default.", class_="muted"))
    return section("audited", "What was audited", parts)


def _side(title: str, side: Source, source: str, rows: int, decision: str) -> Markup:
    pairs = [
        ("model", side.name or tag("span", "not named", class_="muted")),
        ("table", side.path or source),
        ("rows", f"{rows:,}"),
        ("decision", decision),
        ("last changed", side.modified and side.modified.replace("T", " ").replace("+00:00", " UTC")),
        ("SHA-256", side.sha256 and tag("code", side.sha256, class_="long")),
    ]
    return tag("div", tag("h3", title), _list((name, value) for name, value in pairs if value))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} = {_value(part)}" for name, part in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def made_section(audit: Audit) -> Markup:
    """Command, intervals, engine, versions and time."""
    made = audit.made()
    versions = ", ".join(f"{name} {number}" for name, number in made["versions"].items())
    pairs: list[tuple[str, Any]] = [
        ("command", tag("code", made["command"])),
        ("joined on", ", ".join(made["id"])),
        *((name, made[name]) for name in ("label", "weight", "group") if made[name]),
        ("intervals", f"{audit.confidence:.0%}, {made['design']}"),
        ("engine", f"{made['engine']}, {made['seconds']:.1f} s"),
        ("versions", versions),
        ("time", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")),
    ]
    return section("made", "How this was made", _list(pairs))


def _list(pairs: Iterable[tuple[str, Any]]) -> Markup:
    return tag("dl", join([tag("dt", name), tag("dd", value)] for name, value in pairs))
