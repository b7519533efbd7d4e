"""The frontier on the page: a chart, a slider for each dial, and every setting that was tried in tables."""

from __future__ import annotations

import math

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


def frontier_view(tried: Tried) -> dict[str, object]:
    """What the template shows: columns and cells of the tables, which rows are folded, and the sliders over them."""
    paired = any(p.change.defined for p in tried.points)
    shown = [what for what in MEASURED if what != "change" or paired]
    budget = [] if math.isnan(tried.budget) else ["budget"]
    columns = ["setting", *(["dial"] if tried.curves else []), *shown, *budget, "served"]
    folded = {
        i
        for curve in tried.curves
        if len(curve) > MOST_POSITIONS
        for at, i in enumerate(curve)
        if at % 10 and i != curve[-1] and not tried.points[i].chosen
    }
    several = len(tried.curves) > 1
    dials = [
        {
            "name": f"dial{k}",
            "which": f" of {tried.points[curve[-1]].strategy}" if several else "",
            "rows": curve,
            "start": _start(tried, curve),
        }
        for k, curve in enumerate(tried.curves, start=1)
    ]
    return {
        "chart": frontier_chart(tried),
        "dials": dials,
        "measured": MEASURED,
        "budget": tried.churn_text(tried.budget),
        "columns": columns,
        "heads": [MEASURED.get(name, "" if name == "served" else name) for name in columns],
        "numbers": [i for i, name in enumerate(columns) if name in (*MEASURED, "dial")],
        "cells": [_cells(tried, p) for p in tried.points],
        "seen": [i for i in range(len(tried.points)) if i not in folded],
        "folded": sorted(folded),
    }


def _cells(tried: Tried, p: Setting) -> dict[str, object]:
    """Pairs of a number and its interval, or text. Beside the paired interval the accuracy's own has nothing to add."""
    accuracy = value_and_interval(p.accuracy)
    return {
        "setting": (p.name, p.reason),
        "dial": "" if math.isnan(p.dial) else f"{p.dial:.4g}",
        "churn": value_and_interval(p.churn, tried.hard),
        "accuracy": (accuracy[0], "" if p.change.defined else accuracy[1]),
        "change": value_and_interval(p.change, signed=True) if p.change.defined else (NOTHING, ""),
        "broken": value_and_interval(p.broken),
        "fixed": value_and_interval(p.fixed),
        "budget": ("within" if tried.within(p) else "over") if p.churn.defined else "",
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
