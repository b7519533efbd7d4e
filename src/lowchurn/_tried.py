"""The settings that were tried when a model was chosen: read from a model, its frontier or a report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from lowchurn._checks import unknown_name
from lowchurn._display import interval_text, setting_words, share_text
from lowchurn._estimates import Estimate, paired_difference, undefined
from lowchurn.metrics import dial_curves, dial_key, is_position

MEASURED = ("accuracy", "churn")  # a setting has these, even if they are not known
QUANTITIES = (*MEASURED, "broken", "fixed", "accuracy_change")
NOTHING = "\u2013"  # what is not known is not 0
MOST_ROWS = 1e15  # more were never measured, and the interval is not computed for them


def ends(estimate: Estimate) -> tuple[float, float]:
    """The interval, or twice the number where there is none."""
    known = math.isfinite(estimate.low) and math.isfinite(estimate.high)
    return (estimate.low, estimate.high) if known else (estimate.value, estimate.value)


def value_and_interval(estimate: Estimate, share: bool = True, signed: bool = False) -> tuple[str, str]:
    """A number and its interval in words: 1.97 % and (1.53 to 2.53)."""
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
    measured: Mapping[str, Estimate]
    """What was measured of QUANTITIES."""
    dial: float
    chosen: float
    """Its weight in what is served: 1 alone, 0 not at all."""
    reason: str
    """Why nothing was measured."""
    parameters: Mapping[str, object] = field(default_factory=dict)
    dial_parameter: str = ""
    """The parameter that is the position on its curve."""
    models: int = 0
    """Models that answer every row; 0 where this is not known."""

    @property
    def name(self) -> str:
        return f"{self.strategy}({self.setting})" if self.setting else self.strategy or NOTHING

    @property
    def accuracy(self) -> Estimate:
        return self.measured["accuracy"]

    @property
    def churn(self) -> Estimate:
        return self.measured["churn"]

    @property
    def broken(self) -> Estimate:
        return self.measured["broken"]

    @property
    def fixed(self) -> Estimate:
        return self.measured["fixed"]

    @property
    def change(self) -> Estimate:
        """How much more accurate it is than the base on the same rows; undefined where its record lacks the rows.

        The accuracy's own interval states how well these rows stand for others, which is the same for every setting
        and for the base: it makes all of them look alike. The paired one rests on the broken and fixed rows alone.
        """
        return self.measured["accuracy_change"]

    @property
    def position(self) -> float:
        """Where it lies between the new model (0) and the base (1): on a dial, or trained there by its lambda."""
        if not math.isnan(self.dial):
            return self.dial
        try:
            return 1 - float(str(self.parameters["lam"]))
        except (KeyError, ValueError):
            return math.nan

    @property
    def accuracy_ends(self) -> tuple[float, float]:
        """The base's accuracy plus the paired interval, within 0 and 1; twice the setting's own where there is none."""
        if not self.change.defined:
            return self.accuracy.value, self.accuracy.value
        base = self.accuracy.value - self.change.value
        return max(base + self.change.low, 0.0), min(base + self.change.high, 1.0)  # no accuracy lies beyond


@dataclass(frozen=True)
class Tried:
    """All settings, the limits (NaN: none), whether churn is a share of decisions, and rows of traffic behind it."""

    points: tuple[Setting, ...]
    budget: float = math.nan
    hard: bool = True
    traffic: float = math.nan
    most_broken: float = math.nan

    @cached_property
    def labelled(self) -> bool:
        """Whether the accuracy of any setting was measured; on traffic without labels it cannot be."""
        return any(p.accuracy.defined and p.churn.defined for p in self.points)

    def shown(self, point: Setting) -> bool:
        """Whether a setting has what is drawn: its churn, and its accuracy where that was measured at all."""
        return point.churn.defined and (point.accuracy.defined or not self.labelled)

    @property
    def drawn(self) -> list[Setting]:
        return [p for p in self.points if self.shown(p)]

    @cached_property
    def curves(self) -> list[list[int]]:
        """Indices of the points on each curve, from the base to the new model: from little churn to much.

        Dials, and settings of one family that were trained at several lambdas.
        """
        known = [p if self.shown(p) else dataclasses.replace(p, dial=math.nan) for p in self.points]
        trained: dict[Hashable, list[int]] = {}
        for i, p in enumerate(self.points):
            if self.shown(p) and math.isnan(p.dial) and not math.isnan(p.position):
                trained.setdefault(dial_key(p), []).append(i)
        several = [sorted(group, key=lambda i: self.points[i].position) for group in trained.values() if len(group) > 1]
        return [curve[::-1] for curve in [*dial_curves(known), *several]]

    def family(self, curve: Sequence[int]) -> str:
        """The strategy of a curve; the base at its end is part of it."""
        return self.points[curve[-1]].strategy

    @cached_property
    def curve_names(self) -> list[str]:
        """The strategy of each curve, with the parameters that tell it from other curves of the same strategy."""
        ends = [self.points[curve[-1]] for curve in self.curves]
        names = []
        for p in ends:
            others = [q for q in ends if q.strategy == p.strategy]
            fixed = {k: v for k, v in p.parameters.items() if not is_position(p, k)}
            told = {k: v for k, v in fixed.items() if any(q.parameters.get(k) != v for q in others)}
            names.append(f"{p.strategy}, {setting_words(told)}" if told else p.strategy)
        return names

    @cached_property
    def shared(self) -> dict[str, dict[str, object]]:
        """Of each strategy the parameters that are the same in all of its settings, where it has several."""
        found: dict[str, dict[str, object]] = {}
        for name in dict.fromkeys(p.strategy for p in self.points):
            first, *more = (p.parameters for p in self.points if p.strategy == name)
            same = {k: v for k, v in first.items() if all(k in other and other[k] == v for other in more)}
            if more and same and len(same) < len(first):
                found[name] = same
        return found

    def short_name(self, point: Setting) -> str:
        """The name without the parameters that are the same in all settings of the strategy."""
        shared = self.shared.get(point.strategy)
        if not shared:
            return point.name
        return f"{point.strategy}({setting_words({k: v for k, v in point.parameters.items() if k not in shared})})"

    @cached_property
    def base_accuracy(self) -> float:
        """The base's accuracy, which all settings have to imply; NaN where they do not or where it is not known."""
        known = [p for p in self.drawn if p.accuracy.defined and p.fixed.defined and p.broken.defined]
        found = [p.accuracy.value - (p.fixed.value - p.broken.value) for p in known]
        return found[0] if found and max(found) - min(found) < 1e-6 else math.nan

    def within(self, point: Setting) -> bool:
        """Whether a setting keeps the limits as it was measured; sums of weights may carry it over by rounding."""
        over = point.churn.value > self.budget * (1 + 1e-9) or point.broken.value > self.most_broken * (1 + 1e-9)
        return bool(self.limits) and not over

    @property
    def limits(self) -> str:
        """The limits in words; empty without any."""
        broken = "" if math.isnan(self.most_broken) else f"{100 * self.most_broken:.4g} % broken"
        return " and ".join(filter(None, ["" if math.isnan(self.budget) else self.churn_text(self.budget), broken]))

    def churn_text(self, value: float) -> str:
        return f"{100 * value:.4g} %" if self.hard else f"{value:.4g}"


def read_tried(given: Any, limit: float | None = None, who: str = "html_page") -> Tried:
    """Settings from a fitted model, its frontier, the report of ``lowchurn retrain`` or a list of mappings.

    ``limit`` is the budget of hard churn where what is given has none.
    """
    served: Mapping[str, object] = {}
    rows: Mapping[str, object] = {}
    budget, kind = None, "hard"
    most_broken = getattr(given, "max_broken", None)
    if hasattr(given, "frontier_"):
        served, rows = given.selection_.served, given.selection_.rows
        budget, kind, given = given.max_churn, given.churn, given.frontier_
        budget = budget.get(None) if isinstance(budget, Mapping) else budget  # that of all rows
    elif isinstance(given, Mapping):
        if "frontier" not in given:
            raise unknown_name(who, "frontier without key", "frontier", given)
        parameters = given.get("parameters") or {}
        selection = given.get("selection") or {}
        served, rows = selection.get("served") or {}, selection.get("rows") or {}
        budget, kind = parameters.get("max_churn"), parameters.get("churn", "hard")
        most_broken = parameters.get("max_broken")
        given = given["frontier"]
    if budget is None and kind == "hard":
        budget = limit
    points = tuple(_setting(record, served, who) for record in given or ())
    return Tried(
        points,
        _number(who, "max_churn", budget),
        hard=kind == "hard",
        traffic=_number(who, "rows of traffic", rows.get("traffic")),
        most_broken=_number(who, "max_broken", most_broken),
    )


def _setting(record: Any, served: Mapping[str, Any], who: str) -> Setting:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        record = record.record() if hasattr(record, "record") else dataclasses.asdict(record)
    for name in MEASURED:
        if name not in record:
            raise unknown_name(who, "frontier without column", name, record)
    given = record.get("parameters") or _from_words(str(record.get("setting") or ""))
    parameters = {str(k): v if isinstance(v, str | int | float) else str(v) for k, v in given.items()}
    measured = {name: _estimate(record, name, who) for name in QUANTITIES}
    if not math.isfinite(measured["accuracy_change"].low + measured["accuracy_change"].high):
        measured["accuracy_change"] = _change(measured, _number(who, "rows", record.get("rows")))
    models = _number(who, "models", record.get("models"))
    shown = Setting(
        strategy=str(record.get("strategy") or ""),
        setting=str(record.get("setting") or setting_words(parameters)),
        dial=_number(who, "dial", record.get("dial")),
        chosen=float(bool(record.get("chosen"))),
        reason=": ".join(str(record[k]) for k in ("status", "reason") if record.get(k)) if record.get("reason") else "",
        parameters=parameters,
        dial_parameter=str(record.get("dial_parameter") or _position(parameters)),
        models=int(models) if 0 < models < MOST_ROWS else 0,
        measured=measured,
    )
    if record.get("chosen") is not None:
        return shown
    return dataclasses.replace(shown, chosen=float(served.get(shown.name) or 0.0))


def _change(measured: Mapping[str, Estimate], rows: float) -> Estimate:
    """The change of accuracy, where a record contains the shares of fixed and broken rows and the number of rows."""
    fixed, broken = measured["fixed"].value, measured["broken"].value
    shares = min(fixed, broken) >= 0 and fixed + broken <= 1 + 1e-9
    if not (shares and 0 < rows < MOST_ROWS):
        return undefined(why="the rows are not known")
    return paired_difference(fixed, broken, round(rows), effective=rows)


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
