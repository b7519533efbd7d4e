"""From the predictions of many releases to a :class:`History`: read, refuse what is wrong, count, infer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from pathlib import PurePath
from typing import Any

from lowchurn._estimates import Estimate, undefined
from lowchurn.audit import _counts as counts
from lowchurn.audit import _joins as joins
from lowchurn.audit import _releases as expressions
from lowchurn.audit._audit import describe_table, design_of, forget_empty_labels
from lowchurn.audit._columns import Columns, resolve
from lowchurn.audit._history_result import FIGURES, Change, Drift, History, Release, Restless
from lowchurn.audit._history_sums import Counter, Sums
from lowchurn.audit._inference import Design, Key, Slice, Tally, in_order, judge_slices
from lowchurn.audit._joins import Table
from lowchurn.audit._pairs import (
    REFUSED,
    UNMATCHED,
    check_classes,
    check_decisions,
    check_exact,
    choose_cut,
    shown_ids,
    values,
)
from lowchurn.audit._paths import CSV_ENDINGS, DATABASE_ENDINGS, PARQUET_ENDINGS, split_path
from lowchurn.audit._progress import Show
from lowchurn.audit._provenance import describe_source, versions
from lowchurn.audit._settings import NAMES, Origin, Settings
from lowchurn.audit._sources import Engine, Fetched, Opened, TableLike
from lowchurn.audit._statistics import difference, false_discovery

MOST_RELEASES = 100
NO_RETURN = "no earlier decision to return to"


def history(
    releases: Sequence[TableLike] | Mapping[str, TableLike],
    id: str | Sequence[str] = "id",
    label: str | None = None,
    by: str | Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    *,
    names: Sequence[str] | None = None,
    prediction: str | Sequence[str | None] | None = None,
    score: str | Sequence[str | None] | None = None,
    threshold: float | Sequence[float] = 0.5,
    proba: Sequence[str] | Mapping[Any, str] | None = None,
    classes: Sequence[object] | None = None,
    on_mismatch: str = "error",
    confidence: float = 0.95,
    sample: int = 300,
    memory_limit: str | None = None,
    threads: int | None = None,
    temp_directory: str | None = None,
    partitions: bool = False,
    remote: bool = False,
    views: bool = False,
    engine: str | None = None,
    spark_master: str | None = None,
    spark_conf: str | Sequence[str] = (),
) -> History:
    """Report what changed from release to release, from the predictions of each on the same rows.

    Parameters
    ----------
    releases : list or mapping of tables
        The predictions of 2 to 100 releases, the oldest first: paths or tables as :func:`audit` takes them, or a
        mapping from the names of the releases to these.
    id, label, by, weight, group : optional
        As in :func:`audit`. A column that several tables have is taken from the newest one, and labels have to agree.
    names : list of str, optional
        Names of the releases. By default those of the files.
    prediction, score, threshold, proba, classes : optional
        As in :func:`audit`: one value for all tables, or a list with one for each.
    on_mismatch : {"error", "inner"}, default "error"
        What to do about ids that are missing, repeated or without a decision in one of the releases: refuse, or judge
        the rows that are sound in all of them and note how many were left out.
    sample : int, default 300
        How many of the rows that changed most often to keep.
    confidence, memory_limit, threads, temp_directory, partitions, remote, views : optional
        As in :func:`audit`.
    engine, spark_master, spark_conf : optional
        As in :func:`audit`.

    Returns
    -------
    History

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import history
    >>> truth = pd.DataFrame({"id": [1, 2, 3, 4], "y": [0, 1, 1, 0]})
    >>> answers = {"v1": [0, 1, 0, 1], "v2": [0, 0, 1, 1], "v3": [0, 1, 1, 1]}
    >>> found = history({name: truth.assign(prediction=some) for name, some in answers.items()}, label="y")
    >>> [release.accuracy.value for release in found.releases]
    [0.5, 0.5, 0.75]
    >>> found.between("v1", "v3").churn.value, found.triangle("broken").round(2).tolist()
    (0.25, [[0.0, 0.25, 0.0], [nan, 0.0, 0.0], [nan, nan, 0.0]])
    >>> found.restless[0].id, found.restless[0].decisions, found.restless[0].back
    ({'id': 2}, (1, 0, 1), 1)
    """
    settings = {name: value for name, value in locals().items() if name in NAMES}
    return history_of_tables(named_releases(releases, names), Settings(**settings))


def named_releases(
    releases: Sequence[TableLike] | Mapping[str, TableLike], names: Sequence[str] | None = None
) -> dict[str, TableLike]:
    """The releases by their names: those that were given, or those of the files."""
    given = isinstance(releases, Mapping)
    if given and names is not None:
        raise ValueError("history: names must not be given beside a mapping, whose keys are the names.")
    if isinstance(releases, str | bytes) or not isinstance(releases, Iterable) or hasattr(releases, "columns"):
        raise ValueError(f"history: releases must be a list of tables or paths, got {type(releases).__name__}.")
    tables = list(releases.values()) if isinstance(releases, Mapping) else list(releases)
    if not 2 <= len(tables) <= MOST_RELEASES:
        raise ValueError(f"history: releases must be 2 to {MOST_RELEASES}, got {len(tables)}.")
    found = list(releases) if given else _names_of(tables) if names is None else list(names)
    if len(found) != len(tables) or not all(isinstance(name, str) and name for name in found):
        raise ValueError(f"history: names must be one text for each of {len(tables)} releases, got {found}.")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise ValueError(f"history: names of releases must differ, got {twice} more than once. Give others: names=.")
    return dict(zip(found, tables, strict=True))


def _names_of(tables: Sequence[TableLike]) -> list[str]:
    """The names of the files without their endings where they differ, else the paths; numbers for tables in memory."""
    paths = [os.fspath(t) if isinstance(t, str | os.PathLike) else None for t in tables]
    for name_of in (_stem, str):
        found = [f"release {i}" if path is None else name_of(path) for i, path in enumerate(paths, start=1)]
        if len(set(found)) == len(found):
            return found
    return [f"{i}: {name}" for i, name in enumerate(found, start=1)]


def _stem(path: str) -> str:
    file, table = split_path(path)
    name = table or PurePath(file).name
    endings = (ending for ending in (*CSV_ENDINGS, *PARQUET_ENDINGS, *DATABASE_ENDINGS) if name.endswith(ending))
    return name.removesuffix(max(endings, key=len, default="")) or path


def history_of_tables(
    tables: Mapping[str, TableLike], settings: Settings, origin: Origin | None = None, show: Show | None = None
) -> History:
    """The history of releases by name: read, refuse what is wrong, count, infer; ``show`` gets the rows read."""
    began = time.perf_counter()
    settings.check()
    origin = origin or Origin("lowchurn.audit.history(...)")
    share, local = 1 / len(tables), settings.engine is None
    sources = [describe_source(table, name, share, local) for name, table in tables.items()]
    engine = Engine.for_tables(list(tables.values()), settings, show)
    try:
        with engine.errors():
            # Names of releases are quoted in messages, so that they are never taken for words of ours.
            opened = {repr(name): engine.open(repr(name), table) for name, table in tables.items()}
            forget_empty_labels(engine, opened, settings.label)
            columns = resolve({side: source.schema for side, source in opened.items()}, settings)
            joined = _join(engine, opened, columns, settings.on_mismatch == "error")
            found = _count(engine, joined, columns, settings)
            engine_name = engine.backend.name
    finally:
        engine.close()
    accuracies, backs = found.pop("accuracies"), found.pop("backs")
    described = zip(sources, tables.values(), joined.rows, accuracies, backs, strict=True)
    return History(
        releases=tuple(
            Release(replace(source, rows=rows), describe_table(table), rows - joined.paired, accuracy, back)
            for source, table, rows, accuracy, back in described
        ),
        rows=joined.paired,
        notes=(*joined.notes, *found.pop("notes")),
        made={
            "command": origin.command,
            "decisions": [predicted.words() for predicted in columns.sides.values()],
            "id": list(columns.id),
            **{role: getattr(columns, role) for role in ("label", "weight", "group")},
            "by": list(columns.by),
            "design": found["design"].words(),
            "settings": settings.given,
            "config": origin.config,
            "engine": engine_name,
            "seconds": round(time.perf_counter() - began, 3),
            "versions": versions(),
        },
        **found,
    )


@dataclass(frozen=True)
class _Joined:
    """The rows that all releases have, those of each release, and what was found on the way."""

    table: Table
    rows: list[int]
    paired: int
    notes: list[str]


def _join(engine: Engine, opened: Mapping[str, Opened], columns: Columns, strict: bool) -> _Joined:
    """Join all releases on their ids; unless ``strict``, rows that are not sound in all of them are left out."""
    tables = {side: source.select(columns.used(side, source.schema)) for side, source in opened.items()}
    check_exact(engine, tables, columns)
    sides, later = {}, set[str]()
    for side, table in reversed(tables.items()):
        rows = joins.project(table, columns, side, list(later))
        sides[side] = rows.select([name for name in rows.columns if name[0] != "p"])
        later |= set(table.columns)
    sides = {side: sides[side] for side in tables}
    sizes = {side: engine.count(rows) for side, rows in sides.items()}
    for side, size in sizes.items():
        if size == 0:
            raise ValueError(f"audit: the {side} table must have at least one row, got none.")
    once = [expressions.once_each(rows, engine.quick) for rows in sides.values()]
    parts = [expressions.numbered(rows, i) for i, rows in enumerate(once)]
    size = expressions.BATCH
    if len(parts) > size:
        parts = [engine.keep(expressions.join(parts[i : i + size])) for i in range(0, len(parts), size)]
    table = engine.keep(expressions.compared(expressions.join(parts), len(sides)), sum(sizes.values()))
    found = {name: int(n) for name, n in engine.fetch_row(expressions.join_checks(table)).items()}
    paired = found["paired"]
    if strict and any(size != paired for size in sizes.values()):
        _refuse(engine, sides, sizes, columns)
    if paired == 0:
        raise ValueError(f"audit: no id of {', '.join(columns.id)} is in all {len(sides)} tables.")
    if found.get("conflicts"):
        raise ValueError(
            f"audit: the tables have different labels for {found['conflicts']:,} ids, such as "
            f"{shown_ids(engine, table.filter(table.label_conflict))}. Keep the label column in one of them."
        )
    _check_answers(engine, table, columns)
    table, used = _weighed(engine, table, columns, paired)
    notes = []
    if most := max(size - paired for size in sizes.values()):
        notes.append(
            f"Judging the ids that all releases share left out up to {most:,} rows of a release (not in all of them, a "
            "repeated id or no decision): the figures are about the others only."
        )
    if used < paired:
        notes.append(f"{paired - used:,} rows of weight 0 are left out.")
    return _Joined(table, list(sizes.values()), used, notes)


def _check_answers(engine: Engine, table: Table, columns: Columns) -> None:
    """Refuse scores given for labels, and what is not a class of the scores of another release."""
    decisions = {side: table[f"d{i}"] for i, side in enumerate(columns.sides)}
    answers = table.select(**decisions, **({"label": table.label} if "label" in table.columns else {}), n=1)
    for side, number in engine.fetch_row(counts.distinct_answers(answers, columns.sides)).items():
        check_decisions(side, int(number), columns)
    check_classes(engine, answers, columns)


def _weighed(engine: Engine, table: Table, columns: Columns, paired: int) -> tuple[Table, int]:
    """The rows of a weight above 0 and their number, after the checks of weights and groups."""
    wanted = [name for name in ("w", "g") if name in table.columns]
    if not wanted:
        return table, paired
    checked = table.select(*joins.key_names(table), *wanted, decision=table.d0)
    found = engine.fetch_row(joins.row_checks(checked))
    for name, message in REFUSED.items():
        if found.get(name):
            words = message.format(n=found[name], side="newest", weight=columns.weight, group=columns.group)
            raise ValueError(f"audit: {words}")
    if columns.weight is None:
        return table, paired
    table = table.filter(table.w > 0)
    return table, engine.count(table)


def _refuse(engine: Engine, sides: Mapping[str, Table], sizes: Mapping[str, int], columns: Columns) -> None:
    """Say which release has ids that are missing, repeated or without a decision, or that another one lacks."""
    for side, rows in sides.items():
        found = engine.fetch_row(joins.row_checks(rows)) | engine.fetch_row(joins.key_checks(rows))
        for name, message in UNMATCHED.items():
            if found[name]:
                words = {
                    "ids": ", ".join(columns.id),
                    "outcome": columns.outcome,
                    "decision": columns.side(side).words(),
                }
                raise ValueError("audit: " + message.format(n=found[name], rows=sizes[side], side=side, **words))
        if found["repeated"]:
            raise ValueError(
                f"audit: {found['repeated']:,} ids come more than once in the {side} table "
                f"({found['repeated_rows']:,} rows), such as {shown_ids(engine, joins.repeated_ids(rows))}. "
                "Name all key columns in id=, remove the repeats, or use on_mismatch='inner' to leave these ids out."
            )
    first, *others = sides
    for side in others:
        lonely = {a: joins.only_in(sides[a], sides[b]) for a, b in ((first, side), (side, first))}
        said = [
            f"{n:,} ids are only in the {a} table, such as {shown_ids(engine, ids)}"
            for a, ids in lonely.items()
            if (n := engine.count(ids))
        ]
        if said:
            raise ValueError(
                f"audit: all releases must hold the same ids ({sizes[first]:,} rows in {first} and {sizes[side]:,} in "
                f"{side}), but {'; '.join(said)}. Use on_mismatch='inner' to judge the common ones only."
            )


def _count(engine: Engine, joined: _Joined, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Everything of a :class:`History` that is counted or inferred."""
    rows, size = joined.table, len(columns.sides)
    names = [*(("g",) if columns.group else ()), *(f"b{i}" for i in range(len(columns.by)))]
    found = {name: values(engine, rows, name) for name in names}
    cut = [
        choose_cut(engine, lambda: rows, name, f"b{i}", found[f"b{i}"], joined.paired)
        for i, name in enumerate(columns.by)
    ]
    cuts, notes = [one for one, _ in cut], [note for _, some in cut for note in some]
    design = design_of(columns, found.get("g", 0), settings.confidence, notes)
    unit = {"unit": counts.unit_of(rows, columns, design.groups, engine.quick)} if columns.group else {}
    counter = Counter(engine, rows, unit, size)
    whole = counter.whole()
    changes = {(i, j): _change(design, whole.pair(None, i, j)) for i, j in combinations(range(size), 2)}
    for i, q in enumerate(false_discovery([changes[i, i + 1].p_value for i in range(size - 1)])):
        changes[i, i + 1] = replace(changes[i, i + 1], q_value=float(q))
    return {
        "design": design,
        "labelled": whole.pair(None, 0, 1).n["labelled"],
        "accuracies": _accuracies(design, whole, None, size),
        "backs": [_back(design, whole, f"back{i}") if i > 1 else undefined(0, NO_RETURN) for i in range(size)],
        "back": _back(design, whole, "back") if size > 2 else undefined(0, NO_RETURN),
        "pairs": changes,
        "by_changes": _rows_by_changes(engine.fetch(expressions.by_changes(rows))),
        "restless": _restless(engine.fetch(expressions.most_changed(rows, int(settings.sample))), columns),
        "slices": _drifts(counter, whole, cuts, design, size),
        "notes": notes,
    }


def _back(design: Design, whole: Sums, name: str) -> Estimate:
    return design.share(whole.tally(None, {"all": "all", "back": name}), "back", "all")


def _change(design: Design, tally: Tally) -> Change:
    churn, broken, fixed, change = (design.figure(tally, name) for name in FIGURES)
    return Change(churn, broken, fixed, change, design.mcnemar(tally).p_value)


def _accuracies(design: Design, sums: Sums, value: str | None, size: int) -> list[Estimate]:
    tallies = (sums.tally(value, {"labelled": "labelled", "right": f"right{i}"}) for i in range(size))
    return [design.figure(tally, "accuracy_old") for tally in tallies]


def _drifts(counter: Counter, whole: Sums, cuts: Sequence[counts.Cut], design: Design, size: int) -> tuple[Drift, ...]:
    """Each slice from the first release to the last, and its series."""
    last = size - 1
    found: dict[Key, Tally] = {(-1, None): whole.pair(None, 0, last)}
    by_cut = [counter.slices(cut) for cut in cuts]
    for k, sums in enumerate(by_cut):
        found |= {(k, value): sums.pair(value, 0, last) for value in sums.values}
    found = in_order(found)
    strict = 1 - (1 - design.confidence) / max(len(found) - 1, 1)
    drifts = []
    for (key, inside), change in zip(list(found.items())[1:], judge_slices(found, cuts, design), strict=True):
        sums, value = by_cut[key[0]], key[1]
        other = found[-1, None].without(inside)
        beyond, wide = (
            difference(design.change(inside, level), design.change(other, level))
            for level in (design.confidence, strict)
        )
        steps = [design.figure(sums.pair(value, max(i - 1, 0), i), "churn") for i in range(size)]
        since = [design.figure(sums.pair(value, 0, i), "churn") for i in range(size)]
        accuracies = _accuracies(design, sums, value, size)
        shown = tuple(accuracies), tuple(steps), tuple(since)
        drifts.append(Drift(change, beyond, _stands_out(change, wide), *shown))
    return tuple(drifts)


def _stands_out(change: Slice, beyond: Estimate) -> bool:
    """Whether a slice drifts; ``beyond`` has an interval that is widened for the number of slices."""
    if not beyond.defined:
        return change.flips_q <= 0.05 and change.lift > 1
    # Where one slice falls, all others rise against their other rows: they have to change by themselves too.
    further = beyond.high < 0 if change.accuracy_change.value < 0 else beyond.low > 0
    return change.q_value <= 0.05 and further


def _rows_by_changes(found: Fetched) -> dict[int, int]:
    return {int(changes): int(n) for changes, n in zip(found["changes"], found["n"], strict=True)}


def _restless(found: Fetched, columns: Columns) -> tuple[Restless, ...]:
    rows = []
    for at, changes in enumerate(found["changes"]):
        decisions = tuple(found[f"d{i}"][at] for i in range(len(columns.sides)))
        back = sum(a != b and b in decisions[:i] for i, (a, b) in enumerate(pairwise(decisions)))
        ids = {name: found[f"k{i}"][at] for i, name in enumerate(columns.id)}
        slices = {name: found[f"b{i}"][at] for i, name in enumerate(columns.by)}
        rows.append(
            Restless(ids, slices, found["label"][at] if "label" in found else None, decisions, int(changes), back)
        )
    return tuple(rows)
