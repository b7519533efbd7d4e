"""The frontier on the page: a chart, a slider along any curve, and every setting that was tried in tables."""

from __future__ import annotations

import math

from lowchurn._display import setting_words, share_text
from lowchurn._frontier_chart import PLAIN, frontier_chart
from lowchurn._tried import NOTHING, Setting, Tried, value_and_interval
from lowchurn.metrics import is_position

# A curve of more positions than this is folded, and beside other curves one of more than half as many.
MOST_POSITIONS = 12
MOST_GROUPS = 4  # whose margins are shown beside each other
MEASURED = {
    "churn": "changed",
    "accuracy": "accuracy",
    "change": "against the base",
    "broken": "broken",
    "fixed": "fixed",
}


def frontier_view(tried: Tried) -> dict[str, object]:
    """What the template shows: columns and cells of the tables, which rows are folded, and the sliders over them."""
    known = {
        "accuracy": tried.labelled,
        "change": any(p.change.defined for p in tried.points),
        "broken": tried.labelled,
        "fixed": tried.labelled,
        "models": any(p.models for p in tried.points),
        "budget": bool(tried.limits),
    }
    columns = [name for name in ("setting", *MEASURED, "models", "budget") if known.get(name, True)]
    folded = {i for curve in tried.curves for i in _folded(tried, curve)}
    dials = [
        {
            "name": f"dial{k}",
            "curve": name,
            "parameter": tried.points[curve[-1]].dial_parameter,
            "rows": curve,
            "start": _start(tried, curve),
        }
        for k, (curve, name) in enumerate(zip(tried.curves, tried.curve_names, strict=True), start=1)
    ]
    return {
        "chart": frontier_chart(tried),
        "shared": "; ".join(f"{name}: {setting_words(same)}" for name, same in tried.shared.items()),
        "labelled": tried.labelled,
        "dials": dials,
        "first": next((k for k, curve in enumerate(tried.curves) if any(tried.points[i].chosen for i in curve)), 0),
        "measured": MEASURED,
        "budget": tried.limits,
        "columns": columns,
        "heads": [MEASURED.get(name, name) for name in columns],
        "numbers": [i for i, name in enumerate(columns) if name in (*MEASURED, "models")],
        "positions": [_position(p) for p in tried.points],
        "cells": [_cells(tried, p) for p in tried.points],
        "seen": [i for i in range(len(tried.points)) if i not in folded],
        "folded": sorted(folded),
    }


def _cells(tried: Tried, p: Setting) -> dict[str, object]:
    """Pairs of a number and its interval, or text. Beside the paired interval the accuracy's own has nothing to add."""
    accuracy = value_and_interval(p.accuracy)
    served = "served" if p.chosen == 1 else f"{share_text(p.chosen, digits=0)} of the mixture" if p.chosen else ""
    return {
        "setting": (tried.short_name(p), p.reason or ("plain retrain" if p.name == PLAIN else ""), served),
        "churn": value_and_interval(p.churn, tried.hard),
        "accuracy": (accuracy[0], "" if p.change.defined else accuracy[1]),
        "change": value_and_interval(p.change, signed=True) if p.change.defined else (NOTHING, ""),
        "broken": value_and_interval(p.broken),
        "fixed": value_and_interval(p.fixed),
        "models": str(p.models) if p.models else "",
        "budget": ("within" if tried.within(p) else "over") if p.churn.defined else "",
    }


def _position(p: Setting) -> str:
    """The value of the parameter that is the position on a curve; of groups of rows, where these have their own."""
    if math.isnan(p.position):
        return ""
    found = {k: v for k, v in p.parameters.items() if is_position(p, k)}
    groups = [v for k, v in found.items() if k != p.dial_parameter]
    values = groups or list(found.values()) or [p.position]
    return " / ".join(f"{value:.4g}" if isinstance(value, float) else str(value) for value in values[:MOST_GROUPS])


def _folded(tried: Tried, curve: list[int]) -> set[int]:
    """The positions of a long curve that are not in sight.

    Its ends, what is served or best within the budget, and where there is one curve alone every tenth position are.
    """
    alone = len(tried.curves) == 1
    if len(curve) <= (MOST_POSITIONS if alone else MOST_POSITIONS // 2):
        return set()
    seen = {0, len(curve) - 1, _start(tried, curve), *(range(0, len(curve), 10) if alone else ())}
    return {i for at, i in enumerate(curve) if at not in seen and not tried.points[i].chosen}


def _start(tried: Tried, curve: list[int]) -> int:
    """Where the slider starts: at what is served, else the most accurate within the budget, else the new model."""
    points = [tried.points[i] for i in curve]
    served = max(range(len(points)), key=lambda k: points[k].chosen)
    if points[served].chosen:
        return served
    within = [k for k, p in enumerate(points) if tried.within(p)]
    return max(within, key=lambda k: points[k].accuracy.value, default=len(points) - 1)
