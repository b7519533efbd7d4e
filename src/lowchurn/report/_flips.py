"""The table of changed rows: sorted and filtered by the page's script, read without it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lowchurn.audit import Audit
from lowchurn.report._markup import Markup, section, tag

# Heads of what the audit adds to a row's own columns.
OURS = {
    "old": "old decision",
    "new": "new decision",
    "label": "label",
    "old probability": "old probability",
    "new probability": "new probability",
}


def flips_section(audit: Audit) -> Markup:
    """Examples of changed rows. What became of each comes first and stays in sight however wide the table is."""
    if not audit.flips:
        changed = audit.whole.n["changed"]
        said = f"{changed:,} decisions changed; no examples were kept." if changed else "No decision changed."
        return section("flips", "Changed rows", tag("p", said))
    columns = list(audit.flips[0])
    labelled = "label" in columns
    heads = [*(["kind"] if labelled else []), *map(_head, columns)]
    head = [
        tag("th", tag("button", name, type="button"), scope="col", aria_sort="none", class_=_class(labelled and i == 0))
        for i, name in enumerate(heads)
    ]
    size, total = len(audit.flips), audit.whole.n["changed"]
    caption = f"A random {size:,} of {total:,} changed rows" if size < total else f"All {total:,} changed rows"
    table = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", head)),
        tag("tbody", [_row(flip, labelled) for flip in audit.flips]),
        id="flip-table",
        class_="sortable",
        data_status="flip-status",
    )
    field = tag(
        "input",
        type="search",
        data_filters="flip-table",
        autocomplete="off",
        placeholder="words that a row must hold",
    )
    status = tag(
        "span",
        f"{size:,} of {size:,} rows shown.",
        id="flip-status",
        role="status",
        aria_live="polite",
        class_="muted",
    )
    return section(
        "flips",
        "Changed rows",
        tag("div", tag("label", "Filter ", field), status, class_="tools"),
        tag("div", table, class_="flips", tabindex="0", role="region", aria_label=caption),
    )


def _head(name: str) -> str:
    """A column that is called as one of ours would be is told apart."""
    return OURS.get(name) or (f"{name} (column)" if name in {*OURS.values(), "kind"} else name)


def _class(kind: bool, also: str = "") -> str | None:
    return f"kind {also}".strip() if kind else None


def _row(flip: Mapping[str, Any], labelled: bool) -> Markup:
    cells = []
    if labelled:
        kind = _kind(flip)
        cells.append(tag("td", kind, class_=_class(True, kind if kind in ("broken", "fixed") else "")))
    for i, value in enumerate(flip.values()):
        shown = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        attributes: dict[str, Any] = {"data_value": repr(value) if number else None}
        name = {"scope": "row"} if i == 0 else {}
        cells.append(tag("th" if i == 0 else "td", shown, **name, **attributes))
    return tag("tr", cells)


def _kind(flip: Mapping[str, Any]) -> str:
    if flip.get("label") is None:
        return "no label"
    return "broken" if flip["label"] == flip["old"] else "fixed" if flip["label"] == flip["new"] else "lateral"
