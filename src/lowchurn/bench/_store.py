"""Where results lie: a folder of small files, each written once and never touched again.

A finished block of work is one file under ``segments/``, named ``NUMBER-CHECKSUM.parquet`` (or ``.json.gz``, column
by column, where pyarrow is not installed). It is written as a draft, flushed to disk and then renamed: whatever
happens, it is there with all of its rows or not at all. One process at a time may write; any may read:

    duckdb -c "select * from 'STORE/segments/*.parquet'"
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lowchurn._extras import importing
from lowchurn._files import drafted, scratch_folder, write_file
from lowchurn._terminal import one_line
from lowchurn.bench._segments import (
    FINISHED,
    MEASURED,
    MOST_BYTES,
    ROWS_AT_ONCE,
    Row,
    checked,
    encode,
    key_of,
    read_segment,
    setting_of,
)

if TYPE_CHECKING:
    from filelock import FileLock

_SEGMENT = re.compile(r"([0-9]{6,})-([0-9a-f]{16})\.(parquet|json\.gz)")


class Store:
    """The rows of one folder.

    Parameters
    ----------
    folder : path
        Made at the first append.
    plain : bool, default False
        Write files that need no pyarrow to be read, as where it is not installed.

    Examples
    --------
    >>> import tempfile
    >>> from lowchurn.bench import Store
    >>> store = Store(tempfile.mkdtemp())  # filled by lowchurn.bench.run
    >>> len(store), store.rows()
    (0, [])
    """

    def __init__(self, folder: str | Path, *, plain: bool = False) -> None:
        self.folder, self.plain = Path(folder), plain
        self.segments = self.folder / "segments"
        self._lock = threading.RLock()
        self._found: dict[tuple, Row] = {}
        self._read: set[str] = set()  # files whose rows are in _found
        self._marks: dict[str, str] = {}  # fingerprints of the data sets in _found
        self._writers: FileLock | None = None  # held while this process may write

    def __len__(self) -> int:
        return len(self.rows())

    def rows(self) -> list[Row]:
        """All rows, each key once: the finished one where there is one, else the last failure."""
        with self._lock:
            return list(self._by_key().values())

    def done(self, *, retry_failed: bool = False) -> set[tuple]:
        """Keys that need no more work."""
        with self._lock:
            found = self._by_key().items()
            return {key for key, row in found if row["status"] == FINISHED or not retry_failed}

    def _by_key(self) -> dict[tuple, Row]:
        """Rows by key; only files that came since the last call are read."""
        files = self._files()
        if not self._read <= {path.name for path in files}:
            self._found, self._read, self._marks = {}, set(), {}  # somebody took files away
        for path in files:
            if path.name not in self._read:
                self._add(path, read_segment(path))
        return self._found

    def _add(self, path: Path, rows: dict[tuple, Row]) -> None:
        for key, row in rows.items():
            if self._marks.setdefault(row["dataset"], row["data"]) != row["data"]:
                raise ValueError(
                    f"store: {path} contains rows of {row['dataset']} made from other data than those of earlier rows "
                    f"({row['data']} and {self._marks[row['dataset']]}). Move it away."
                )
            old = self._found.get(key)
            if old is None or old["status"] != FINISHED:
                self._found[key] = row
            elif row["status"] == FINISHED and any(row[name] != old[name] for name in MEASURED):
                what = [row["dataset"], row["network"], row["strategy"], setting_of(row).words, f"trial {row['trial']}"]
                raise ValueError(
                    f"store: {path} contains another result of a row that an earlier segment has finished "
                    f"({', '.join(what)}). Move one of the two files away."
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
            for row in checked(rows):
                key = key_of(row)
                old = there.get(key)
                if old is None or (old["status"] != FINISHED and old != row):
                    new[key] = row
            self.check_same_data((row["dataset"], row["data"]) for row in new.values())
            if new:
                self._write(new)
            return len(new)

    def check_same_data(self, marks: Iterable[tuple[str, str]]) -> None:
        """Refuse data sets, by name and fingerprint, of which this store contains rows made from another version."""
        with self._lock:
            self._by_key()
            known = dict(self._marks)
        for name, mark in marks:
            if known.setdefault(name, mark) != mark:
                raise ValueError(
                    f"store: {self.folder} contains rows of {name} made from other data ({known[name]}, now {mark}). "
                    "Use another store."
                )

    def _write(self, rows: dict[tuple, Row]) -> None:
        content, ending = encode(list(rows.values()), self.plain)
        number = max((int(path.name.partition("-")[0]) for path in self._files()), default=0) + 1
        path = self.segments / f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
        try:
            write_file(path, content)
        except ValueError as error:
            raise OSError(f"store: cannot write to {self.segments} ({error}); what was there is unharmed") from None
        with suppress(OSError):  # the name becomes as durable as the content, where the system can flush folders
            handle = os.open(self.segments, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        self._add(path, rows)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other processes from writing; the system lets go of it when this one ends, however it does."""
        with importing("store: writing", "bench"):
            from filelock import FileLock, Timeout
        if self._writers is None:
            self._writers = FileLock(self.folder / "lock", timeout=0, thread_local=False)  # may be taken again inside
        first = not self._writers.is_locked
        if first:
            self._files()  # a folder that is not a store stays as it is
        try:
            self.segments.mkdir(parents=True, exist_ok=True)
            self._writers.acquire()
        except Timeout:
            raise ValueError(f"store: another process is writing to {self.folder}. Wait for it to end.") from None
        except (OSError, NotImplementedError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(f"store: cannot write to {self.folder} ({reason}).") from None
        try:
            for pattern in (".writing-*", ".*.lowchurn") if first else ():
                for left in self.segments.glob(pattern):
                    left.unlink(missing_ok=True)  # nobody else writes now: a killed writer left it
            yield
        finally:
            self._writers.release()


def copy_rows(source: Store, target: Store, prepare: Callable[[list[Row]], list[Row]] = list) -> int:
    """Add the rows of one store, prepared, that another does not contain yet, and return how many."""
    rows = prepare(source.rows())
    with target.writing():  # in several segments, so that each of them can be read again
        return sum(target.append(rows[i : i + ROWS_AT_ONCE]) for i in range(0, len(rows), ROWS_AT_ONCE))


@contextmanager
def opened_store(source: Path) -> Iterator[Store]:
    """A store in a folder or in a tar file, of which only segments are unpacked, to a folder that is removed."""
    with scratch_folder() as folder:
        place = source
        if source.is_file():
            _unpack_segments(source, folder)
            place = folder
        if not (place / "segments").is_dir():
            raise ValueError(f"bench import: {source} is not a store: it has no folder named segments.")
        yield Store(place)


def pack_store(store: Store, path: Path) -> None:
    """Write a store as a tar file, whole or not at all; other threads may add rows and pack it meanwhile."""
    with drafted(path) as draft, tarfile.open(draft, "w") as tar:
        for segment in sorted(store.segments.glob("[0-9]*")):
            tar.add(segment, f"segments/{segment.name}")


def _unpack_segments(source: Path, folder: Path) -> None:
    """Unpack the segments of the one store in a tar file; they may lie in a folder, as those of the store did."""
    unpacked, stores = 0, set()
    try:
        with tarfile.open(source) as tar:
            for member in tar:
                found = re.fullmatch(r"(.*/)?segments/([^/.][^/]*)", member.name, re.DOTALL)
                if not found or member.isdir():
                    continue
                stores.add(found[1])
                if not member.isreg() or len(stores) > 1:
                    what = f"{member.name!r} is a link" if len(stores) == 1 else "it contains more than one store"
                    raise ValueError(f"bench import: {source} cannot be imported: {what}.")
                unpacked += member.size
                if member.size > MOST_BYTES or unpacked > 8 * MOST_BYTES:
                    raise ValueError(
                        f"bench import: {source} unpacks to more than a store can hold ({unpacked:,} bytes and more)."
                    )
                (folder / "segments").mkdir(exist_ok=True)
                content = tar.extractfile(member)
                assert content is not None  # it is a regular file
                (folder / "segments" / found[2]).write_bytes(content.read())
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise ValueError(
            f"bench import: {source} is neither a folder nor a whole tar file ({one_line(error)})."
        ) from None
