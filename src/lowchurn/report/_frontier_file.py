"""Settings that were tried, read from a JSON file and checked before use."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lowchurn._reading import check_structure, read_json

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
    parameters: dict[str, str | int | float | bool | None] | None = None
    dial_parameter: str | None = None
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
    accuracy_change: Number = None
    accuracy_change_interval: Interval = None
    models: int | None = None
    chosen: bool | float | None = None
    status: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Parameters:
    """What ``lowchurn retrain`` was asked for."""

    max_churn: Number = None
    max_broken: Number = None
    churn: Literal["hard", "soft"] = "hard"


@dataclass(frozen=True)
class Served:
    """What was chosen, with its weights, and the rows that it was measured on."""

    served: dict[str, Number] | None = None
    rows: dict[str, Number] | None = None


@dataclass(frozen=True)
class Report:
    """The parts of a report of ``lowchurn retrain`` that are shown."""

    frontier: list[Record]
    parameters: Parameters | None = None
    selection: Served | None = None


def read_frontier(path: str) -> list[Record] | dict[str, object]:
    """Read settings from a JSON file: a list of them, or the report of ``lowchurn retrain``; checked before use."""
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
    if report is None:
        return records
    chosen = report.selection or Served()
    served, rows = chosen.served or {}, chosen.rows or {}
    _check_value(f"audit: {name}", "max_churn", asked.max_churn, math.inf if soft else 1)
    _check_value(f"audit: {name}", "max_broken", asked.max_broken, 1)
    for weight in served.values():
        _check_value(f"audit: {name}", "a weight in served", weight, 1)
    for count in rows.values():
        _check_value(f"audit: {name}", "a number of rows", count, math.inf)
    selection = {"served": served, "rows": rows}
    return {"frontier": records, "parameters": dataclasses.asdict(asked), "selection": selection}


def _check_record(where: str, record: Record, soft: bool) -> None:
    highest = {"churn": math.inf if soft else 1, "rows": math.inf, "chosen": math.inf, "models": math.inf}
    for field, value in dataclasses.asdict(record).items():
        quantity = field.removesuffix("_interval").removesuffix("_low").removesuffix("_high")
        lowest = -1 if quantity == "accuracy_change" else 0
        if field.endswith("_interval") and value is not None:
            for end in value:
                _check_value(where, field, end, highest.get(quantity, 1), lowest)
            if None not in value and value[0] > value[1]:
                raise ValueError(f"{where}: {field} must have its lower end first, got {list(value)}.")
        elif isinstance(value, int | float) and field not in ("strategy", "setting"):
            _check_value(where, field, value, highest.get(quantity, 1), lowest)


def _check_value(where: str, name: str, value: Number, highest: float, lowest: float = 0) -> None:
    """In [lowest, highest] and finite, but for rounding."""
    if value is not None and not (math.isfinite(value) and lowest - 1e-9 <= value <= highest + 1e-9):
        rule = "a finite number, not negative" if math.isinf(highest) else f"in [{lowest:g}, {highest:g}]"
        raise ValueError(f"{where}: {name} must be {rule}, got {value!r}.")
