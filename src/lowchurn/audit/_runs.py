"""An evaluation run as a table: one row per item and repeat, with its outcome and its answer."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lowchurn._checks import check_choice, unknown_name
from lowchurn._files import PathLike, write_file
from lowchurn._terminal import printable
from lowchurn.audit._columns import as_names
from lowchurn.audit._paths import PARQUET_ENDINGS, split_path
from lowchurn.audit._run_logs import ABOUT, READERS, SHOWN, About, Attempt, Log, find_kind, text_of
from lowchurn.audit._sources import TableLike

LONGEST_ANSWER = 2_000  # of a baseline, in characters
KEY = ("task", "id", "epoch")
SCHEMA = {
    "task": pa.string(),
    "id": pa.string(),
    "epoch": pa.int64(),
    "outcome": pa.float64(),
    "answer": pa.string(),
    "target": pa.string(),
    "prompt_hash": pa.string(),
    "content": pa.string(),
}
RESERVED = {*SCHEMA, "item", "expected", "old answer", "new answer"}
# Outcomes in words, and the letters of Inspect.
RIGHT = ("right", "correct", "true", "yes", "pass", "passed", "c")
WRONG = ("wrong", "incorrect", "false", "no", "fail", "failed", "i", "n")
OUTCOMES = dict.fromkeys(RIGHT, 1.0) | dict.fromkeys(WRONG, 0.0) | {"p": 0.5}


Chosen = Mapping[str | None, str]  # the metric or the filter of each task
Choice = str | Chosen | None


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """An evaluation run. Made by :func:`read_run`."""

    table: pa.Table
    """Columns ``task``, ``id``, ``epoch``, ``outcome`` (true for right, or a number; missing where there is none),
    ``answer``, ``target``, ``prompt_hash``, ``content`` (a hash of what is asked and expected) and those of ``by``."""
    kind: str
    path: str | None = None
    files: tuple[Path, ...] = ()
    model: str | None = None
    metrics: Chosen = field(default_factory=dict)
    """The metric of each task."""
    filters: Chosen = field(default_factory=dict)
    """The filter of lm-eval, or the provider of promptfoo, of each task where there is one."""
    by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(task for task in self.metrics if task is not None)

    @property
    def graded(self) -> bool:
        """Outcomes are numbers, and not only right or wrong."""
        return not pa.types.is_boolean(self.table.schema.field("outcome").type)

    @property
    def measured(self) -> str:
        """What decides the outcomes of each task, in words."""
        return ", ".join(
            ("" if task is None else f"{task}: ")
            + metric
            + (f" ({self.filters[task]})" if task in self.filters else "")
            for task, metric in self.metrics.items()
        )

    def save(self, path: PathLike) -> None:
        """Write the run as a baseline: a small Parquet file that :func:`read_run` reads."""
        write_file(path, self.to_parquet())

    def to_parquet(self) -> bytes:
        """The bytes of a baseline: the same for the same run, with long answers cut off."""
        rows = self.table.sort_by([(name, "ascending") for name in KEY])
        for name in ("answer", "target"):
            cut = pc.utf8_slice_codeunits(rows[name], 0, LONGEST_ANSWER)
            rows = rows.set_column(rows.schema.get_field_index(name), name, cut)
        about = About(1, self.kind, self.model, list(self.metrics.items()), list(self.filters.items()))
        rows = rows.replace_schema_metadata({ABOUT: json.dumps(asdict(about))})
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="zstd", write_statistics=False)  # these would repeat whole answers
        return bytes(sink.getvalue())

    def __repr__(self) -> str:
        values = self.table["outcome"].drop_null()
        state = f"mean {pc.mean(values).as_py():.4g}" if self.graded else f"{pc.sum(values).as_py() or 0:,} right"
        return printable(f"{len(self.table):,} outcomes of {self.kind} ({self.measured}), {state}")


def read_run(
    path: TableLike,
    kind: str = "auto",
    task: str | Sequence[str] | None = None,
    metric: str | None = None,
    filter: str | None = None,
    *,
    by: str | Sequence[str] = (),
) -> Run:
    """Read an evaluation run: which items were answered rightly.

    Parameters
    ----------
    path : path or table
        A log of lm-evaluation-harness (``samples_<task>_<date>.jsonl``, or the folder of a model: the newest file of
        each task), of Inspect (``.eval``, or a folder; ``pip install "lowchurn[inspect]"``) or of promptfoo (JSONL or
        JSON), a baseline of ``lowchurn bless``, or any JSONL, CSV, Parquet file or table with an ``id`` and an outcome.
    kind : {"auto", "lm-eval", "inspect", "promptfoo", "table"}, default "auto"
    task : str or list of str, optional
        Tasks to read; by default all. Where promptfoo has several prompts, these are its tasks.
    metric : str, optional
        What decides the outcome; by default the first metric of each task, the ``success`` of promptfoo, or the column
        called ``outcome``, ``correct``, ``right``, ``passed``, ``success`` or ``score``.
    filter : str, optional
        Of lm-eval, the filter that extracts the answers (default: the first); of promptfoo, the provider.
    by : str or list of str, optional
        Further values of the items to keep as columns: fields of the document (lm-eval), of the metadata (Inspect),
        variables and metadata (promptfoo) or columns.

    Returns
    -------
    Run
        With ``table`` (pyarrow), ``tasks``, ``metrics``, ``filters``, ``notes`` and ``save(path)``.

    Examples
    --------
    >>> import pandas as pd
    >>> from lowchurn.audit import read_run
    >>> run = read_run(pd.DataFrame({"id": ["a", "b", "c"], "correct": [True, False, None]}))
    >>> run
    3 outcomes of table (correct), 1 right
    >>> run.table["outcome"].to_pylist()
    [True, False, None]
    """
    return read_chosen(path, kind, task, metric, filter, by)


def read_chosen(
    path: TableLike,
    kind: str,
    task: str | Sequence[str] | None,
    metric: Choice,
    filter: Choice,
    by: str | Sequence[str],
) -> Run:
    """:func:`read_run` with a metric and a filter for all tasks or, as a mapping, for each."""
    check_choice("read_run", "kind", kind, ("auto", *READERS))
    where = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if where is not None and not os.path.exists(split_path(where)[0]):
        folder = Path(where).absolute().parent
        near = sorted(p.name for p in folder.glob("*"))[:SHOWN] if folder.is_dir() else []
        hint = f" That folder holds {', '.join(near)}." if near else ""
        raise ValueError(f"read_run: there is no file or folder {where!r}.{hint}")
    if where is not None and where.lower().endswith(PARQUET_ENDINGS):
        kind = "table"  # a baseline of any kind, perhaps
    elif kind == "auto":
        kind = "table" if where is None else find_kind(where)
    elif where is None and kind != "table":
        raise ValueError(f"read_run: {kind} must be read from a file or folder, got a table.")
    if kind == "table":  # its columns have names of their own
        metric, filter = (each if isinstance(each, str) else None for each in (metric, filter))
    log = READERS[kind](path if where is None else where, metric if isinstance(metric, str) else None)
    slices = [column for column in as_names("by", by) if column != "task"]  # it is there in any case
    return _assembled(log, where, kind, task, metric, filter, slices)


def _assembled(
    log: Log,
    path: str | None,
    kind: str,
    task: str | Sequence[str] | None,
    metric: Choice,
    filter: Choice,
    by: Sequence[str],
) -> Run:
    """The attempts of a log that were asked for, checked, as a table."""
    name = "the table" if path is None else repr(path)
    attempts = list(log.attempts)
    if not attempts:
        raise ValueError(f"read_run: {name} has no items.")
    if log.about is not None:
        _check_baseline(log.about, metric, filter, name)
        metric = filter = None
    attempts = _of_tasks(attempts, task, name)
    if log.tasks_if_several and len({a.task for a in attempts}) == 1:
        attempts = [a._replace(task=None) for a in attempts]
    filters, notes = _filters(attempts, filter, log, name)
    attempts = [a for a in attempts if a.variant == filters.get(a.task)]
    metrics, more = _metrics(attempts, metric, log, name, asked=task is not None)
    attempts = _numbered([a for a in attempts if a.task in metrics])
    _check_once(attempts, name)
    rows = _table(attempts, metrics, by, name)
    if log.about is not None:
        kind, metrics, filters = log.about.kind, dict(log.about.metrics), dict(log.about.filters)
    present = {a.task for a in attempts}
    metrics, filters = ({task: held[task] for task in held if task in present} for held in (metrics, filters))
    return Run(rows, kind, path, tuple(log.files), log.model, metrics, filters, tuple(by), (*notes, *more))


def _table(attempts: Sequence[Attempt], metrics: Chosen, by: Sequence[str], name: str) -> pa.Table:
    outcomes = [_outcome(a, metrics[a.task]) for a in attempts]
    columns: dict[str, list[Any]] = {
        "task": [a.task for a in attempts],
        "id": [a.id for a in attempts],
        "epoch": [a.epoch for a in attempts],
        "outcome": outcomes,
        "answer": [a.answer for a in attempts],
        "target": [a.target for a in attempts],
        "prompt_hash": [a.prompt for a in attempts],
        "content": [a.content for a in attempts],
    }
    schema = dict(SCHEMA)
    if not {*outcomes} - {0.0, 1.0, None}:
        schema["outcome"] = pa.bool_()
        columns["outcome"] = [None if value is None else bool(value) for value in outcomes]
    for column in by:
        columns[column] = _field(attempts, column, name)
        schema[column] = pa.string()
    return pa.table(columns, schema=pa.schema(schema.items()))


def _check_baseline(about: About, metric: Choice, filter: Choice, name: str) -> None:
    """A baseline has the metric and the filter that it was made with."""
    for word, wanted, held in (("metric", metric, dict(about.metrics)), ("filter", filter, dict(about.filters))):
        if isinstance(wanted, str) and {*held.values()} != {wanted}:
            shown = ", ".join(sorted({*map(repr, held.values())})) or "none"
            raise ValueError(
                f"read_run: the baseline {name} has the {word} {shown}, got {wanted!r}. Bless a run with that {word}."
            )


def _of_tasks(attempts: list[Attempt], task: str | Sequence[str] | None, name: str) -> list[Attempt]:
    known = list(dict.fromkeys(a.task for a in attempts))
    if None in known and len(known) > 1:
        lost = next(a for a in attempts if a.task is None)
        raise ValueError(f"read_run: every item of {name} must have a task or none, {lost.where} has none.")
    if task is None:
        return attempts
    wanted = as_names("task", task)
    for each in wanted:
        if each not in known:
            raise unknown_name("read_run", f"task in {name}", each, [k for k in known if k is not None])
    return [a for a in attempts if a.task in wanted]


def _filters(
    attempts: Iterable[Attempt], wanted: Choice, log: Log, name: str
) -> tuple[dict[str | None, str], list[str]]:
    """The filter of each task that has one, and notes where it was not named."""
    known: dict[str | None, dict[str, bool]] = {}
    for a in attempts:
        if a.variant is not None:
            known.setdefault(a.task, {})[a.variant] = True
    if wanted is None and log.variant_needed and (several := [names for names in known.values() if len(names) > 1]):
        raise ValueError(f"read_run: {name} has several providers: {', '.join(several[0])}. Choose one with filter=.")
    return _choose("filter", known, wanted, name)


def _metrics(
    attempts: Iterable[Attempt], wanted: Choice, log: Log, name: str, asked: bool
) -> tuple[dict[str | None, str], list[str]]:
    """The metric of each task, and notes where it was not named; tasks without one are left out unless asked for."""
    known: dict[str | None, dict[str, bool]] = {}
    for a in attempts:
        usable = known.setdefault(a.task, {})
        for metric, value in a.scores.items():
            usable[metric] = usable.get(metric, True) and not isinstance(value, dict | list | tuple)
    known = {task: {metric: True for metric, usable in names.items() if usable} for task, names in known.items()}
    empty = [task for task, names in known.items() if not names]
    if empty and (asked or len(empty) == len(known)):
        raise ValueError(
            f"read_run: no metric{_of(empty[0])} in {name} has an outcome per item for which more is better."
        )
    if log.metric_needed and wanted is None:
        names = list(next(iter(known.values())))
        raise ValueError(f"read_run: found no outcome in {name} among {names[:10]}. Name it with metric=.")
    found, notes = _choose("metric", {task: names for task, names in known.items() if names}, wanted, name)
    notes = notes if log.metric_noted else []
    notes += [f"The task {task!r} is left out: none of its metrics has an outcome per item." for task in empty]
    return found, notes


def _choose(
    word: str, known: Mapping[str | None, Mapping[str, bool]], wanted: Choice, name: str
) -> tuple[dict[str | None, str], list[str]]:
    """Of each task the name that is wanted, or else its first; notes where there was a choice."""
    if isinstance(wanted, str) and not any(wanted in names for names in known.values()):
        raise unknown_name("read_run", f"{word} in {name}", wanted, {n for names in known.values() for n in names})
    found: dict[str | None, str] = {}
    notes = []
    for task, names in known.items():
        named = wanted if isinstance(wanted, str) or wanted is None else wanted.get(task)
        if named is not None and named not in names and not isinstance(wanted, str):
            raise unknown_name("read_run", f"{word}{_of(task)} in {name}", named, names)
        found[task] = named if named is not None and named in names else next(iter(names))
        others = [n for n in names if n != found[task]]
        if found[task] != named and (others or named is not None):
            shown = f"; others are {', '.join(map(repr, others[:SHOWN]))}" if others else ""
            notes.append(f"The {word}{_of(task)} is {found[task]!r}, its first{shown}.")
    return found, notes


def _of(task: str | None) -> str:
    return "" if task is None else f" of {task!r}"


def _numbered(attempts: list[Attempt]) -> list[Attempt]:
    """Repeats of an item that have no number, counted in the order of the log."""
    times: Counter[tuple[object, ...]] = Counter()
    found = []
    for a in attempts:
        if a.epoch is None:
            times[a.task, a.id] += 1
            a = a._replace(epoch=times[a.task, a.id])
        found.append(a)
    return found


def _check_once(attempts: Iterable[Attempt], name: str) -> None:
    first: dict[tuple[object, ...], str] = {}
    twice: dict[tuple[object, ...], str] = {}
    for a in attempts:
        key = (a.task, a.id, a.epoch)
        if first.setdefault(key, a.where) is not a.where:
            twice.setdefault(key, a.where)
    if twice:
        shown = "; ".join(f"{key[1]!r} in {first[key]} and {where}" for key, where in list(twice.items())[:SHOWN])
        raise ValueError(
            f"read_run: {len(twice):,} items come more than once in {name}: {shown}. Remove the repeats, or number "
            "them in a column called epoch."
        )


def _outcome(a: Attempt, metric: str) -> float | None:
    """A score as a number, 1 for right and 0 for wrong; None where there is none."""
    value: Any = a.scores.get(metric)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        word = value.strip().casefold()
        try:
            value = OUTCOMES[word] if word in OUTCOMES else float(word)
        except ValueError:
            raise ValueError(
                f"read_run: {a.where}: {metric} must be an outcome (a number, true or false, right or wrong), "
                f"got {value!r}."
            ) from None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"read_run: {a.where}: {metric} must be an outcome, got {value!r}.") from None
    if not math.isfinite(number):
        raise ValueError(
            f"read_run: {a.where}: {metric} must be finite, got {number}. Leave it out where there is no outcome."
        )
    return number


def _field(attempts: Sequence[Attempt], column: str, name: str) -> list[str | None]:
    if column in RESERVED:
        raise ValueError(f"read_run: by must not be one of {', '.join(sorted(RESERVED))}, got {column!r}.")
    if not any(column in a.fields for a in attempts):
        raise unknown_name(
            "read_run", f"value to slice by in {name}", column, {key for a in attempts for key in a.fields}
        )
    return [text_of(a.fields.get(column)) for a in attempts]
