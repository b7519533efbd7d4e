"""Figures as pure functions of the store's rows, in one style: Okabe and Ito's colours, which everybody can tell apart.

Needs altair and vl-convert (``pip install "lowchurn[report]"``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lowchurn import _charts as charts
from lowchurn._files import write_files
from lowchurn.bench._past_paper import along_the_dial, dial_table
from lowchurn.bench._segments import Row
from lowchurn.bench._tables import (
    METHODS,
    Averages,
    ablation_table,
    averaged,
    beside_the_paper,
    cold_accuracy_table,
    place_order,
    variant_name,
)
from lowchurn.metrics import cost_curve, pareto_front

COLOURS = dict(zip(METHODS, charts.COLOURS, strict=True))
SHAPES = dict(zip(METHODS, charts.SHAPES, strict=True))
WEIGHTS = np.linspace(0, 1, 41)


def _method(alt: Any, name: str = "method") -> Any:
    scale = alt.Scale(domain=list(METHODS), range=[COLOURS[m] for m in METHODS])
    return alt.Color(f"{name}:N", scale=scale, sort=list(METHODS), title=None)


def _shape(alt: Any) -> Any:
    scale = alt.Scale(domain=list(METHODS), range=[SHAPES[m] for m in METHODS])
    return alt.Shape("method:N", scale=scale, sort=list(METHODS), title=None)


def by_network(rows: Averages) -> dict[str, Averages]:
    """The places of each network and size, so that a figure holds no more panels than there are data sets."""
    parts: dict[str, Averages] = {}
    for place in sorted(rows, key=lambda place: (place_order(place)[2:], place_order(place))):
        parts.setdefault(f"{place[1]}-{place[2]}", {})[place] = rows[place]
    return parts


def _panels(found: Averages) -> dict[tuple, str]:
    """A panel's title for each place, in order: of what differs among them."""
    alike = len({place[1:] for place in found}) == 1
    return {p: p[0] if alike else f"{p[0]}, {p[1]}, {p[2]}" for p in sorted(found, key=place_order)}


def _faceted(alt: Any, chart: Any, points: list[dict[str, Any]]) -> Any:
    """Three panels a row, each with axes of its own, in the order of the points."""
    where = alt.Facet("where:N", sort=list(dict.fromkeys(point["where"] for point in points)), title=None)
    panels = chart.properties(width=230, height=170)
    # Flush bounds: panels stay in line whatever the width of their numbers, so the space between must hold the axes.
    panels = panels.facet(where, columns=3, bounds="flush", spacing={"row": 75, "column": 62})
    return panels.resolve_scale(x="independent", y="independent").resolve_axis(x="independent", y="independent")


def _title(rows: Iterable[Row] | Averages, variant: dict[str, Any], what: str) -> str:
    found = averaged(rows, variant)
    places = {place[1:3] for place in found}
    here = [f"{network}, initial size {initial}" for network, initial in places] if len(places) == 1 else []
    counts = sorted({a.trials for settings in found.values() for a in settings.values() if a.trials})
    trials = " to ".join(map(str, dict.fromkeys(counts[:1] + counts[-1:])))
    return "; ".join([what, *here, variant_name(variant), f"{trials} trials"])


def pareto_points(rows: Iterable[Row] | Averages, variant: dict[str, Any]) -> list[dict[str, Any]]:
    """The points of each method's Pareto front: error and churn in percent, averaged over trials."""
    points = []
    found = averaged(rows, variant)
    for place, where in _panels(found).items():
        settings = found[place]
        for method in METHODS:
            some = [(s.words, a) for s, a in settings.items() if s.strategy == method and a.trials]
            if not some:
                continue
            costs = np.array([(1 - a.accuracy, a.churn) for _, a in some])
            for i in pareto_front(costs):
                error, churn = 100 * costs[i]
                here = {"where": where, "method": method, "setting": some[i][0]}
                points.append(here | {"error": float(error), "churn": float(churn)})
    return points


def pareto_figure(rows: Iterable[Row] | Averages, variant: dict[str, Any]) -> Any:
    """Error against churn, one panel a data set and network, one front a method."""
    alt = charts.altair()
    values = pareto_points(rows, variant)
    chart = alt.Chart(alt.Data(values=values))
    x = alt.X("churn:Q", title="churn, %", scale=alt.Scale(zero=False))
    y = alt.Y("error:Q", title="error, %", scale=alt.Scale(zero=False))
    lines = chart.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=_method(alt), order="churn:Q")
    points = chart.mark_point(filled=True, size=45, opacity=1).encode(x=x, y=y, color=_method(alt), shape=_shape(alt))
    return charts.styled(
        _faceted(alt, lines + points, values), _title(rows, variant, "Pareto fronts of error and churn")
    )


def cost_points(rows: Iterable[Row] | Averages, variant: dict[str, Any]) -> list[dict[str, Any]]:
    """The least cost of each method for each weight of churn, in percent."""
    points = []
    found = averaged(rows, variant)
    for place, where in _panels(found).items():
        settings = found[place]
        for method in METHODS:
            some = [a for (name, _), a in settings.items() if name == method and a.trials]
            if some:
                costs = cost_curve([(1 - a.accuracy, a.churn) for a in some], WEIGHTS)
                points += [
                    {"where": where, "method": method, "weight": float(w), "cost": 100 * float(c)}
                    for w, c in zip(WEIGHTS, costs, strict=True)
                ]
    return points


def cost_figure(rows: Iterable[Row] | Averages, variant: dict[str, Any]) -> Any:
    """The least ``(1 - w) error + w churn`` over a method's settings, against ``w``."""
    alt = charts.altair()
    values = cost_points(rows, variant)
    chart = alt.Chart(alt.Data(values=values))
    lines = chart.mark_line(strokeWidth=1.5).encode(
        x=alt.X("weight:Q", title="weight of churn"),
        y=alt.Y("cost:Q", title="cost, %", scale=alt.Scale(zero=False)),
        color=_method(alt),
    )
    return charts.styled(_faceted(alt, lines, values), _title(rows, variant, "Cost of error and churn together"))


def paper_figure(rows: Iterable[Row] | Averages, variant: dict[str, Any], table: Any) -> Any | None:
    """Our churn at cold accuracy against the paper's, a point for each data set and method; None without numbers."""
    both = beside_the_paper(cold_accuracy_table(rows, variant, table))
    if both is None:
        return None
    values: list[dict[str, Any]] = []
    for labels, cells in both.rows:
        for k, method in enumerate(both.columns[::2]):
            ours, theirs = cells[2 * k].value, cells[2 * k + 1].value
            if ours is not None and theirs is not None and not (math.isnan(ours) or math.isnan(theirs)):
                values.append({"dataset": labels[0], "method": method, "ours": ours, "paper": theirs})
    if not values:
        return None
    alt = charts.altair()
    top = max(max(v["ours"], v["paper"]) for v in values)
    scale = alt.Scale(type="symlog", constant=5, domain=[0, top * 1.05])
    diagonal = alt.Chart(alt.Data(values=[{"paper": 0, "ours": 0}, {"paper": top, "ours": top}]))
    line = diagonal.mark_line(color="#999999", strokeDash=[4, 4]).encode(x="paper:Q", y="ours:Q")
    points = (
        alt.Chart(alt.Data(values=values))
        .mark_point(filled=True, size=60, opacity=1)
        .encode(
            x=alt.X("paper:Q", title="the paper's, %", scale=scale),
            y=alt.Y("ours:Q", title="ours, %", scale=scale),
            color=_method(alt),
            shape=_shape(alt),
        )
    )
    title = f"Churn at cold accuracy: ours and the paper's; {variant_name(variant)}"
    return charts.styled((line + points).properties(width=460, height=420), title)


def ablation_figure(rows: Iterable[Row] | Averages, variant: dict[str, Any]) -> Any | None:
    """Churn at cold accuracy from distillation to the anchor method; None without such rows."""
    table = ablation_table(rows, variant)
    # What is N/A or missing stays in as nothing: the line has a gap there.
    values = [
        {"where": ", ".join(labels), "share": float(share), "churn": _number(cell.value)}
        for labels, cells in table.rows
        for share, cell in zip(table.columns, cells, strict=True)
    ]
    if all(value["churn"] is None for value in values):
        return None
    alt = charts.altair()
    chart = alt.Chart(alt.Data(values=values))
    x = alt.X("share:Q", title="share of the base's wrong rows with the true label (0 distillation, 1 anchor)")
    y = alt.Y("churn:Q", title="churn at cold accuracy, %", scale=alt.Scale(zero=False))
    colour = alt.Color("where:N", title=None, scale=alt.Scale(range=["#D55E00", "#0072B2", "#009E73", "#CC79A7"]))
    lines = chart.mark_line(invalid="break-paths-show-domains").encode(x=x, y=y, color=colour)
    points = chart.mark_point(filled=True, size=50, opacity=1).encode(x=x, y=y, color=colour)
    title = f"From distillation to the anchor method; {variant_name(variant)}"
    return charts.styled((lines + points).properties(width=460, height=300), title)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


DIAL_SERIES = {
    "soup": ("#0072B2", "circle"),
    "distill, warm start": ("#D55E00", "triangle-up"),
    "distill, cold start": ("#E69F00", "diamond"),
    "cold start": ("#000000", "square"),
}


def dial_figure(rows: Iterable[Row], variant: dict[str, Any], network: str | None = None) -> Any | None:
    """Churn against accuracy along a soup's dial, beside distillation's settings and the cold start; None without them.

    One panel a data set. The dashed line is the cold start's accuracy: what lies above it is as accurate, and the
    further left, the fewer decisions change.
    """
    points = along_the_dial(rows, variant, network)
    if not points:
        return None
    alt = charts.altair()
    networks = sorted({point["network"] for point in points})
    for point in points:
        point["where"] = ", ".join([point["dataset"], point["network"]][: 1 + (len(networks) > 1)])
    names = [name for name in DIAL_SERIES if any(point["series"] == name for point in points)]
    colours, shapes = (alt.Scale(domain=names, range=[DIAL_SERIES[n][k] for n in names]) for k in (0, 1))
    colour = alt.Color("series:N", title=None, sort=names, scale=colours)
    x = alt.X("churn:Q", title="churn, %", scale=alt.Scale(type="sqrt", zero=True))
    y = alt.Y("accuracy:Q", title="accuracy, %", scale=alt.Scale(zero=False))
    chart = alt.Chart(alt.Data(values=points))
    bar = chart.transform_filter(alt.datum.series == "cold start").mark_rule(color=charts.FAINT, strokeDash=[4, 4])
    lines = chart.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=colour, order="setting:Q")
    marks = chart.mark_point(filled=True, size=45, opacity=1)
    shape = alt.Shape("series:N", title=None, sort=names, scale=shapes)
    panels = bar.encode(y=y) + lines + marks.encode(x=x, y=y, color=colour, shape=shape)
    words = ["Churn against accuracy along the dial", *(networks if len(networks) == 1 else [])]
    return charts.styled(
        _faceted(alt, panels, points),
        ", ".join([*words, "standardised features" if variant["scale"] else "raw features"]),
    )


# A column of the evidence, its name for somebody who has read nothing, and its mark.
COMPARED = {
    "cold": ("plain retrain, from scratch", "#999999", "square"),
    "distill": ("distillation (the paper)", "#D55E00", "triangle-up"),
    "soup": ("soup on its dial", "#0072B2", "circle"),
}


def compared_points(rows: Iterable[Row], variants: list[dict[str, Any]], network: str) -> list[dict[str, Any]]:
    """Churn at cold accuracy in percent of a plain retrain, distillation and the soup, for each data set."""
    points = []
    for variant in variants:
        table = dial_table(rows, variant, network)
        if not set(COMPARED) <= set(table.columns):
            continue
        features = "standardised features" if variant["scale"] else "raw features"
        for labels, cells in table.rows:
            for column, (name, _, _) in COMPARED.items():
                value = cells[table.columns.index(column)].value
                if value is not None:
                    point = {"where": features, "dataset": labels[0], "method": name}
                    points.append(point | {"churn": _number(value)})
    return points


def compared_figure(rows: Iterable[Row], variants: list[dict[str, Any]], network: str) -> Any | None:
    """What an update changes under three methods at the same accuracy, a line a data set; None without a soup.

    The scale is logarithmic. What has no setting as accurate as a plain retrain stands hollow at the right edge, where
    nobody takes it for a low churn; a churn of zero stands at the left one.
    """
    points = compared_points(rows, variants, network)
    if not points:
        return None
    alt = charts.altair()
    above = [point["churn"] for point in points if point["churn"]]
    low, high = min(above, default=1.0) / 1.3, max(above, default=1.0) * 1.2
    names = [name for name, _, _ in COMPARED.values()]
    for point in points:
        point["defined"] = point["churn"] is not None
        point["shown"] = (point["churn"] or low) if point["defined"] else high * 1.3 ** names.index(point["method"])
    if not all(point["defined"] for point in points):
        high *= 2
    order = sorted({point["dataset"] for point in points}, key=lambda name: place_order((name, network)))
    scale = alt.Scale(type="log", domain=[low, high], nice=False)
    x = alt.X("shown:Q", scale=scale, title="decisions that change, % (logarithmic)")
    x.axis = alt.Axis(values=[0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20, 30, 50], format="~g")
    y = alt.Y("dataset:N", sort=order, title=None)
    colour = alt.Color("method:N", title=None, sort=names, scale=alt.Scale(domain=names, range=_marks(1)))
    shape = alt.Shape("method:N", title=None, sort=names, scale=alt.Scale(domain=names, range=_marks(2)))
    chart = alt.Chart(alt.Data(values=points))
    spans = chart.transform_filter("datum.defined").mark_rule(color="#cccccc", strokeWidth=2.5)
    spans = spans.encode(y=y, x=alt.X("min(shown):Q", scale=scale), x2="max(shown):Q")
    marks = chart.transform_filter("datum.defined").mark_point(filled=True, size=80, opacity=1)
    hollow = chart.transform_filter("!datum.defined").mark_point(filled=False, size=80, strokeWidth=1.8)
    layers = [spans, *(some.encode(x=x, y=y, color=colour, shape=shape) for some in (marks, hollow))]
    where = alt.Facet("where:N", sort=list(dict.fromkeys(point["where"] for point in points)), title=None)
    panels = alt.layer(*layers).properties(width=300, height=19 * len(order)).facet(where, columns=2)
    words = [f"Each as accurate on average as a plain retrain, {network}. Further left is better."]
    if not all(point["defined"] for point in points):
        words.append("Hollow, at the right edge: no setting is accurate enough.")
    return charts.styled(panels, {"text": "How many decisions an update changes", "subtitle": words})


def _marks(which: int) -> list[str]:
    return [mark[which] for mark in COMPARED.values()]


def rendered(chart: Any) -> tuple[bytes, bytes]:
    """A figure as SVG and as PNG."""
    return charts.rendered(chart, ".svg"), charts.rendered(chart, ".png")


def save(chart: Any, path: Path) -> list[Path]:
    """Write a figure as SVG and PNG, both or none, and return where."""
    paths = [path.with_name(f"{path.name}{ending}") for ending in (".svg", ".png")]
    write_files(dict(zip(paths, rendered(chart), strict=True)))
    return paths
