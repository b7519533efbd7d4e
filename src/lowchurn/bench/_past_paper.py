"""The evidence for what is past the paper: tables of all methods beside its distillation, ratios to it, and the noise.

A method may start warm or cold here, whichever is the better: distillation is its best of both starts.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from lowchurn._display import setting_words
from lowchurn.bench._segments import FINISHED, Row, Setting, setting_of
from lowchurn.bench._tables import (
    METHODS,
    VARIANT,
    Averages,
    Cell,
    Settings,
    Table,
    Variant,
    averages,
    cold_accuracy_table,
    of_variant,
    place_of,
    place_order,
    variant_name,
    win_counts,
)
from lowchurn.metrics import standard_error

TrialRows = dict[tuple, dict[Setting, dict[int, Row]]]  # (data set, network, sizes) -> setting -> trial

REFERENCE = "distill"
BEST = "best of the paper"  # in the place of a reference: the least of the paper's methods, row by row
BOTH = "both"  # in the place of a variant's start
COLD = Setting("cold")
# The columns of the evidence: strategies, and "two-teachers soup" for several students that are averaged.
COLUMNS = (
    *METHODS,
    "soup",
    "interpolate",
    "two-teachers",
    "two-teachers soup",
    "served-mix",
    "focal",
    "dissonance",
    "constrained",
    "local-ls",
)
SERVE_SEVERAL = ("served-mix",)  # the base and all members answer every request
RESAMPLES = 2000
PAST = set(COLUMNS) - set(METHODS)


def column_of(setting: Setting) -> str:
    """The column of the evidence that a setting belongs to."""
    if setting.strategy == "two-teachers" and setting.parameters["students"] != 1:
        return "two-teachers soup"
    return setting.strategy


def dial_variants(rows: Iterable[Row]) -> list[Variant]:
    """Every combination of scale, patience, loss, epochs and seed in which there is a method past the paper."""
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
        place: {s._replace(strategy=column_of(s)): a for s, a in settings.items() if column_of(s) in COLUMNS}
        for place, settings in dial_averages(rows, variant, network).items()
        if any(setting.strategy in PAST for setting in settings)
    }
    there = {setting.strategy for settings in found.values() for setting in settings} | {REFERENCE}
    table = cold_accuracy_table(found, variant, methods=tuple(name for name in COLUMNS if name in there))
    single = sum(
        len({setting.parameters["start"] for setting in settings if setting.strategy == REFERENCE}) == 1
        for settings in found.values()
    )
    more = [f"In {single} of {len(found)} rows distillation was run from one start only."] if single else []
    caption = "Past the paper: churn at cold accuracy in percent, each method from its better start; "
    name = "dial" if network is None else f"dial-{network}"
    return dataclasses.replace(table, name=name, caption=caption + variant_name(variant), notes=[*table.notes, *more])


def one_model(table: Table) -> Table:
    """A :func:`dial_table` without the methods that serve several models instead of one."""
    kept = [k for k, name in enumerate(table.columns) if name not in SERVE_SEVERAL]
    return dataclasses.replace(
        table,
        name=f"{table.name}-one",
        caption=f"Methods that serve one model; {table.caption}",
        columns=tuple(table.columns[k] for k in kept),
        rows=[(labels, [cells[k] for k in kept]) for labels, cells in table.rows],
    )


def ratio_table(table: Table, reference: str = REFERENCE) -> Table:
    """How the methods of a :func:`dial_table` compare with one of them, or with the best of the paper's in each row.

    The ratio of churns over the rows in which both are defined and above zero: its geometric mean, and its median,
    which one row with hardly any churn cannot move.
    """
    if reference == BEST:
        paper = [k for k, name in enumerate(table.columns) if name in METHODS]
        tried = [[v for k in paper if (v := cells[k].value) is not None] for _, cells in table.rows]
        references = [min((v for v in some if v == v), default=math.nan) if some else None for some in tried]
    else:
        references = [cells[table.columns.index(reference)].value for _, cells in table.rows]
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
        lines.append(((method, *counts), [Cell(mean), Cell(median)]))
    notes = ["N/A in a table means that no setting is as accurate on average as the cold start."]
    notes += [f"{zeros} comparisons with a churn of zero are left out of mean and median."] if zeros else []
    short, whose, ending = (
        ("best", "the best churn of the paper's methods", "best-ratio")
        if reference == BEST
        else (reference, "distillation's churn", "ratio")
    )
    labels = ("method", "rows compared", "lower in", "only this defined", f"only {short} defined", "neither defined")
    columns = ("geometric mean", "median")
    return Table(f"{table.name}-{ending}", f"Ratio to {whose}: {table.caption}", labels, columns, lines, notes=notes)


def chosen_setting(settings: Settings, column: str) -> Setting | None:
    """The setting behind a cell of a :func:`dial_table`: the least churn among those as accurate as the cold start."""
    cold = settings[COLD].accuracy - 1e-12
    able = [(a.churn, s.words, s) for s, a in settings.items() if column_of(s) == column and a.accuracy >= cold]
    return min(able)[-1] if able else None


def paired_table(found: Averages, trials: TrialRows, variant: Variant, network: str, method: str = "soup") -> Table:
    """A method's churn at cold accuracy less distillation's, with the standard error over the trials' differences."""
    # The error does not contain that the settings were chosen on these trials: see resampled_table.
    lines = []
    for place in sorted(trials, key=place_order):
        settings = found[place]
        pair = [chosen_setting(settings, name) for name in (REFERENCE, method)]
        means = [100 * settings[one].churn if one else math.nan for one in pair]
        difference, error = math.nan, math.nan
        if pair[0] and pair[1]:
            reference, own = (trials[place][one] for one in pair if one)
            gaps = [100 * (own[t]["churn"] - reference[t]["churn"]) for t in sorted(own.keys() & reference.keys())]
            difference, error = float(np.mean(gaps)), standard_error(gaps)
        # The number of members is the same all over the table.
        shown = [setting_words({k: v for k, v in one.items if k != "members"}) if one else "none" for one in pair]
        lines.append(((place[0], *shown), [Cell(v) for v in (*means, difference, error)]))
    caption = f"{method.capitalize()} less distillation, trial by trial: churn at cold accuracy in percent; "
    return Table(
        f"dial-{network}-paired",
        f"{caption}{network}, {variant_name(variant)}",
        ("dataset", "setting of distill", f"setting of {method}"),
        ("distill", method, "difference", "standard error"),
        lines,
        notes=["N/A: no setting is as accurate on average as the cold start."],
    )


def resampled_table(trials: TrialRows, variant: Variant, network: str, method: str = "soup") -> Table:
    """How often each method is better, the choice of settings made anew, when trials are drawn with replacement."""
    lines = []
    for place in sorted(trials, key=place_order):
        settings = trials[place]
        common = sorted(set.intersection(*(set(some) for some in settings.values())))
        if not common:  # nothing to draw from: there are numbers, but none of the same trial
            lines.append(((place[0],), [Cell(None)] * 4))
            continue
        draws = np.random.default_rng(0).multinomial(len(common), [1 / len(common)] * len(common), size=RESAMPLES)
        accuracy, churn = (
            {s: draws @ np.array([some[t][name] for t in common]) / len(common) for s, some in settings.items()}
            for name in ("accuracy", "churn")
        )
        cold = accuracy[COLD] - 1e-12
        theirs, own = (
            np.min([np.where(accuracy[s] >= cold, churn[s], np.inf) for s in settings if column_of(s) == name], axis=0)
            for name in (REFERENCE, method)
        )
        # Better: defined with less churn, or defined where the other one is not.
        values = (own < theirs, theirs < own, np.isinf(own), np.isinf(theirs))
        lines.append(((place[0],), [Cell(100 * float(value.mean())) for value in values]))
    return Table(
        f"dial-{network}-resampled",
        f"Trials drawn again {RESAMPLES} times, share of draws in percent; {network}, {variant_name(variant)}",
        ("dataset",),
        (f"{method} better", "distill better", f"{method} N/A", "distill N/A"),
        lines,
        decimals=0,
    )


def trial_rows(rows: Iterable[Row], variant: Variant, network: str) -> TrialRows:
    """The finished rows of each place, setting and trial, where distillation and a soup were run."""
    found: TrialRows = {}
    for row in of_variant(rows, variant):
        if row["status"] == FINISHED and row["network"] == network:
            found.setdefault(place_of(row), {}).setdefault(setting_of(row), {})[row["trial"]] = row
    needed = {"cold", REFERENCE, "soup"}
    return {place: settings for place, settings in found.items() if needed <= {s.strategy for s in settings}}


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
    >>> common |= dict(epochs_limit=300, run_seed=0, dataset="wine", trial=0, status="finished", start="warm")
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
        networks: dict[str, list[Row]] = {}
        for row in of_variant(rows, variant):
            networks.setdefault(row["network"], []).append(row)
        for network, some in sorted(networks.items()):
            found, trials = averages(some), trial_rows(some, variant, network)
            table = dial_table(found, variant, network)
            if any(cell.value is not None for _, cells in table.rows for cell in cells):
                wins = win_counts(table), win_counts(one_model(table))
                yield from ((variant, one) for one in (table, *wins, ratio_table(table), ratio_table(table, BEST)))
            noise = paired_table(found, trials, variant, network), resampled_table(trials, variant, network)
            yield from ((variant, one) for one in (*noise, proportion_table(found, variant, network)) if one.rows)


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
