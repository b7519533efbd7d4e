"""The settings that were tried when the model was chosen, read from whatever kept them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowchurn._checks import unknown_name
from lowchurn._display import share_text
from lowchurn._reading import check_structure, read_json
from lowchurn.metrics import dial_curves

MEASURED = ("accuracy", "churn")  # a setting has these, even if they are not known
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
    >>> from lowchurn.report._tried import read_tried
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
    for name in MEASURED:
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
    told = record.get("chosen") is not None
    return shown if told else dataclasses.replace(shown, chosen=float(served.get(shown.name) or 0.0))


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
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"html_page: {name} of the frontier must be a number or null, got {value!r}.") from None


Text = str | int | float | None
Number = float | None
Interval = tuple[float | None, float | None] | None


@dataclass(frozen=True)
class Record:
    """One setting as a file has it; other fields of the file are passed over."""

    accuracy: Number
    churn: Number
    strategy: Text = None
    setting: Text = None
    broken: Number = None
    fixed: Number = None
    accuracy_interval: Interval = None
    churn_interval: Interval = None
    broken_interval: Interval = None
    fixed_interval: Interval = None
    accuracy_low: Number = None
    accuracy_high: Number = None
    churn_low: Number = None
    churn_high: Number = None
    broken_low: Number = None
    broken_high: Number = None
    fixed_low: Number = None
    fixed_high: Number = None
    dial: Number = None
    rows: Number = None
    chosen: bool | float | None = None
    status: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Parameters:
    """What ``lowchurn retrain`` was asked for."""

    max_churn: Number = None
    churn: Literal["hard", "soft"] = "hard"


@dataclass(frozen=True)
class Served:
    """What was chosen, with its weights."""

    served: dict[str, Number] | None = None


@dataclass(frozen=True)
class Report:
    """The parts of a report of ``lowchurn retrain`` that are shown."""

    frontier: list[Record]
    parameters: Parameters | None = None
    selection: Served | None = None


def read_frontier(path: str) -> list[dict[str, Any]] | dict[str, Any]:
    """Read settings from a JSON file: a list of them, or the report of ``lowchurn retrain``; checked before use.

    Examples
    --------
    >>> from lowchurn.report._tried import read_frontier
    >>> read_frontier("no-such.json")
    Traceback (most recent call last):
    ...
    ValueError: audit: cannot read the frontier 'no-such.json': No such file or directory.
    """
    name = f"the frontier {path!r}"
    try:
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ValueError(f"audit: cannot read {name}: {getattr(error, 'strerror', None) or error}.") from None
    found: Any = read_json("audit", name, raw, Any)
    if isinstance(found, dict) and "frontier" in found:
        report = check_structure("audit", name, found, Report)
        records = report.frontier
    elif isinstance(found, list):
        report = None
        records = check_structure("audit", name, found, list[Record])
    else:
        raise ValueError(
            f"audit: {name} must be a list of objects with accuracy and churn, or what lowchurn retrain --report wrote."
        )
    asked = (report and report.parameters) or Parameters()
    soft = asked.churn == "soft"
    for i, record in enumerate(records):
        _check_record(f"audit: {name}: setting {i + 1}", record, soft)
    plain = [
        {field: value for field, value in dataclasses.asdict(record).items() if value is not None or field in MEASURED}
        for record in records
    ]
    if report is None:
        return plain
    served = (report.selection and report.selection.served) or {}
    _check_value(f"audit: {name}", "max_churn", asked.max_churn, math.inf if soft else 1)
    for weight in served.values():
        _check_value(f"audit: {name}", "a weight in served", weight, 1)
    return {"frontier": plain, "parameters": dataclasses.asdict(asked), "selection": {"served": served}}


def _check_record(where: str, record: Record, soft: bool) -> None:
    highest = {"churn": math.inf if soft else 1, "rows": math.inf, "chosen": math.inf}
    for field, value in dataclasses.asdict(record).items():
        quantity, _, part = field.partition("_")
        if part == "interval" and value is not None:
            for end in value:
                _check_value(where, field, end, highest.get(quantity, 1))
            if None not in value and value[0] > value[1]:
                raise ValueError(f"{where}: {field} must have its lower end first, got {list(value)}.")
        elif isinstance(value, int | float) and field not in ("strategy", "setting"):
            _check_value(where, field, value, highest.get(quantity, 1))


def _check_value(where: str, name: str, value: Number, highest: float) -> None:
    """In [0, highest] and finite, but for rounding."""
    if value is not None and not (math.isfinite(value) and -1e-9 <= value <= highest + 1e-9):
        rule = "a finite number, not negative" if math.isinf(highest) else f"in [0, {highest:g}]"
        raise ValueError(f"{where}: {name} must be {rule}, got {value!r}.")
