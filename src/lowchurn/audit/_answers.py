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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lowchurn._checks import unknown_name
from lowchurn.audit import _counts as counts
from lowchurn.audit._columns import Columns, as_names
from lowchurn.audit._pairs import shown_ids
from lowchurn.audit._sources import CSV_ENDINGS, Engine, TableLike

SEPARATORS = (",", ";", "\t", "|")
MOST_BYTES = 1 << 30  # of a file that people filled in, unpacked
MOST_SHOWN = 20  # classes in an error message
_NUMBER = re.compile(r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf(?:inity)?))", re.ASCII)
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0*)?", re.ASCII)
_TRUTHS = {"true": True, "false": False, "1": True, "0": False}


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

    columns: Mapping[str, Sequence[Any]]
    name: str
    first: int
    """Number of the first row: 2 in a file, as a spreadsheet counts, and 0 in a table in memory."""

    def row(self, i: int) -> str:
        return f"row {i + self.first:,} of {self.name}"


def read_answers(
    engine: Engine, pairs: counts.Table, columns: Columns, classes: Iterable[Any], table: TableLike, label: str
) -> Answers:
    """Join answers to the rows that they are about.

    ``classes`` are the decisions of both models; the audited labels and the classes that the caller named are known
    too. Labels that are none of them, and unknown, missing and repeated ids, are refused.
    """
    (label,) = as_names("label", label)
    given = _read_rows(engine, table, (*columns.id, label))
    known = {*classes, *columns.classes}
    with engine.errors():
        if "label" in pairs.columns:
            known |= set(engine.fetch(pairs.select("label").distinct())["label"]) - {None}
        keys = counts.key_names(pairs)
        types = {key: pairs.schema().to_pyarrow().field(key).type for key in keys}
    texts = given.columns[label]
    if given.first and "" in known and "" in texts:
        raise ValueError(
            f"answers: one of the classes is the empty text, so {given.row(list(texts).index(''))} may be answered or "
            "not. Give the class a name, or give a table in memory with None where there is no answer."
        )
    answered = [i for i, text in enumerate(texts) if not is_empty(text, known)]
    truths = _truths(given, label, answered, known)
    ids = {key: _typed_ids(given, name, answered, types[key]) for key, name in zip(keys, columns.id, strict=True)}
    named = (i for i in range(len(texts)) if not all(is_empty(given.columns[name][i]) for name in columns.id))
    with engine.errors():
        return _join(engine, pairs, ids, truths, empty=len(set(named) - set(answered)))


def is_empty(value: Any, known: Iterable[Any] = ()) -> bool:
    """Whether nothing was filled in; a blank text is an answer where it is a class itself."""
    if isinstance(value, str):
        return not value.strip() and value not in known
    return value is None or value != value


def _read_rows(engine: Engine, table: TableLike, wanted: Sequence[str]) -> Given:
    if isinstance(table, str | os.PathLike) and os.fspath(table).lower().endswith(CSV_ENDINGS):
        return read_csv(os.fspath(table), wanted)
    with engine.errors():
        rows = engine.read("answers", table)
        for name in wanted:
            if name not in rows.columns:
                raise unknown_name("answers", "column", name, rows.columns)
        return Given(engine.fetch(rows.select(*dict.fromkeys(wanted))), "the answers", 0)


def read_csv(path: str, wanted: Sequence[str]) -> Given:
    """A CSV file as text: commas, semicolons, tabs or bars; UTF-8 or UTF-16; rows counted as a spreadsheet does.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from lowchurn.audit._answers import read_csv
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "answers.csv")
    ...     _ = path.write_bytes(b"\\xef\\xbb\\xbfid;label\\r\\n007; cat\\r\\n")
    ...     read_csv(str(path), ["id", "label"]).columns
    {'id': ['007'], 'label': [' cat']}
    """
    who = f"answers: the file {path!r}"
    raw = _bytes(path, who)
    try:
        text = raw.decode(_encoding(raw))
    except UnicodeError as error:
        reason = getattr(error, "reason", str(error))
        raise ValueError(f"{who} is not UTF-8 ({reason}). Save it as CSV in UTF-8.") from None
    if "\0" in text:
        raise ValueError(f"{who} contains zero bytes and is no text. Save it as CSV in UTF-8.")
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
    """Whether a file is a table in which somebody has filled in labels, however it was saved.

    Examples
    --------
    >>> from lowchurn.audit._answers import holds_answers
    >>> holds_answers("no-such.csv")
    False
    """
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

    options = (named[1],) if named else SEPARATORS
    best = max(options, key=lambda s: (sum(name in names_by(s) for name in wanted), len(names_by(s))))
    try:
        rows = list(csv.reader(io.StringIO(body, newline=""), delimiter=best, strict=strict))
    except csv.Error as error:
        raise ValueError(f"{who} is not valid CSV: {error}.") from None
    while rows and not any(rows[-1]):
        rows.pop()
    return rows


def _truths(given: Given, label: str, answered: Sequence[int], known: set[Any]) -> list[Any]:
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
            f"answers: the label {first!r} in {given.row(wrong[0])} is no class of the decisions{more}. {hint}"
            "Correct it, leave it empty, or name every class with classes= where neither model ever decides for it. "
            f"Known: {shown}."
        )
    return truths


def class_reader(known: Iterable[Any]) -> Callable[[Any], Any]:
    """A function from what somebody wrote to the class that it means; None where it is no class.

    Text is compared as it is, and without surrounding spaces where that leaves one class. Numbers are compared
    exactly: ``1.50`` is the class 1.5 where classes are floats or decimals, ``1.0`` is the integer 1, and ``1e3`` or
    ``01`` is no integer. Truth values are true, false, 1 and 0 in any case; dates are in ISO format.

    Examples
    --------
    >>> from lowchurn.audit._answers import class_reader
    >>> read = class_reader([0, 1, 1000])
    >>> read("1"), read("1.0"), read("1e3"), read("yes")
    (1, 1, None, None)
    >>> class_reader(["1.5", "cat"])("1.50") is None
    True
    """
    classes = {value: value for value in known}
    trimmed: dict[str, list[str]] = {}
    for value in classes:
        if isinstance(value, str):
            trimmed.setdefault(value.strip(), []).append(value)
    # As str() writes them, which is how they were exported.
    spelled = Counter(map(str, classes))
    written = {str(v): v for v in classes if spelled[str(v)] == 1 and not isinstance(v, str)}
    kinds = {_kind(value) for value in classes}
    parsers = [parse for kind, parse in _PARSERS if kind in kinds]

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            with suppress(TypeError):  # a list or a dict is no class
                if value in classes:
                    return classes[value]
            value = str(value)
        if value in classes:
            return value
        alike = trimmed.get(value.strip(), ())
        if len(alike) == 1:
            return alike[0]
        for parse in parsers:
            with suppress(ValueError, KeyError, ArithmeticError):
                return classes[parse(value.strip())]
        return written.get(value.strip())

    return read


def _kind(value: Any) -> type:
    """The most specific of the kinds: True is an int and a time stamp is a date as well."""
    return next((kind for kind, _ in _PARSERS if isinstance(value, kind)), str)


def _parse_whole(text: str) -> int:
    found = _WHOLE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(found[1])


def _parse_number(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if _NUMBER.fullmatch(text) is None:
            raise ValueError(text)
        return kind(text)

    return parse


def _parse_date(text: str) -> date:
    found = datetime.fromisoformat(text)
    if "-" not in text or found != datetime.combine(found.date(), datetime.min.time()):
        raise ValueError(text)
    return found.date()


_PARSERS: tuple[tuple[type, Callable[[str], Any]], ...] = (
    (bool, lambda text: _TRUTHS[text.casefold()]),
    (int, _parse_whole),
    (float, _parse_number(float)),
    (Decimal, _parse_number(Decimal)),
    (datetime, datetime.fromisoformat),
    (date, _parse_date),
)


def _typed_ids(given: Given, name: str, rows: Sequence[int], kind: pa.DataType) -> pa.Array:
    """The ids of the answered rows in the type of the audited ids, without loss."""
    found = []
    for i in rows:
        value = given.columns[name][i]
        if is_empty(value):
            raise ValueError(f"answers: {given.row(i)} has a label and no id in column {name!r}.")
        try:
            found.append(_typed_id(value, kind))
        except (ValueError, KeyError, TypeError, ArithmeticError, InvalidOperation, pa.ArrowException):
            raise ValueError(
                f"answers: the id {value!r} in {given.row(i)} is not of the type of {name!r}, {kind}."
            ) from None
    return pa.array(found, type=kind)


def _typed_id(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, str):
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return value
        text = value.strip()
        if pa.types.is_integer(kind):
            value = _parse_whole(text)
        elif pa.types.is_floating(kind):
            value = _parse_number(float)(text)
        elif pa.types.is_decimal(kind):
            value = _parse_number(Decimal)(text)
        elif pa.types.is_boolean(kind):
            value = _TRUTHS[text.casefold()]
        else:
            value = pa.scalar(text).cast(kind).as_py()
    elif pa.types.is_integer(kind):
        value = _same(int(value), value)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        value = str(value)
    scalar = pa.scalar(value, type=kind)
    return scalar.as_py() if pa.types.is_floating(kind) else _same(scalar.as_py(), value)


def _same(converted: Any, value: Any) -> Any:
    if converted != value:
        raise ValueError(value)
    return converted


def _join(
    engine: Engine, pairs: counts.Table, ids: Mapping[str, pa.Array], truths: Sequence[Any], empty: int
) -> Answers:
    keys = list(ids)
    given = engine.read("answers", pa.table({**ids, "place": pa.array(range(len(truths)), type=pa.int64())}))
    repeated = counts.repeated_ids(given)
    if engine.count(repeated):
        raise ValueError(f"answers: each id must come once, repeated are {shown_ids(engine, repeated)}.")
    unknown = counts.only_in(given, pairs)
    if lost := engine.count(unknown):
        some = shown_ids(engine, unknown)
        raise ValueError(f"answers: {lost:,} answered ids are not among the audited rows, such as {some}.")
    both = given.join(pairs, keys, how="inner")
    wanted = {"place": both.place, "old": both.old, "new": both.new}
    if "w" in pairs.columns:
        wanted["w"] = both.w
    found = engine.fetch(both.select(**wanted))
    outcomes, weights, agreeing = [], [], 0
    for i, (place, old, new) in enumerate(zip(found["place"], found["old"], found["new"], strict=True)):
        if old == new:
            agreeing += 1
            continue
        truth = truths[place]
        outcomes.append(1.0 if new == truth else -1.0 if old == truth else 0.0)
        weights.append(float(found["w"][i]) if "w" in found else 1.0)
    return Answers(np.asarray(outcomes), np.asarray(weights), agreeing, empty)
