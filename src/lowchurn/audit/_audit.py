"""From two tables of predictions to an :class:`Audit`: read, refuse what is wrong, count, infer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, overload

from lowchurn.audit import _counts as counts
from lowchurn.audit._columns import Columns, resolve
from lowchurn.audit._exact import NULL, kind_of
from lowchurn.audit._inference import Design, judge_slices, tallies
from lowchurn.audit._joins import Column, Table, known_values
from lowchurn.audit._number_columns import resolve_numbers
from lowchurn.audit._number_result import NumberAudit
from lowchurn.audit._numbers import count_numbers
from lowchurn.audit._pairs import EXAMPLES, Joined, check_classes, join_tables
from lowchurn.audit._probabilities import soft_estimates
from lowchurn.audit._provenance import describe_audit, describe_source
from lowchurn.audit._result import Audit, Shift
from lowchurn.audit._settings import NAMES, Origin, Settings
from lowchurn.audit._sources import Engine, Fetched, Opened, TableLike

MOST_VALUES = 1_000  # of a slice column; nobody reads a table of more slices
MOST_NUMBERS = 30  # distinct numbers that are slices of their own; more are cut into bins
BINS = 10
# Labels that are likely to be words for no label.
MISSING_LABELS = ("NA", "N/A", "n/a", "na", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "\\N", "?", "-", ".")


@overload
def audit(
    old: TableLike, new: TableLike, id: str | Sequence[str] = "id", *, value: str | Sequence[str], **settings: Any
) -> NumberAudit: ...
@overload
def audit(
    old: TableLike,
    new: TableLike,
    id: str | Sequence[str] = "id",
    label: str | None = None,
    by: str | Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    **settings: Any,
) -> Audit: ...
def audit(  # type: ignore[misc]  # the overloads do not repeat the settings that they share
    old: TableLike,
    new: TableLike,
    id: str | Sequence[str] = "id",
    label: str | None = None,
    by: str | Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    *,
    prediction: str | Sequence[str | None] | None = None,
    score: str | Sequence[str | None] | None = None,
    threshold: float | Sequence[float] = 0.5,
    proba: Sequence[str] | Mapping[Any, str] | None = None,
    classes: Sequence[object] | None = None,
    features: str | Sequence[str] = (),
    value: str | Sequence[str] | None = None,
    target: str | None = None,
    loss: str | Sequence[str] | None = None,
    gain: str | Sequence[str] | None = None,
    tolerance: float = 0.0,
    relative: bool = False,
    on_mismatch: str = "error",
    confidence: float = 0.95,
    bootstrap: int = 1000,
    sample: int = 300,
    seed: int = 0,
    memory_limit: str | None = None,
    threads: int | None = None,
    temp_directory: str | None = None,
    old_name: str | None = None,
    new_name: str | None = None,
    partitions: bool = False,
    remote: bool = False,
    views: bool = False,
) -> Audit | NumberAudit:
    """Report what changed between two versions of a model, from their predictions on the same rows.

    Parameters
    ----------
    old, new : path, pandas, polars or pyarrow table, Hugging Face dataset, DuckDB relation or Ibis table
        The predictions of the model in production and of the candidate. Paths may be Parquet (a file, a folder or
        a pattern), CSV or ``"file.duckdb::table"``.
    id : str or list of str, default "id"
        The key columns. Rows are joined on them, never on position.
    label : str, optional
        The truth, in either table or both; may be missing for some rows.
    by : str or list of str, optional
        Columns whose values are slices. Numbers with more than 30 values are cut into ten bins.
    weight, group : str, optional
        Weights of the rows; and a column that is equal in rows that belong together (a customer, a day), so that
        intervals do not take them for independent.
    prediction : str or (str, str), optional
        Column of decided labels; a pair where the tables name it differently. By default a column with one of the
        usual names, or the only column left.
    score, threshold : optional
        A column of scores of the second class, and the threshold from which on it is decided for.
    proba : list of str or mapping of class to str, optional
        One column of probabilities per class; by default those named ``proba_...``.
    classes : list, optional
        The classes that ``proba`` stands for, or the negative and the positive one of a score.
    features : str or list of str, optional
        Further columns in which to look for drivers of change.
    value : str or (str, str), optional
        Column of numbers, where outcomes are numbers and not decisions: a forecast, an estimate, a grade. By default
        the column of ``loss`` or ``gain``.
    target : str, optional
        The true numbers, in either table or both; may be missing for some rows. The loss is the absolute error.
    loss, gain : str or (str, str), optional
        Instead of a target: a column of each table with what a row costs, or with what it brings (more is better).
    tolerance, relative : optional
        Moves of up to ``tolerance`` (default 0), or with ``relative`` of up to this share of the old number, are not
        counted as moved; losses that change by up to as much are neither worse nor better. Of a ``loss`` or ``gain``
        with ``relative`` it is a share of the old loss. From an old number of 0 every relative move counts.
    on_mismatch : {"error", "inner"}, default "error"
        What to do about ids that are missing, repeated or without a decision on one side: refuse, or judge the
        rows that are sound on both sides and note how many were left out.
    confidence : float, default 0.95
        Of every interval.
    bootstrap : int, default 1000
        Draws, for figures that rest on probabilities.
    sample : int, default 300
        Changed rows to keep as examples.
    seed : int, default 0
        Of the bootstrap and of the sample.
    memory_limit, threads, temp_directory : optional
        Settings of DuckDB, such as ``"4GB"`` (default: 60 % of the memory); what does not fit goes to disk.
    old_name, new_name : str, optional
        Names and versions of the two models, for the report.
    partitions : bool, default False
        Take folders called ``name=value`` for a column; otherwise only what is in the files counts.
    remote : bool, default False
        Allow paths such as ``s3://`` and ``https://``, for which the database downloads extensions.
    views : bool, default False
        Allow views and computed columns of a DuckDB file: queries of the file that can read any file of this machine.

    Returns
    -------
    Audit or, of numbers, NumberAudit

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import audit
    >>> old = pd.DataFrame({"id": range(8), "prediction": [0, 0, 0, 0, 1, 1, 1, 1], "y": [0, 0, 0, 1, 1, 1, 1, 0]})
    >>> new = pd.DataFrame({"id": range(8), "prediction": [0, 0, 0, 1, 1, 1, 0, 1]})
    >>> result = audit(old, new, label="y")
    >>> result.churn.value, result.broken.value, result.fixed.value
    (0.25, 0.125, 0.125)
    >>> forecast = pd.DataFrame({"id": range(4), "yhat": [10.0, 20.0, 30.0, 40.0], "y": [11.0, 20.0, 33.0, 40.0]})
    >>> newer = forecast[["id"]].assign(yhat=[10.5, 20.0, 27.0, 40.0])
    >>> numbers = audit(forecast, newer, value="yhat", target="y", tolerance=1.0)
    >>> numbers.moved.value, numbers.worse.value, numbers.loss_change.value
    (0.25, 0.25, 0.625)
    """
    settings = {name: value for name, value in locals().items() if name in NAMES}
    return audit_tables(old, new, Settings(**settings))


def audit_tables(
    old: TableLike, new: TableLike, settings: Settings, origin: Origin | None = None
) -> Audit | NumberAudit:
    """The audit of two tables: read, refuse what is wrong, count, infer."""
    began = time.perf_counter()
    settings.check()
    described = describe_source(old, settings.old_name), describe_source(new, settings.new_name)
    engine = Engine.for_tables((old, new), settings)
    try:
        with engine.errors():
            opened = {"old": engine.open("old", old), "new": engine.open("new", new)}
            forget_empty_labels(engine, opened, settings.target if settings.numeric else settings.label)
            schemas = {side: source.schema for side, source in opened.items()}
            columns = (resolve_numbers if settings.numeric else resolve)(schemas, settings)
            tables = {side: source.select(columns.used(side, source.schema)) for side, source in opened.items()}
            joined = join_tables(engine, tables, columns, strict=settings.on_mismatch == "error")
            found = (_count_numbers if settings.numeric else _count)(engine, joined, columns, settings)
    except BaseException:
        engine.close()  # now and not when the error is forgotten
        raise
    made = NumberAudit if settings.numeric else Audit
    return made(
        columns=columns,
        rows=joined.rows,
        seed=settings.seed,
        seconds=time.perf_counter() - began,
        sources=(describe_table(old), describe_table(new)),
        engine=engine,
        provenance=describe_audit(*described, joined.rows, settings, origin or Origin()),
        command=(origin or Origin()).command,
        **found,
    )


def forget_empty_labels(engine: Engine, opened: dict[str, Opened], label: str | None) -> None:
    """A stored label column without a single value has whatever type its file format gave it: it fits any type."""
    for source in opened.values():
        if not isinstance(label, str) or label not in source.schema or source.written:
            continue
        if engine.fetch_row(known_values(source.table, label))["n"] == 0:
            source.schema = source.schema.with_types({label: NULL})


def _count(engine: Engine, joined: Joined, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Everything of an :class:`Audit` that is counted or inferred."""
    pairs = joined.table if columns.weight is None else joined.table.filter(joined.table.w > 0)
    cuts, notes = cut_columns(engine, pairs, columns, joined.rows.paired)
    design = design_of(engine, pairs, columns, settings.confidence, notes)
    unit = counts.unit_of(pairs, columns, design.groups or joined.rows.paired)
    check_classes(engine, pairs, columns)
    cells = engine.fetch(counts.count(pairs, cuts))
    by_unit = engine.fetch(counts.count_units(pairs, cuts, unit)) if columns.group else None
    notes += _spelling_notes(engine, pairs, cells)
    found = tallies(cells, by_unit)
    return {
        "design": design,
        "tallies": found,
        "cells": cells,
        "judged": tuple(judge_slices(found, cuts, design)),
        "flips": _flip_rows(engine.fetch(counts.flipped(pairs, settings.seed, int(settings.sample))), columns, cuts),
        "notes": (*joined.notes, *notes),
        "pairs": pairs,
        **(_count_soft(engine, pairs, unit, columns, settings) if joined.soft else {}),
    }


def _count_numbers(engine: Engine, joined: Joined, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Everything of a :class:`NumberAudit` that is counted or inferred."""
    pairs = joined.table if columns.weight is None else joined.table.filter(joined.table.w > 0)
    cuts, notes = cut_columns(engine, pairs, columns, joined.rows.paired)
    design = design_of(engine, pairs, columns, settings.confidence, notes)
    found = count_numbers(engine, pairs, columns, cuts, design, joined.rows.paired, int(settings.sample))
    fetched = found["flips"]
    flips = _flip_rows(fetched, columns, cuts)
    if "worse" in fetched:
        marks = zip(flips, fetched["worse"], fetched["better"], strict=True)
        flips = [{"kind": "worse" if w else "better" if b else "neither", **flip} for flip, w, b in marks]
    return found | {"design": design, "flips": flips, "notes": (*joined.notes, *notes)}


def design_of(engine: Engine, pairs: Table, columns: Columns, confidence: float, notes: list[str]) -> Design:
    """How the rows came about; a note where they come in few groups."""
    groups = int(engine.fetch_row(pairs.aggregate(n=pairs.g.nunique()))["n"]) if columns.group else 0
    if 0 < groups < 30:
        notes.append(f"Only {groups} groups: intervals rest on few independent units.")
    return Design(columns.weight is not None, columns.group is not None, groups, confidence)


def _count_soft(engine: Engine, pairs: Table, unit: Column, columns: Columns, settings: Settings) -> dict[str, Any]:
    """What probabilities show beyond decisions."""
    sums = engine.fetch(counts.soft_sums(pairs, unit))
    bins = engine.fetch(counts.calibration_sums(pairs, unit)) if "h_o" in pairs.columns else None
    quantity = f"probability of {columns.classes[1]}" if len(columns.classes) == 2 else "top probability"
    return {
        "moved": int(sum(sums["moved"])),
        "soft": soft_estimates(sums, bins, counts.CALIBRATION_BINS, settings),
        "shift": Shift.from_counts(engine.fetch(counts.shift(pairs)), counts.SHIFT_BINS, quantity),
    }


def _spelling_notes(engine: Engine, pairs: Table, cells: Fetched) -> list[str]:
    """Notes where two spellings of one class, or words for a missing label, are likely: text is compared as it is."""
    if not pairs.old.type().is_string():
        return []
    olds, news = ({value for value in cells[side] if value is not None} for side in ("old", "new"))
    spelled = {value.strip().casefold(): value for value in news - olds}
    notes = [
        f"The old decision {value!r} and the new one {spelled[key]!r} are two classes: they differ in spaces or case."
        for value in sorted(olds - news)
        if (key := value.strip().casefold()) in spelled
    ]
    if "label" in pairs.columns:
        some = engine.fetch(counts.rows_by_label(pairs, sorted({*MISSING_LABELS} - olds - news)))
        notes += [
            f"{n:,} labels are {label!r}, which neither model decides for: both count as wrong there. "
            "Leave the field empty if it means that the label is missing."
            for label, n in zip(some["label"], some["n"], strict=True)
        ]
    return notes[:EXAMPLES]


def cut_columns(engine: Engine, pairs: Table, columns: Columns, rows: int) -> tuple[list[counts.Cut], list[str]]:
    """How each slice column is cut: by its values, or into bins where it holds many numbers."""
    names = (*columns.by, *columns.features)
    if not names:
        return [], []
    places = [f"b{i}" for i in range(len(names))]
    distinct = engine.fetch_row(pairs.aggregate(**{place: pairs[place].nunique() for place in places}))
    cuts, notes = [], []
    for name, place in zip(names, places, strict=True):
        values = int(distinct[place])
        if kind_of(pairs[place].type()) in {"integer", "float", "decimal"} and values > MOST_NUMBERS:
            edges = engine.fetch_row(counts.quantiles(pairs, place, [i / BINS for i in range(1, BINS)], rows))
            found = sorted({float(edge) for edge in edges.values() if edge is not None})
            cuts.append(counts.Cut(name, place, tuple(found)))
            notes.append(f"{name} has {values:,} values and is cut into {len(found) + 1} bins.")
        elif values > MOST_VALUES:
            raise ValueError(
                f"audit: slice column {name!r} has {values:,} values, more than {MOST_VALUES:,}. "
                "Group them into fewer first."
            )
        else:
            cuts.append(counts.Cut(name, place))
    return cuts, notes


def _flip_rows(found: Fetched, columns: Columns, cuts: Sequence[counts.Cut]) -> list[dict[str, object]]:
    """Changed rows with keys that differ: a column called like one of ours gets another key."""
    ours = {"old": "old", "new": "new", "label": columns.truth, "c_o": "old probability", "c_n": "new probability"}
    ours |= {"move": "move", "loss_old": "old loss", "loss_new": "new loss"} if columns.numbers else {}
    names: dict[str, str] = {}
    taken = {*ours.values(), "kind"}  # the kind of change, which the page adds
    for place, name in [*((f"k{i}", n) for i, n in enumerate(columns.id)), *((c.column, c.name) for c in cuts)]:
        if name in columns.id and place[0] != "k":
            continue  # it is there as a key
        while name in taken:
            name = f"{name} (column)"
        taken.add(name)
        names[place] = name
    keys = [place for place in names if place[0] == "k"]
    numbers = [place for place in ("move", "loss_old", "loss_new") if place in ours]
    order = [*keys, "old", "new", "label", *numbers, *(p for p in names if p not in keys), "c_o", "c_n"]
    names |= ours
    present = [(place, names[place]) for place in order if place in found]
    return [{name: found[place][i] for place, name in present} for i in range(len(found["old"]))]


def describe_table(source: TableLike) -> str:
    """A path as it was given, or what kind of table it is."""
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return str(source)
    return f"{type(source).__module__.split('.')[0]} {type(source).__name__}"
