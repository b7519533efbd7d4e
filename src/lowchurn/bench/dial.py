"""The evidence for what is past the paper: tables of all methods beside its distillation, and ratios to it.

A method may start warm or cold here, whichever is the better: distillation is its best of both starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from lowchurn.bench.store import Row
from lowchurn.bench.tables import (
    METHODS,
    VARIANT,
    Average,
    Averages,
    Cell,
    Table,
    averages,
    cold_accuracy_table,
    variant_name,
    win_counts,
)

REFERENCE = "distill"
BOTH = "both"  # in the place of a variant's start
# A column of the evidence, the strategy it shows, and which of its settings.
COLUMNS: dict[str, tuple[str, Callable[[dict[str, str]], bool]]] = {
    **{method: (method, lambda setting: True) for method in METHODS},
    "soup": ("soup", lambda setting: True),
    "interpolate": ("interpolate", lambda setting: True),
    "two-teachers": ("two-teachers", lambda setting: setting["students"] == "1"),
    "two-teachers soup": ("two-teachers", lambda setting: setting["students"] != "1"),
    "served-mix": ("served-mix", lambda setting: True),
    "focal": ("focal", lambda setting: True),
    "dissonance": ("dissonance", lambda setting: True),
    "constrained": ("constrained", lambda setting: True),
    "local-ls": ("local-ls", lambda setting: True),
}
PAST = {strategy for strategy, _ in COLUMNS.values()} - set(METHODS)


def parameters(setting: str) -> dict[str, str]:
    """A setting in words as names and values.

    Examples
    --------
    >>> from lowchurn.bench.dial import parameters
    >>> parameters("lam=0.5, start=cold")
    {'lam': '0.5', 'start': 'cold'}
    """
    return dict(part.split("=", 1) for part in setting.split(", ")) if setting else {}


def dial_variants(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Every combination of scale, patience, loss, epochs and seed in which there is a method past the paper."""
    found = {tuple(row[name] for name in VARIANT) for row in rows if row["strategy"] in PAST}
    return [dict(zip(VARIANT, values, strict=True)) | {"start": BOTH} for values in sorted(found)]


def dial_averages(rows: Iterable[Row], variant: dict[str, Any], network: str | None = None) -> Averages:
    """The averages of a variant, from either start, of one network or all."""
    return averages(
        row for row in rows if all(row[name] == variant[name] for name in VARIANT) and network in (None, row["network"])
    )


def dial_table(rows: Iterable[Row], variant: dict[str, Any], network: str | None = None) -> Table:
    """Churn at cold accuracy in percent of the paper's methods, from the better start, and of those past the paper.

    Examples
    --------
    >>> from lowchurn.bench.dial import dial_table, dial_variants
    >>> common = dict(network="fcn-10", initial=10, validation=5, batch=10, scale=False, patience=5, loss="log")
    >>> common |= dict(epochs_limit=300, run_seed=0, dataset="wine", trial=0, status="finished", start="warm")
    >>> rows = [
    ...     common | dict(strategy="cold", setting="", accuracy=0.9, churn=0.1),
    ...     common | dict(strategy="distill", setting="lam=0.5, start=warm", accuracy=0.9, churn=0.04),
    ...     common | dict(strategy="soup", setting="members=8, toward_base=0.5", accuracy=0.9, churn=0.02),
    ... ]
    >>> table = dial_table(rows, dial_variants(rows)[0])
    >>> dict(zip(table.columns, map(table.cell, table.rows[0][1])))["soup"]
    '2.00'
    """
    found = {
        place: _by_column(settings)
        for place, settings in dial_averages(rows, variant, network).items()
        if any(strategy in PAST for strategy, _ in settings)
    }
    there = {name for settings in found.values() for name, _ in settings} | {REFERENCE}
    table = cold_accuracy_table(found, variant, methods=tuple(name for name in COLUMNS if name in there))
    single = sum(
        len({parameters(setting)["start"] for name, setting in settings if name == REFERENCE}) == 1
        for settings in found.values()
    )
    notes = list(table.notes)
    if single:
        notes.append(f"In {single} of {len(found)} rows distillation was run from one start only.")
    caption = "Past the paper: churn at cold accuracy in percent, each method from its better start; "
    caption += variant_name(variant)
    name = "dial" if network is None else f"dial-{network}"
    return Table(name, caption, table.labels, table.columns, table.rows, table.trials, bold=table.bold, notes=notes)


def _by_column(settings: dict[tuple[str, str], Average]) -> dict[tuple[str, str], Average]:
    """The same averages under the names of the columns that they belong to."""
    return {
        (column, setting): average
        for (strategy, setting), average in settings.items()
        for column, (of, belongs) in COLUMNS.items()
        if strategy == of and belongs(parameters(setting))
    }


def ratio_table(table: Table) -> Table:
    """How the methods of a :func:`dial_table` compare with distillation, over its rows.

    The ratio is the geometric mean of churn at cold accuracy over that of distillation, over the rows in which both
    are defined and above zero.
    """
    reference = table.columns.index(REFERENCE)
    lines = []
    zeros = 0
    for k, method in enumerate(table.columns):
        if k == reference:
            continue
        pairs = [(cells[k].value, cells[reference].value) for _, cells in table.rows]
        there = [(own, other) for own, other in pairs if own is not None and other is not None]
        if not there:
            continue
        both = [(own, other) for own, other in there if not (math.isnan(own) or math.isnan(other))]
        above = [(own, other) for own, other in both if own > 0 and other > 0]
        zeros += len(both) - len(above)
        mean = math.exp(sum(math.log(own / other) for own, other in above) / len(above)) if above else math.nan
        better = sum(round(own, table.decimals) < round(other, table.decimals) for own, other in both)
        alone = sum(math.isnan(other) and not math.isnan(own) for own, other in there)
        missed = sum(math.isnan(own) and not math.isnan(other) for own, other in there)
        neither = sum(math.isnan(own) and math.isnan(other) for own, other in there)
        counts = (str(len(above)), str(better), str(alone), str(missed), str(neither))
        lines.append(((method, *counts), [Cell(mean)]))
    notes = ["N/A in a table means that no setting is as accurate on average as the cold start."]
    if zeros:
        notes.append(f"{zeros} comparisons with a churn of zero are left out of the mean.")
    caption = f"Ratio to distillation's churn, geometric mean: {table.caption}"
    labels = ("method", "rows compared", "lower in", "only this defined", "only distill defined", "neither defined")
    return Table(f"{table.name}-ratio", caption, labels, ("ratio",), lines, notes=notes)


def dial_tables(rows: list[Row]) -> Iterator[tuple[dict[str, Any], Table]]:
    """Every table of the evidence that the rows fill: for each variant and network the numbers, wins and ratios."""
    for variant in dial_variants(rows):
        networks = sorted({row["network"] for row in rows if all(row[name] == variant[name] for name in VARIANT)})
        for network in networks:
            table = dial_table(rows, variant, network)
            if any(cell.value is not None for _, cells in table.rows for cell in cells):
                yield variant, table
                yield variant, win_counts(table)
                yield variant, ratio_table(table)


def along_the_dial(rows: Iterable[Row], variant: dict[str, Any], network: str | None = None) -> list[dict[str, Any]]:
    """Accuracy and churn in percent of the soup along its dial, of distillation's settings and of the cold start."""
    points = []
    for place, settings in sorted(dial_averages(rows, variant, network).items()):
        if not any(name == "soup" for name, _ in settings):
            continue
        for (name, setting), average in settings.items():
            known = parameters(setting)
            if name not in ("cold", "soup", "distill") or not average.trials:
                continue
            place_on_it = {"soup": "toward_base", "distill": "lam"}.get(name)
            series = {"cold": "cold start", "soup": "soup"}.get(name) or f"distill, {known['start']} start"
            points.append(
                {
                    "dataset": place[0],
                    "network": place[1],
                    "series": series,
                    "setting": float(known[place_on_it]) if place_on_it else 0.0,
                    "accuracy": 100 * average.accuracy,
                    "churn": 100 * average.churn,
                }
            )
    return points
