"""The rows of a store and the files that contain them: columns, checks, and both forms of a segment.

A segment may come from another machine or be damaged: its size, structure, types and ranges are checked when it is
read, and what does not fit is an error that names the file. Segments of format 1, which contain the parameters of a
strategy in words, and of format 2, in which every epoch had an order of its own, are converted when they are read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from lowchurn._display import setting_words
from lowchurn._extras import importing
from lowchurn._reading import read_json
from lowchurn._terminal import one_line, printable
from lowchurn.strategies import Parameter

Row = dict[str, Any]
Columns = dict[str, list[Any]]

FORMAT = 3
# The columns of a row with their types; the first ones together are its key.
KEY: dict[str, type] = {
    "dataset": str,
    "network": str,
    "initial": int,
    "validation": int,
    "batch": int,
    "scale": bool,
    "patience": int,
    "loss": str,
    "epochs_limit": int,
    "run_seed": int,
    "one_order": bool,
    "strategy": str,
    "parameters": dict,  # a JSON object in a file
    "trial": int,
}
VALUES: dict[str, type] = {
    "start": str,
    "seed": int,
    "accuracy": float,
    "churn": float,
    "broken": float,
    "fixed": float,
    "base_accuracy": float,
    "epochs": int,
    "validation_loss": float,
    "test_rows": int,
    "status": str,
    "seconds": float,
    "block_seconds": float,
    "block_models": int,
    "data": str,
    "device": str,
    "dtype": str,
    "version": str,
    "created": str,
}
COLUMNS = {**KEY, **VALUES}
OPTIONAL = {name for name, kind in VALUES.items() if kind is not str}  # numbers that may be undefined
SHARES = ("accuracy", "churn", "broken", "fixed", "base_accuracy")  # numbers between 0 and 1
SIGNED = ("validation_loss",)  # the only number that may be negative
FINISHED = "finished"
# What distinguishes two rows of one key; where and when they were made does not.
MEASURED = ("start", "seed", *SHARES, "epochs", "validation_loss", "test_rows", "data")
# Far more than a store needs; a small file that claims more is damaged or made to exhaust the memory.
MOST_BYTES, MOST_ROWS, LONGEST_TEXT = 2**29, 10**6, 10**4
ROWS_AT_ONCE = 10**5  # of a segment
_FORMAT_NAME = b"lowchurn_format"  # in the metadata of a Parquet file
_plain_key = itemgetter(*(name for name, kind in KEY.items() if kind is not dict))
_PARAMETER = re.compile(r"(\w+)=([^=,]+)")


class Setting(NamedTuple):
    """A strategy as data that can be a key: its name, and its parameters sorted by their names."""

    strategy: str
    items: tuple[tuple[str, Parameter], ...] = ()

    @property
    def parameters(self) -> dict[str, Parameter]:
        return dict(self.items)

    @property
    def words(self) -> str:
        """The parameters for display."""
        return setting_words(self.parameters)


def setting_of(row: Row) -> Setting:
    """The strategy of a row, and its parameters."""
    return Setting(row["strategy"], tuple(sorted(row["parameters"].items())))


def key_of(row: Row) -> tuple:
    """The values that make a row unique."""
    return *_plain_key(row), *sorted(row["parameters"].items())


class NewerFormat(ValueError):
    """A segment that a later version of the package has written."""


def read_segment(path: Path) -> dict[tuple, Row]:
    """The rows of a segment by key; whatever is wrong with it is one line that names it."""
    advice = "Move it away and run the same command again; only its rows are made anew."
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] != path.name.partition("-")[2][:16]:
            raise ValueError("its content does not match the checksum in its name")
        rows = decode(content, path.suffix == ".parquet")
        found = {key_of(row): row for row in rows}
        if len(found) < len(rows):
            raise ValueError("it contains a key twice")
    except OSError as error:
        raise ValueError(f"store: cannot read {path}: {error.strerror}.") from None
    except NewerFormat as error:
        raise ValueError(f"store: {path} {error}.") from None
    except ValueError as error:
        raise ValueError(f"store: {path} is damaged: {str(error).rstrip('.')}. {advice}") from None
    return found


def checked(rows: Iterable[Row]) -> list[Row]:
    """Rows with exactly the columns of the store, converted to their types and checked; NaN becomes None."""
    converted = []
    for row in rows:
        _check_names(list(row))
        # Not every reader takes NaN: what is undefined is null in a file.
        undefined = {k for k, v in row.items() if v is None or (isinstance(v, float) and not math.isfinite(v))}
        undefined &= OPTIONAL
        converted.append({name: None if name in undefined else kind(row[name]) for name, kind in COLUMNS.items()})
    _check_values({name: [row[name] for row in converted] for name in COLUMNS})
    return converted


def _check_names(names: list[str], known: Iterable[str] = COLUMNS) -> None:
    """Refuse other columns than those that are known, and those that occur twice."""
    expected = set(known)
    wrong = set(names) ^ expected
    if wrong:
        raise ValueError(f"store: a row must have the columns of the store; wrong or missing: {sorted(wrong)}.")
    if len(names) > len(expected):
        raise ValueError(f"store: a row must have each column once, got {len(names)} for {len(expected)} columns.")


def _check_head(number: int, names: list[str]) -> None:
    """Refuse a file of a later format, or one that has the columns of no format."""
    if number > FORMAT:
        raise NewerFormat(f"is of format {number}, but this version of lowchurn reads up to {FORMAT}. Update lowchurn")
    expected = set(COLUMNS)
    if "setting" in names and "parameters" not in names:
        expected = expected - {"parameters"} | {"setting"}
    if "one_order" not in names:
        expected = expected - {"one_order"}
    _check_names(names, expected)


def _check_values(columns: Columns) -> None:
    """Types and ranges, nothing converted: what is read is what was written."""
    for name, kind in COLUMNS.items():
        fit: set[type] = {kind, *([int] if kind is float else []), *([type(None)] if name in OPTIONAL else [])}
        if not fit.issuperset(map(type, columns[name])):
            value = next(value for value in columns[name] if type(value) not in fit)
            raise ValueError(f"store: {name} must be of type {kind.__name__}, got {str(value)[:50]!r}.")
        if kind is dict:
            for parameters in {id(value): value for value in columns[name]}.values():
                _check_parameters(name, parameters)
            continue
        for value in set(columns[name]) - {None}:
            (_check_text if kind is str else _check_number)(name, value)
    for status, *measured in zip(columns["status"], columns["accuracy"], columns["churn"], strict=True):
        if status == FINISHED and None in measured:
            raise ValueError("store: a finished row must have an accuracy and a churn.")


def _check_parameters(name: str, parameters: Mapping[Any, Any]) -> None:
    for key, value in parameters.items():
        if not isinstance(key, str) or type(value) not in (int, float, str):
            rule = "numbers and texts by name"
            raise ValueError(f"store: {name} must be {rule}, got {str(key)[:50]!r}: {str(value)[:50]!r}.")
        if isinstance(value, str):
            _check_text(name, value)
        elif not abs(value) < 2**63:
            raise ValueError(f"store: {name} must be numbers below 2**63, got {key[:50]!r}: {str(value)[:50]}.")
        _check_text(name, key)


def _check_text(name: str, value: str) -> None:
    if len(value) > LONGEST_TEXT:
        raise ValueError(f"store: {name} must have at most {LONGEST_TEXT} characters, got {len(value)}.")
    if name in KEY and printable(value) != value:
        raise ValueError(f"store: {name} must have no control characters, got {value[:50]!r}.")


def _check_number(name: str, value: float) -> None:
    low = -sys.float_info.max if name in SIGNED else 0
    high = 1 if name in SHARES else 2**63 - 1 if COLUMNS[name] is int else sys.float_info.max
    if not low <= value <= high:
        rule = "in [0, 1]" if name in SHARES else "at least 0" if value < low and low == 0 else "below 2**63"
        rule = "finite" if not math.isfinite(value) else rule
        raise ValueError(f"store: {name} must be {rule}, got {value}.")


def encode(rows: list[Row], plain: bool = False) -> tuple[bytes, str]:
    """Rows as the bytes of a file, and its ending; ``plain`` files need no pyarrow to be read."""
    rows = [row | {"parameters": json.dumps(row["parameters"])} for row in rows]
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        plain = True
    if plain:
        return gzip.compress(_as_json(rows).encode(), mtime=0), "json.gz"
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(), dict: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()], {_FORMAT_NAME: str(FORMAT)})
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer, compression="zstd")
    return buffer.getvalue(), "parquet"


def decode(content: bytes, parquet: bool) -> list[Row]:
    """The rows of a file of any format, checked."""
    rows: list[Row] = []
    texts: dict[str, str] = {}  # most rows have the same few: each is kept once
    for columns in _from_parquet(content) if parquet else _from_json(content):
        columns = _as_this_format(columns)
        _check_values(columns)
        for name, kind in COLUMNS.items():
            if kind is str:
                columns[name] = [texts.setdefault(value, value) for value in columns[name]]
        ordered = [columns[name] for name in COLUMNS]
        rows += [dict(zip(COLUMNS, values, strict=True)) for values in zip(*ordered, strict=True)]
    return rows


def _as_this_format(columns: Columns) -> Columns:
    """Columns that formats 1 and 2 have otherwise or not at all.

    Parameters are data: of JSON, or in segments of format 1 of words such as ``lam=0.5, start=cold``.
    """
    name, read = ("setting", _from_words) if "setting" in columns else ("parameters", _from_object)
    others = {type(value) for value in columns[name]} - {str}
    if others:
        raise ValueError(f"store: {name} must be of type str, got {others.pop().__name__}.")
    found: dict[str, dict[str, Parameter]] = {text: read(text) for text in set(columns[name])}
    rows = len(columns[name])
    return {"one_order": [False] * rows} | columns | {"parameters": [found[text] for text in columns[name]]}


def _from_object(text: str) -> dict[str, Parameter]:
    _check_text("parameters", text)
    bad = f"store: parameters must be a JSON object, got {text[:50]!r}"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{bad} ({one_line(error)}).") from None
    if not isinstance(found, dict):
        raise ValueError(f"{bad}.")
    return found


def _from_words(text: str) -> dict[str, Parameter]:
    _check_text("parameters", text)
    found: dict[str, Parameter] = {}
    for part in text.split(", ") if text else []:
        match = _PARAMETER.fullmatch(part)
        if match is None or match[1] in found:
            rule = "names and values such as 'lam=0.5, start=cold'"
            raise ValueError(f"store: setting must be {rule}, got {text[:50]!r}.")
        found[match[1]] = match[2]
        for kind in (float, int):  # a whole number is both
            with suppress(ValueError):
                found[match[1]] = kind(match[2])
    return found


def _from_parquet(content: bytes) -> Iterator[Columns]:
    """Columns, some rows at a time: a small file may unpack to far more than it is large."""
    with importing("store: reading", "bench"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    try:
        file = pq.ParquetFile(io.BytesIO(content), pre_buffer=False)
        names = file.schema_arrow.names
        _check_head(int((file.schema_arrow.metadata or {}).get(_FORMAT_NAME, FORMAT)), names)
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows > MOST_ROWS or sum(groups) > MOST_BYTES:
            raise ValueError(f"it contains {file.metadata.num_rows:,} rows in {sum(groups):,} bytes, too many to read")
        size = 0
        # A small file is read here and now: with threads of its own pyarrow aborts a process that ends too soon after.
        for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
            size += batch.nbytes
            if size > MOST_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
            yield {name: batch.column(name).to_pylist() for name in names}
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise ValueError(f"it cannot be read as Parquet ({one_line(error)})") from None


@dataclass(frozen=True)
class _Packed:
    """A segment without pyarrow: columns that are the same in all rows are written once."""

    rows: int
    same: dict[str, str | int | float | bool | None]
    columns: dict[str, list[str | int | float | bool | None]]
    format: int = FORMAT


def _from_json(content: bytes) -> Iterator[Columns]:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    if len(text) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    saved = read_json("store", "its content", text, _Packed)
    _check_head(saved.format, [*saved.same, *saved.columns])
    lengths = {len(values) for values in saved.columns.values()} - {saved.rows}
    if lengths or not 0 < saved.rows <= MOST_ROWS:
        raise ValueError(f"its columns have {sorted(lengths)} values for {saved.rows} rows")
    columns = {name: [value] * saved.rows for name, value in saved.same.items()} | saved.columns
    # Numbers without a fraction may have lost it on the way.
    floats = [name for name, kind in COLUMNS.items() if kind is float]
    yield columns | {name: [float(v) if type(v) is int else v for v in columns[name]] for name in floats}


def _as_json(rows: list[Row]) -> str:
    """Column by column, and a column that is the same everywhere once: a tenth of the size of one object per row."""
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    same = {name: values[0] for name, values in columns.items() if all(v == values[0] for v in values)}
    rest = {name: values for name, values in columns.items() if name not in same}
    return json.dumps({"format": FORMAT, "rows": len(rows), "same": same, "columns": rest}, allow_nan=False)
