"""The table of changed rows: sorted and filtered by the page's script, read without it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lowchurn.audit import Audit

LONGEST = 600  # characters of a cell
# Heads of what the audit adds to a row's own columns.
OURS = {
    "old": "old decision",
    "new": "new decision",
    "label": "label",
    "old probability": "old probability",
    "new probability": "new probability",
}


@dataclass(frozen=True)
class Flips:
    """Examples of changed rows: what became of each, and its cells as text and, of numbers, the value to sort by."""

    heads: list[str]
    rows: list[tuple[str, list[tuple[str, str | None]]]]
    labelled: bool
    total: int
    title: str
    caption: str
    empty: str
    """What stands there where no row is kept."""


def changed_rows(audit: Audit) -> Flips:
    """The examples that the audit kept."""
    runs = audit.coverage is not None  # their items have a kind, and perhaps no answers
    columns = list(dict.fromkeys(name for flip in audit.flips for name in flip if not (runs and name == "kind")))
    labelled = runs or "label" in columns
    heads = [*(["kind"] if labelled else []), *map(head, columns)]
    rows = [
        (str(flip["kind"]) if runs else _kind(flip), [cell(flip.get(name)) for name in columns]) for flip in audit.flips
    ]
    total, size = audit.whole.n["changed"], len(rows)
    caption = f"A random {size:,} of {total:,} changed rows" if size < total else f"All {total:,} changed rows"
    empty = f"{total:,} decisions changed; no examples were kept." if total else "No decision changed."
    return Flips(heads, rows, labelled, total, "Changed rows", caption, empty)


def head(name: str, ours: Mapping[str, str] = OURS) -> str:
    """The name of a column; one that has the name of one of ours is marked."""
    return ours.get(name) or (f"{name} (column)" if name in {*ours.values(), "kind"} else name)


def cell(value: object) -> tuple[str, str | None]:
    """A value as text and, of a number, as what to sort by."""
    shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    shown = shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return shown, repr(value) if number else None


def _kind(flip: Mapping[str, object]) -> str:
    if flip.get("label") is None:
        return "no label"
    return "broken" if flip["label"] == flip["old"] else "fixed" if flip["label"] == flip["new"] else "lateral"
