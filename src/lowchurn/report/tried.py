"""The settings that were tried when the model was chosen, read from whatever kept them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowchurn.audit.formats import share_text
from lowchurn.checks import unknown_name
from lowchurn.metrics import dial_curves

NOTHING = "\u2013"  # what is not known is not 0


@dataclass(frozen=True)
class Figure:
    """A number and its interval; NaN where one is not known."""

    value: float
    low: float = math.nan
    high: float = math.nan

    @property
    def known(self) -> bool:
        return math.isfinite(self.value)

    @property
    def ends(self) -> tuple[float, float]:
        """The interval, or twice the number where there is none."""
        known = math.isfinite(self.low) and math.isfinite(self.high)
        return (self.low, self.high) if known else (self.value, self.value)

    def texts(self, share: bool = True) -> tuple[str, str]:
        """The number and its interval in words, with digits enough to tell the ends apart."""
        if not self.known:
            return NOTHING, ""
        low, high = self.ends
        digits = None
        if high > low:
            digits = min(6, max(2, 1 - math.floor(math.log10(100 * (high - low)))))
        value, *ends = (share_text(v, digits=digits) if share else f"{v:.4g}" for v in (self.value, low, high))
        return value, f"({ends[0]} to {ends[1]})" if high > low else ""


@dataclass(frozen=True)
class Point:
    """One setting: its name, what was measured and where it stands on a dial (NaN: on none)."""

    strategy: str
    setting: str
    accuracy: Figure
    churn: Figure
    broken: Figure
    fixed: Figure
    dial: float
    chosen: float
    """Its weight in what is served: 1 alone, 0 not at all."""
    reason: str
    """Why nothing was measured."""
    rows: float = math.nan
    """Rows that it was measured on; with weights their effective number."""

    @property
    def name(self) -> str:
        return f"{self.strategy}({self.setting})" if self.setting else self.strategy or NOTHING

    @property
    def drawn(self) -> bool:
        return self.accuracy.known and self.churn.known


@dataclass(frozen=True)
class Tried:
    """All settings, the budget (NaN: none), whether churn is a share of decisions, and the dials among them."""

    points: tuple[Point, ...]
    budget: float = math.nan
    hard: bool = True

    @property
    def curves(self) -> list[list[int]]:
        """Indices of the points on each dial, from the base to the new model: from little churn to much."""
        positions = [p.dial if p.drawn else math.nan for p in self.points]
        found = dial_curves(positions, [p.strategy for p in self.points], [p.setting for p in self.points])
        return [curve[::-1] for curve in found]

    def within(self, point: Point) -> bool:
        """Whether the measured churn keeps the budget; sums of weights may carry it over by rounding."""
        return point.churn.value <= self.budget * (1 + 1e-9)

    def churn_text(self, value: float) -> str:
        return f"{100 * value:.4g}%" if self.hard else f"{value:.4g}"


def read_tried(given: Any, limit: float | None = None) -> Tried:
    """Settings from a fitted model, its frontier, the report of ``lowchurn retrain`` or a list of mappings.

    ``limit`` is the budget of hard churn where what is given has none.

    Examples
    --------
    >>> from lowchurn.report.tried import read_tried
    >>> read_tried([{"strategy": "cold", "accuracy": 0.9, "churn": None}]).points[0].drawn
    False
    """
    served: Mapping[str, Any] = {}
    budget, kind = None, "hard"
    if hasattr(given, "frontier_"):
        served, budget, kind = given.selection_.served, given.max_churn, given.churn
        given = given.frontier_
    elif isinstance(given, Mapping):
        if "frontier" not in given:
            raise unknown_name("html_page", "frontier without key", "frontier", given)
        parameters = given.get("parameters") or {}
        served = (given.get("selection") or {}).get("served") or {}
        budget, kind = parameters.get("max_churn"), parameters.get("churn", "hard")
        given = given["frontier"]
    if budget is None and kind == "hard":
        budget = limit
    points = tuple(_point(record, served) for record in given or ())
    return Tried(points, _number("max_churn", budget), hard=kind == "hard")


def _point(record: Any, served: Mapping[str, Any]) -> Point:
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        record = dataclasses.asdict(record)
    for name in ("accuracy", "churn"):
        if name not in record:
            raise unknown_name("html_page", "frontier without column", name, record)
    shown = Point(
        strategy=str(record.get("strategy") or ""),
        setting=str(record.get("setting") or ""),
        accuracy=_figure(record, "accuracy"),
        churn=_figure(record, "churn"),
        broken=_figure(record, "broken"),
        fixed=_figure(record, "fixed"),
        dial=_number("dial", record.get("dial")),
        chosen=float(bool(record.get("chosen"))),
        rows=_number("rows", record.get("rows")),
        reason=": ".join(str(record[k]) for k in ("status", "reason") if record.get(k)) if record.get("reason") else "",
    )
    return shown if "chosen" in record else dataclasses.replace(shown, chosen=float(served.get(shown.name, 0.0)))


def _figure(record: Mapping[str, Any], name: str) -> Figure:
    pair = record.get(f"{name}_interval")
    pair = pair if isinstance(pair, Sequence) and len(pair) == 2 else (None, None)
    low, high = (
        _number(f"{name}_{end}", record.get(f"{name}_{end}", other))
        for end, other in zip(("low", "high"), pair, strict=True)
    )
    return Figure(_number(name, record.get(name)), low, high)


def _number(name: str, value: Any) -> float:
    if value is None:
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"html_page: {name} of the frontier must be a number or null, got {value!r}.") from None
