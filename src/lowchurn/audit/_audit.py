"""From two tables of predictions to an :class:`Audit`: read, refuse what is wrong, count, infer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, overload

from lowchurn.audit import _counts as counts
from lowchurn.audit._columns import Columns, resolve
from lowchurn.audit._exact import NULL
from lowchurn.audit._inference import Design, judge_slices, tallies
from lowchurn.audit._joins import Table, some_value
from lowchurn.audit._number_columns import resolve_numbers
from lowchurn.audit._number_result import NumberAudit
from lowchurn.audit._numbers import count_numbers
from lowchurn.audit._pairs import EXAMPLES, Joined, check_classes, check_decisions, join_tables
from lowchurn.audit._probabilities import soft_estimates
from lowchurn.audit._progress import Show
from lowchurn.audit._provenance import describe_audit, describe_source
from lowchurn.audit._result import Audit, Shift
from lowchurn.audit._settings import NAMES, Origin, Settings
from lowchurn.audit._sources import Engine, Fetched, Opened, TableLike

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
    engine: str | None = None,
    spark_master: str | None = None,
    spark_conf: str | Sequence[str] = (),
) -> Audit | NumberAudit:
    """Report what changed between two versions of a model, from their predictions on the same rows.

    Parameters
    ----------
    old, new : path, pandas, polars or pyarrow table, Hugging Face dataset, DuckDB relation or Ibis table
        The predictions of the model in production and of the candidate. Paths may be Parquet (a file, a folder or
        a pattern), CSV or ``"file.duckdb::table"``; Parquet may be on ``s3://`` and ``gs://``.
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
    engine : str, optional
        The database that counts, where it is not DuckDB: ``"spark"``, or an address that Ibis connects to, such as
        ``"postgres://host/database"``. The tables are then given by name (``"schema.table"``); Spark also reads
        Parquet files and folders. An Ibis table needs no engine: it is counted where it is.
    spark_master, spark_conf : optional
        With ``engine="spark"``: the master, such as ``"yarn"`` or ``"local[8]"``, and settings such as
        ``["spark.executor.memory=8g"]``. By default those of ``spark-defaults.conf``, and a session that runs is used.

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
    old: TableLike, new: TableLike, settings: Settings, origin: Origin | None = None, show: Show | None = None
) -> Audit | NumberAudit:
    """The audit of two tables: read, refuse what is wrong, count, infer; ``show`` is called with the rows read."""
    began = time.perf_counter()
    settings.check()
    origin = origin or Origin()
    engine = Engine.for_tables((old, new), settings, show)
    try:
        with ThreadPoolExecutor(1) as beside, engine.errors():  # checksums are made while the database counts
            named = (old, settings.old_name), (new, settings.new_name)
            local = settings.engine is None
            described = [beside.submit(describe_source, *table, local=local) for table in named]
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
    before, after = (source.result() for source in described)
    made = NumberAudit if settings.numeric else Audit
    return made(
        columns=columns,
        rows=joined.rows,
        seed=settings.seed,
        seconds=time.perf_counter() - began,
        sources=(describe_table(old), describe_table(new)),
        engine=engine,
        provenance=describe_audit(before, after, joined.rows, settings, origin),
        command=origin.command,
        **found,
    )


def forget_empty_labels(engine: Engine, opened: dict[str, Opened], label: str | None) -> None:
    """A stored label column without a single value has whatever type its file format gave it: it fits any type."""
    for source in opened.values():
        if not isinstance(label, str) or label not in source.schema or source.written:
            continue
        if not engine.fetch(some_value(source.table, label))[label]:
            source.schema = source.schema.with_types({label: NULL})


def _count(engine: Engine, joined: Joined, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Everything of an :class:`Audit` that is counted or inferred."""
    stored, cuts, groups = joined.counted.cells, joined.counted.cuts, joined.counted.groups
    notes: list[str] = []
    design = design_of(columns, groups, settings.confidence, notes)
    answers = counts.answers(stored)
    for side, number in engine.fetch_row(counts.distinct_answers(answers)).items():
        check_decisions(side, int(number), columns)
    check_classes(engine, answers, columns)
    cells = engine.fetch(counts.count(stored, cuts))
    notes += _spelling_notes(engine, stored, cells)
    found = tallies(cells, engine.fetch(counts.count_units(stored)) if columns.group else None)
    sample = engine.fetch(counts.shuffled(counts.changed(stored), settings.seed, int(settings.sample)))
    return {
        "design": design,
        "tallies": found,
        "cells": cells,
        "judged": tuple(judge_slices(found, cuts, design)),
        "flips": _flip_rows(sample, columns, cuts),
        "notes": (*joined.notes, *notes),
        "pairs": joined.pairs,
        "counted": stored,
        **(_count_soft(engine, stored, columns, settings) if joined.soft else {}),
    }


def _count_numbers(engine: Engine, joined: Joined, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Everything of a :class:`NumberAudit` that is counted or inferred."""
    cuts, notes = joined.counted.cuts, list[str]()
    design = design_of(columns, joined.counted.groups, settings.confidence, notes)
    found = count_numbers(engine, joined.pairs, columns, cuts, design, joined.rows.paired, int(settings.sample))
    fetched = found["flips"]
    flips = _flip_rows(fetched, columns, cuts)
    if "worse" in fetched:
        marks = zip(flips, fetched["worse"], fetched["better"], strict=True)
        flips = [{"kind": "worse" if w else "better" if b else "neither", **flip} for flip, w, b in marks]
    return found | {"design": design, "flips": flips, "notes": (*joined.notes, *notes)}


def design_of(columns: Columns, groups: int, confidence: float, notes: list[str]) -> Design:
    """How the rows came about; a note where they come in few groups."""
    if 0 < groups < 30:
        notes.append(f"Only {groups} groups: intervals rest on few independent units.")
    return Design(columns.weight is not None, columns.group is not None, groups, confidence)


def _count_soft(engine: Engine, stored: Table, columns: Columns, settings: Settings) -> dict[str, Any]:
    """What probabilities show beyond decisions."""
    sums = engine.fetch(counts.soft_sums(stored))
    bins = engine.fetch(counts.calibration_sums(stored)) if "sum_gap_o" in stored.columns else None
    quantity = f"probability of {columns.classes[1]}" if len(columns.classes) == 2 else "top probability"
    shift = engine.fetch(counts.shift(stored))
    return {
        "moved": int(sum(shift["moved"])),
        "soft": soft_estimates(sums, bins, counts.CALIBRATION_BINS, settings),
        "shift": Shift.from_counts(shift, counts.SHIFT_BINS, quantity),
    }


def _spelling_notes(engine: Engine, stored: Table, cells: Fetched) -> list[str]:
    """Notes where two spellings of one class, or words for a missing label, are likely: text is compared as it is."""
    if not stored.old.type().is_string():
        return []
    olds, news = ({value for value in cells[side] if value is not None} for side in ("old", "new"))
    spelled = {value.strip().casefold(): value for value in news - olds}
    notes = [
        f"The old decision {value!r} and the new one {spelled[key]!r} are two classes: they differ in spaces or case."
        for value in sorted(olds - news)
        if (key := value.strip().casefold()) in spelled
    ]
    if "label" in stored.columns:
        some = engine.fetch(counts.rows_by_label(stored, sorted({*MISSING_LABELS} - olds - news)))
        notes += [
            f"{n:,} labels are {label!r}, which neither model decides for: both count as wrong there. "
            "Leave the field empty if it means that the label is missing."
            for label, n in zip(some["label"], some["n"], strict=True)
        ]
    return notes[:EXAMPLES]


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
