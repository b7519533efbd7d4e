"""Past the metric, which picks settings on test averages: what methods gain under a budget, chosen on traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lowchurn.bench._columns import COLD, in_order, served
from lowchurn.bench._segments import FINISHED, Row, setting_of
from lowchurn.bench._tables import VARIANT, Cell, Table, Variant, of_variant, place_of, place_order, variant_name
from lowchurn.metrics import standard_error

Kept = dict[tuple[str, float], dict[tuple, list[Row]]]  # (method, budget) -> place -> finished rows

PLAIN = ("cold", math.inf)  # the plain retrain has no budget
EXCEEDED = 1.25  # times the budget


def budget_tables(rows: list[Row]) -> Iterator[tuple[Variant, Table]]:
    """For each variant and network: what each method gains under each budget, and the same by data set."""
    found = {tuple(row[name] for name in VARIANT) for row in rows if row["strategy"] == "within"}
    for values in sorted(found):
        variant = dict(zip(VARIANT, values, strict=True)) | {"start": "both"}
        some = of_variant(rows, variant)
        for network in sorted({row["network"] for row in some if row["strategy"] == "within"}):
            if kept := kept_rows(some, network):
                yield variant, gain_table(kept, variant, network)
                yield variant, place_table(kept, variant, network)


def kept_rows(rows: list[Row], network: str) -> Kept:
    """The finished rows of methods under a budget and of the plain retrain, where there are some of both."""
    found: Kept = {}
    for row in rows:
        setting = setting_of(row)
        if (
            row["network"] == network
            and row["status"] == FINISHED
            and (setting == COLD or setting.strategy == "within")
        ):
            known = setting.parameters
            key = PLAIN if setting == COLD else (str(known["method"]), float(known["max_churn"]))
            found.setdefault(key, {}).setdefault(place_of(row), []).append(row)
    everywhere = set.intersection(*(set(places) for places in found.values())) if PLAIN in found else set()
    return {key: {place: places[place] for place in everywhere} for key, places in found.items()} if everywhere else {}


def _gains(rows: list[Row]) -> list[float]:
    """Points of accuracy above the base, trial by trial."""
    return [100 * (row["accuracy"] - row["base_accuracy"]) for row in rows]


def _in_order(kept: Kept) -> list[tuple[str, float]]:
    """Budgets from the smallest on, the plain retrain last."""
    methods = in_order(method for method, _ in kept)
    return sorted(kept, key=lambda key: (key[1], methods.index(key[0])))


def gain_table(kept: Kept, variant: Variant, network: str) -> Table:
    """Means over the data sets of accuracy gained and decisions changed, and how often a budget was exceeded."""
    lines = []
    plain = float(np.mean([np.mean(_gains(rows)) for rows in kept[PLAIN].values()]))
    for method, budget in _in_order(kept):
        places = list(kept[method, budget].values())
        gains = [_gains(rows) for rows in places]
        error = math.sqrt(sum(standard_error(some) ** 2 for some in gains)) / len(gains)
        churns = [[row["churn"] for row in rows] for rows in places]
        exceeded = [churn > EXCEEDED * budget for some in churns for churn in some]
        gain = float(np.mean([np.mean(some) for some in gains]))
        values = (
            gain,
            error,
            100 * gain / plain if plain > 0 else math.nan,
            100 * float(np.mean([np.mean(some) for some in churns])),
            math.nan if math.isinf(budget) else 100 * float(np.mean(exceeded)),
        )
        lines.append(((_percent(budget), method, served(method)), [Cell(value) for value in values]))
    count = len(kept[PLAIN])
    return Table(
        f"budget-{network}",
        "Under a budget of changed decisions, settings chosen on rows without labels, measured on the test rows, in "
        f"percent; {network}, {variant_name(variant)}",
        ("budget", "method", "models served"),
        ("gain over the base", "standard error", "share of cold's gain", "changed", f"over {EXCEEDED:g} budgets"),
        lines,
        notes=[
            f"Means over {count} data sets; the error is that over trials. N/A: no budget, or nothing that cold gains."
        ],
    )


def place_table(kept: Kept, variant: Variant, network: str) -> Table:
    """The accuracy that each method gains over the base on each data set, in points."""
    budgets = sorted({budget for _, budget in kept} - {math.inf})
    methods = in_order(method for method, _ in kept)
    lines = []
    for budget in budgets:
        for place in sorted(kept[PLAIN], key=place_order):
            keys = [PLAIN if method == "cold" else (method, budget) for method in methods]
            cells = [Cell(float(np.mean(_gains(kept[key][place]))) if key in kept else None) for key in keys]
            lines.append(((_percent(budget), place[0]), cells))
    caption = "Accuracy above the base's in points, all but the cold start under a budget kept on traffic; "
    name = f"budget-{network}-datasets"
    return Table(name, f"{caption}{network}, {variant_name(variant)}", ("budget", "dataset"), methods, lines)


def _percent(budget: float) -> str:
    return "none" if math.isinf(budget) else f"{100 * budget:g} %"
