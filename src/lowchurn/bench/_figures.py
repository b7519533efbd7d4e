"""Figures as pure functions of the store's averages and of the tables that are made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lowchurn._charts import SPARE, Axis, Chart, Key, Mark, Panel, Size, root_ticks, series_styles
from lowchurn.bench._past_paper import along_the_dial
from lowchurn.bench._segments import Row, Setting
from lowchurn.bench._tables import METHODS, Averages, Table, Variant, averaged, place_order, variant_name
from lowchurn.metrics import cost_curve, pareto_front

STYLES = series_styles(METHODS)
WEIGHTS = np.linspace(0, 1, 41)
SMALL = Size(230, 170, 3)  # a panel per data set
DRAWN = ("transformer-1", "transformer-4", "transformer-16")  # the networks of the paper's figure of IMDB

Point = dict[str, Any]
Styles = Mapping[str, tuple[int, str]]


def by_network(rows: Averages) -> dict[str, Averages]:
    """The places of each network and size, so that a figure has no more panels than there are data sets."""
    parts: dict[str, Averages] = {}
    for place in sorted(rows, key=lambda place: (place_order(place)[2:], place_order(place))):
        parts.setdefault(f"{place[1]}-{place[2]}", {})[place] = rows[place]
    return parts


def by_size(rows: Averages, dataset: str) -> dict[str, Averages]:
    """The networks of one data set for each initial size, those that the paper draws."""
    parts: dict[str, Averages] = {}
    for place in sorted((p for p in rows if p[0] == dataset and p[1] in DRAWN), key=place_order):
        parts.setdefault(f"{dataset}-{place[2]}", {})[place] = rows[place]
    return parts


def _differs(found: Averages) -> list[int]:
    """Which of data set, network and initial size differ among places; the data set if nothing does."""
    return [k for k in range(3) if len({place[k] for place in found}) > 1] or [0]


def _costs(found: Averages) -> Iterator[tuple[Point, list[Setting], np.ndarray]]:
    """Each panel and method with its finished settings and their errors and churns, (settings, 2)."""
    titled = _differs(found)
    for place in sorted(found, key=place_order):
        for method in METHODS:
            some = {s: (1 - a.accuracy, a.churn) for s, a in found[place].items() if s.strategy == method and a.trials}
            if some:
                where = ", ".join(str(place[k]) for k in titled)
                yield {"where": where, "method": method}, list(some), np.array(list(some.values()))


def _title(found: Averages, variant: Variant, what: str) -> str:
    forms, place = ("{}", "{}", "initial size {}"), next(iter(found))
    here = [form.format(place[k]) for k, form in enumerate(forms) if k not in _differs(found)]
    counts = sorted({a.trials for settings in found.values() for s, a in settings.items() if s.strategy in METHODS})
    trials = " to ".join(str(count) for count in dict.fromkeys(counts[:1] + counts[-1:]))
    return "; ".join([what, *([", ".join(here)] if here else []), variant_name(variant), f"{trials} trials"])


def _panels(
    points: Sequence[Point],
    x: tuple[str, str],
    y: tuple[str, str],
    series: str,
    styles: Styles,
    *,
    order: str = "",
    dotted: bool = True,
    guide: Callable[[list[Point]], list[Mark]] = lambda here: [],
    **across: Any,
) -> list[Panel]:
    """A panel per ``where``, a line per series along ``order``; ``x`` and ``y`` are fields and the names of axes."""
    panels = []
    for where in dict.fromkeys(point["where"] for point in points):
        here = [point for point in points if point["where"] == where]
        marks = guide(here)
        for name, (colour, shape) in styles.items():
            own = [point for point in here if point[series] == name]
            line = [(p[x[0]], p[y[0]]) for p in (sorted(own, key=lambda p: p[order]) if order else own)]
            if len(line) > 1:
                marks.append(Mark("line", line, "curve", name, colour))
            if dotted:
                known = [pair for pair in line if all(map(math.isfinite, pair))]
                marks += [Mark("point", [pair], "point", name, colour, shape, f"{name}: {pair[0]:.4g}, {pair[1]:.4g}")
                          for pair in known]  # fmt: skip
        axes = (
            Axis.around([p[x[0]] for p in here], f"{x[1]} →", **across),
            Axis.around([p[y[0]] for p in here], f"↑ {y[1]}"),
        )
        shown = ", ".join(name for name in styles if any(p[series] == name for p in here))
        panels.append(Panel(*axes, marks, where, f"{y[1]} against {x[1]} of {shown}."))
    return panels


def _key(styles: Styles, points: Sequence[Point], series: str, kind: str = "point") -> list[Key]:
    there = {point[series] for point in points}
    return [Key(name, kind, *style) for name, style in styles.items() if name in there]


def pareto_points(rows: Iterable[Row] | Averages, variant: Variant) -> list[Point]:
    """The points of each method's Pareto front: error and churn in percent, averaged over trials."""
    return [
        here | {"setting": settings[i].words, "error": 100 * float(costs[i, 0]), "churn": 100 * float(costs[i, 1])}
        for here, settings, costs in _costs(averaged(rows, variant))
        for i in pareto_front(costs)
    ]


def _front_panels(found: Averages, variant: Variant) -> list[Panel]:
    """A panel per place: the front of each method as a line with its settings, and those behind it as small points."""
    every = [
        here | {"setting": setting.words, "error": 100 * float(error), "churn": 100 * float(churn)}
        for here, settings, costs in _costs(found)
        for setting, (error, churn) in zip(settings, costs, strict=True)
    ]

    def behind(front: list[Point]) -> list[Mark]:
        spans = [(min(p[name] for p in front), max(p[name] for p in front)) for name in ("churn", "error")]
        marks = []
        for point in every:
            at = (point["churn"], point["error"])
            inside = all(low - 1e-9 <= value <= high + 1e-9 for value, (low, high) in zip(at, spans, strict=True))
            if point["where"] == front[0]["where"] and inside:
                words = f"{point['method']} {point['setting']}: {at[0]:.4g}, {at[1]:.4g}"
                marks.append(Mark("point", [at], "setting", point["method"], *STYLES[point["method"]], words))
        return marks

    axes = ("churn", "churn, %"), ("error", "error, %")
    return _panels(pareto_points(found, variant), *axes, "method", STYLES, order="churn", guide=behind)


BEHIND = "Small points are settings that others of the same method beat; some are beyond the frame."


def pareto_figure(rows: Iterable[Row] | Averages, variant: Variant) -> Chart:
    """Error against churn, a panel per data set and network, a front per method."""
    found = averaged(rows, variant)
    panels = _front_panels(found, variant)
    title = _title(found, variant, "Pareto fronts of error and churn")
    return Chart(title, panels, _key(STYLES, pareto_points(found, variant), "method"), [BEHIND], size=SMALL)


def cost_points(rows: Iterable[Row] | Averages, variant: Variant) -> list[Point]:
    """The least cost of each method for each weight of churn, in percent."""
    return [
        here | {"weight": float(weight), "cost": 100 * float(cost)}
        for here, _, costs in _costs(averaged(rows, variant))
        for weight, cost in zip(WEIGHTS, cost_curve(costs, WEIGHTS), strict=True)
    ]


def _cost_panels(points: list[Point]) -> list[Panel]:
    def marked(here: list[Point]) -> list[Mark]:  # with a shape now and then: colours alone are lost in print
        return [
            Mark("point", [(p["weight"], p["cost"])], "point", p["method"], *STYLES[p["method"]])
            for p in here
            if p["weight"] in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]

    axes = ("weight", "weight of churn"), ("cost", "cost, %")
    return _panels(points, *axes, "method", STYLES, dotted=False, guide=marked, low=0.0)


def cost_figure(rows: Iterable[Row] | Averages, variant: Variant) -> Chart:
    """The least ``(1 - w) error + w churn`` over a method's settings, against ``w``."""
    found = averaged(rows, variant)
    points = cost_points(found, variant)
    title = _title(found, variant, "Cost of error and churn together")
    return Chart(title, _cost_panels(points), _key(STYLES, points, "method"), size=SMALL)


def fronts_and_costs_figure(found: Averages, variant: Variant) -> Chart:
    """The paper's figure of IMDB: a column per network, its Pareto fronts above its cost curves."""
    points = cost_points(found, variant)
    panels = [*_front_panels(found, variant), *_cost_panels(points)]
    title = _title(found, variant, "Pareto fronts (above) and cost curves (below)")
    notes = [BEHIND, "Cost: the least (1 - w) error + w churn over the settings of a method, w the weight of churn."]
    return Chart(title, panels, _key(STYLES, points, "method"), notes, Size(270, 210, len(found)))


def paper_figure(beside: Table, variant: Variant) -> Chart | None:
    """Our churn against the paper's, a point per data set and method of :func:`beside_the_paper`; None without any."""
    marks = []
    for labels, cells in beside.rows:
        for k, method in enumerate(beside.columns[::2]):
            ours, theirs = _number(cells[2 * k].value), _number(cells[2 * k + 1].value)
            if math.isfinite(ours) and math.isfinite(theirs):
                words = f"{labels[0]}, {method}: ours {ours:.4g} %, the paper's {theirs:.4g} %"
                marks.append(Mark("point", [(theirs, ours)], "point", method, *STYLES[method], words))
    if not marks:
        return None
    top = max(1.0, *(value for mark in marks for value in mark.points[0]))
    ticks = [(v, f"{v:g}") for v in root_ticks(top)]
    across, up = (Axis(0.0, 1.05 * top, ticks, name, "root") for name in ("the paper's, % →", "↑ ours, %"))
    title = f"Churn at cold accuracy: ours and the paper's; {variant_name(variant)}"
    diagonal = Mark("line", [(0.0, 0.0), (top, top)], "guide")
    panel = Panel(across, up, [diagonal, *marks], title, f"{len(marks)} points; on the dashed line both are equal.")
    key = [Key(name, "point", *STYLES[name]) for name in METHODS if any(mark.series == name for mark in marks)]
    return Chart(title, [panel], key, ["On the dashed line both are equal."], Size(460, 420, rem=22))


def ablation_figure(table: Table, variant: Variant) -> Chart | None:
    """The numbers of :func:`ablation_table` as lines with a gap where one is N/A or missing; None without numbers."""
    title = f"From distillation to the anchor method; {variant_name(variant)}"
    points: list[Point] = [
        {"where": title, "place": ", ".join(labels), "share": float(share), "churn": _number(cell.value)}
        for labels, cells in table.rows
        for share, cell in zip(table.columns, cells, strict=True)
    ]
    if not any(math.isfinite(point["churn"]) for point in points):
        return None
    places = dict.fromkeys(point["place"] for point in points)
    styles = {place: SPARE[k % len(SPARE)] for k, place in enumerate(places)}
    across = ("share", "share of the base's wrong rows with the true label (0 distillation, 1 anchor)")
    panels = _panels(points, across, ("churn", "churn at cold accuracy, %"), "place", styles)
    return Chart(title, panels, _key(styles, points, "place"), size=Size(460, 300))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


DIAL_SERIES: Styles = {
    "soup": SPARE[0],
    "distill, warm start": STYLES["distill"],
    "distill, cold start": (3, "down"),
    "cold start": STYLES["cold"],
}


def dial_figure(rows: Iterable[Row], variant: Variant, name: str = "") -> Chart | None:
    """Accuracy against churn along a soup's dial, beside distillation and the cold start; None without a soup."""
    points = along_the_dial(rows, variant)
    if not points:
        return None
    networks = sorted({point["network"] for point in points})
    for point in points:
        point["where"] = ", ".join([point["dataset"], point["network"]][: 1 + (len(networks) > 1)])

    def cold(here: list[Point]) -> list[Mark]:
        return [Mark("rule", [(p["accuracy"],)], "guide", along="up") for p in here if p["series"] == "cold start"]

    axes = ("churn", "churn, %"), ("accuracy", "accuracy, %")
    panels = _panels(points, *axes, "series", DIAL_SERIES, order="setting", guide=cold, low=0.0, about=4, scale="root")
    words = ["Accuracy against churn along the dial", *([name or networks[0]] if len(networks) == 1 else [])]
    title = ", ".join([*words, _features(variant)])
    notes = ["The dashed line is the accuracy of the cold start. Churn has a square-root scale."]
    return Chart(title, panels, _key(DIAL_SERIES, points, "series"), notes, size=SMALL)


def _features(variant: Variant) -> str:
    return "standardised features" if variant["scale"] else "raw features"


# A column of the evidence, its name for somebody who has read nothing, and its mark.
COMPARED = {
    "cold": ("plain retrain, from scratch", STYLES["cold"]),
    "distill": ("distillation (the paper)", STYLES["distill"]),
    "soup": ("soup on its dial", SPARE[0]),
}
MARKED = (0.1, 0.2, 0.3, 0.5, 1, 2, 3, 5, 10, 20, 30, 50)


def compared_points(tables: Iterable[tuple[Variant, Table]]) -> list[Point]:
    """Churn at cold accuracy in percent of three methods per data set, from tables of :func:`dial_table`."""
    points = []
    for variant, table in tables:
        if not set(COMPARED) <= set(table.columns):
            continue
        for labels, cells in table.rows:
            for column, (name, _) in COMPARED.items():
                value = cells[table.columns.index(column)].value
                if value is not None:
                    point = {"where": _features(variant), "dataset": labels[0], "method": name}
                    points.append(point | {"churn": None if math.isnan(value) else value})
    return points


def compared_figure(tables: Iterable[tuple[Variant, Table]], network: str) -> Chart | None:
    """What an update changes under three methods at the same accuracy, a line per data set; None without a soup."""
    points = compared_points(tables)
    if not points:
        return None
    above = [point["churn"] for point in points if point["churn"]]
    low, high = min(above, default=1.0) / 1.3, max(above, default=1.0) * 1.2
    styles = dict(COMPARED.values())
    # N/A stands hollow at the right edge, where nobody takes it for a low churn; a churn of zero at the left one.
    edge = {name: high * 1.3**k for k, name in enumerate(styles)}
    hollow = any(point["churn"] is None for point in points)
    order = sorted({point["dataset"] for point in points}, key=lambda name: place_order((name, network)))
    ticks = [(v, f"{v:g}") for v in MARKED if low <= v <= high]
    across = Axis(low, high * (2 if hollow else 1), ticks, "decisions that change, % (logarithmic) →", "log")
    up = Axis(0.5 - len(order), 0.5, [(-k, name) for k, name in enumerate(order)])
    panels = []
    for where in dict.fromkeys(point["where"] for point in points):
        marks = []
        for k, dataset in enumerate(order):
            here = [point for point in points if point["where"] == where and point["dataset"] == dataset]
            known = [point["churn"] or low for point in here if point["churn"] is not None]
            if known:
                marks.append(Mark("line", [(min(known), -k), (max(known), -k)], "span"))
            for point in here:
                name, churn = point["method"], point["churn"]
                at = (edge[name] if churn is None else churn or low, -k)
                words = f"{dataset}, {name}: " + ("not accurate enough" if churn is None else f"{churn:.4g} %")
                kind = "hollow" if churn is None else "point"
                marks.append(Mark("point", [at], kind, name, *styles[name], words))
        panels.append(Panel(across, up, marks, where, f"{len(order)} data sets, {where}."))
    notes = [f"Each as accurate on average as a plain retrain, {network}. Further left is better."]
    if hollow:
        notes.append("Hollow, at the right edge: no setting is accurate enough.")
    size = Size(300, 19 * len(order) + 12, 2, 1.3 * len(order) + 1)
    return Chart("How many decisions an update changes", panels, _key(styles, points, "method"), notes, size)
