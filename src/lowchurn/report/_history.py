"""The history of releases as a page: series with their intervals, triangles of all pairs, slices that drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from lowchurn._charts import Axis, Chart, Key, Mark, Panel, Size, percent_text
from lowchurn._display import brief_share, interval_text, share_text
from lowchurn._estimates import Estimate, undefined
from lowchurn._html import render
from lowchurn._tried import value_and_interval
from lowchurn.audit import History
from lowchurn.audit._history_summary import flips_back, headline, heads, rows, runs
from lowchurn.report._figures import forests
from lowchurn.report._flips import cell

MOST_SLICES = 500
MOST_PANELS = 6
FEW = 12  # releases whose triangle has room for numbers of two digits behind the point
ROOM = 36  # characters of all ticks under a chart on a phone
LONGEST_TICK = 8
# A template per section, in the order of the page.
SECTIONS = {
    "overview": "What changed",
    "series": "Release after release",
    "triangles": "Any two releases",
    "drift": "Slices",
    "restless": "Rows that change most often",
    "releases": "What was compared",
    "made": "How this was made",
}


def history_page(history: History, title: str, policy: str) -> str:
    """The history as one HTML page that needs nothing else."""
    whole = history.pairs[0, len(history.releases) - 1]
    changed = sum(n for changes, n in history.by_changes.items() if changes)
    restless_heads, restless = _restless(history)
    source_heads, sources = _sources(history)
    values: dict[str, object] = {
        "history": history,
        "title": title,
        "verdict": None,
        "compared": f"{history.names[0]} → {history.names[-1]}",
        "sections": {name: heading for name, heading in SECTIONS.items() if name != "drift" or history.slices},
        "policy": policy,
        "level": brief_share(history.design.confidence),
        "names": history.names,
        "headline": headline(history),
        "back_words": flips_back(history),
        "cards": _cards(history),
        "notes": history.notes,
        "charts": [*([_accuracy_chart(history)] if history.labelled else []), _churn_chart(history)],
        "heads": heads(history),
        "rows": list(rows(history)),
        "triangles": [_triangle(history, name) for name in (TRIANGLES if history.labelled else ["churn"])],
        "many": len(history.releases) > FEW,
        "by_changes": [(str(k), f"{n:,}", share_text(n / history.rows)) for k, n in history.by_changes.items()],
        "changed": f"{changed:,}",
        "restless_heads": restless_heads,
        "restless": restless,
        "source_heads": source_heads,
        "sources": sources,
        "settings": [
            (name, ", ".join(map(str, value)) if isinstance(value, list | tuple) else value)
            for name, value in history.made["settings"].items()
        ],
        "made": history.made,
        "truth": "label",
        "time": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    if history.slices:
        judged = [drift.change for drift in history.slices]
        values |= {"forests": forests(judged, whole.churn, whole.accuracy_change), "drift_chart": _drift_chart(history)}
        values |= dict(zip(("slice_heads", "slice_rows"), _slice_table(history), strict=True))
    return render("report/templates/page.html.jinja", **values) + "\n"


def _cards(history: History) -> list[tuple[str, str, str]]:
    last = len(history.releases) - 1
    shown = {
        f"changed since {history.names[-2]}": (history.pairs[last - 1, last].churn, False),
        f"changed since {history.names[0]}": (history.pairs[0, last].churn, False),
        f"accuracy since {history.names[0]}": (history.pairs[0, last].accuracy_change, True),
        "rows that flipped back": (history.back, False),
    }
    found = [
        (what, *value_and_interval(estimate, signed=signed))
        for what, (estimate, signed) in shown.items()
        if estimate.defined
    ]
    return [(what, value, interval.strip("()")) for what, value, interval in found]


def _across(names: Sequence[str]) -> Axis:
    """The releases from left to right: their names where these are short, else their numbers; as many as have room."""
    short = max(map(len, names)) <= LONGEST_TICK
    texts = list(names) if short else [str(i) for i in range(1, len(names) + 1)]
    step = math.ceil(len(texts) * (max(map(len, texts)) + 2) / ROOM)
    pad = 0.06 * (len(names) - 1)
    ticks = [(float(i), texts[i]) for i in range(0, len(texts), step)]
    return Axis(-pad, len(names) - 1 + pad, ticks, "release →" if short else "number of the release →")


def _series(
    estimates: Sequence[Estimate], names: Sequence[str], colour: int, style: str = "curve", shape: str = "circle"
) -> list[Mark]:
    """A line with its intervals as a band; what is undefined is left out."""
    known = [(float(i), e, name) for i, (e, name) in enumerate(zip(estimates, names, strict=True)) if e.defined]
    points = [
        Mark("point", [(i, e.value)], "point", colour=colour, shape=shape, title=f"{name}: {interval_text(e)}")
        for i, e, name in known
    ]
    band = Mark("band", [(i, e.low, e.high) for i, e, _ in known], "band", colour=colour)
    return [band, Mark("line", [(i, e.value) for i, e, _ in known], style, colour=colour), *points]


def _described(names: Sequence[str], estimates: Sequence[Estimate]) -> str:
    """A series in words, for those who do not see it."""
    shown = (f"{name}: {interval_text(e)}" for name, e in zip(names, estimates, strict=True) if e.defined)
    return f"{'; '.join(shown)}."


def _accuracy_chart(history: History) -> Chart:
    found = [release.accuracy for release in history.releases]
    up = Axis.around([end for e in found for end in (e.low, e.high)], "↑ accuracy", percent_text)
    described = _described(history.names, found)
    panel = Panel(_across(history.names), up, _series(found, history.names, 5), "Accuracy", described)
    note = "The band is the interval of each release. The change from one to the next is known better: see the table."
    return Chart("Accuracy", [panel], notes=[note])


def _churn_chart(history: History) -> Chart:
    """Changed and broken decisions since the release before, and changed ones since the first."""
    names, steps, since = history.names, history.steps, history.since_first
    shown = [
        ("changed since the release before", [s.churn for s in steps], 5, "curve", "circle"),
        ("broken since the release before", [s.broken for s in steps], 7, "curve", "square"),
        ("changed since the first release", [s.churn for s in since if len(since) > 1], 4, "curve dashed", "up"),
    ]
    marks, key = [], []
    for what, found, colour, style, shape in shown:
        if any(e.defined for e in found):
            marks += _series([undefined(), *found], names, colour, style, shape)
            key.append(Key(what, "point", colour, shape))
    highest = [e.high for _, found, *_ in shown for e in found if e.defined]
    up = Axis.around(highest, "↑ share of rows", percent_text, low=0.0)
    described = _described(names[1:], [s.churn for s in steps])
    return Chart("Changed decisions", [Panel(_across(names), up, marks, "Changed decisions", described)], key)


TRIANGLES = {
    "churn": ("Changed decisions", "Share of rows that the two releases decide otherwise."),
    "broken": (
        "Broken decisions",
        "Share of labelled rows that the older release decides rightly and the newer wrongly.",
    ),
}


def _triangle(history: History, figure: str) -> dict[str, object]:
    title, caption = TRIANGLES[figure]
    found = history.triangle(figure)
    size = len(history.releases)
    largest = max(float(found[place]) for place in history.pairs) or 1.0

    def shown(i: int, j: int) -> tuple[str, float | None, str]:
        if j <= i:
            return "", None, ""
        estimate = getattr(history.pairs[i, j], figure)
        said = f"{history.names[i]} to {history.names[j]}: {interval_text(estimate)}"
        text = f"{100 * estimate.value:.1f}" if size > FEW else share_text(estimate.value)
        return text, math.sqrt(estimate.value / largest), said

    lines = [(history.names[i], [shown(i, j) for j in range(1, size)]) for i in range(size - 1)]
    return {"title": title, "caption": f"{caption} In percent." if size > FEW else caption, "rows": lines}


def _drift_chart(history: History) -> Chart | None:
    """The slices that drift, one panel each: accuracy by release, or decisions changed since the first."""
    drifting = history.drifting[:MOST_PANELS]
    if not drifting:
        return None
    name, what = ("accuracy", "accuracy") if history.labelled else ("since_first", "changed since the first")
    found = [getattr(drift, name) for drift in drifting]
    ends = [end for series in found for e in series if e.defined for end in (e.low, e.high)]
    up = Axis.around(ends, f"↑ {what}", percent_text, low=None if history.labelled else 0.0)
    across = _across(history.names)
    panels = [
        Panel(
            across,
            up,
            _series(series, history.names, 5),
            f"{drift.change.name} ({drift.change.rows:,} rows)",
            _described(history.names, series),
        )
        for drift, series in zip(drifting, found, strict=True)
    ]
    more = len(history.drifting) - len(drifting)
    notes = [f"With their intervals.{f' {more:,} more slices drift.' if more else ''}"]
    return Chart("Slices that drift", panels, notes=notes, size=Size(300, 180, 3))


def _slice_table(history: History) -> tuple[list[str], list[list[str]]]:
    """Every slice from the first release to the last, those that drift first."""
    drifting = history.drifting
    lines = []
    for drift in [*drifting, *(drift for drift in history.slices if not drift.drifts)][:MOST_SLICES]:
        change = drift.change
        line = [change.name, f"{change.rows:,}", interval_text(change.churn)]
        if history.labelled:
            line.append(interval_text(change.broken))
            line += [interval_text(estimate, signed=True) for estimate in (change.accuracy_change, drift.beyond)]
        lines.append([*line, "drifts" if drift.drifts else ""])
    more = ["broken", "change in accuracy", "beyond the other rows"] if history.labelled else []
    return ["slice", "rows", "changed", *more, ""], lines


def _restless(history: History) -> tuple[list[str], list[list[tuple[str, str | None]]]]:
    """The heads and cells of the rows that changed most often; numbers with the value to sort by."""
    if not history.restless:
        return [], []
    first = history.restless[0]
    labelled = [] if history.made["label"] is None else ["label"]
    names = [*first.id, "changes", "flipped back", *labelled, "decisions", *first.slices]
    lines = []
    for row in history.restless:
        label = [cell(row.label)] if labelled else []
        decisions = (runs(row, history.names), None)
        slices = map(cell, row.slices.values())
        lines.append([*map(cell, row.id.values()), cell(row.changes), cell(row.back), *label, decisions, *slices])
    return names, lines


def _sources(history: History) -> tuple[list[str], list[list[str]]]:
    """What was compared; a column that is empty for all releases is left out."""
    found = [
        {
            "release": release.name,
            "table": release.table,
            "rows": f"{release.source.rows:,}",
            "left out": f"{release.left_out:,}" if release.left_out else "",
            "decision": decision,
            "last changed": (release.source.modified or "").replace("T", " ").replace("+00:00", " UTC"),
            "SHA-256": release.source.sha256 or "",
        }
        for release, decision in zip(history.releases, history.made["decisions"], strict=True)
    ]
    kept = [name for name in found[0] if any(line[name] for line in found)]
    return kept, [[line[name] for name in kept] for line in found]
