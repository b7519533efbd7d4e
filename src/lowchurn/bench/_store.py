"""Where results lie: a folder of small files, each written once and never touched again.

A finished block of work is one file under ``segments/``, named ``NUMBER-CHECKSUM.parquet`` (or ``.json.gz``, column
by column, where pyarrow is not installed). It is written as a draft, flushed to disk and then renamed: whatever
happens, it is there with all of its rows or not at all. One process at a time may write; any may read:

    duckdb -c "select * from 'STORE/segments/*.parquet'"

A segment may come from another machine or be damaged: its size, structure, types and ranges are checked when it is
read, and what does not fit is an error that names the file.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import os
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowchurn._files import write_file
from lowchurn._reading import read_json
from lowchurn._terminal import printable

Row = dict[str, Any]

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
    "strategy": str,
    "setting": str,
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
SHARES = ("accuracy", "churn", "broken", "fixed", "base_accuracy")  # numbers between 0 and 1
SIGNED = ("validation_loss",)  # the only number that may be negative
FINISHED = "finished"
# What distinguishes two rows of one key; where and when they were made does not.
MEASURED = ("start", "seed", *SHARES, "epochs", "validation_loss", "test_rows", "data")
# Far more than a store needs; a small file that claims more is damaged or made to exhaust the memory.
MOST_BYTES, MOST_ROWS, LONGEST_TEXT = 2**29, 10**6, 10**4
ROWS_AT_ONCE = 10**5  # of a segment
_SEGMENT = re.compile(r"([0-9]{6,})-([0-9a-f]{16})\.(parquet|json\.gz)")


def key_of(row: Row) -> tuple:
    """The values that make a row unique."""
    return tuple(row[name] for name in KEY)


class Store:
    """The rows of one folder.

    Parameters
    ----------
    folder : path
        Made at the first append.

    Examples
    --------
    >>> import tempfile
    >>> from lowchurn.bench._store import COLUMNS, Store
    >>> store = Store(tempfile.mkdtemp())
    >>> row = {name: kind() for name, kind in COLUMNS.items()} | {"dataset": "wine", "status": "finished"}
    >>> store.append([row, row | {"trial": 1}])
    2
    >>> store.append([row])  # is there already
    0
    >>> [r["trial"] for r in store.rows()]
    [0, 1]
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.segments = self.folder / "segments"
        self._lock = threading.Lock()
        self._found: dict[tuple, Row] = {}
        self._read: set[str] = set()  # files whose rows are in _found
        self._marks: dict[str, str] = {}  # fingerprints of the data sets in _found
        self._held = 0

    def __len__(self) -> int:
        return len(self.rows())

    def rows(self) -> list[Row]:
        """All rows, each key once: the finished one where there is one, else the last failure."""
        with self._lock:
            return list(self._by_key().values())

    def done(self, *, retry_failed: bool = False) -> set[tuple]:
        """Keys that need no more work."""
        return {key_of(row) for row in self.rows() if row["status"] == FINISHED or not retry_failed}

    def _by_key(self) -> dict[tuple, Row]:
        """Rows by key; only files that came since the last call are read."""
        files = self._files()
        if not self._read <= {path.name for path in files}:
            self._found, self._read, self._marks = {}, set(), {}  # somebody took files away
        for path in files:
            if path.name not in self._read:
                self._add(path, _segment(path))
        return self._found

    def _add(self, path: Path, rows: list[Row]) -> None:
        for row in rows:
            if self._marks.setdefault(row["dataset"], row["data"]) != row["data"]:
                raise ValueError(
                    f"store: {path} contains rows of {row['dataset']} made from other data than those of earlier rows "
                    f"({row['data']} and {self._marks[row['dataset']]}). Move it away."
                )
            key = key_of(row)
            old = self._found.get(key)
            if old is None or old["status"] != FINISHED:
                self._found[key] = row
            elif row["status"] == FINISHED and any(row[name] != old[name] for name in MEASURED):
                raise ValueError(
                    f"store: {path} contains another result of a row that an earlier segment has finished "
                    f"({row['dataset']}, {row['network']}, {row['strategy']}, {row['setting']}, trial {row['trial']}). "
                    "Move one of the two files away."
                )
        self._read.add(path.name)

    def _files(self) -> list[Path]:
        """The segments, the oldest first."""
        for folder in (self.folder, self.segments):
            if folder.exists() and not folder.is_dir():
                raise ValueError(f"store: {self.folder} is not a store: {folder} is not a folder.")
        try:
            names = os.listdir(self.segments)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise ValueError(f"store: cannot read {self.segments}: {error.strerror}.") from None
        found = []
        for name in names:
            if name.startswith("."):
                continue  # being written, or left behind by a killed writer
            match = _SEGMENT.fullmatch(name)
            if not match or not (self.segments / name).is_file():
                raise ValueError(f"store: {self.segments / name} is not a segment of a store. Move it away.")
            found.append((int(match[1]), name))
        return [self.segments / name for _, name in sorted(found)]

    def append(self, rows: Iterable[Row]) -> int:
        """Write rows that are not there yet, all or none, and return how many.

        A key with a failure may be written again, a finished one may not.
        """
        with self._lock, self.writing():
            there = self._by_key()
            new: dict[tuple, Row] = {}
            for row in rows:
                row = checked(row)
                old = there.get(key_of(row))
                if old is None or (old["status"] != FINISHED and old != row):
                    new[key_of(row)] = row
            self._check_same_data((row["dataset"], row["data"]) for row in new.values())
            if new:
                self._write(list(new.values()))
            return len(new)

    def check_same_data(self, marks: dict[str, str]) -> None:
        """Refuse data sets, by name and fingerprint, of which this store holds rows made from another version."""
        with self._lock:
            self._by_key()
            self._check_same_data(marks.items())

    def _check_same_data(self, marks: Iterable[tuple[str, str]]) -> None:
        known = dict(self._marks)
        for name, mark in marks:
            if known.setdefault(name, mark) != mark:
                raise ValueError(
                    f"store: {self.folder} holds rows of {name} made from other data ({known[name]}, now {mark}). "
                    "Use another store."
                )

    def _write(self, rows: list[Row]) -> None:
        content, ending = encode(rows)
        files = self._files()
        number = _number(files[-1]) + 1 if files else 1
        path = self.segments / f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
        try:
            write_file(path, content)
        except ValueError as error:
            raise OSError(f"store: cannot write to {self.segments} ({error}); what was there is unharmed") from None
        _flush_folder(self.segments)
        self._add(path, rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing; the system lets go of it when this one ends, however it does."""
        if self._held:
            self._held += 1
            try:
                yield
            finally:
                self._held -= 1
            return
        with self._locked():
            for pattern in (".writing-*", ".*.lowchurn"):
                for left in self.segments.glob(pattern):
                    left.unlink(missing_ok=True)  # nobody else writes now: a killed writer left it
            self._held = 1
            try:
                yield
            finally:
                self._held = 0

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            from filelock import FileLock, Timeout
        except ImportError as error:
            raise ImportError('writing to a store needs filelock: pip install "lowchurn[bench]"') from error
        self._files()  # a folder that is not a store stays as it is
        lock = FileLock(self.folder / "lock", timeout=0, thread_local=False)
        try:
            self.segments.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise ValueError(f"store: another process is writing to {self.folder}. Wait for it to end.") from None
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(f"store: cannot write to {self.folder} ({reason}).") from None
        try:
            yield
        finally:
            lock.release()


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])


def _segment(path: Path) -> list[Row]:
    """The rows of a segment; whatever is wrong with it is one line that names it."""
    advice = "Move it away and run the same command again; only its rows are made anew."
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest()[:16] != path.name.partition("-")[2][:16]:
            raise ValueError("its content does not match the checksum in its name")
        rows = decode(content, path.suffix == ".parquet")
        if len({key_of(row) for row in rows}) < len(rows):
            raise ValueError("it contains a key twice")
    except OSError as error:
        raise ValueError(f"store: cannot read {path}: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"store: {path} is damaged: {str(error).rstrip('.')}. {advice}") from None
    return rows


def checked(row: Row) -> Row:
    """The row with exactly the columns of the store, converted to their types and checked; NaN becomes None.

    Examples
    --------
    >>> from lowchurn.bench._store import COLUMNS, checked
    >>> row = {name: kind() for name, kind in COLUMNS.items()}
    >>> checked(row | {"accuracy": 7})
    Traceback (most recent call last):
    ...
    ValueError: store: accuracy must be in [0, 1], got 7.0.
    """
    _check_names(row)
    converted = {name: None if _lacks(name, row[name]) else kind(row[name]) for name, kind in COLUMNS.items()}
    _check_values({name: [value] for name, value in converted.items()})
    return converted


def _lacks(name: str, value: Any) -> bool:
    """Whether a number is undefined, which is null in a file: not every reader knows NaN."""
    undefined = value is None or (isinstance(value, float) and not math.isfinite(value))
    return undefined and name in VALUES and COLUMNS[name] is not str


def _check_names(columns: Iterable[str]) -> None:
    names = list(columns)
    wrong = set(names) ^ set(COLUMNS)
    if wrong:
        raise ValueError(f"store: a row must have the columns of the store; wrong or missing: {sorted(wrong)}.")
    if len(names) > len(COLUMNS):
        raise ValueError(f"store: a row must have each column once, got {len(names)} for {len(COLUMNS)} columns.")


def _check_values(columns: dict[str, list[Any]]) -> None:
    """Types and ranges, nothing converted: what is read is what was written."""
    for name, kind in COLUMNS.items():
        fit: set[type] = {kind, *([int] if kind is float else [])}
        fit |= {type(None)} if name in VALUES and kind is not str else set()
        if not fit.issuperset(map(type, columns[name])):
            value = next(value for value in columns[name] if type(value) not in fit)
            raise ValueError(f"store: {name} must be of type {kind.__name__}, got {str(value)[:50]!r}.")
        for value in set(columns[name]) - {None}:
            (_check_text if kind is str else _check_number)(name, value)
    for status, *measured in zip(columns["status"], columns["accuracy"], columns["churn"], strict=True):
        if status == FINISHED and None in measured:
            raise ValueError("store: a finished row must have an accuracy and a churn.")


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


def encode(rows: list[Row]) -> tuple[bytes, str]:
    """Rows as the bytes of a file, and its ending."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        return gzip.compress(_as_json(rows).encode(), mtime=0), "json.gz"
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer, compression="zstd")
    return buffer.getvalue(), "parquet"


def decode(content: bytes, parquet: bool) -> list[Row]:
    """The rows of a file, checked."""
    rows: list[Row] = []
    texts: dict[str, str] = {}  # most rows have the same few: each is kept once
    for columns in _from_parquet(content) if parquet else _from_json(content):
        _check_values(columns)
        for name, kind in COLUMNS.items():
            if kind is str:
                columns[name] = [texts.setdefault(value, value) for value in columns[name]]
        ordered = [columns[name] for name in COLUMNS]
        rows += [dict(zip(COLUMNS, values, strict=True)) for values in zip(*ordered, strict=True)]
    return rows


def _from_parquet(content: bytes) -> Iterator[dict[str, list[Any]]]:
    """Columns, some rows at a time: a small file may unpack to far more than it is large."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError('reading this store needs pyarrow: pip install "lowchurn[bench]"') from error
    try:
        file = pq.ParquetFile(io.BytesIO(content), pre_buffer=False)
        _check_names(file.schema_arrow.names)
        groups = [file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups)]
        if file.metadata.num_rows > MOST_ROWS or sum(groups) > MOST_BYTES:
            raise ValueError(f"it contains {file.metadata.num_rows:,} rows in {sum(groups):,} bytes, too many to read")
        size = 0
        # A small file is read here and now: with threads of its own pyarrow aborts a process that ends too soon after.
        for batch in file.iter_batches(ROWS_AT_ONCE, use_threads=False):
            size += batch.nbytes
            if size > MOST_BYTES:
                raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
            yield {name: batch.column(name).to_pylist() for name in COLUMNS}
    except (pa.ArrowException, OSError, OverflowError) as error:
        raise ValueError(f"it cannot be read as Parquet ({' '.join(str(error).split())})") from None


@dataclass(frozen=True)
class _Packed:
    """A segment without pyarrow: columns that are the same in all rows are written once."""

    rows: int
    same: dict[str, str | int | float | bool | None]
    columns: dict[str, list[str | int | float | bool | None]]


def _from_json(content: bytes) -> Iterator[dict[str, list[Any]]]:
    try:
        with gzip.open(io.BytesIO(content)) as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"it cannot be unpacked ({error})") from None
    if len(text) > MOST_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    saved = read_json("store", "its content", text, _Packed)
    _check_names([*saved.same, *saved.columns])
    lengths = {len(values) for values in saved.columns.values()} - {saved.rows}
    if lengths or not 0 < saved.rows <= MOST_ROWS:
        raise ValueError(f"its columns have {sorted(lengths)} values for {saved.rows} rows")
    columns = {name: [value] * saved.rows for name, value in saved.same.items()} | saved.columns
    # Numbers without a fraction may have lost it on the way.
    floats = [name for name, kind in COLUMNS.items() if kind is float]
    yield columns | {name: [float(v) if type(v) is int else v for v in columns[name]] for name in floats}


def _as_json(rows: list[Row]) -> str:
    """Column by column, and a column that is the same everywhere once: a tenth of the size of one object a row."""
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    same = {name: values[0] for name, values in columns.items() if all(v == values[0] for v in values)}
    rest = {name: values for name, values in columns.items() if name not in same}
    return json.dumps({"rows": len(rows), "same": same, "columns": rest}, allow_nan=False)


def _flush_folder(folder: Path) -> None:
    """Make the name of a new file as durable as its content, where the system can flush folders."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
