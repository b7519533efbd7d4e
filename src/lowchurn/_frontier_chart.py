"""The settings that were tried when a model was chosen, and their chart: the same on a page and in a notebook."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lowchurn._charts import ENDINGS, Axis, Chart, Key, Mark, Panel, percent_text, series_styles, ticks
from lowchurn._checks import check_choice, check_number, unknown_name
from lowchurn._display import interval_text, setting_words, share_text
from lowchurn._estimates import Estimate, paired_difference, undefined
from lowchurn._html import short
from lowchurn.metrics import dial_curves

MEASURED = ("accuracy", "churn")  # a setting has these, even if they are not known
NOTHING = "\u2013"  # what is not known is not 0
MOST_ROWS = 1e15  # more were never measured, and the interval is not computed for them


def ends(estimate: Estimate) -> tuple[float, float]:
    """The interval, or twice the number where there is none."""
    known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return (estimate.low, estimate.high) if known else (estimate.value, estimate.value)


def value_and_interval(estimate: Estimate, share: bool = True, signed: bool = False) -> tuple[str, str]:
    """A number and its interval in words: 1.97% and (1.53% to 2.53%)."""
    if not estimate.defined:
        return NOTHING, ""
    low, high = ends(estimate)
    if not share:
        return f"{estimate.value:.4g}", f"({low:.4g} to {high:.4g})" if high > low else ""
    if not high > low:
        return share_text(estimate.value, signed), ""
    value, _, interval = interval_text(estimate, signed).partition(" (")
    return value, f"({interval}"


@dataclass(frozen=True)
class Setting:
    """One setting: what it is, what was measured and where it stands on a dial (NaN: on none)."""

    strategy: str
    setting: str
    """Its parameters in words."""
    accuracy: Estimate
    churn: Estimate
    broken: Estimate
    fixed: Estimate
    dial: float
    chosen: float
    """Its weight in what is served: 1 alone, 0 not at all."""
    reason: str
    """Why nothing was measured."""
    rows: float = math.nan
    """Rows that it was measured on; with weights their effective number."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    dial_parameter: str = ""
    """The parameter that is the position on the dial."""

    @property
    def name(self) -> str:
        return f"{self.strategy}({self.setting})" if self.setting else self.strategy or NOTHING

    @property
    def drawn(self) -> bool:
        return self.accuracy.defined and self.churn.defined

    @cached_property
    def change(self) -> Estimate:
        """How much more accurate it is than the base on the same rows; undefined where its record lacks the rows.

        The accuracy's own interval states how well these rows stand for others, which is the same for every setting
        and for the base: it makes all of them look alike. The paired one rests on the broken and fixed rows alone.
        """
        fixed, broken = self.fixed.value, self.broken.value
        shares = self.fixed.defined and self.broken.defined and min(fixed, broken) >= 0 and fixed + broken <= 1 + 1e-9
        if not (shares and 0 < self.rows < MOST_ROWS):
            return undefined(why="the rows are not known")
        return paired_difference(fixed, broken, round(self.rows), effective=self.rows)

    @property
    def accuracy_ends(self) -> tuple[float, float]:
        """The base's accuracy plus the paired interval, within 0 and 1; twice the setting's own where there is none."""
        if not self.change.defined:
            return self.accuracy.value, self.accuracy.value
        base = self.accuracy.value - self.change.value
        return max(base + self.change.low, 0.0), min(base + self.change.high, 1.0)  # no accuracy lies beyond


@dataclass(frozen=True)
class Tried:
    """All settings, the budget (NaN: none), and whether churn is a share of decisions."""

    points: tuple[Setting, ...]
    budget: float = math.nan
    hard: bool = True

    @property
    def drawn(self) -> list[Setting]:
        return [p for p in self.points if p.drawn]

    @cached_property
    def curves(self) -> list[list[int]]:
        """Indices of the points on each dial, from the base to the new model: from little churn to much."""
        known = [p if p.drawn else dataclasses.replace(p, dial=math.nan) for p in self.points]
        return [curve[::-1] for curve in dial_curves(known)]

    @cached_property
    def base_accuracy(self) -> float:
        """The base's accuracy, which all settings have to imply; NaN where they do not or where it is not known."""
        known = [p for p in self.drawn if p.fixed.defined and p.broken.defined]
        found = [p.accuracy.value - (p.fixed.value - p.broken.value) for p in known]
        return found[0] if found and max(found) - min(found) < 1e-6 else math.nan

    def within(self, point: Setting) -> bool:
        """Whether the measured churn keeps the budget; sums of weights may carry it over by rounding."""
        return point.churn.value <= self.budget * (1 + 1e-9)

    def churn_text(self, value: float) -> str:
        return f"{100 * value:.4g}%" if self.hard else f"{value:.4g}"


def read_tried(given: Any, limit: float | None = None, who: str = "html_page") -> Tried:
    """Settings from a fitted model, its frontier, the report of ``lowchurn retrain`` or a list of mappings.

    ``limit`` is the budget of hard churn where what is given has none.
    """
    served: Mapping[str, object] = {}
    budget, kind = None, "hard"
    if hasattr(given, "frontier_"):
        served, budget, kind = given.selection_.served, given.max_churn, given.churn
        given = given.frontier_
    elif isinstance(given, Mapping):
        if "frontier" not in given:
            raise unknown_name(who, "frontier without key", "frontier", given)
        parameters = given.get("parameters") or {}
        served = (given.get("selection") or {}).get("served") or {}
        budget, kind = parameters.get("max_churn"), parameters.get("churn", "hard")
        given = given["frontier"]
    if budget is None and kind == "hard":
        budget = limit
    points = tuple(_setting(record, served, who) for record in given or ())
    return Tried(points, _number(who, "max_churn", budget), hard=kind == "hard")


def _setting(record: Any, served: Mapping[str, Any], who: str) -> Setting:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        record = dataclasses.asdict(record)
    for name in MEASURED:
        if name not in record:
            raise unknown_name(who, "frontier without column", name, record)
    given = record.get("parameters") or _from_words(str(record.get("setting") or ""))
    parameters = {str(k): v if isinstance(v, str | int | float) else str(v) for k, v in given.items()}
    measured = {name: _estimate(record, name, who) for name in ("accuracy", "churn", "broken", "fixed")}
    shown = Setting(
        strategy=str(record.get("strategy") or ""),
        setting=str(record.get("setting") or setting_words(parameters)),
        dial=_number(who, "dial", record.get("dial")),
        chosen=float(bool(record.get("chosen"))),
        rows=_number(who, "rows", record.get("rows")),
        reason=": ".join(str(record[k]) for k in ("status", "reason") if record.get(k)) if record.get("reason") else "",
        parameters=parameters,
        dial_parameter=str(record.get("dial_parameter") or _position(parameters)),
        **measured,
    )
    if record.get("chosen") is not None:
        return shown
    return dataclasses.replace(shown, chosen=float(served.get(shown.name) or 0.0))


def _from_words(setting: str) -> dict[str, str]:
    """The parameters of a record that was written before they were kept as data: ``lam=0.5, start=cold``."""
    return {name: value for name, _, value in (part.partition("=") for part in setting.split(", ")) if name}


def _position(parameters: dict[str, str | int | float]) -> str:
    """The parameter that is the position on a dial, where a record does not contain its name."""
    return next((name for name in ("toward_base", "lam") if name in parameters), next(reversed(parameters), ""))


def _estimate(record: Mapping[str, object], name: str, who: str) -> Estimate:
    pair = record.get(f"{name}_interval")
    pair = pair if isinstance(pair, Sequence) and len(pair) == 2 else (None, None)
    ends = {f"{name}_low": pair[0], f"{name}_high": pair[1]}
    low, high = (_number(who, end, other if record.get(end) is None else record[end]) for end, other in ends.items())
    value = _number(who, name, record.get(name))
    return Estimate(value if math.isfinite(value) else math.nan, low, high, 0)


def _number(who: str, name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{who}: {name} of the frontier must be a number or null, got {value!r}.") from None


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
            f"{who}: there must be a candidate with a measured accuracy and churn, got {len(candidates)} without. "
            "Fit with a base: without one there is no churn."
        )
    chart = frontier_chart(tried)
    if path is not None:
        chart.save(path)
    return chart


def frontier_chart(tried: Tried) -> Chart:
    """Accuracy against churn: dials as lines with a band, everything else as points with whiskers."""
    drawn = tried.drawn
    across, up = _axes(tried)
    dialled = {i: curve for curve in tried.curves for i in curve}

    def series(i: int) -> str:
        """The base at the end of a dial is part of it."""
        return tried.points[dialled[i][-1] if i in dialled else i].strategy

    styles = series_styles(series(i) for i, p in enumerate(tried.points) if p.drawn)
    marks = []
    if not math.isnan(tried.base_accuracy):
        marks.append(Mark("rule", [(tried.base_accuracy,)], "base", along="up"))
    if tried.budget <= across.high:
        marks.append(Mark("rule", [(tried.budget,)], "limit", along="across"))
    for curve in tried.curves:
        points = [tried.points[i] for i in curve]
        name = points[-1].strategy
        band = [(p.churn.value, *p.accuracy_ends) for p in points if p.change.defined]
        if len(band) > 1:
            marks.append(Mark("band", band, "band", name, styles[name][0]))
        line = [(p.churn.value, p.accuracy.value) for p in points]
        marks.append(Mark("line", line, "curve", name, styles[name][0]))

    def add(i: int, style: str, data: Mapping[str, str]) -> None:
        p, (colour, shape) = tried.points[i], styles[series(i)]
        at = (p.churn.value, p.accuracy.value)
        churn = value_and_interval(p.churn, tried.hard)[0]
        title = f"{p.name}: accuracy {value_and_interval(p.accuracy)[0]}, churn {churn}"
        crossed = "error" if style == "point" else style
        shade = colour if style == "point" else None
        marks.append(Mark("cross", [at, ends(p.churn), p.accuracy_ends], crossed, series(i), shade, data=data))
        marks.append(Mark("point", [at], style, series(i), colour, shape, title, bool(p.chosen), data=data))

    for i, p in enumerate(tried.points):
        if p.drawn and i not in dialled:
            add(i, "point", {})
    for k, curve in enumerate(tried.curves, start=1):
        for at, i in enumerate(curve):
            add(i, "setting", {"dial": f"dial{k}", "at": str(at)})
    churns, accuracies = [p.churn.value for p in drawn], [p.accuracy.value for p in drawn]
    described = (
        f"{len(drawn)} settings; churn from {tried.churn_text(min(churns))} to {tried.churn_text(max(churns))}, "
        f"accuracy from {share_text(min(accuracies))} to {share_text(max(accuracies))}."
    )
    title = "Accuracy against churn"
    return Chart(title, [Panel(across, up, marks, title, described)], _key(tried, styles), _notes(tried))


def _axes(tried: Tried) -> tuple[Axis, Axis]:
    right = 1.06 * max(ends(p.churn)[1] for p in tried.drawn) or 0.01
    # A budget far beyond all settings would press them into a corner.
    if tried.budget <= 1.5 * right:
        right = max(right, 1.06 * tried.budget)
    name = "changed decisions →" if tried.hard else "soft churn (mean divergence) →"
    across = [(v, percent_text(v) if tried.hard else f"{v:.4g}") for v in ticks(0, right)]
    base = [] if math.isnan(tried.base_accuracy) else [tried.base_accuracy]
    known = [v for p in tried.drawn for v in p.accuracy_ends] + base
    return Axis(0.0, right, across, name), Axis.around(known, "↑ accuracy", percent_text, about=6)


def _key(tried: Tried, styles: Mapping[str, tuple[int, str]]) -> list[Key]:
    on_line = {tried.points[curve[-1]].strategy for curve in tried.curves}
    key = [
        Key(short(name, 30), "curve" if name in on_line else "point", colour, shape)
        for name, (colour, shape) in styles.items()
        if name
    ]
    if any(p.chosen for p in tried.drawn):
        key.append(Key("served", "chosen"))
    if not math.isnan(tried.base_accuracy):
        key.append(Key(f"base {share_text(tried.base_accuracy)}", "base"))
    if not math.isnan(tried.budget):
        key.append(Key(f"budget {tried.churn_text(tried.budget)}", "limit"))
    return key


def _notes(tried: Tried) -> list[str]:
    notes = ["Up is more accurate, left is fewer changed decisions."]
    if tried.curves:
        notes.append("The line is the dial between the base and the new model.")
    if any(p.change.defined for p in tried.drawn):
        notes.append(
            f"{'Bands and whiskers' if tried.curves else 'Whiskers'} are the 95% interval of the change in accuracy "
            "against the base on the same rows (Tango): where one lies above the base's line, the setting is shown to "
            "be more accurate."
        )
    else:
        notes.append("The change in accuracy against the base has no interval here: the rows behind it are not known.")
    return notes
