"""Open whatever holds predictions as an Ibis table: files, data frames, arrow tables, relations, Ibis tables."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lowchurn.checks import unknown_name

try:
    import duckdb
    import ibis
    import ibis.expr.datatypes as dt
    import pyarrow as pa
except ImportError as error:  # pragma: no cover - exercised in a bare environment
    raise ImportError('lowchurn.audit needs ibis and duckdb: pip install "lowchurn[audit]"') from error

CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".csv.zst")
PARQUET_ENDINGS = (".parquet", ".pq", ".parq")
DATABASE_ENDINGS = (".duckdb", ".ddb", ".db")


class Engine:
    """The database that counts: the one that the tables live in, or an own DuckDB on disk.

    The own one keeps its tables in a file in a fresh folder, so that they are compressed and may be larger than
    memory; the folder goes when the engine does.
    """

    def __init__(
        self,
        backend: Any = None,
        memory_limit: str | None = None,
        threads: int | None = None,
        folder: str | None = None,
    ) -> None:
        self.own = backend is None
        self._attached: dict[str, str] = {}
        if backend is not None:
            self.backend = backend
            return
        if folder is not None and not Path(folder).is_dir():
            raise ValueError(f"audit: temp_directory must be an existing folder, got {folder!r}.")
        try:
            place = tempfile.mkdtemp(prefix="lowchurn-audit-", dir=folder)
        except OSError as error:
            raise ValueError(f"audit: cannot write to temp_directory {folder!r}: {error.strerror}.") from None
        self._remove = weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        settings: dict[str, Any] = {
            "temp_directory": os.path.join(place, "spill"),
            # The order of rows means nothing here, and keeping it costs memory.
            "preserve_insertion_order": False,
        }
        # DuckDB's own default, 80 %, leaves little for everything that it does not count.
        settings["memory_limit"] = "60%" if memory_limit is None else memory_limit
        if threads is not None:
            settings["threads"] = int(threads)
        try:
            self.backend = ibis.duckdb.connect(os.path.join(place, "audit.duckdb"), **settings)
        except (duckdb.Error, ValueError) as error:
            shutil.rmtree(place, ignore_errors=True)
            raise ValueError(f"audit: the database refused its settings: {_first_line(error)}.") from None
        weakref.finalize(self, _close, self.backend)

    def read(self, side: str, source: Any) -> Any:
        """Any supported source as a table of this engine."""
        if isinstance(source, ibis.Table):
            return source
        if isinstance(source, str | os.PathLike):
            return self._read_path(side, os.fspath(source))
        if isinstance(source, duckdb.DuckDBPyRelation):
            # A relation belongs to its own connection and may be read once: bring it over.
            return self._hold(source.to_arrow_table())
        module = type(source).__module__.split(".")[0]
        if module not in {"pandas", "polars", "pyarrow"}:
            raise ValueError(
                f"audit: the {side} table must be a path, a pandas, polars or pyarrow table, a DuckDB relation or an "
                f"Ibis table, got {type(source).__module__}.{type(source).__name__}."
            )
        if module == "polars" and hasattr(source, "collect"):
            source = source.collect()
        if module == "pyarrow" and hasattr(source, "to_table"):
            source = source.to_table()
        elif module == "pyarrow" and hasattr(source, "read_all"):
            source = source.read_all()
        names = [str(c) for c in (source.schema.names if module == "pyarrow" else source.columns)]
        if len(set(names)) < len(names):
            twice = sorted(n for n in set(names) if names.count(n) > 1)
            raise ValueError(f"audit: column names must differ, the {side} table has {twice} more than once.")
        if not names:
            raise ValueError(f"audit: the {side} table must have columns, got none.")
        if module == "pandas" and list(source.columns) != names:
            source = source.set_axis(names, axis=1)
        try:
            if module == "pandas":
                source = pa.Table.from_pandas(source, preserve_index=False)
            elif module == "polars":
                source = source.to_arrow()
            elif isinstance(source, pa.RecordBatch):
                source = pa.Table.from_batches([source])
            return self._hold(source)
        except Exception as error:
            raise ValueError(f"audit: cannot read the {side} table: {_first_line(error)}.") from None

    def _hold(self, table: pa.Table) -> Any:
        """A table in memory as one of the engine's; DuckDB reads it where it lies."""
        if self.backend.name != "duckdb":
            return ibis.memtable(table)
        name = f"lowchurn_{uuid.uuid4().hex}"
        self.backend.con.register(name, table)
        return self.backend.table(name)

    def _read_path(self, side: str, path: str) -> Any:
        if not self.own and self.backend.name != "duckdb":
            raise ValueError(f"audit: give both tables as Ibis tables of {self.backend.name}, got the path {path!r}.")
        name, _, table = path.partition("::")
        remote, pattern = "://" in name, any(c in name for c in "*?[")
        if not remote and not pattern:
            if not os.path.exists(name):
                near = (
                    sorted(p.name for p in Path(name).absolute().parent.glob("*"))[:5]
                    if Path(name).absolute().parent.is_dir()
                    else []
                )
                hint = f" That folder holds {', '.join(near)}." if near else " There is no such folder."
                raise ValueError(f"audit: no file {path!r} for the {side} table.{hint}")
            if not os.access(name, os.R_OK):
                raise ValueError(f"audit: no permission to read {path!r} for the {side} table.")
            if os.path.isdir(name):
                name = os.path.join(name, "**", "*.parquet")
            elif os.path.getsize(name) == 0:
                raise ValueError(f"audit: the file {path!r} for the {side} table is empty.")
        kind, ending = _kind(name)
        try:
            if kind == "database":
                return self._read_database(side, name, table)
            read = self.backend.read_csv if kind == "csv" else self.backend.read_parquet
            return read(name, table_name=f"file_{side}")
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"audit: cannot read {path!r} as {ending}: {_first_line(error)}") from None

    def _read_database(self, side: str, path: str, table: str) -> Any:
        if not table:
            raise ValueError(f"audit: name the table of {path!r}: '{path}::table'.")
        catalog = self._attached.get(os.path.abspath(path))
        if catalog is None:  # a database may be attached once only
            catalog = self._attached[os.path.abspath(path)] = f"file_{side}"
            self.backend.attach(path, name=catalog, read_only=True)
        where = f"WHERE database_name = '{catalog}' AND schema_name = 'main'"
        tables = []
        for query in (
            f"SELECT table_name FROM duckdb_tables() {where}",
            f"SELECT view_name FROM duckdb_views() {where}",
        ):
            tables += [row[0] for row in self.backend.raw_sql(query).fetchall()]
        if table not in tables:
            raise unknown_name("audit", f"table in {path!r}", table, tables)
        return self.backend.table(table, database=(catalog, "main"))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The engine's own complaints as one line that a caller can act on."""
        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise ValueError(
                f"audit: the database ran out of memory or disk: {_first_line(error)}. "
                "Raise memory_limit=, lower threads=, or point temp_directory= to a larger disk."
            ) from None
        except (duckdb.Error, ibis.common.exceptions.IbisError) as error:
            raise ValueError(
                f"audit: the database could not read or compare the tables: {_first_line(error)}."
            ) from None

    def keep(self, name: str, table: Any) -> Any:
        """Store an intermediate result: in our own file, or in the caller's engine as its cache."""
        if self.own:
            return self.backend.create_table(name, table)
        return table.cache()

    def fetch(self, table: Any) -> dict[str, list[Any]]:
        """A small result as plain Python columns (not pandas: it would turn large integers with gaps into floats)."""
        result: dict[str, list[Any]] = self.backend.to_pyarrow(table).to_pydict()
        return result


def open_engine(old: Any, new: Any, **settings: Any) -> Engine:
    """The engine that both tables can live in."""
    backends = [b for b in (_backend_of(source) for source in (old, new)) if b is not None]
    if len({id(b) for b in backends}) > 1:
        raise ValueError("audit: both Ibis tables must come from one connection, got two. Use one, or give files.")
    return Engine(backends[0]) if backends else Engine(**settings)


def _backend_of(source: Any) -> Any:
    if not isinstance(source, ibis.Table):
        return None
    backends, _ = source._find_backends()
    return backends[0] if backends else None


def kinds(table: Any) -> dict[str, str]:
    """The kind of each column, in words that mean the same in every engine."""
    return {name: _column_kind(dtype) for name, dtype in table.schema().items()}


def _column_kind(dtype: Any) -> str:
    if isinstance(dtype, dt.Null) or "NULL" in str(getattr(dtype, "raw_type", "")):
        return "null"
    for kind, test in (
        ("boolean", dt.Boolean),
        ("integer", dt.Integer),
        ("float", dt.Floating),
        ("decimal", dt.Decimal),
        ("text", dt.String),
        ("uuid", dt.UUID),
        ("date", dt.Date),
        ("time", dt.Timestamp | dt.Time),
        ("binary", dt.Binary),
        ("nested", dt.Array | dt.Map | dt.Struct),
    ):
        if isinstance(dtype, test):
            return kind
    return "unknown"


def _kind(path: str) -> tuple[str, str]:
    lower = path.lower()
    if lower.endswith(CSV_ENDINGS):
        return "csv", "CSV"
    if lower.endswith(PARQUET_ENDINGS) or "://" in path:
        return "parquet", "Parquet"
    if lower.endswith(DATABASE_ENDINGS):
        return "database", "a DuckDB database"
    try:
        with open(path, "rb") as file:
            if file.read(4) == b"PAR1":
                return "parquet", "Parquet"
    except OSError:
        pass
    raise ValueError(
        f"audit: cannot tell what {path!r} is. Its name should end in one of "
        f"{', '.join((*PARQUET_ENDINGS, *CSV_ENDINGS, *DATABASE_ENDINGS))}."
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _close(backend: Any) -> None:
    with suppress(Exception):  # the interpreter may be half gone: nothing is left to save
        backend.disconnect()


def has_low_precision(table: Any, names: tuple[str, ...]) -> bool:
    """Whether any of the columns is a float of fewer than 64 bits."""
    schema = table.schema()
    return any(isinstance(schema[name], dt.Float16 | dt.Float32) for name in names)
