"""The evidence for what is past the paper: tables of all methods beside its distillation, ratios to it, and the noise.

A method may start warm or cold here, whichever is the better: distillation is its best of both starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from lowchurn.bench._against import against_table, noise_table, paired_table, resampled_table, trial_rows
from lowchurn.bench._columns import (
    BEST,
    DIAL,
    PAST,
    REFERENCE,
    SERVING,
    STICKY,
    column_of,
    columns_of,
    in_order,
    is_shown,
    paper_note,
    served,
)
from lowchurn.bench._segments import Row
from lowchurn.bench._tables import (
    VARIANT,
    Averages,
    Cell,
    Table,
    Variant,
    averages,
    cold_accuracy_table,
    of_variant,
    place_order,
    variant_name,
    win_counts,
)

BOTH = "both"  # in the place of a variant's start


def dial_variants(rows: Iterable[Row]) -> list[Variant]:
    """Every combination of scale, patience, loss, epochs, seed and order in which there is a method past the paper."""
    found = {tuple(row[name] for name in VARIANT) for row in rows if row["strategy"] in PAST}
    return [dict(zip(VARIANT, values, strict=True)) | {"start": BOTH} for values in sorted(found)]


def dial_averages(rows: Iterable[Row] | Averages, variant: Variant, network: str | None = None) -> Averages:
    """The averages of a variant, from either start, of one network or all; averages stay what they are."""
    if isinstance(rows, dict):
        return rows
    return averages(row for row in of_variant(rows, variant) if network in (None, row["network"]))


def dial_table(rows: Iterable[Row] | Averages, variant: Variant, network: str | None = None) -> Table:
    """Churn at cold accuracy in percent of the paper's methods, from the better start, and of those past the paper."""
    found = {
        place: {s._replace(strategy=column_of(s)): a for s, a in settings.items() if is_shown(s)}
        for place, settings in dial_averages(rows, variant, network).items()
        if any(setting.strategy in PAST for setting in settings)
    }
    there = {setting.strategy for settings in found.values() for setting in settings} | {REFERENCE}
    table = cold_accuracy_table(found, variant, methods=in_order(there))
    single = sum(
        len({setting.parameters["start"] for setting in settings if setting.strategy == REFERENCE}) == 1
        for settings in found.values()
    )
    more = [f"In {single} of {len(found)} rows distillation was run from one start only."] if single else []
    caption = "Past the paper: churn at cold accuracy in percent, each method from its better start; "
    caption += variant_name(variant)
    name = "dial" if network is None else f"dial-{network}"
    return dataclasses.replace(table, name=name, caption=caption, notes=[*table.notes, *more])


def that_serve(table: Table, most: str) -> Table:
    """A :func:`dial_table` without the methods that serve more models: those of "1", or of "1" and "2"."""
    kept = [k for k, name in enumerate(table.columns) if SERVING.index(served(name)) <= SERVING.index(most)]
    ending, words = {"1": ("one", "one model"), "2": ("two", "at most two models")}[most]
    return dataclasses.replace(
        table,
        name=f"{table.name}-{ending}",
        caption=f"Methods that serve {words}; {table.caption}",
        columns=tuple(table.columns[k] for k in kept),
        rows=[(labels, [cells[k] for k in kept]) for labels, cells in table.rows],
    )


def ratio_table(table: Table, reference: str = REFERENCE) -> Table:
    """How the methods of a :func:`dial_table` compare with one of them, or with the best of the paper's in each row.

    The ratio of churns over the rows in which both are defined and above zero: its geometric mean, and its median,
    which one row with hardly any churn cannot move.
    """
    least = [k for k, name in enumerate(table.columns) if name in columns_of(reference)]
    tried = [[v for k in least if (v := cells[k].value) is not None] for _, cells in table.rows]
    references = [min((v for v in some if v == v), default=math.nan) if some else None for some in tried]
    lines, zeros = [], 0
    for k, method in enumerate(table.columns):
        pairs = [(cells[k].value, other) for (_, cells), other in zip(table.rows, references, strict=True)]
        there = [(own, other) for own, other in pairs if own is not None and other is not None]
        if method == reference or not there:
            continue
        both = [(own, other) for own, other in there if not (math.isnan(own) or math.isnan(other))]
        ratios = [own / other for own, other in both if own > 0 and other > 0]
        zeros += len(both) - len(ratios)
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        median = float(np.median(ratios)) if ratios else math.nan
        better = sum(round(own, table.decimals) < round(other, table.decimals) for own, other in both)
        undefined = Counter((math.isnan(own), math.isnan(other)) for own, other in there)
        alone, missed, neither = (undefined[which] for which in ((False, True), (True, False), (True, True)))
        counts = map(str, (len(ratios), better, alone, missed, neither))
        lines.append(((method, served(method), *counts), [Cell(mean), Cell(median)]))
    notes = ["N/A in a table means that no setting is as accurate on average as the cold start."]
    notes += [f"{zeros} comparisons with a churn of zero are left out of mean and median."] if zeros else []
    notes += paper_note(table.columns) if reference == BEST else []
    whose, ending = {
        BEST: ("the best churn of the paper's methods", "best-ratio"),
        REFERENCE: ("distillation's churn", "ratio"),
    }.get(reference, (f"the {reference}'s churn", f"{reference}-ratio"))
    short = "best" if reference == BEST else reference
    counted = ("rows compared", "lower in", "only this defined", f"only {short} defined", "neither defined")
    labels = ("method", "models served", *counted)
    columns = ("geometric mean", "median")
    return Table(f"{table.name}-{ending}", f"Ratio to {whose}: {table.caption}", labels, columns, lines, notes=notes)


def proportion_table(found: Averages, variant: Variant, network: str, method: str = "soup") -> Table:
    """Churn in percent along a dial, and how far it is from falling in proportion to ``1 - toward_base``."""
    curves = {}
    for place, settings in found.items():
        curve = {
            float(setting.parameters["toward_base"]): 100 * average.churn
            for setting, average in settings.items()
            if setting.strategy == method and average.trials
        }
        if curve.get(0.0):
            curves[place] = curve
    steps = sorted({step for curve in curves.values() for step in curve})
    lines = []
    for place in sorted(curves, key=place_order):
        curve = curves[place]
        deviation = max(abs(churn / curve[0.0] - (1 - step)) for step, churn in curve.items())
        lines.append(((place[0],), [*(Cell(curve.get(step)) for step in steps), Cell(deviation)]))
    return Table(
        f"dial-{network}-along",
        f"Churn along the {method}'s dial in percent, by toward_base; {network}, {variant_name(variant)}",
        ("dataset",),
        (*(f"{step:g}" for step in steps), "deviation"),
        lines,
        notes=["Deviation: the greatest |churn(a) / churn(0) - (1 - a)|."],
    )


def dial_tables(rows: list[Row]) -> Iterator[tuple[Variant, Table]]:
    """Every table of the evidence that the rows fill: for each variant and network the numbers, wins, ratios, noise.

    Examples
    --------
    >>> from lowchurn.bench import dial_tables
    >>> common = dict(network="fcn-10", initial=10, validation=5, batch=10, scale=False, patience=5, loss="log")
    >>> common |= dict(epochs_limit=300, run_seed=0, one_order=False, dataset="wine", trial=0)
    >>> common |= dict(status="finished", start="warm")
    >>> rows = [
    ...     common | dict(strategy="cold", parameters={}, accuracy=0.9, churn=0.1),
    ...     common | dict(strategy="distill", parameters={"lam": 0.5, "start": "warm"}, accuracy=0.9, churn=0.04),
    ...     common | dict(strategy="soup", parameters={"members": 8, "toward_base": 0.5}, accuracy=0.9, churn=0.02),
    ... ]
    >>> tables = {table.name: table for _, table in dial_tables(rows)}
    >>> table = tables["dial-fcn-10"]
    >>> dict(zip(table.columns, map(table.cell, table.rows[0][1])))["soup"]
    '2.00'
    """
    for variant in dial_variants(rows):
        for network, some in by_network(rows).items():
            if own := of_variant(some, variant):
                yield from ((variant, table) for table in _network_tables(own, variant, network))


def by_network(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each network and initial size, by the network's name, and the size where it has others than 1000."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["network"], row["initial"]), []).append(row)
    counts = Counter(network for network, _ in groups)
    return {
        network if counts[network] == 1 or initial == 1000 else f"{network}-{initial}": some
        for (network, initial), some in sorted(groups.items())
    }


def _network_tables(rows: list[Row], variant: Variant, network: str) -> Iterator[Table]:
    """The tables of one variant, network and initial size."""
    found, trials = averages(rows), trial_rows(rows, variant)
    table = dial_table(found, variant, network)
    sticky = any(row["strategy"] == STICKY for row in rows)
    if any(cell.value is not None for _, cells in table.rows for cell in cells):
        yield from (table, win_counts(table), win_counts(that_serve(table, "1")))
        if sticky:
            yield win_counts(that_serve(table, "2"))
        yield from (ratio_table(table), ratio_table(table, BEST))
        if sticky and DIAL in table.columns:
            yield ratio_table(table, DIAL)
    noise = [paired_table(found, trials, variant, network), resampled_table(trials, variant, network)]
    if sticky:
        noise.append(noise_table(trials, variant, network))
        noise += [against_table(found, trials, variant, network, one) for one in (REFERENCE, BEST, DIAL)]
    yield from (one for one in (*noise, proportion_table(found, variant, network)) if one.rows)


def along_the_dial(rows: Iterable[Row] | Averages, variant: Variant, network: str | None = None) -> list[Row]:
    """Accuracy and churn in percent of the soup along its dial, of distillation's settings and of the cold start."""
    positions = {"cold": "", "soup": "toward_base", "distill": "lam"}
    points: list[Row] = []
    for place, settings in sorted(dial_averages(rows, variant, network).items()):
        if not any(setting.strategy == "soup" for setting in settings):
            continue
        for setting, average in settings.items():
            name, known = setting.strategy, setting.parameters
            if name not in positions or not average.trials:
                continue
            points.append(
                {
                    "dataset": place[0],
                    "network": place[1],
                    "series": {"cold": "cold start", "soup": "soup"}.get(name) or f"distill, {known['start']} start",
                    "setting": float(known.get(positions[name], 0.0)),
                    "accuracy": 100 * average.accuracy,
                    "churn": 100 * average.churn,
                }
            )
    return points
