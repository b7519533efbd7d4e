"""Tables as pure functions of the store's rows.

A cell is a number, "N/A" where no setting is as accurate as the cold start, "missing" where a method has no rows, "not
run" where nothing has, and carries the number of its trials where these are fewer than the table's.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lowchurn.bench._datasets import BY_NAME
from lowchurn.bench._paper import METRIC, PaperTable, printed
from lowchurn.bench._segments import FINISHED, Row, Setting, setting_of
from lowchurn.bench._store import Store
from lowchurn.bench._within import CHOICES
from lowchurn.metrics import churn_at_cold_accuracy, standard_error
from lowchurn.strategies import PAPER, STARTS

METHODS = tuple(cls.name for cls in PAPER)
# What must be the same in all rows of a table; the rest of a key is its rows, its methods and its trials.
VARIANT = ("scale", "patience", "loss", "epochs_limit", "run_seed", "one_order")
PLACE = ("dataset", "network", "initial", "validation", "batch")
# Parameters that tables read of the rows of a strategy: where it starts, or numbers.
READ = {
    "distill": ("start", "lam"),
    "soup": ("toward_base",),
    "interpolate": ("toward_base",),
    "two-teachers": ("students",),
    "anchor-to-distill": ("share",),
    "sticky": ("members", "margin", "start", "average", "toward_base"),
    "within": ("method", "max_churn"),
}
# Values of those that are words; a sticky setting may have members from both starts.
WORDS = {"start": STARTS, "average": ("proba", "weights"), "method": tuple(CHOICES)}
LABELS = ("dataset", "network", "sizes")
ALL_NETWORKS = "all"
# What has a meaning in Markdown and in LaTeX; names of data sets may contain anything.
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|<`*["})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
_ORDER = {name: i for i, name in enumerate(BY_NAME)}


@dataclass(frozen=True)
class Average:
    """A setting's accuracy and churn over its finished trials, with their standard errors."""

    accuracy: float
    churn: float
    accuracy_error: float
    churn_error: float
    trials: int
    failed: int


@dataclass(frozen=True)
class Cell:
    """A number and the least number of trials behind it; NaN is "N/A", None "missing", or "not run" with the rest."""

    value: float | None
    trials: int = 0
    ran: bool = True

    @property
    def plain(self) -> str:
        """The number in full; empty is N/A."""
        if self.value is None:
            return "missing" if self.ran else "not run"
        return "" if math.isnan(self.value) else repr(self.value)


NOT_RUN = Cell(None, ran=False)


def trials_of(cells: Sequence[Cell]) -> int:
    """The trials of a row: the most of its cells."""
    return max((cell.trials for cell in cells), default=0)


@dataclass(frozen=True)
class Table:
    """Labels, columns and cells, ready to be written in any form."""

    name: str
    caption: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    rows: Sequence[tuple[tuple[str, ...], list[Cell]]]
    trials: int = 0
    decimals: int = 2
    bold: Callable[[list[Cell]], set[int]] | None = None
    notes: list[str] = field(default_factory=list)

    def cell(self, cell: Cell, trials: int = 0) -> str:
        """A cell in words, with the number of its trials where that is below the one given."""
        if cell.value is None:
            return cell.plain
        shown = "N/A" if math.isnan(cell.value) else f"{cell.value:.{self.decimals}f}"
        return f"{shown} [{cell.trials}]" if 0 < cell.trials < trials else shown

    @property
    def heads(self) -> tuple[str, ...]:
        """What stands above the labels of the rows; the trials are among these where some rows have fewer."""
        uneven = any(0 < trials_of(cells) < self.trials for _, cells in self.rows)
        return (*self.labels, "trials") if uneven else self.labels

    def lines(self) -> list[tuple[tuple[str, ...], list[str], set[int]]]:
        """Of each row its labels, its cells in words, and which of them are best."""
        found = []
        for labels, cells in self.rows:
            trials = trials_of(cells)
            own = (str(trials or ""),) if len(self.heads) > len(self.labels) else ()
            shown = [self.cell(cell, trials) for cell in cells]
            found.append(((*labels, *own), shown, self.bold(cells) if self.bold else set()))
        return found

    def _lines(self, mark: Callable[[str], str], escape: dict[int, str]) -> list[list[str]]:
        return [
            [*(text.translate(escape) for text in labels), *(mark(c) if i in best else c for i, c in enumerate(shown))]
            for labels, shown, best in self.lines()
        ]

    def markdown(self) -> str:
        """GitHub's Markdown, the best of each row in bold."""
        head = [*self.heads, *self.columns]
        align = ["---"] * len(self.labels) + ["--:"] * (len(head) - len(self.labels))
        lines = [head, align, *self._lines(lambda text: f"**{text}**", _MARKDOWN)]
        body = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return f"**{self.caption}**\n\n{body}\n{notes}"

    def latex(self) -> str:
        """A LaTeX table of the booktabs kind."""
        lines = self._lines(lambda text: rf"\textbf{{{text}}}", _LATEX)
        body = " \\\\\n".join(" & ".join(line) for line in lines)
        heads = (*self.heads, *self.columns)
        head = " & ".join(text.translate(_LATEX) for text in heads)
        form = "l" * len(self.labels) + "r" * (len(heads) - len(self.labels))
        caption = " ".join([self.caption, *self.notes]).translate(_LATEX)
        return (
            f"\\begin{{table}}\n\\centering\n\\begin{{tabular}}{{{form}}}\n\\toprule\n{head} \\\\\n\\midrule\n"
            f"{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n\\caption{{{caption}}}\n\\end{{table}}\n"
        )

    def csv(self) -> str:
        """Plain numbers in full; empty is N/A, the rest is said in words; the trials of each cell beside it."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.labels, *(name for column in self.columns for name in (column, f"{column} trials"))])
        for labels, cells in self.rows:
            writer.writerow([*labels, *(value for cell in cells for value in (cell.plain, cell.trials))])
        return text.getvalue()


Variant = dict[str, Any]  # the values of VARIANT, and a start
Settings = dict[Setting, Average]
Averages = dict[tuple, Settings]


def table_rows(store: Store) -> list[Row]:
    """The rows of a store, read once; an error where no table can be made of them."""
    rows = store.rows()
    if not rows:
        raise ValueError(f"bench: the store {store.folder} contains no rows. Fill it with `lowchurn bench run`.")
    if all(row["status"] != FINISHED for row in rows):
        raise ValueError(
            f"bench: no row of the store {store.folder} is finished; the first of {len(rows)} {rows[0]['status']}. "
            "Remove the cause and run again with --retry-failed."
        )
    for row in rows:
        if not _is_sound(row):
            names = ("dataset", "network", "strategy", "parameters", "trial")
            shown = ", ".join(f"{name} {row[name]!r}" for name in names)
            raise ValueError(
                f"bench: the store {store.folder} contains a row that no run makes ({shown}, accuracy "
                f"{row['accuracy']}, churn {row['churn']}). Find its segment and move it away."
            )
    return rows


def _is_sound(row: Row) -> bool:
    """Whether a row is such as a run writes; one that was tampered with may be anything within the store's types."""
    parameters = row["parameters"]
    if not re.fullmatch(r"[a-z]+-[0-9]{1,18}", row["network"]) or (row["strategy"] == "cold" and parameters):
        return False
    words = WORDS | ({"start": (*STARTS, "both")} if row["strategy"] == "sticky" else {})
    return all(
        parameters.get(name) in words[name] if name in words else isinstance(parameters.get(name), int | float)
        for name in READ.get(row["strategy"], ())
    )


def leaves_start_open(row: Row) -> bool:
    """Whether a row stands in the tables of its start only; what sticky starts from is part of its estimate."""
    return "start" in row["parameters"] and row["strategy"] != "sticky"


def variants(rows: Iterable[Row]) -> list[Variant]:
    """Every combination of scale, patience, loss, epochs, seed, order and start in the rows.

    Examples
    --------
    >>> from lowchurn.bench import variants
    >>> row = {"scale": False, "patience": 5, "loss": "log", "epochs_limit": 300, "run_seed": 0, "start": "cold"}
    >>> row |= {"one_order": False, "strategy": "distill", "parameters": {"lam": 0.5, "start": "cold"}}
    >>> [found["start"] for found in variants([row])]
    ['cold']
    """
    found: dict[tuple, set[str]] = {}
    for row in rows:
        starts = found.setdefault(tuple(row[name] for name in VARIANT), set())
        if leaves_start_open(row):
            starts.add(row["start"])
    return [
        dict(zip(VARIANT, values, strict=True)) | {"start": start}
        for values, starts in sorted(found.items())
        for start in sorted(starts, reverse=True) or ["warm"]
    ]


def variant_name(variant: Variant) -> str:
    """A variant in a few words, such as ``raw-warm``, with what is not as in the paper."""
    usual = {"patience": 5, "loss": "log", "epochs_limit": 300, "run_seed": 0}
    words = ["scaled" if variant["scale"] else "raw", variant["start"]]
    short = {"epochs_limit": "epochs", "run_seed": "seed"}
    words += [f"{short.get(name, name)}{variant[name]}" for name in usual if variant[name] != usual[name]]
    words += ["one-order"] if variant["one_order"] else []
    return "-".join(words)


def choose(rows: Iterable[Row], variant: Variant) -> list[Row]:
    """The rows of one variant; strategies without a choice of start belong to every start of their place, if any."""
    some, start = of_variant(rows, variant), variant["start"]
    starts: dict[tuple, set[str]] = {}
    for row in some:
        if leaves_start_open(row):
            starts.setdefault(place_of(row), set()).add(row["start"])
    here = (row for row in some if start in starts.get(place_of(row), {start}))
    return [row for row in here if not leaves_start_open(row) or row["start"] == start]


def of_variant(rows: Iterable[Row], variant: Variant) -> list[Row]:
    """The rows of one variant from any start."""
    return [row for row in rows if all(row[name] == variant[name] for name in VARIANT)]


def place_of(row: Row) -> tuple:
    """The data set, the network and the sizes of a row."""
    return tuple(row[name] for name in PLACE)


def place_order(place: tuple) -> tuple:
    """Sorts data sets as the paper does, others after them by name, and networks by size."""
    dataset, network, *sizes = place
    kind, _, size = network.rpartition("-")
    return (_ORDER.get(dataset, len(_ORDER)), dataset, kind, int(size), *sizes)


def averaged(rows: Iterable[Row] | Averages, variant: Variant) -> Averages:
    """The averages of a variant's rows; averages that are made already stay what they are."""
    return rows if isinstance(rows, dict) else averages(choose(rows, variant))


def averages(rows: Iterable[Row]) -> Averages:
    """(data set, network, sizes) -> strategy and parameters -> their average over trials."""
    groups: dict[tuple, dict[Setting, list[Row]]] = {}
    for row in rows:
        groups.setdefault(place_of(row), {}).setdefault(setting_of(row), []).append(row)
    return {
        place: {setting: _average(some) for setting, some in settings.items()} for place, settings in groups.items()
    }


def _average(rows: list[Row]) -> Average:
    good = [row for row in rows if row["status"] == FINISHED]
    failed = len(rows) - len(good)
    if not good:
        return Average(math.nan, math.nan, math.nan, math.nan, 0, failed)
    accuracy, churn = ([row[name] for row in good] for name in ("accuracy", "churn"))
    errors = standard_error(accuracy), standard_error(churn)
    return Average(float(np.mean(accuracy)), float(np.mean(churn)), *errors, len(good), failed)


def at_cold_accuracy(settings: Settings, method: str) -> Cell:
    """Churn at cold accuracy of one method, in percent."""
    both = {setting: a for setting, a in settings.items() if setting.strategy in ("cold", method)}
    there = [
        {"method": setting.strategy, "setting": setting.words, "accuracy": a.accuracy, "churn": a.churn}
        for setting, a in both.items()
        if a.trials
    ]
    if {row["method"] for row in there} != {"cold", method}:
        return Cell(None)
    return Cell(100 * churn_at_cold_accuracy(there, method), min(a.trials for a in both.values()))


def cold_accuracy_table(
    rows: Iterable[Row] | Averages,
    variant: Variant,
    table: PaperTable | None = None,
    methods: Sequence[str] = METHODS,
) -> Table:
    """Churn at cold accuracy in percent, for one table of the paper or for all that is in the rows.

    Examples
    --------
    >>> from lowchurn.bench import cold_accuracy_table, variants
    >>> common = dict(network="fcn-10", initial=10, validation=5, batch=10, scale=False, patience=5, loss="log")
    >>> common |= dict(epochs_limit=300, run_seed=0, one_order=False, dataset="wine", trial=0)
    >>> common |= dict(status="finished", start="warm")
    >>> rows = [
    ...     common | dict(strategy="cold", parameters={}, accuracy=0.9, churn=0.1),
    ...     common | dict(strategy="distill", parameters={"lam": 0.5, "start": "warm"}, accuracy=0.9, churn=0.04),
    ... ]
    >>> print(cold_accuracy_table(rows, variants(rows)[0], methods=("cold", "warm", "distill")).markdown())
    **All results under churn at cold accuracy metric, in percent; raw-warm**
    <BLANKLINE>
    | dataset | network | sizes | cold | warm | distill |
    | --- | --- | --- | --: | --: | --: |
    | wine | fcn-10 | 10/5/10 | 10.00 | missing | **4.00** |
    <BLANKLINE>
    """
    found = averaged(rows, variant)
    lines: list[tuple[tuple[str, ...], list[Cell]]] = []
    failed, short = 0, False
    width = 3 if table is None else 1 + (len(table.networks) > 1)
    places = _places(found, table)
    most = max((a.trials for place in places for a in found.get(place, {}).values()), default=0)
    for place in places:
        settings = found.get(place)
        cells = [NOT_RUN if settings is None else at_cold_accuracy(settings, method) for method in methods]
        failed += sum(a.failed for (name, _), a in (settings or {}).items() if name in methods)
        short |= any(0 < cell.trials < trials_of(cells) for cell in cells)
        lines.append((_labels(place)[:width], cells))
    notes = [f"{failed} failed models are left out."] if failed else []
    notes += ["A number in brackets is that of a cell's trials, where they are fewer than its row's."] if short else []
    notes += _tuned_over_fewer(found, places, methods)
    notes += _paper_notes(found, table) if table else []
    name, caption = (table.name, table.caption) if table else ("all", f"All results {METRIC}")
    caption = f"{caption}, in percent; {variant_name(variant)}"
    return Table(name, caption, LABELS[:width], tuple(methods), lines, most, bold=_least, notes=notes)


def _tuned_over_fewer(found: Averages, places: list[tuple], methods: Sequence[str]) -> list[str]:
    """The rows whose methods were tuned over fewer settings than those of the others."""
    sizes = {place: sum(s.strategy in methods for s in found[place]) for place in places if place in found}
    most = max(sizes.values(), default=0)
    fewer: dict[int, list[str]] = {}
    for place, size in sizes.items():
        if size < most:
            fewer.setdefault(size, []).append(f"{place[0]} {place[1]}")
    return [f"Tuned over {size} settings instead of {most}: {', '.join(names)}." for size, names in fewer.items()]


def _labels(place: tuple) -> tuple[str, ...]:
    return place[0], place[1], "/".join(map(str, place[2:]))


def _places(found: Averages, table: PaperTable | None) -> list[tuple]:
    """The rows of a table: those of the store, or those of the paper with networks of which something was run.

    A data set of which nothing was run is one row, for all networks; a table of which nothing was run has none.
    """
    if table is None:
        return sorted(found, key=place_order)
    ran: dict[tuple[str, str], tuple] = {}
    for dataset in table.datasets:
        for network in table.networks:
            places = [(dataset, network, table.initial, rows, 1000) for rows in table.validation]
            ran |= {place[:2]: place for place in reversed(places) if place in found}
    networks = [n for n in table.networks if any(network == n for _, network in ran)]
    there = {dataset for dataset, _ in ran}
    sizes = (table.initial, table.validation[0], 1000)
    return [
        ran.get((dataset, network), (dataset, network, *sizes))
        for dataset in (table.datasets if ran else ())
        for network in (networks if dataset in there else [ALL_NETWORKS])
    ]


def _paper_notes(found: Averages, table: PaperTable) -> list[str]:
    """The trials and error bands of a table of the paper, and where it is not as in the paper."""
    places = [place for place in _places(found, table) if place in found]
    absent = [n for n in table.networks if places and n not in {place[1] for place in places}]
    notes = [f"Not run: {', '.join(absent)}."] if absent else []
    fewer = {place[3] for place in places} - {table.validation[0]}
    for rows in sorted(fewer):
        some = dict.fromkeys(place[0] for place in places if place[3] == rows)
        notes.append(f"Stopped on {rows} validation rows instead of {table.validation[0]}: {', '.join(some)}.")
    counts = [most for place in places if (most := max(a.trials for a in found[place].values()))]
    bands = [cells for place in places if (cells := _bands(found[place]))[0].value is not None]
    trials = [f"{_span(counts, '{:g}')} trial{'s' * (max(counts) > 1)}."] if counts else []
    if bands:
        error, churn = (_span([cells[k].value or 0.0 for cells in bands], "{:.2f}") for k in range(2))
        words = "averaged over settings" + (", where there are two trials or more" if len(bands) < len(counts) else "")
        trials += [f"Standard errors, {words}: error {error}, churn {churn} points."]
    return [*notes, " ".join(trials)] if trials else notes


def _span(values: Sequence[float], form: str) -> str:
    """The least and the largest of some numbers in words."""
    return " to ".join(dict.fromkeys(form.format(value) for value in (min(values), max(values))))


def _least(cells: list[Cell]) -> set[int]:
    """The best cells of a row, as the reader sees them: ties in the second decimal are ties."""
    values = {i: round(c.value, 2) for i, c in enumerate(cells) if c.value is not None and not math.isnan(c.value)}
    return {i for i, value in values.items() if value == min(values.values())} if len(values) > 1 else set()


def error_bands(rows: Iterable[Row] | Averages, variant: Variant, table: PaperTable | None = None) -> Table:
    """Standard errors of error and churn in percent, averaged over all settings of all methods but sticky's."""
    found = averaged(rows, variant)
    width = 3 if table is None else 2
    lines = [
        (_labels(place)[:width], _bands(found[place]) if place in found else [NOT_RUN, NOT_RUN])
        for place in _places(found, table)
    ]
    caption = f"{table.caption if table else 'All results'}: mean standard errors in percent; {variant_name(variant)}"
    name = f"{table.name if table else 'all'}-errors"
    return Table(name, caption, LABELS[:width], ("error", "churn"), lines, decimals=3)


def _bands(settings: Settings) -> list[Cell]:
    """The mean standard errors of error and churn in percent over the settings with more than one trial."""
    # The many margins of sticky would outweigh all others.
    some = [a for s, a in settings.items() if a.trials > 1 and s.strategy not in ("sticky", "within")]
    trials = min((a.trials for a in some), default=0)
    names = ("accuracy_error", "churn_error")
    return [Cell(100 * float(np.mean([getattr(a, name) for a in some])) if some else None, trials) for name in names]


def win_counts(table: Table, paper: PaperTable | None = None) -> Table:
    """How often each method has the least churn, in percent of the rows; ties count for each."""
    scored = [_least(cells) for _, cells in table.rows if _least(cells)]
    cells = [
        Cell(100 * sum(i in best for best in scored) / len(scored) if scored else None, len(scored))
        for i in range(len(table.columns))
    ]
    notes = [f"{len(scored)} of {paper.size if paper else len(table.rows)} rows can be compared."]
    few = sum(bool(_least(cells)) and any(0 < cell.trials < table.trials for cell in cells) for _, cells in table.rows)
    notes += [f"{few} of them from fewer than {table.trials} trials."] if few else []
    if paper is not None:
        gaps = sum(bool(_least(cells)) and any(cell.value is None for cell in cells) for _, cells in table.rows)
        notes += [f"In {gaps} of them methods are missing."] if gaps else []
        notes += [f"The paper: distillation is best {paper.claim}."] if paper.claim else []
    caption = f"Share of rows, in percent, in which a method is best: {table.caption}"
    return Table(f"{table.name}-wins", caption, ("",), table.columns, [(("best",), cells)], decimals=1, notes=notes)


def beside_the_paper(table: Table) -> Table | None:
    """Our numbers and the paper's, where it prints them: ``ours / the paper's``."""
    numbers = printed().get(table.name)
    if numbers is None:
        return None
    lines = [
        (labels, [c for name, cell in zip(table.columns, cells, strict=True) for c in (cell, Cell(theirs[name]))])
        for labels, cells in table.rows
        if (theirs := numbers.get(labels[0])) is not None
    ]
    columns = tuple(c for name in table.columns for c in (name, f"{name}, paper"))
    caption = f"Beside the paper's numbers: {table.caption}"
    return Table(f"{table.name}-paper", caption, table.labels, columns, lines, table.trials, notes=table.notes)


def ablation_table(rows: Iterable[Row] | Averages, variant: Variant) -> Table:
    """Churn at cold accuracy as the true label replaces the distilled one on more of the base's wrong rows."""
    found = averaged(rows, variant)
    by_share: dict[tuple, dict[float, Settings]] = {}
    for place, settings in found.items():
        for setting, average in settings.items():
            if setting.strategy == "anchor-to-distill":
                share = float(setting.parameters["share"])
                by_share.setdefault(place, {}).setdefault(share, {})[setting] = average
    columns = sorted({share for shares in by_share.values() for share in shares})
    lines = []
    for place in sorted(by_share, key=place_order):
        cold = {setting: a for setting, a in found[place].items() if setting.strategy == "cold"}
        cells = [at_cold_accuracy(by_share[place].get(s, {}) | cold, "anchor-to-distill") for s in columns]
        lines.append((_labels(place)[:2], cells))
    caption = "From distillation (0) to the anchor method (1): churn at cold accuracy in percent by the share of the "
    caption += f"base's wrong rows that get the true label; {variant_name(variant)}"
    return Table("ablation", caption, ("dataset", "network"), tuple(f"{s:g}" for s in columns), lines)
