"""Where results lie: a folder of small files, each written once and never touched again.

A finished block of work is one file under ``segments/``, named ``NUMBER-CHECKSUM.parquet`` (or ``.json.gz``, column
by column, where pyarrow is not installed). It is written beside, flushed to disk and then renamed: whatever happens,
it is there with all of its rows or not at all. One process at a time may write; any may read:

    duckdb -c "select * from 'STORE/segments/*.parquet'"
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import io
import json
import math
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# What a row says, with its type; the first ones together are its key.
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
FINISHED = "finished"
_SEGMENT = re.compile(r"^(\d{6})-([0-9a-f]{16})\.(parquet|json\.gz)$")


def key_of(row: Row) -> tuple:
    """What makes a row unique."""
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
    >>> from lowchurn.bench.store import COLUMNS, Store
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
            self._found, self._read = {}, set()  # somebody took files away
        for path in files:
            if path.name not in self._read:
                self._add(path.name, _segment(path))
        return self._found

    def _add(self, name: str, rows: list[Row]) -> None:
        for row in rows:
            key = key_of(row)
            if key not in self._found or self._found[key]["status"] != FINISHED:
                self._found[key] = row
        self._read.add(name)

    def _files(self) -> list[Path]:
        if not self.segments.is_dir():
            return []
        found = []
        for path in sorted(self.segments.iterdir()):
            if path.name.startswith("."):
                continue  # being written, or left behind by a killed writer
            if not _SEGMENT.match(path.name):
                raise ValueError(f"store: {path} is not a segment of a store. Move it away.")
            found.append(path)
        return found

    def append(self, rows: Iterable[Row]) -> int:
        """Write rows that are not there yet, all or none; says how many.

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
            self._check_same_data(there.values(), {row["dataset"]: row["data"] for row in new.values()})
            if new:
                self._write(list(new.values()))
            return len(new)

    def check_same_data(self, marks: dict[str, str]) -> None:
        """Refuse data sets, by name and fingerprint, of which this store holds rows made from another version."""
        self._check_same_data(self.rows(), marks)

    def _check_same_data(self, rows: Iterable[Row], marks: dict[str, str]) -> None:
        for row in rows:
            mark = marks.get(row["dataset"], row["data"])
            if row["data"] != mark:
                raise ValueError(
                    f"store: {self.folder} holds rows of {row['dataset']} made from other data ({row['data']}, "
                    f"now {mark}). Use another store."
                )

    def _write(self, rows: list[Row]) -> None:
        content, ending = encode(rows)
        number = max((int(path.name[:6]) for path in self._files()), default=0) + 1
        name = f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
        beside = self.segments / f".writing-{os.getpid()}-{number}"
        try:
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.segments / name)
            _flush_folder(self.segments)
            self._add(name, rows)
        except OSError as error:
            beside.unlink(missing_ok=True)
            raise OSError(
                error.errno, f"store: cannot write to {self.segments} ({error.strerror}); what was there is unharmed"
            ) from error

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
        try:
            self.segments.mkdir(parents=True, exist_ok=True)
            file = open(self.folder / "lock", "a")  # noqa: SIM115 - it is held for long
        except OSError as error:
            raise OSError(error.errno, f"store: cannot write to {self.folder} ({error.strerror})") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ValueError(f"store: another process is writing to {self.folder}. Wait for it to end.") from None
            for left in self.segments.glob(".writing-*"):
                left.unlink()  # nobody else writes now: a killed writer left it
            self._held = 1
            try:
                yield
            finally:
                self._held = 0


def _segment(path: Path) -> list[Row]:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:16] != path.name[7:23]:
        raise ValueError(
            f"store: {path} is damaged: its content does not match the checksum in its name. Move it away and "
            "run the same command again; only its rows are made anew."
        )
    return decode(content, path.suffix == ".parquet")


def checked(row: Row) -> Row:
    """The row with exactly the columns of the store, in their types."""
    wrong = set(row) ^ set(COLUMNS)
    if wrong:
        raise ValueError(f"store: a row must have the columns of the store; wrong or missing: {sorted(wrong)}.")
    return {
        name: None if row[name] is None and name in VALUES and kind is not str else kind(row[name])
        for name, kind in COLUMNS.items()
    }


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
    pq.write_table(pa.Table.from_pylist([_without_nan(row) for row in rows], schema), buffer, compression="zstd")
    return buffer.getvalue(), "parquet"


def decode(content: bytes, parquet: bool) -> list[Row]:
    """The rows of a file."""
    if not parquet:
        saved = json.loads(gzip.decompress(content))
        columns = {name: [value] * saved["rows"] for name, value in saved["same"].items()} | saved["columns"]
        return [checked(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise ImportError('reading this store needs pyarrow: pip install "lowchurn[bench]"') from error
    # A small file is read here and now: with threads of its own pyarrow aborts a process that ends too soon after.
    rows: list[Row] = pq.ParquetFile(io.BytesIO(content), pre_buffer=False).read(use_threads=False).to_pylist()
    return rows


def _without_nan(row: Row) -> Row:
    """Undefined numbers are null in a file: not every reader knows NaN."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _as_json(rows: list[Row]) -> str:
    """Column by column, and a column that is the same everywhere once: a tenth of the size of one object a row."""
    rows = [_without_nan(row) for row in rows]
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    same = {name: values[0] for name, values in columns.items() if all(v == values[0] for v in values)}
    rest = {name: values for name, values in columns.items() if name not in same}
    return json.dumps({"rows": len(rows), "same": same, "columns": rest}, allow_nan=False)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
