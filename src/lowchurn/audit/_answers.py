"""Labels that people filled in: read as text, converted to the type of the decisions, joined to the disagreements.

Nothing is guessed. An answer is one of the known classes or it is refused with its row; an id is converted to the type
of the audited ids without loss or it is refused.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from lowchurn._checks import unknown_name
from lowchurn.audit import _counts as counts
from lowchurn.audit import _joins as joins
from lowchurn.audit._columns import Columns, as_names
from lowchurn.audit._csv import DELIMITERS
from lowchurn.audit._exact import kind_of
from lowchurn.audit._pairs import shown_ids
from lowchurn.audit._paths import CSV_ENDINGS
from lowchurn.audit._sources import Engine, TableLike
from lowchurn.audit._values import class_reader, id_value

MOST_BYTES = 1 << 30  # of a file that people filled in, unpacked
MOST_SHOWN = 20  # classes in an error message


@dataclass(frozen=True)
class Answers:
    """Of each answered disagreement, whether it was fixed (+1), broken (-1) or wrong both ways (0)."""

    outcomes: np.ndarray
    weights: np.ndarray
    agreeing: int
    """Answers to rows on which the models agree."""
    empty: int = 0
    """Rows without an answer."""


@dataclass(frozen=True)
class Given:
    """Rows as they were given, and how an error names one of them."""

    columns: Mapping[str, Sequence[object]]
    name: str
    first: int
    """Number of the first row: 2 in a file, as a spreadsheet counts, and 0 in a table in memory."""

    def row(self, i: int) -> str:
        return f"row {i + self.first:,} of {self.name}"


def read_answers(
    engine: Engine,
    counted: joins.Table,
    pairs: joins.Table,
    columns: Columns,
    classes: Iterable[object],
    table: TableLike,
    label: str,
) -> Answers:
    """Join answers to the rows that they are about.

    ``classes`` are the decisions of both models; the audited labels and the classes that the caller named are known
    too. Labels that are none of them, and unknown, missing and repeated ids, are refused. The changed rows are among
    what was counted; all other rows are looked up in ``pairs``, where an answer is about one of them.
    """
    (label,) = as_names("label", label)
    given = _read_rows(engine, table, (*columns.id, label))
    known = {*classes, *columns.classes}
    with engine.errors():
        if "label" in counted.columns:
            known |= set(engine.fetch(counts.labels(counted))["label"])
        schema = counted.schema()
    texts = given.columns[label]
    if given.first and "" in known and "" in texts:
        raise ValueError(
            f"answers: one of the classes is the empty text, so {given.row(list(texts).index(''))} may be answered or "
            "not. Give the class a name, or give a table in memory with None where there is no answer."
        )
    answered = [i for i, text in enumerate(texts) if not is_empty(text, known)]
    truths = _truths(given, label, answered, known)
    ids = {
        key: _typed_ids(given, name, answered, kind_of(schema[key]), schema.to_pyarrow().field(key).type)
        for key, name in zip(joins.key_names(counted), columns.id, strict=True)
    }
    named = (i for i in range(len(texts)) if not all(is_empty(given.columns[name][i]) for name in columns.id))
    with engine.errors():
        return _join(engine, counts.changed(counted), pairs, ids, truths, empty=len(set(named) - set(answered)))


def is_empty(value: object, known: Iterable[object] = ()) -> bool:
    """Whether nothing was filled in; a blank text is an answer where it is a class itself."""
    if isinstance(value, str):
        return not value.strip() and value not in known
    return value is None or value != value


def _read_rows(engine: Engine, table: TableLike, wanted: Sequence[str]) -> Given:
    if isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(CSV_ENDINGS):
        return read_csv(os.fspath(table), wanted)
    with engine.errors():
        rows = engine.open("answers", table).table
        for name in wanted:
            if name not in rows.columns:
                raise unknown_name("answers", "column", name, rows.columns)
        return Given(engine.fetch(rows.select(*dict.fromkeys(wanted))), "the answers", 0)


def read_csv(path: str, wanted: Sequence[str]) -> Given:
    """A CSV file as text: commas, semicolons, tabs or bars; UTF-8 or UTF-16; rows counted as a spreadsheet does."""
    who = f"answers: the file {path!r}"
    raw = _bytes(path, who)
    try:
        text = raw.decode(_encoding(raw))
    except UnicodeError as error:
        reason = getattr(error, "reason", str(error))
        raise ValueError(f"{who} is not UTF-8 ({reason}). Save it as CSV in UTF-8.") from None
    if "\0" in text:
        raise ValueError(f"{who} contains zero bytes and is not text. Save it as CSV in UTF-8.")
    rows = _split(who, text, wanted)
    if not rows:
        raise ValueError(f"{who} is empty.")
    header = [name if name in wanted else name.strip() for name in rows[0]]
    for name in wanted:
        if name not in header:
            raise unknown_name("answers", f"column of {path!r}:", name, header)
        if header.count(name) > 1:
            raise ValueError(f"{who} must have one column {name!r}, got {header.count(name)}.")
    places = {name: header.index(name) for name in wanted}
    found: dict[str, list[str]] = {name: [] for name in places}
    for number, row in enumerate(rows[1:], start=2):
        if any(row[len(header) :]):
            raise ValueError(
                f"{who} has {len(row)} cells in row {number:,} and {len(header)} columns. "
                "Put quotes around text that contains the separator."
            )
        for name, place in places.items():
            found[name].append(row[place] if place < len(row) else "")
    return Given(found, repr(path), 2)


def holds_answers(path: str | os.PathLike[str], label: str = "label") -> bool:
    """Whether a file is a table in which somebody has filled in labels, however it was saved."""
    try:
        raw = Path(path).read_bytes() if os.path.isfile(path) else b""
        try:
            text = raw.decode(_encoding(raw))
        except UnicodeError:
            text = raw.decode("latin-1")
        rows = _split("", text.replace("\0", ""), (label,), strict=False)
    except (OSError, ValueError):
        return False
    header = [name.strip().casefold() for name in rows[0]] if rows else []
    places = [i for i, name in enumerate(header) if name == label]
    return any(row[i].strip() for row in rows[1:] for i in places if i < len(row))


def _bytes(path: str, who: str) -> bytes:
    try:
        with pa.input_stream(path, compression="detect") as file:
            raw: bytes = file.read(MOST_BYTES + 1)
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = getattr(error, "strerror", None) or str(error).split("\n")[0].rstrip(".")
        if not os.path.exists(path):
            reason = "there is no such file"
        elif os.path.isdir(path):
            reason = "it is a folder"
        raise ValueError(f"{who} cannot be read: {reason}.") from None
    if len(raw) > MOST_BYTES:
        raise ValueError(f"{who} is larger than {MOST_BYTES:,} bytes. Keep the rows with answers only.")
    return raw


def _encoding(raw: bytes) -> str:
    return "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"


def _split(who: str, text: str, wanted: Sequence[str], strict: bool = True) -> list[list[str]]:
    """Cells by the separator that finds the wanted columns in the header; lines without any text are left out."""
    named = re.match(r"sep=(.)\r?\n", text)  # how spreadsheets note the separator
    body = text[named.end() :] if named else text
    header = body.splitlines()[0] if body.strip() else ""

    def names_by(separator: str) -> list[str]:
        with suppress(csv.Error):
            return [name.strip() for name in next(csv.reader([header], delimiter=separator), [])]
        return []

    options = (named[1],) if named else DELIMITERS
    best = max(options, key=lambda s: (sum(name in names_by(s) for name in wanted), len(names_by(s))))
    try:
        rows = list(csv.reader(io.StringIO(body, newline=""), delimiter=best, strict=strict))
    except csv.Error as error:
        raise ValueError(f"{who} is not valid CSV: {error}.") from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _truths(given: Given, label: str, answered: Sequence[int], known: set[object]) -> list[object]:
    read = class_reader(known)
    truths, wrong = [], []
    for i in answered:
        truth = read(given.columns[label][i])
        truths.append(truth)
        if truth is None:
            wrong.append(i)
    if wrong:
        first = given.columns[label][wrong[0]]
        names = sorted(map(str, known))
        near = difflib.get_close_matches(str(first).strip(), names, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
        more = f" ({len(wrong):,} labels are none)" if len(wrong) > 1 else ""
        shown = ", ".join(map(repr, names[:MOST_SHOWN])) + (" ..." if len(names) > MOST_SHOWN else "")
        raise ValueError(
            f"answers: the label {first!r} in {given.row(wrong[0])} is not a class of the decisions{more}. {hint}"
            "Correct it, leave it empty, or name every class with classes= where neither model ever decides for it. "
            f"Known: {shown}."
        )
    return truths


def _typed_ids(given: Given, name: str, rows: Sequence[int], kind: str, type: pa.DataType) -> pa.Array:
    """The ids of the answered rows in the type of the audited ids, without loss."""
    found = []
    for i in rows:
        value = given.columns[name][i]
        if is_empty(value):
            raise ValueError(f"answers: {given.row(i)} has a label and no id in column {name!r}.")
        try:
            found.append(id_value(value, kind, type))
        except (ValueError, KeyError, TypeError, ArithmeticError, pa.ArrowException):
            raise ValueError(
                f"answers: the id {value!r} in {given.row(i)} is not of the type of {name!r}, {type}."
            ) from None
    return pa.array(found, type=type)


def _join(
    engine: Engine,
    changed: joins.Table,
    pairs: joins.Table,
    ids: Mapping[str, pa.Array],
    truths: Sequence[object],
    empty: int,
) -> Answers:
    keys = list(ids)
    given = engine.hold(pa.table({**ids, "place": pa.array(range(len(truths)), type=pa.int64())}))
    repeated = joins.repeated_ids(given)
    if engine.count(repeated):
        raise ValueError(f"answers: each id must come once, repeated are {shown_ids(engine, repeated)}.")
    wanted = ["place", "old", "new", *(["w"] if "w" in changed.columns else [])]
    found = engine.fetch(given.join(changed, keys, how="inner").select(*wanted))
    others = given.filter(given.place.notin(found["place"])) if found["place"] else given
    agreeing = len(truths) - len(found["place"])
    if agreeing:
        unknown = joins.only_in(others, others.join(pairs, keys, how="inner"))
        if lost := engine.count(unknown):
            some = shown_ids(engine, unknown)
            raise ValueError(f"answers: {lost:,} answered ids are not among the audited rows, such as {some}.")
    outcomes = []
    for place, old, new in zip(*(found[name] for name in ("place", "old", "new")), strict=True):
        truth = truths[place]
        outcomes.append(1.0 if new == truth else -1.0 if old == truth else 0.0)
    weights = np.asarray(found.get("w", [1.0] * len(outcomes)), dtype=float)
    return Answers(np.asarray(outcomes), weights, agreeing, empty)
