"""The history of releases in words: for the terminal, a pull request and a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lowchurn._display import brief_share, interval_text, share_text
from lowchurn._html import render
from lowchurn._terminal import printable
from lowchurn.audit._markdown import cell, table

if TYPE_CHECKING:
    from lowchurn.audit._history_result import History, Restless

MOST_SLICES = 10
MOST_ROWS = 10
MOST_COLUMNS = 12  # releases whose triangle is shown in a comment
SHORT = 5  # rows and slices in a terminal


def headline(history: History) -> str:
    """One sentence about the first release and the last, and one about decisions that flip back."""
    first, last = history.names[0], history.names[-1]
    whole = history.pairs[0, len(history.releases) - 1]
    said = f"{len(history.releases)} releases on {history.rows:,} rows, {first} to {last}: "
    said += f"{interval_text(whole.churn)} of decisions differ between the first and the last"
    change = whole.accuracy_change
    if not change.defined:
        return f"{said}. There are no labels, so nothing is known about accuracy."
    shown = "better" if change.low > 0 else "worse" if change.high < 0 else "not shown to be better or worse"
    return f"{said}; accuracy {interval_text(change, signed=True)}: the last is {shown}."


def flips_back(history: History) -> str:
    """How many rows changed, how many more than once, and how many flipped back."""
    changed = sum(n for changes, n in history.by_changes.items() if changes)
    often = sum(n for changes, n in history.by_changes.items() if changes > 1)
    said = f"{changed:,} of {history.rows:,} rows changed at least once, {often:,} more than once"
    if not history.back.defined or not often:
        return f"{said}."
    return f"{said}; {interval_text(history.back)} of all rows changed back to a decision of an earlier release."


def heads(history: History) -> list[str]:
    """The names of the columns of :func:`rows`; those of accuracy are there where labels are."""
    known = ["accuracy", "change in accuracy"] if history.labelled else []
    return ["release", *known, "changed", *(["broken", "fixed"] if known else []), "since the first", "flipped back"]


def rows(history: History) -> Iterator[list[str]]:
    """A line for each release: its accuracy, what changed since the one before, and since the first."""
    for i, release in enumerate(history.releases):
        step = history.pairs[i - 1, i] if i else None
        shown = {name: interval_text(getattr(step, name)) if step else "" for name in ("churn", "broken", "fixed")}
        line = [release.name]
        if history.labelled:
            change = interval_text(step.accuracy_change, signed=True) if step else ""
            line += [interval_text(release.accuracy), change]
        line.append(shown["churn"])
        if history.labelled:
            line += [shown["broken"], shown["fixed"]]
        since = interval_text(history.pairs[0, i].churn) if i > 1 else ""
        yield [*line, since, share_text(release.back.value) if i > 1 else ""]


def runs(row: Restless, names: list[str]) -> str:
    """The decisions of a row as it went through the releases: ``a (v1 to v3) → b (v4)``."""
    parts: list[tuple[object, int, int]] = []
    for i, decision in enumerate(row.decisions):
        if parts and parts[-1][0] == decision:
            parts[-1] = (decision, parts[-1][1], i)
        else:
            parts.append((decision, i, i))
    return " → ".join(f"{d} ({names[a] if a == b else f'{names[a]} to {names[b]}'})" for d, a, b in parts)


def id_text(row: Restless) -> str:
    """The id of a row; of several key columns, each with its name."""
    values = list(row.id.items())
    return str(values[0][1]) if len(values) == 1 else ", ".join(f"{name}={value}" for name, value in values)


def slice_heads(history: History) -> list[str]:
    """The names of the columns of :func:`slice_rows`."""
    return ["slice", "rows", *(["change in accuracy", "beyond the other rows"] if history.labelled else ["changed"])]


def slice_rows(history: History, most: int) -> list[list[str]]:
    """The slices that drift, from the first release to the last."""
    found = []
    for drift in history.drifting[:most]:
        change = drift.change
        known = [interval_text(e, signed=True) for e in (change.accuracy_change, drift.beyond)]
        shown = known if history.labelled else [interval_text(change.churn)]
        found.append([change.name, f"{change.rows:,}", *shown])
    return found


def text(history: History) -> str:
    """Everything but the table of releases, which a terminal shows by itself; the latter too in Python."""
    lines = [headline(history), *table_lines(history), *details(history)]
    return "\n".join(map(printable, lines))


def table_lines(history: History) -> list[str]:
    """The table of releases in plain text."""
    cells = [heads(history), *rows(history)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    return ["  " + "  ".join(word.ljust(n) for word, n in zip(line, widths, strict=True)).rstrip() for line in cells]


def details(history: History) -> list[str]:
    """The lines below the table."""
    lines = [f"  {flips_back(history)}"]
    lines += [
        f"  {id_text(row)} changed {row.changes} times: {runs(row, history.names)}"
        for row in history.restless[:SHORT]
        if row.changes > 1
    ]
    for line in slice_rows(history, SHORT):
        name, *shown = (f"{head} {cell}" for head, cell in zip(slice_heads(history), line, strict=True))
        lines.append(f"  {name} drifts: {', '.join(shown)}")
    return [*lines, *(f"  note: {note}" for note in history.notes)]


def markdown(history: History) -> str:
    """For a comment on a pull request."""
    level = brief_share(history.design.confidence)
    lines = ["## Model history", "", cell(headline(history)), "", cell(flips_back(history)), ""]
    lines += [f"With {level} intervals; each release against the one before:", ""]
    lines += table(heads(history), rows(history))
    if len(history.releases) <= MOST_COLUMNS:
        lines += ["", "Changed decisions between any two releases:", "", *table(*_triangle(history, "churn"))]
        if history.labelled:
            lines += ["", "Broken decisions (right before, wrong after):", "", *table(*_triangle(history, "broken"))]
    if found := slice_rows(history, MOST_SLICES):
        lines += ["", "Slices that drift, from the first release to the last:", "", *table(slice_heads(history), found)]
    often = [row for row in history.restless if row.changes > 1][:MOST_ROWS]
    if often:
        lines += ["", "Rows that changed most often:", ""]
        lines += table(
            ["row", "changes", "decisions"], ([id_text(r), str(r.changes), runs(r, history.names)] for r in often)
        )
    lines += ["", *(f"Note: {cell(note)}" for note in history.notes), ""]
    for release in history.releases:
        source = release.source
        known = [release.table, f"sha256 {source.sha256}" if source.sha256 else None]
        lines.append(f"- {cell(release.name)}: {', '.join(cell(part) for part in known if part)}, {source.rows:,} rows")
    lines.append(f"- lowchurn {history.made['versions'].get('lowchurn', '')}")
    return "\n".join(lines).rstrip().replace("\n\n\n", "\n\n") + "\n"


def _triangle(history: History, figure: str) -> tuple[list[str], list[list[str]]]:
    """The heads and rows of a figure of all pairs of releases."""
    found = history.triangle(figure)
    lines = [
        [name, *(share_text(value) if j > i else "" for j, value in enumerate(found[i]) if j)]
        for i, name in enumerate(history.names[:-1])
    ]
    return ["from ↓ to →", *history.names[1:]], lines


def notebook(history: History) -> str:
    """A small table for notebooks."""
    values = {"headline": headline(history), "heads": heads(history), "rows": list(rows(history))}
    return render("audit/templates/history.html.jinja", **values, notes=[flips_back(history), *history.notes])
