"""Read text files (CSV, TSV) without guessing: every value is kept as it is written, and types come from all rows.

A column is an integer where every value is the one way to write a whole number ('7', not '007'), a float or decimal
where every value is a number, a boolean where every value is a word for one, a date or a timestamp where every value
is ISO 8601; everything else is text. Empty fields are missing values, and so are words such as NA where all other
values are no text. Numbers may have a decimal comma where semicolons separate the fields. The first line has the names
of the columns, no character starts a comment, and a line with too few or too many fields is an error.
"""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import ibis.expr.datatypes as dt
import pyarrow as pa

from lowchurn.audit._exact import MOST_DIGITS, NULL, ColumnType

if TYPE_CHECKING:
    from lowchurn.audit._sources import Connection

DELIMITERS = (",", ";", "\t", "|")

INTEGER = r"0|-?[1-9][0-9]*"
NUMBER = r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?"
# Not finite: a missing value or an infinite one, as numpy and others write them.
SPECIAL = r"(?i)nan|[+-]?inf(inity)?"
# What R, SAS, databases and others write for a missing value among numbers, dates and the like.
MISSING = r"(?i)#?n/?a|<na>|nan|nat|null|none|\\n|\."
WORDS = "true|false|True|False|TRUE|FALSE"
DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
ZONE = r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
# Spellings of numbers, far beyond those that are read as numbers.
ANY_NUMBER = r"\s*[+-]?([0-9_]+[.,]?[0-9_.,]*|[.,][0-9_]+)([eE][+-]?[0-9]+)?\s*"


class Header(NamedTuple):
    """How a text file is written, as its first lines show."""

    names: list[str]
    delimiter: str
    skipped: int
    """Lines above the names: blank ones, and the one in which spreadsheets note the delimiter."""
    compression: str


def read_header(path: str) -> Header:
    """The names of the columns and the character between fields, from the first line that has text."""
    compression = _compression(path)
    skipped, noted, ends = 0, None, set()
    try:
        with _text(path, compression) as text:
            for line in text:
                content = line.rstrip("\r\n")
                ends.add(line[len(content) :])
                found_note = re.fullmatch(r"sep=(.)", content)
                if content and (noted or not found_note):
                    break
                noted = noted or found_note
                skipped += 1
        delimiters = (noted[1],) if noted else ("\t",) if ".tsv" in path.lower()[-8:] else DELIMITERS
        found = [split for delimiter in delimiters if (split := _split(path, compression, skipped, delimiter))]
        if skipped and len(ends - {""}) > 1:  # the database would count other lines than we do
            raise ValueError("its lines end in different ways (\\r\\n and \\n). Save it with one of them")
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8. Save it as CSV in UTF-8") from None
    if not found:
        raise ValueError("the first line is not a list of column names, separated by commas, semicolons, tabs or bars")
    _, _, names, delimiter = max(found, key=lambda f: f[:2])
    # As DuckDB does for a column without a name, such as the index that pandas writes.
    named = [name if name else f"column{i}" for i, name in enumerate(names)]
    return Header(named, delimiter, skipped, compression)


def _split(path: str, compression: str, skipped: int, delimiter: str) -> tuple[bool, int, list[str], str] | None:
    """The names that a delimiter finds, and whether it splits the first row into as many parts."""
    names: list[str] = []
    with _text(path, compression) as text:
        for _ in range(skipped):
            next(text)
        records = csv.reader(text, delimiter=delimiter, strict=True)
        with contextlib.suppress(csv.Error):
            names = next(records, [])
            first = next(records, None)
            return len(names) > 1 and (first is None or len(first) == len(names)), len(names), names, delimiter
    return (False, len(names), names, delimiter) if names else None  # the database names the broken line


def _compression(path: str) -> str:
    """By the first bytes: names are kept when browsers and people unpack files."""
    with open(path, "rb") as file:
        start = file.read(4)
    return "gzip" if start.startswith(b"\x1f\x8b") else "zstd" if start == b"\x28\xb5\x2f\xfd" else "none"


def _text(path: str, compression: str) -> io.TextIOWrapper:
    raw = pa.input_stream(path, compression=None if compression == "none" else compression)
    return io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def load(con: Connection, paths: Sequence[str], table: str, temporary: bool) -> tuple[list[str], bool]:
    """Load files into one table of text columns, by name.

    ``con`` is a connection of DuckDB. Files with other columns than the first one's are refused. Returns the names of
    the columns, and whether numbers may have a decimal comma: where all files separate fields by semicolons.
    """
    names: list[str] = []
    commas = True
    for i, path in enumerate(paths):
        header = read_header(path)
        here = header.names
        check_names(here)
        if i and set(here) != set(names):
            other = sorted(set(here) ^ set(names))[:5]
            raise ValueError(f"all files must have the same columns, {path!r} differs in {other}")
        options = ", ".join(f"{quoted(name)}: 'VARCHAR'" for name in here)
        query = (
            f"SELECT * FROM read_csv({quoted(escape_pattern(path))}, auto_detect=false, header=true, "
            f"delim={quoted(header.delimiter)}, skip={header.skipped}, compression={quoted(header.compression)}, "
            "quote='\"', escape='\"', comment='', nullstr='', null_padding=false, ignore_errors=false, "
            f"strict_mode=true, hive_partitioning=false, columns={{{options}}})"
        )
        if i == 0:
            names = here
            con.execute(f"CREATE {'TEMP ' if temporary else ''}TABLE {table} AS {query}").fetchall()
        else:
            con.execute(f"INSERT INTO {table} BY NAME {query}").fetchall()
        commas &= header.delimiter == ";"
    return names, commas


def load_remote(con: Connection, path: str, table: str, temporary: bool) -> list[str]:
    """The same for a remote file, of which the database has to find the delimiter."""
    kind = "TEMP TABLE" if temporary else "TABLE"
    con.execute(
        f"CREATE {kind} {table} AS SELECT * FROM read_csv({quoted(path)}, header=true, skip=0, all_varchar=true, "
        "comment='', nullstr='', null_padding=false, ignore_errors=false, strict_mode=true, hive_partitioning=false)"
    ).fetchall()
    return [row[0] for row in con.execute(f"DESCRIBE {table}").fetchall()]


def check_names(names: Sequence[str]) -> None:
    """Refuse names that are the same to the database: it takes no notice of case, nor of what is behind a NUL."""
    if cut := [name for name in names if "\0" in name]:
        raise ValueError(f"column names must not contain the character NUL, got {cut[:10]}")
    seen: dict[bytes, str] = {}
    twice = []
    for name in names:
        key = name.encode(errors="surrogatepass").lower()  # bytes: of ASCII letters only, as the database
        if key in seen:
            twice += [seen[key], name]
        seen[key] = name
    if twice:
        raise ValueError(f"column names must differ by more than upper and lower case, got {sorted(set(twice))[:10]}")


def column_type(con: Connection, table: str, name: str, commas: bool = False) -> ColumnType:
    """The type that every value of a text column can be read as.

    Where all other values are numbers, dates and the like, words for a missing value are missing, and with ``commas``
    the comma is the decimal point: the table is changed accordingly.
    """
    x = '"' + name.replace('"', '""') + '"'
    found = _type_of(con, table, x)
    if found.kind != "text":
        return found
    value = f"translate({x}, ',.', '.,')" if commas else x
    plain = f"CASE WHEN regexp_full_match({x}, {quoted(MISSING)}) THEN NULL ELSE {value} END"
    found = _type_of(con, f"(SELECT {plain} AS {x} FROM {table})", x)
    if found.kind in {"text", "null"}:
        return ColumnType("text", dt.string, written=True)
    con.execute(f"UPDATE {table} SET {x} = {plain}").fetchall()
    return found


def _type_of(con: Connection, table: str, x: str) -> ColumnType:
    known, integers = con.execute(
        f"SELECT count({x}), count_if(CAST(TRY_CAST({x} AS BIGINT) AS VARCHAR) = {x}) FROM {table}"
    ).fetchall()[0]
    if known == 0:
        return NULL
    if integers == known:
        return ColumnType("integer", dt.int64, written=True)

    def matches(pattern: str, dtype: str | None = None) -> str:
        test = f"regexp_full_match({x}, {quoted(pattern)})"
        return f"count_if({test}{f' AND TRY_CAST({x} AS {dtype}) IS NOT NULL' if dtype else ''})"

    counted = con.execute(
        f"SELECT {matches(INTEGER)}, {matches(NUMBER)}, {matches(SPECIAL)}, {matches(WORDS)}, "
        f"{matches(DAY, 'DATE')}, {matches(f'{DAY}[ T]{TIME}', 'TIMESTAMP')}, "
        f"{matches(f'{DAY}[ T]{TIME}{ZONE}', 'TIMESTAMPTZ')} FROM {table}"
    ).fetchall()[0]
    integers, numbers, special, words, days, moments, zoned = counted
    if numbers + special == known:
        return _number(con, table, x, whole=integers == known, special=special > 0)
    for number, kind, dtype in (
        (words, "boolean", dt.boolean),
        (days, "date", dt.date),
        (moments, "timestamp", dt.Timestamp(scale=6)),
        (zoned, "timestamp with zone", dt.Timestamp(timezone="UTC", scale=6)),
    ):
        if number == known:
            return ColumnType(kind, dtype, written=True)
    return ColumnType("text", dt.string, written=True)


def _number(con: Connection, table: str, x: str, whole: bool, special: bool) -> ColumnType:
    """A decimal where the digits ask for it, else a float."""
    mantissa = f"regexp_extract({x}, '^-?([0-9.]*)', 1)"
    as_float = f"regexp_extract(CAST(CAST({x} AS DOUBLE) AS VARCHAR), '^-?([0-9.]*)', 1)"

    def digits(text: str) -> str:  # without the point and the zeros on both sides
        return f"trim(replace({text}, '.', ''), '0')"

    # 15 digits survive a float; of more, those that are the shortest way to write one do.
    lossy = f"length({digits(mantissa)}) > 15 AND {digits(mantissa)} <> {digits(as_float)}"
    before, after, exponents, lost = con.execute(
        f"SELECT max(length(split_part({mantissa}, '.', 1))), max(length(split_part({mantissa}, '.', 2))), "
        f"count_if(contains(lower({x}), 'e')), "
        f"count_if(({lossy}) OR ({'true' if whole else 'false'} AND length({x}) > 15)) "
        f"FROM {table} WHERE regexp_full_match({x}, {quoted(NUMBER)})"
    ).fetchall()[0]
    if not lost:
        return ColumnType("float", dt.float64, written=True)
    if not exponents and not special and before + after <= MOST_DIGITS:
        return ColumnType("decimal", dt.Decimal(MOST_DIGITS, int(after)), written=True)
    return ColumnType("float", dt.float64, written=True, rounded=True)


def escape_pattern(path: str) -> str:
    """A path that the database reads as it is, whatever ``*``, ``?`` and ``[`` it contains."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def quoted(text: str) -> str:
    """A string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
