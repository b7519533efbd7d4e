"""The frontier on the page: a chart, a slider for each dial, and every setting that was tried in tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lowchurn._charts import Chart
from lowchurn._frontier_chart import NOTHING, Setting, Tried, frontier_chart, value_and_interval

# A dial of more positions than this is folded: its ends, every tenth position and what is served stay in sight.
MOST_POSITIONS = 12
MEASURED = {
    "churn": "changed",
    "accuracy": "accuracy",
    "change": "against the base",
    "broken": "broken",
    "fixed": "fixed",
}


@dataclass(frozen=True)
class Dial:
    """A slider: the rows of the tables that it moves over, and where it starts."""

    name: str
    which: str
    rows: list[int]
    start: int


class FrontierView:
    """What the template shows of the settings that were tried."""

    measured = MEASURED

    def __init__(self, tried: Tried) -> None:
        self.tried = tried
        self.budget = tried.churn_text(tried.budget)

    @cached_property
    def chart(self) -> Chart:
        return frontier_chart(self.tried)

    @cached_property
    def dials(self) -> list[Dial]:
        curves = self.tried.curves
        return [
            Dial(
                f"dial{k}",
                f" of {self.tried.points[curve[-1]].strategy}" if len(curves) > 1 else "",
                curve,
                _start(self.tried, curve),
            )
            for k, curve in enumerate(curves, start=1)
        ]

    @cached_property
    def columns(self) -> list[str]:
        paired = any(p.change.defined for p in self.tried.points)
        shown = [what for what in MEASURED if what != "change" or paired]
        known = not math.isnan(self.tried.budget)
        return ["setting", *(["dial"] if self.tried.curves else []), *shown, *(["budget"] if known else []), "served"]

    @cached_property
    def heads(self) -> list[str]:
        return [MEASURED.get(name, "" if name == "served" else name) for name in self.columns]

    @cached_property
    def numbers(self) -> list[int]:
        """Columns of numbers."""
        return [i for i, name in enumerate(self.columns) if name in (*MEASURED, "dial")]

    @cached_property
    def folded(self) -> list[int]:
        """Positions of long dials but for their ends, every tenth and what is served."""
        return sorted(
            {
                i
                for curve in self.tried.curves
                if len(curve) > MOST_POSITIONS
                for at, i in enumerate(curve)
                if at % 10 and i != curve[-1] and not self.tried.points[i].chosen
            }
        )

    @cached_property
    def seen(self) -> list[int]:
        return sorted(set(range(len(self.tried.points))) - set(self.folded))

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        """A mapping per setting: pairs of a number and its interval, or text."""
        return [self._cells(p) for p in self.tried.points]

    def _cells(self, p: Setting) -> dict[str, Any]:
        # Beside the paired interval the accuracy's own one has nothing to add.
        accuracy = value_and_interval(p.accuracy)
        return {
            "setting": (p.name, p.reason),
            "dial": "" if math.isnan(p.dial) else f"{p.dial:.4g}",
            "churn": value_and_interval(p.churn, self.tried.hard),
            "accuracy": (accuracy[0], "" if p.change.defined else accuracy[1]),
            "change": value_and_interval(p.change, signed=True) if p.change.defined else (NOTHING, ""),
            "broken": value_and_interval(p.broken),
            "fixed": value_and_interval(p.fixed),
            "budget": ("within" if self.tried.within(p) else "over") if p.churn.defined else "",
            "served": "served" if p.chosen == 1 else f"{p.chosen:.0%} of the mixture" if p.chosen else "",
        }


def _start(tried: Tried, curve: list[int]) -> int:
    """Where the slider starts: at what is served, else the most accurate within the budget, else the new model."""
    points = [tried.points[i] for i in curve]
    served = max(range(len(points)), key=lambda k: points[k].chosen)
    if points[served].chosen:
        return served
    within = [k for k, p in enumerate(points) if tried.within(p)]
    return max(within, key=lambda k: points[k].accuracy.value, default=len(points) - 1)
