"""The chart of the settings that were tried when a model was chosen: the same on a page and in a notebook."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lowchurn._charts import ENDINGS, Axis, Chart, Key, Mark, Panel, percent_text, series_styles, ticks
from lowchurn._checks import check_choice, check_number
from lowchurn._display import share_text
from lowchurn._html import short
from lowchurn._tried import Setting, Tried, ends, read_tried, value_and_interval

PLAIN, BASE = "cold", "base"  # strategies that have a mark of their own
LINES = ("curve", "curve dashed", "curve dotted")


def plot_frontier(
    candidates: Sequence[object],
    path: str | Path | None = None,
    served: Mapping[str, float] | None = None,
    max_churn: float | None = None,
    churn: str = "hard",
) -> Chart:
    """The chart of :meth:`lowchurn.estimator.Frontier.plot`, written to a file where a path is given."""
    who = "Frontier.plot"
    check_choice(who, "churn", churn, ("hard", "soft"))
    if max_churn is not None:
        check_number(who, "max_churn", max_churn, 0, math.inf)
    if path is not None and Path(path).suffix not in ENDINGS:
        raise ValueError(f"{who}: path must end in {', '.join(ENDINGS)}, got {str(path)!r}.")
    asked = {"max_churn": max_churn, "churn": churn}
    tried = read_tried({"frontier": candidates, "parameters": asked, "selection": {"served": served}}, who=who)
    if not tried.drawn:
        raise ValueError(
            f"{who}: there must be a candidate with a measured churn, got {len(candidates)} without. "
            "Fit with a base: without one there is no churn."
        )
    chart = frontier_chart(tried)
    if path is not None:
        chart.save(path)
    return chart


@dataclass(frozen=True)
class View:
    """What a panel shows of each setting: where it lies, and its intervals both ways."""

    title: str
    across: Axis
    up: Axis
    at: Callable[[Setting], tuple[float, float]]
    ends: Callable[[Setting], tuple[tuple[float, float], tuple[float, float]]]
    rules: Sequence[Mark]


def frontier_chart(tried: Tried) -> Chart:
    """Accuracy and broken decisions against churn; churn along the curves where no accuracy was measured.

    Curves are lines with a band, everything else is a point with whiskers.
    """
    styles = series_styles(_series(tried, i) for i, p in enumerate(tried.points) if tried.shown(p))
    views = [_accuracy_view(tried), _broken_view(tried)] if tried.labelled else [_churn_view(tried)]
    panels = [
        Panel(view.across, view.up, _marks(tried, styles, view), view.title, _described(tried))
        for view in views
        if view is not None
    ]
    title = "Accuracy against churn" if tried.labelled else "Churn along the curves"
    return Chart(title, panels, _key(tried, styles), _notes(tried))


def _series(tried: Tried, i: int) -> str:
    """The strategy of a point; the base at the end of a curve is part of it."""
    return next((tried.family(curve) for curve in tried.curves if i in curve), tried.points[i].strategy)


def _marks(tried: Tried, styles: Mapping[str, tuple[int, str]], view: View) -> list[Mark]:
    marks = list(view.rules)
    for curve in tried.curves:
        points, name = [tried.points[i] for i in curve], tried.family(curve)
        band = [(view.at(p)[0], *view.ends(p)[1]) for p in points]
        if any(low < high for _, low, high in band):
            marks.append(Mark("band", band, "band", name, styles[name][0]))
    for curve, line in zip(tried.curves, _line_styles(tried), strict=True):
        name = tried.family(curve)
        marks.append(Mark("line", [view.at(tried.points[i]) for i in curve], line, name, styles[name][0]))

    def add(i: int, style: str, data: Mapping[str, str]) -> None:
        p, series = tried.points[i], _series(tried, i)
        colour, shape = styles[series]
        churn = value_and_interval(p.churn, tried.hard)[0]
        accuracy = f"accuracy {value_and_interval(p.accuracy)[0]}, " if p.accuracy.defined else ""
        crossed, shade = ("error", colour) if style == "point" else (style, None)
        cross = [view.at(p), *view.ends(p)]
        title = f"{p.name}: {accuracy}churn {churn}"
        marks.append(Mark("cross", cross, crossed, series, shade, data=data))
        marks.append(Mark("point", [view.at(p)], style, series, colour, shape, title, bool(p.chosen), data=data))

    on_curve = {i for curve in tried.curves for i in curve}
    for k, curve in enumerate(tried.curves, start=1):
        for at, i in enumerate(curve):
            add(i, "setting", {"dial": f"dial{k}", "at": str(at)})
    for i, p in enumerate(tried.points):
        if tried.shown(p) and i not in on_curve and not math.isnan(view.at(p)[0]):
            add(i, "point", {})
    return marks


def _line_styles(tried: Tried) -> list[str]:
    """Curves of one strategy have its colour, and are told apart by their dashes."""
    families = [tried.family(curve) for curve in tried.curves]
    return [LINES[families[:k].count(family) % len(LINES)] for k, family in enumerate(families)]


def _accuracy_view(tried: Tried) -> View:
    base = tried.base_accuracy
    rules = [*_budget_rule(tried, "across")]
    known = [v for p in tried.drawn for v in p.accuracy_ends]
    if not math.isnan(base):
        rules.append(Mark("rule", [(base,)], "base", along="up"))
        rules.append(_base_point(base, f"base: accuracy {share_text(base)}, no churn"))
        known.append(base)
    return View(
        "Accuracy against churn",
        _churn_axis(tried),
        Axis.around(known, "↑ accuracy", percent_text, about=6),
        lambda p: (p.churn.value, p.accuracy.value),
        lambda p: (ends(p.churn), p.accuracy_ends),
        rules,
    )


def _broken_view(tried: Tried) -> View | None:
    known = [v for p in tried.drawn if p.broken.defined for v in ends(p.broken)]
    if not known:
        return None
    rules = [*_budget_rule(tried, "across"), _base_point(0.0, "base: no broken decision")]
    if tried.most_broken <= 1.5 * max(known):
        known.append(tried.most_broken)
        rules.append(Mark("rule", [(tried.most_broken,)], "limit", along="up"))
    return View(
        "Broken decisions against churn",
        _churn_axis(tried),
        Axis.around(known, "↑ right before, wrong now", percent_text, low=0.0, about=6),
        lambda p: (p.churn.value, p.broken.value),
        lambda p: (ends(p.churn), ends(p.broken)),
        rules,
    )


def _churn_view(tried: Tried) -> View:
    """Of rows without labels: churn along the margin, or whatever the position on the curve is."""
    names = {tried.points[curve[-1]].dial_parameter for curve in tried.curves}
    name = f"{names.pop()} →" if len(names) == 1 else "position: 0 is the new model, 1 the base →"
    up = _churn_axis(tried)

    def across(p: Setting) -> float:
        return 0.0 if p.strategy == PLAIN else p.position

    return View(
        "Churn along the curves",
        Axis(0.0, 1.02, [(v, f"{v:g}") for v in ticks(0, 1)], name),
        dataclasses.replace(up, name=f"↑ {up.name.removesuffix(' →')}"),
        lambda p: (across(p), p.churn.value),
        lambda p: ((across(p), across(p)), ends(p.churn)),
        _budget_rule(tried, "up"),
    )


def _budget_rule(tried: Tried, along: str) -> list[Mark]:
    drawn = tried.budget <= _churn_axis(tried).high
    return [Mark("rule", [(tried.budget,)], "limit", along=along)] if drawn else []


def _base_point(value: float, title: str) -> Mark:
    return Mark("point", [(0.0, value)], "hollow", BASE, title=title)


def _churn_axis(tried: Tried) -> Axis:
    right = 1.06 * max(ends(p.churn)[1] for p in tried.drawn) or 0.01
    # A budget far beyond all settings would press them into a corner.
    if tried.budget <= 1.5 * right:
        right = max(right, 1.06 * tried.budget)
    name = "changed decisions →" if tried.hard else "soft churn (mean divergence) →"
    return Axis(0.0, right, [(v, percent_text(v) if tried.hard else f"{v:.4g}") for v in ticks(0, right)], name)


def _described(tried: Tried) -> str:
    churns = [p.churn.value for p in tried.drawn]
    words = f"{len(churns)} settings; churn from {tried.churn_text(min(churns))} to {tried.churn_text(max(churns))}"
    if tried.labelled:
        accuracies = [p.accuracy.value for p in tried.drawn]
        words += f", accuracy from {share_text(min(accuracies))} to {share_text(max(accuracies))}"
    return f"{words}."


def _key(tried: Tried, styles: Mapping[str, tuple[int, str]]) -> list[Key]:
    on_curve = {i for curve in tried.curves for i in curve}
    alone = dict.fromkeys(p.strategy for i, p in enumerate(tried.points) if tried.shown(p) and i not in on_curve)
    key = [Key("plain retrain" if name == PLAIN else short(name, 30), "point", *styles[name]) for name in alone if name]
    for curve, name, line in zip(tried.curves, tried.curve_names, _line_styles(tried), strict=True):
        key.append(Key(short(name, 60), line, styles[tried.family(curve)][0]))
    if any(p.chosen for p in tried.drawn):
        key.append(Key("served", "chosen"))
    if not math.isnan(tried.base_accuracy):
        key.append(Key(f"base {share_text(tried.base_accuracy)}", "base"))
    if not math.isnan(tried.budget):
        key.append(Key(f"budget {tried.churn_text(tried.budget)}", "limit"))
    if not math.isnan(tried.most_broken):
        key.append(Key(f"at most {percent_text(tried.most_broken)} broken", "limit"))
    return key


def _notes(tried: Tried) -> list[str]:
    if not tried.labelled:
        return ["Churn was measured on rows without labels, so accuracy and broken decisions are not known here."]
    notes = ["Up is more accurate, left is fewer changed decisions."]
    if tried.traffic > 0:
        notes.append(
            f"Churn was measured on {tried.traffic:,.0f} rows of traffic, the rest on held-out rows with labels."
        )
    if tried.curves:
        notes.append("A line leads from the base to the new model.")
    if any(p.change.defined for p in tried.drawn):
        notes.append(
            f"{'Bands and whiskers' if tried.curves else 'Whiskers'} of accuracy are the 95 % interval of the change "
            "in accuracy against the base on the same rows (Tango): where one lies above the base's line, the setting "
            "is shown to be more accurate."
        )
    else:
        notes.append("The change in accuracy against the base has no interval here: the rows behind it are not known.")
    return notes
