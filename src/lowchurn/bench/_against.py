"""A method against another, trial by trial and with trials drawn again: how much of a difference is noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lowchurn._display import setting_words
from lowchurn.bench._columns import (
    BEST,
    COLD,
    DIAL,
    REFERENCE,
    STICKY,
    column_of,
    columns_of,
    in_order,
    paper_note,
    served,
)
from lowchurn.bench._segments import FINISHED, Row, Setting, setting_of
from lowchurn.bench._tables import (
    Averages,
    Cell,
    Settings,
    Table,
    Variant,
    of_variant,
    place_of,
    place_order,
    variant_name,
)
from lowchurn.metrics import standard_error

SettingRows = dict[Setting, dict[int, Row]]  # setting -> trial
TrialRows = dict[tuple, SettingRows]  # (data set, network, sizes)

RESAMPLES = 2000
WORDS = {REFERENCE: "distillation", BEST: "the best of the paper", DIAL: "the soup"}
UNDEFINED = "N/A: no setting is as accurate on average as the cold start."


def trial_rows(rows: Iterable[Row], variant: Variant) -> TrialRows:
    """The finished rows of each place, setting and trial, where distillation and a soup were run."""
    found: TrialRows = {}
    for row in of_variant(rows, variant):
        if row["status"] == FINISHED:
            found.setdefault(place_of(row), {}).setdefault(setting_of(row), {})[row["trial"]] = row
    needed = {"cold", REFERENCE, DIAL}
    return {place: settings for place, settings in found.items() if needed <= {s.strategy for s in settings}}


def chosen_setting(settings: Settings, columns: Sequence[str]) -> Setting | None:
    """The setting behind a cell of a table: the least churn among those as accurate as the cold start."""
    cold = settings[COLD].accuracy - 1e-12
    able = [(a.churn, s.words, s) for s, a in settings.items() if column_of(s) in columns and a.accuracy >= cold]
    return min(able)[-1] if able else None


class _Pair(NamedTuple):
    """The settings of a reference and of a method that are compared, in words, and what is measured of them."""

    settings: tuple[str, str]
    values: tuple[float, float, float, float]  # churn of both, its difference, the error of this


def _paired(settings: Settings, trials: SettingRows, reference: str, method: str) -> _Pair:
    pair = [chosen_setting(settings, columns_of(name)) for name in (reference, method)]
    theirs, own = (100 * settings[one].churn if one else math.nan for one in pair)
    difference, error = math.nan, math.nan
    if pair[0] and pair[1]:
        before, after = (trials[one] for one in pair if one)
        gaps = [100 * (after[t]["churn"] - before[t]["churn"]) for t in sorted(after.keys() & before.keys())]
        difference, error = float(np.mean(gaps)), standard_error(gaps)
    return _Pair((_in_words(pair[0], reference), _in_words(pair[1], method)), (theirs, own, difference, error))


def _in_words(setting: Setting | None, column: str) -> str:
    """What differs among the settings of a column; the number of members is the same all over it."""
    if setting is None:
        return "none"
    known = setting.parameters
    if setting.strategy == STICKY:
        known = {name: known[name] for name in ("margin", *["toward_base"] * bool(known["toward_base"]))}
    words = setting_words({name: value for name, value in known.items() if name != "members"})
    return " ".join(filter(None, (column_of(setting) if column == BEST else "", words)))


def paired_table(found: Averages, trials: TrialRows, variant: Variant, network: str, method: str = DIAL) -> Table:
    """A method's churn at cold accuracy less distillation's, with the standard error over the trials' differences."""
    # The error does not contain that the settings were chosen on these trials: see resampled_table.
    lines = []
    for place in sorted(trials, key=place_order):
        pair = _paired(found[place], trials[place], REFERENCE, method)
        lines.append(((place[0], *pair.settings), [Cell(v) for v in pair.values]))
    caption = f"{method.capitalize()} less distillation, trial by trial: churn at cold accuracy in percent; "
    return Table(
        f"dial-{network}-paired",
        f"{caption}{network}, {variant_name(variant)}",
        ("dataset", "setting of distill", f"setting of {method}"),
        ("distill", method, "difference", "standard error"),
        lines,
        notes=[UNDEFINED],
    )


def drawn_again(settings: SettingRows, columns: Iterable[str]) -> dict[str, np.ndarray]:
    """Churn at cold accuracy of columns when trials are drawn with replacement, settings chosen anew in each draw.

    Infinite in draws in which it is undefined. Empty where there is no trial that all of their settings have.
    """
    names = set(columns)
    some = {s: rows for s, rows in settings.items() if s == COLD or column_of(s) in names}
    common = sorted(set.intersection(*(set(rows) for rows in some.values())))
    if not common:
        return {}
    draws = np.random.default_rng(0).multinomial(len(common), [1 / len(common)] * len(common), size=RESAMPLES)

    def means(setting: Setting, name: str) -> np.ndarray:
        return np.asarray(draws @ np.array([some[setting][t][name] for t in common]) / len(common))

    cold = means(COLD, "accuracy") - 1e-12
    least = {name: np.full(RESAMPLES, np.inf) for name in names}
    for setting in some:
        if (name := column_of(setting)) in names:
            able = np.where(means(setting, "accuracy") >= cold, means(setting, "churn"), np.inf)
            least[name] = np.minimum(least[name], able)
    return least


def _compared(theirs: np.ndarray, own: np.ndarray) -> list[Cell]:
    """In how many draws each is better, with less churn or defined where the other is not, and undefined."""
    values = (own < theirs, theirs < own, np.isinf(own), np.isinf(theirs))
    return [Cell(100 * float(value.mean())) for value in values]


def resampled_table(trials: TrialRows, variant: Variant, network: str, method: str = DIAL) -> Table:
    """How often each method is better, the choice of settings made anew, when trials are drawn with replacement."""
    lines = []
    for place in sorted(trials, key=place_order):
        least = drawn_again(trials[place], (REFERENCE, method))
        # Without a draw there are numbers, but none of the same trial.
        lines.append(((place[0],), _compared(least[REFERENCE], least[method]) if least else [Cell(None)] * 4))
    return Table(
        f"dial-{network}-resampled",
        f"Trials drawn again {RESAMPLES} times, share of draws in percent; {network}, {variant_name(variant)}",
        ("dataset",),
        (f"{method} better", "distill better", f"{method} N/A", "distill N/A"),
        lines,
        decimals=0,
    )


def _columns_in(trials: TrialRows) -> tuple[str, ...]:
    return in_order({column_of(s) for settings in trials.values() for s in settings})


def _sticky_in(trials: TrialRows) -> tuple[str, ...]:
    return in_order({column_of(s) for settings in trials.values() for s in settings if s.strategy == STICKY})


def against_table(found: Averages, trials: TrialRows, variant: Variant, network: str, reference: str) -> Table:
    """Every estimate of sticky against a reference, data set by data set: paired, and with trials drawn again."""
    lines, methods = [], _sticky_in(trials)
    least = {place: drawn_again(trials[place], (*methods, *columns_of(reference))) for place in trials}
    for method in methods:
        for place in sorted(trials, key=place_order):
            if method not in {column_of(s) for s in trials[place]}:
                continue
            pair, drawn = _paired(found[place], trials[place], reference, method), least[place]
            shares = _compared(_least(drawn, reference), drawn[method]) if drawn else [Cell(None)] * 4
            labels = (method, served(method), place[0], *pair.settings)
            lines.append((labels, [*(Cell(v) for v in pair.values), *shares]))
    short = "best" if reference == BEST else reference
    shown = ("better", f"{short} better", "N/A", f"{short} N/A")
    return Table(
        f"dial-{network}-sticky-{short}",
        f"Sticky less {WORDS[reference]}, trial by trial, in points of churn at cold accuracy, and share of "
        f"{RESAMPLES} draws of the trials in percent; {network}, {variant_name(variant)}",
        ("method", "models served", "dataset", f"setting of {short}", "setting"),
        (short, "sticky", "difference", "standard error", *shown),
        lines,
        notes=[UNDEFINED, *(paper_note(_columns_in(trials)) if reference == BEST else [])],
    )


def _least(drawn: dict[str, np.ndarray], reference: str) -> np.ndarray:
    return np.asarray(np.min([drawn[name] for name in columns_of(reference)], axis=0))


def noise_table(trials: TrialRows, variant: Variant, network: str) -> Table:
    """Geometric means of ratios over the data sets with intervals: trials drawn again, settings chosen anew."""
    lines, methods = [], (DIAL, *_sticky_in(trials))
    columns = {name for reference in WORDS for name in columns_of(reference)} | set(methods)
    least = [drawn for settings in trials.values() if (drawn := drawn_again(settings, columns))]
    for method in methods if least else ():
        for reference in WORDS:
            if method == reference:
                continue
            own = np.stack([drawn[method] for drawn in least])
            theirs = np.stack([_least(drawn, reference) for drawn in least])
            both = np.isfinite(own) & np.isfinite(theirs) & (own > 0) & (theirs > 0)
            logs = np.log(np.where(both, own, 1.0)) - np.log(np.where(both, theirs, 1.0))
            counts = both.sum(axis=0)
            ratios = np.exp(logs.sum(axis=0)[counts > 0] / counts[counts > 0])
            low, middle, high = np.quantile(ratios, [0.025, 0.5, 0.975]) if len(ratios) else [math.nan] * 3
            values = (low, middle, high, 100 * float((ratios < 1).mean()) if len(ratios) else math.nan, counts.mean())
            lines.append(((method, served(method), WORDS[reference]), [Cell(float(v)) for v in values]))
    return Table(
        f"dial-{network}-resampled-ratio",
        f"Geometric mean over the data sets of the ratio of churns at cold accuracy, trials drawn again {RESAMPLES} "
        f"times; {network}, {variant_name(variant)}",
        ("method", "models served", "against"),
        ("2.5 %", "median", "97.5 %", "below 1, %", "data sets compared"),
        lines,
        notes=[
            f"Of {len(least)} data sets; in each draw those in which both are defined and above zero.",
            *paper_note(_columns_in(trials)),
        ],
    )
