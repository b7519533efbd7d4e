"""From two tables of predictions to an :class:`Audit`: read, refuse what is wrong, count, infer."""

from __future__ import annotations

import inspect
import numbers
import time
from collections.abc import Sequence
from typing import Any

from lowchurn._checks import check_choice, check_number
from lowchurn.audit import _counts as counts
from lowchurn.audit import _sources as sources
from lowchurn.audit._columns import Columns, resolve
from lowchurn.audit._inference import Design, judge_slices, tallies
from lowchurn.audit._probabilities import soft_estimates
from lowchurn.audit._provenance import describe_audit, describe_source
from lowchurn.audit._result import Audit, Rows, Shift

MOST_VALUES = 1_000  # of a slice column; a table of more slices is no longer read by anyone
MOST_CLASSES = 5_000  # different decisions
MOST_NUMBERS = 30  # distinct numbers that are slices of their own; more are cut into bins
BINS = 10
EXAMPLES = 5
# Labels that are likely to be words for no label.
MISSING_LABELS = ("NA", "N/A", "n/a", "na", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None", "\\N", "?", "-", ".")


def audit(
    old: Any,
    new: Any,
    id: str | Sequence[str] = "id",
    label: str | None = None,
    by: str | Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    *,
    prediction: str | tuple[str, str] | None = None,
    score: str | tuple[str, str] | None = None,
    threshold: float | tuple[float, float] = 0.5,
    proba: Any = None,
    classes: Sequence[Any] | None = None,
    features: str | Sequence[str] = (),
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
) -> Audit:
    """Say what changed between two versions of a model, from their predictions on the same rows.

    Parameters
    ----------
    old, new : path, pandas, polars or pyarrow table, DuckDB relation or Ibis table
        The predictions of the model in production and of the candidate. Paths may be Parquet (a file, a folder or
        a pattern), CSV or ``"file.duckdb::table"``.
    id : str or list of str, default "id"
        The key columns. Rows are joined on them, never on position.
    label : str, optional
        The truth, in either table or both; may be missing for some rows.
    by : str or list of str, optional
        Columns whose values are slices. Numbers with more than 30 values are cut into ten bins.
    weight, group : str, optional
        Weights of the rows; and a column that says which rows belong together (a customer, a day), so that
        intervals do not take them for independent.
    prediction : str or (str, str), optional
        Column of decided labels; a pair where the tables name it differently. By default a column with one of the
        usual names, or the only column left.
    score, threshold : optional
        A column of scores of the second class, and the threshold from which on it is decided for.
    proba : list of str or mapping of class to str, optional
        One column of probabilities a class; by default those named ``proba_...``.
    classes : list, optional
        The classes that ``proba`` stands for, or the negative and the positive one of a score.
    features : str or list of str, optional
        Further columns in which to look for drivers of change.
    on_mismatch : {"error", "inner"}, default "error"
        What to do about ids that are missing, repeated or without a decision on one side: refuse, or judge the
        rows that are sound on both sides and say how many were left out.
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
    Audit

    Examples
    --------
    >>> import pandas as pd, lowchurn
    >>> old = pd.DataFrame({"id": range(8), "prediction": [0, 0, 0, 0, 1, 1, 1, 1], "y": [0, 0, 0, 1, 1, 1, 1, 0]})
    >>> new = pd.DataFrame({"id": range(8), "prediction": [0, 0, 0, 1, 1, 1, 0, 1]})
    >>> result = lowchurn.audit(old, new, label="y")
    >>> result.churn.value, result.broken.value, result.fixed.value
    (0.25, 0.125, 0.125)
    """
    settings = dict(locals())
    began = time.perf_counter()
    check_choice("audit", "on_mismatch", on_mismatch, ("error", "inner"))
    check_number("audit", "confidence", confidence, 0, 1, open_low=True, open_high=True)
    check_number("audit", "bootstrap", bootstrap, 100, 100_000)
    check_number("audit", "sample", sample, 0, 10_000)
    if not isinstance(seed, numbers.Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"audit: seed must be a whole number, not negative, got {seed!r}.")
    if threads is not None:
        check_number("audit", "threads", threads, 1, 10_000)
    described = describe_source("old_name", old, old_name), describe_source("new_name", new, new_name)
    engine = sources.open_engine(
        old,
        new,
        memory_limit=memory_limit,
        threads=threads,
        folder=temp_directory,
        partitions=partitions,
        remote=remote,
        views=views,
    )
    try:
        with engine.errors():
            opened = {"old": engine.open("old", old), "new": engine.open("new", new)}
            columns = _columns(
                engine,
                opened,
                id=id,
                label=label,
                by=by,
                features=features,
                weight=weight,
                group=group,
                prediction=prediction,
                score=score,
                threshold=threshold,
                proba=proba,
                classes=classes,
            )
            tables = {side: source.select(columns.used(side, source.schema)) for side, source in opened.items()}
            _check_exact(engine, tables, columns)
            found = _count(engine, tables, columns, on_mismatch, confidence, int(bootstrap), int(sample), seed)
    except BaseException:
        engine.close()  # now and not when the error is forgotten
        raise
    return Audit(
        columns=columns,
        seed=seed,
        seconds=time.perf_counter() - began,
        sources=(_describe(old), _describe(new)),
        engine=engine,
        provenance=describe_audit(*described, found["rows"], settings, inspect.signature(audit)),
        **found,
    )


def _count(
    engine: sources.Engine,
    tables: dict[str, Any],
    columns: Columns,
    on_mismatch: str,
    confidence: float,
    draws: int,
    sample: int,
    seed: int,
) -> dict[str, Any]:
    """Everything of an :class:`Audit` that is counted or inferred."""
    stored, rows, soft, notes = _pairs(engine, tables, columns, on_mismatch)
    pairs = stored if columns.weight is None else stored.filter(stored.w > 0)
    cuts, more_notes = _cuts(engine, pairs, columns, rows.paired)
    groups = int(engine.fetch(pairs.aggregate(n=pairs.g.nunique()))["n"][0]) if columns.group else 0
    design = Design(columns.weight is not None, columns.group is not None, groups, confidence)
    if 0 < groups < 30:
        more_notes.append(f"Only {groups} groups: intervals rest on few independent units.")
    unit = counts.unit_of(pairs, columns, groups or rows.paired)
    _check_classes(engine, pairs, columns)
    cells = engine.fetch(counts.count(pairs, cuts))
    by_unit = engine.fetch(counts.count_units(pairs, cuts, unit)) if columns.group else None
    more_notes += _spelling_notes(engine, pairs, cells)
    found = tallies(cells, by_unit)
    slices = judge_slices(found, lambda cut, value: (cuts[cut].name, cuts[cut].words(value)), design)
    soft_found, shift, moved = {}, None, None
    if soft:
        sums = engine.fetch(counts.soft_sums(pairs, unit))
        moved = int(sum(sums["moved"]))
        bins = engine.fetch(counts.calibration_sums(pairs, unit)) if "h_o" in pairs.columns else None
        soft_found = soft_estimates(sums, bins, counts.CALIBRATION_BINS, confidence=confidence, draws=draws, seed=seed)
        joint = engine.fetch(counts.shift(pairs))
        quantity = f"probability of {columns.classes[1]}" if len(columns.classes) == 2 else "top probability"
        shift = Shift.from_counts(joint, counts.SHIFT_BINS, quantity)
    flips = engine.fetch(counts.flipped(pairs, seed, sample))
    return {
        "rows": rows,
        "design": design,
        "tallies": found,
        "cells": cells,
        "judged": tuple(slices),
        "soft": soft_found,
        "shift": shift,
        "moved": moved,
        "flips": _flip_rows(flips, columns, cuts),
        "notes": (*notes, *more_notes),
        "pairs": pairs,
    }


def _check_exact(engine: sources.Engine, tables: dict[str, Any], columns: Columns) -> None:
    """Refuse values that the type of a comparison does not hold exactly."""
    for check in columns.checks:
        part = check.part
        some = counts.unfit_values(tables[part.side], part.column, check.rule, check.limit, EXAMPLES)
        values = engine.fetch(some)["value"]
        if values:
            raise ValueError(
                f"audit: {check.reason}: column {part.column!r} of the {part.side} table has values such as "
                f"{', '.join(map(repr, values))}. Convert one side, so that both have one type."
            )


def _check_classes(engine: sources.Engine, pairs: Any, columns: Columns) -> None:
    """A score given for a label would make a flip matrix as large as the table."""
    for side, found in engine.fetch(counts.distinct_answers(pairs)).items():
        if int(found[0]) > MOST_CLASSES:
            raise ValueError(
                f"audit: the {side} table has about {int(found[0]):,} different decisions "
                f"({getattr(columns, side).words()}), more than {MOST_CLASSES:,}. "
                "If they are scores, say score= and threshold=."
            )
    _check_derived(engine, pairs, columns)


def _spelling_notes(engine: sources.Engine, pairs: Any, cells: dict[str, list[Any]]) -> list[str]:
    """Text is compared as it is: say so where two spellings of one class, or words for a missing label, are likely."""
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


def _check_derived(engine: sources.Engine, pairs: Any, columns: Columns) -> None:
    """Labels or decisions that are no class of the scores or probabilities of a side would all count as different."""
    derived = [side for side in ("old", "new") if getattr(columns, side).label is None]
    if not derived:
        return
    for name in ("old", "new", "label"):
        if name in derived or name not in pairs.columns:
            continue
        found = {k: v[0] for k, v in engine.fetch(counts.class_checks(pairs, name, columns)).items()}
        strange, known = int(found["strange"]), int(found["known"])
        # A class that the model does not know is a label like any other; one that nobody named is a misunderstanding.
        if strange and (strange == known or not columns.classes_given):
            raise ValueError(
                f"audit: {strange:,} of {known:,} {'labels' if name == 'label' else f'{name} decisions'}, such as "
                f"{found['example']!r}, are none of the classes {list(columns.classes)[:EXAMPLES]} that the "
                f"{' and '.join(derived)} decisions are made of. Name the classes with classes=."
            )


def _columns(engine: sources.Engine, opened: dict[str, sources.Source], **names: Any) -> Columns:
    # A label column without a single value has whatever type its file format gave it.
    label = names["label"]
    for source in opened.values():
        stored = isinstance(label, str) and label in source.schema and not source.written
        if stored and int(engine.fetch(counts.known_values(source.table, label))["n"][0]) == 0:
            source.schema.set_empty(label)
    return resolve(opened["old"].schema, opened["new"].schema, **names)


def _pairs(
    engine: sources.Engine, tables: dict[str, Any], columns: Columns, on_mismatch: str
) -> tuple[Any, Rows, bool, list[str]]:
    """The joined rows, after every check that refuses bad input."""
    strict = on_mismatch == "error"
    sides = {
        side: counts.project(tables[side], columns, side, tables["new" if side == "old" else "old"].columns)
        for side in ("old", "new")
    }
    notes: list[str] = []
    soft = columns.probabilistic
    tallied: dict[str, dict[str, Any]] = {}
    for side, rows in sides.items():
        tolerance = 1e-4 if sources.has_low_precision(tables[side], getattr(columns, side).proba) else 1e-6
        found = {k: v[0] for k, v in engine.fetch(counts.row_checks(rows, tolerance)).items()}
        found |= {k: v[0] for k, v in engine.fetch(counts.key_checks(rows)).items()}
        tallied[side] = found
        soft &= _check_side(side, found, columns, strict, tolerance, notes)
    repeated = {side: int(found["repeated_rows"]) for side, found in tallied.items()}
    if strict:
        _refuse_repeats(engine, sides, tallied, columns)
    else:
        sides = {side: counts.without_repeats(rows) if repeated[side] else rows for side, rows in sides.items()}
    stored = engine.keep("pairs", counts.pair(sides["old"], sides["new"], columns, soft))
    wanted = {"paired": stored.count()}
    if columns.weight is not None:
        wanted["weighty"] = counts.count_if(stored.w > 0)
    if "label" in stored.columns:
        wanted["labelled"] = counts.count_if(stored.label.notnull())
    if "label_conflict" in stored.columns:
        wanted["conflicts"] = counts.count_if(stored.label_conflict)
    answer = {k: int(v[0]) for k, v in engine.fetch(stored.aggregate(**wanted)).items()}
    n_old, n_new, paired = int(tallied["old"]["rows"]), int(tallied["new"]["rows"]), answer["paired"]
    if strict and not paired == n_old == n_new:
        _refuse_unmatched(engine, sides, columns, n_old, n_new)
    if paired == 0:
        raise ValueError(
            f"audit: the tables have no id of {', '.join(columns.id)} in common ({n_old:,} old and {n_new:,} new rows)."
        )
    if answer.get("conflicts"):
        clash = stored.filter(stored.label_conflict).order_by(counts.key_names(stored)).limit(EXAMPLES)
        raise ValueError(
            f"audit: the two tables have different labels for {answer['conflicts']:,} ids, such as "
            f"{_examples(engine.fetch(clash.select(*counts.key_names(clash))), columns)}. "
            "Keep the label column in one of them."
        )
    left = (n_old - paired, n_new - paired)
    if any(left):
        notes.append(
            f"Judging the common ids alone left out {left[0]:,} of {n_old:,} old and {left[1]:,} of {n_new:,} new rows "
            "(no partner, a repeated id or no decision): the figures are about the others only."
        )
    used = answer.get("weighty", paired)
    if used < paired:
        notes.append(f"{paired - used:,} rows of weight 0 are left out.")
    if used == 0:
        raise ValueError(f"audit: weight {columns.weight!r} is 0 in every row that both tables have.")
    return (
        stored,
        Rows(n_old, n_new, used, answer.get("labelled", 0), *left, repeated["old"], repeated["new"]),
        soft,
        notes,
    )


def _check_side(
    side: str, found: dict[str, Any], columns: Columns, strict: bool, tolerance: float, notes: list[str]
) -> bool:
    """Refuse what no join can mend; say whether the side's probabilities can be used."""
    told = getattr(columns, side)
    if found["rows"] == 0:
        raise ValueError(f"audit: the {side} table must have at least one row, got none.")
    if strict and found["no_id"]:
        raise ValueError(
            f"audit: {found['no_id']:,} of {found['rows']:,} rows of the {side} table have no id "
            f"in {', '.join(columns.id)}."
        )
    if strict and found["no_decision"]:
        raise ValueError(
            f"audit: {found['no_decision']:,} of {found['rows']:,} rows of the {side} table have no decision "
            f"({told.words()}). Leave them out on both sides, or use on_mismatch='inner'."
        )
    if found.get("bad_weight"):
        raise ValueError(
            f"audit: weight {columns.weight!r} must be finite and not negative, "
            f"{found['bad_weight']:,} rows of the {side} table are not."
        )
    if found.get("extreme_weight"):
        raise ValueError(
            f"audit: weight {columns.weight!r} must be 0 or in [{counts.LEAST_WEIGHT:g}, {counts.MOST_WEIGHT:g}], "
            f"{found['extreme_weight']:,} rows of the {side} table are not. Multiply all weights by one number."
        )
    if found.get("some_weight") == 0:
        raise ValueError(f"audit: weight {columns.weight!r} must not be all zero.")
    if found.get("no_group"):
        raise ValueError(
            f"audit: group {columns.group!r} must be known, {found['no_group']:,} rows of the {side} table have none."
        )
    if not columns.probabilistic:
        return False
    if told.proba:
        if found["no_proba"]:
            raise ValueError(
                f"audit: proba columns must be finite, {found['no_proba']:,} rows of the {side} table are not."
            )
        if found["outside"]:
            raise ValueError(
                f"audit: proba columns must be in [0, 1], {found['outside']:,} rows of the {side} table are not."
            )
        if found["off_sum"]:
            raise ValueError(
                f"audit: probabilities must sum to 1, {found['off_sum']:,} of {found['rows']:,} rows of the {side} "
                f"table are off by more than {tolerance:g} (at most {found['worst_sum']:.3g}). "
                "Name every class's column in proba=, or divide each row by its sum if that is what you mean."
            )
    elif found["outside"] or found["no_proba"]:
        notes.append(f"Scores of the {side} table are not all in [0, 1], so they are not taken for probabilities.")
        return False
    return True


def _refuse_repeats(
    engine: sources.Engine, sides: dict[str, Any], tallied: dict[str, dict[str, Any]], columns: Columns
) -> None:
    for side, found in tallied.items():
        if found["repeated"]:
            some = counts.repeated_ids(sides[side])
            some = some.order_by(counts.key_names(some)).limit(EXAMPLES)
            raise ValueError(
                f"audit: {found['repeated']:,} ids come more than once in the {side} table "
                f"({found['repeated_rows']:,} rows), such as {_examples(engine.fetch(some), columns)}. "
                "Name all key columns in id=, remove the repeats, or use on_mismatch='inner' to leave these ids out."
            )


def _refuse_unmatched(engine: sources.Engine, sides: dict[str, Any], columns: Columns, n_old: int, n_new: int) -> None:
    said = []
    for side, other in (("old", "new"), ("new", "old")):
        lonely = counts.only_in(sides[side], sides[other])
        number = int(engine.fetch(lonely.aggregate(n=lonely.count()))["n"][0])
        if number:
            some = lonely.order_by(counts.key_names(lonely)).limit(EXAMPLES)
            said.append(
                f"{number:,} ids are only in the {side} table, such as {_examples(engine.fetch(some), columns)}"
            )
    raise ValueError(
        f"audit: the tables must hold the same ids ({n_old:,} old and {n_new:,} new rows), but {'; '.join(said)}. "
        "Use on_mismatch='inner' to judge the common ones only."
    )


def _examples(found: dict[str, list[Any]], columns: Columns) -> str:
    keys = [found[f"k{i}"] for i in range(len(columns.id))]
    rows = list(zip(*keys, strict=True))
    return ", ".join(repr(row[0]) if len(row) == 1 else repr(row) for row in rows)


def _cuts(engine: sources.Engine, pairs: Any, columns: Columns, rows: int) -> tuple[list[counts.Cut], list[str]]:
    """How each slice column is cut: by its values, or into bins where it holds many numbers."""
    names = (*columns.by, *columns.features)
    if not names:
        return [], []
    places = [f"b{i}" for i in range(len(names))]
    distinct = engine.fetch(pairs.aggregate(**{place: pairs[place].nunique() for place in places}))
    kinds = sources.kinds(pairs)
    cuts, notes = [], []
    for name, place in zip(names, places, strict=True):
        values = int(distinct[place][0])
        if kinds[place] in {"integer", "float", "decimal"} and values > MOST_NUMBERS:
            shares = [i / BINS for i in range(1, BINS)]
            edges = engine.fetch(counts.quantiles(pairs, place, shares, rows))
            found = sorted({float(v[0]) for v in edges.values() if v[0] is not None})
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


def _flip_rows(found: dict[str, list[Any]], columns: Columns, cuts: Sequence[counts.Cut]) -> list[dict[str, Any]]:
    """Changed rows with keys that differ: a column called like one of ours gets another key."""
    ours = {"old": "old", "new": "new", "label": "label", "c_o": "old probability", "c_n": "new probability"}
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
    order = [*keys, "old", "new", "label", *(p for p in names if p not in keys), "c_o", "c_n"]
    names |= ours
    present = [(place, names[place]) for place in order if place in found]
    return [{name: found[place][i] for place, name in present} for i in range(len(found["old"]))]


def _describe(source: Any) -> str:
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return str(source)
    return f"{type(source).__module__.split('.')[0]} {type(source).__name__}"
