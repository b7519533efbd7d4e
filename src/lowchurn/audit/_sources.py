"""Open whatever holds predictions as an Ibis table: files, data frames, Arrow tables and streams, Ibis tables.

Files are read as they are: an existing path is no pattern, folders are no partitions, the types of text files come
from all rows. Nothing in a file is run: views of a database and remote paths have to be asked for.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import duckdb
import ibis
import ibis.expr.datatypes as dt
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import sqlglot

from lowchurn._checks import unknown_name
from lowchurn._files import make_scratch
from lowchurn._terminal import one_line
from lowchurn.audit import _csv as csv_files
from lowchurn.audit import _object_stores as object_stores
from lowchurn.audit._connections import Connected, connect
from lowchurn.audit._exact import MOST_DIGITS, ColumnType, Schema
from lowchurn.audit._joins import quick_hash
from lowchurn.audit._paths import files_to_read, format_of, is_remote, split_path
from lowchurn.audit._progress import Show, shown_progress

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings

# A path, or a table of pandas, polars, pyarrow, Hugging Face, DuckDB or Ibis, which share no base class.
TableLike: TypeAlias = Any
Fetched: TypeAlias = dict[str, list[Any]]  # a small result of the database: values by column
Connection: TypeAlias = duckdb.DuckDBPyConnection
WIDE = (dt.int64, dt.uint64, dt.Int64(nullable=False), dt.UInt64(nullable=False))
DUCKDB = ibis.duckdb  # loaded here rather than in the first audit


@dataclass
class Opened:
    """A table that was opened, and what is known of its columns."""

    table: ibis.Table
    """As it is stored: the columns of a text file are all text."""
    schema: Schema
    written: bool = False
    """A text file."""
    uneven: dict[str, str] = field(default_factory=dict)
    """Columns that are not in all files of a folder or not of one type there, with the reason."""

    def select(self, names: Iterable[str]) -> ibis.Table:
        """The named columns in their types."""
        names = list(names)
        for name in names:
            if name in self.uneven:
                raise ValueError(f"audit: column {name!r} {self.uneven[name]}. Write all files with one schema.")
        if not self.written:
            return self.table.select(*names)
        types = {name: self.schema[name] for name in names}
        typed = {
            name: ibis.null("string") if type.kind == "null" else self.table[name].cast(type.dtype)
            for name, type in types.items()
        }
        return self.table.select(**typed)


class Engine:
    """The database that counts: the one that the tables live in, or an own DuckDB on disk.

    The own one keeps its tables in a file in a fresh folder, so that they are compressed and may be larger than
    memory; the folder goes when the engine does.
    """

    def __init__(self, settings: Settings, backend: ibis.BaseBackend | None = None, show: Show | None = None) -> None:
        self.connected: Connected | None = None
        if settings.engine is not None:
            self.connected = connect(settings.engine, settings)
            backend = self.connected.backend
        self.own = backend is None
        self.show = show
        self.partitions, self.remote, self.views = settings.partitions, settings.remote, settings.views
        self._attached: dict[str, str] = {}
        if backend is not None:
            self.backend = backend
            return
        folder = settings.temp_directory
        if folder is not None and not Path(folder).is_dir():
            raise ValueError(f"audit: temp_directory must be an existing folder, got {folder!r}.")
        try:
            place = make_scratch(folder)
        except OSError as error:
            raise ValueError(f"audit: cannot write to temp_directory {folder!r}: {error.strerror}.") from None
        options: dict[str, Any] = {
            "temp_directory": os.path.join(place, "spill"),
            # The order of rows means nothing here, and keeping it costs memory.
            "preserve_insertion_order": False,
            # Extensions are code that is downloaded: only remote files need them.
            "autoinstall_known_extensions": self.remote,
            "autoload_known_extensions": self.remote,
            "allow_community_extensions": False,
            # Keys of 16 bits are places in an array, not in a hash table (see _counts): 17 MB for each thread.
            "perfect_ht_threshold": 17,
            # DuckDB's own default, 80 %, leaves little for everything that it does not count.
            "memory_limit": "60%" if settings.memory_limit is None else settings.memory_limit,
        }
        if settings.threads is not None:
            options["threads"] = int(settings.threads)
        try:
            self.backend = DUCKDB.connect(os.path.join(place, "audit.duckdb"), **options)
            self.backend.con.execute("PRAGMA disable_checkpoint_on_shutdown")  # the file is deleted at the end
        except BaseException as error:
            shutil.rmtree(place, ignore_errors=True)
            if isinstance(error, duckdb.Error | ValueError):
                raise ValueError(f"audit: the database refused its settings: {_first_line(error)}.") from None
            raise
        self._close = weakref.finalize(self, _close, self.backend, place)

    @classmethod
    def for_tables(cls, tables: Sequence[TableLike], settings: Settings, show: Show | None = None) -> Engine:
        """The engine that all tables can live in; ``show`` is called with the rows that were read."""
        backends = [b for b in map(_backend_of, tables) if b is not None]
        if backends and settings.engine is not None:
            raise ValueError("audit: an Ibis table brings its own connection. Leave out engine=, or name the tables.")
        if (different := len({id(b) for b in backends})) > 1:
            raise ValueError(
                f"audit: all Ibis tables must come from one connection, got {different}. Use one, or give files."
            )
        return cls(settings, backends[0] if backends else None, show)

    def close(self) -> None:
        """Close an own database and remove its folder."""
        if self.own:
            self._close()

    def open(self, side: str, source: TableLike) -> Opened:
        """Any supported source, with the types of its columns."""
        if isinstance(source, ibis.Table):
            return self._open_memory(side, source.to_pyarrow()) if _backend_of(source) is None else _source(source)
        if isinstance(source, str | os.PathLike):
            return self._open_path(side, os.fspath(source))
        return self._open_memory(side, source)

    def _open_memory(self, side: str, source: TableLike) -> Opened:
        if isinstance(source, pa_dataset.Dataset) and self.backend.name == "duckdb":
            with suppress(Exception):  # read where it lies, so that it may be larger than memory
                csv_files.check_names(source.schema.names)
                if not any(map(_held_type, source.schema.types)):
                    return _source(self.hold(source))
        source = _loaded(source)
        module = type(source).__module__.split(".")[0]
        if not (isinstance(source, pa.Table) or (module in {"pandas", "polars"} and hasattr(source, "columns"))):
            raise ValueError(
                f"audit: the {side} table must be a path, a pandas, polars or pyarrow table, a Hugging Face dataset "
                "(one split, not streamed), a DuckDB relation, an Ibis table or another Arrow stream, got "
                f"{type(source).__module__}.{type(source).__name__}."
            )
        if module == "pandas":
            levels = [name for name in source.index.names if name is not None and name not in source.columns]
            source = source.reset_index(levels) if levels else source
        names = [str(c) for c in (source.column_names if isinstance(source, pa.Table) else source.columns)]
        if len(set(names)) < len(names):
            twice = sorted(n for n in set(names) if names.count(n) > 1)
            raise ValueError(f"audit: column names must differ, the {side} table has {twice} more than once.")
        if not names:
            raise ValueError(f"audit: the {side} table must have columns, got none.")
        if module == "pandas" and list(source.columns) != names:
            source = source.set_axis(names, axis=1)
        try:
            csv_files.check_names(names)
            with suppress(Exception):
                return _source(self.hold(_as_arrow(source)))
            # A column that the database cannot hold does no harm where nobody asks for it.
            unfit = {}
            for name in names:
                try:
                    self.hold(_as_arrow(source, [name]))
                except Exception as error:
                    unfit[name] = ColumnType("unknown", dt.unknown, reason=_first_line(error))
            return _source(self.hold(_as_arrow(source, [name for name in names if name not in unfit])), unfit)
        except Exception as error:
            raise ValueError(f"audit: cannot read the {side} table: {_first_line(error)}.") from None

    def hold(self, table: pa.Table | pa_dataset.Dataset) -> ibis.Table:
        """A table in memory as one of the engine's; DuckDB reads it where it lies."""
        if self.backend.name != "duckdb":
            return ibis.memtable(table)
        name = _new_name()
        self.backend.con.register(name, table)
        return self.backend.table(name)

    def _open_path(self, side: str, path: str) -> Opened:
        if self.connected is not None:
            return _source(self.connected.table(side, path))
        if not self.own and self.backend.name != "duckdb":
            raise ValueError(f"audit: give both tables as Ibis tables of {self.backend.name}, got the path {path!r}.")
        name, table = split_path(path)
        if is_remote(name) and not self.remote:
            if not table and format_of(name) == "Parquet" and object_stores.is_readable(name):
                dataset, schemas = object_stores.open_dataset(side, name, self.partitions)
                opened = self._open_memory(side, dataset)
                opened.uneven = _uneven(schemas)
                return opened
            raise ValueError(
                f"audit: {path!r} for the {side} table is remote, and the database downloads an extension to read "
                "it. Allow it with remote=True, or copy the file."
            )
        files = [name] if is_remote(name) else files_to_read(side, path)
        format = format_of(files[0])
        if table and format in {"CSV", "Parquet"}:
            raise ValueError(f"audit: only a DuckDB file has tables by name, got {path!r}.")
        try:
            if format == "CSV":
                return self._open_csv(files)
            return self._open_parquet(files) if format == "Parquet" else self._open_database(name, table)
        except Exception as error:
            if str(error).startswith("audit: "):
                raise
            reason = _csv_line(error) if format == "CSV" else _first_line(error)
            if is_remote(name) and "extension" in reason:
                reason += ". DuckDB reads it with this extension, which it has to download once; without remote=True, "
                reason += "Arrow reads Parquet on s3:// and gs:// and needs none"
            raise ValueError(f"audit: cannot read {path!r} as {format}: {reason}.") from None

    def _open_csv(self, files: list[str]) -> Opened:
        con, name = self.backend.con, _new_name()
        if is_remote(files[0]):
            names, commas = csv_files.load_remote(con, files[0], name, temporary=not self.own), False
        else:
            names, commas = csv_files.load(con, files, name, temporary=not self.own)
        schema = Schema(names, lambda column: csv_files.column_type(con, name, column, commas))
        return Opened(self.backend.table(name), schema, written=True)

    def _open_parquet(self, files: list[str]) -> Opened:
        local = not is_remote(files[0])
        paths = [csv_files.escape_pattern(f) for f in files] if local else files
        options: dict[str, Any] = {"hive_partitioning": self.partitions}
        if len(paths) > 1:
            options["union_by_name"] = True
        table = self.backend.read_parquet(paths, table_name=_new_name(), **options)
        opened = _source(table)
        if local:
            schemas = {file: pq.read_schema(file) for file in files}
            for schema in schemas.values():
                csv_files.check_names(schema.names)
            opened.uneven = _uneven(schemas)
        return opened

    def _open_database(self, path: str, table: str) -> Opened:
        if not table:
            raise ValueError(f"audit: name the table of {path!r}: '{path}::table'.")
        place = os.path.abspath(path) if os.path.exists(path) else path  # the latter is remote
        catalog = self._attached.get(place)
        con = self.backend.con
        if catalog is None:  # a database may be attached once only
            catalog = self._attached[place] = _new_name()
            con.execute(f"ATTACH {csv_files.quoted(place)} AS {catalog} (READ_ONLY, TYPE duckdb)").fetchall()
        where = f"WHERE database_name = '{catalog}' AND schema_name = 'main'"
        tables = [r[0] for r in con.execute(f"SELECT table_name FROM duckdb_tables() {where}").fetchall()]
        views = [r[0] for r in con.execute(f"SELECT view_name FROM duckdb_views() {where}").fetchall()]
        if table in views and not self.views:
            raise ValueError(
                f"audit: {table!r} in {path!r} is a view, a query that can read any file of this machine. "
                "Store it as a table, or allow it with views=True."
            )
        if table not in (*tables, *views):
            raise unknown_name("audit", f"table in {path!r}", table, tables)
        columns = con.execute(
            f"SELECT column_name, data_type, is_generated FROM duckdb_columns() {where} AND table_name = ?", [table]
        ).fetchall()
        computed = [name for name, _, generated in columns if generated]
        if computed and not self.views:
            raise ValueError(
                f"audit: table {table!r} in {path!r} has computed columns ({', '.join(computed)}), which "
                "run an expression of the file. Store their values, or allow them with views=True."
            )
        # Ibis takes them for times without a zone.
        zoned = ColumnType("unknown", dt.unknown, reason="a time of day with a zone")
        unfit = {name: zoned for name, type, _ in columns if type == "TIME WITH TIME ZONE"}
        return _source(self.backend.table(table, database=(catalog, "main")), unfit)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """The engine's own complaints as one line that a caller can act on."""
        try:
            yield
        except ibis.common.exceptions.OperationNotDefinedError as error:
            raise ValueError(
                f"audit: {self.backend.name} lacks something that the audit needs: {one_line(error)}. "
                "Copy the tables to Parquet files, and audit these."
            ) from error
        except duckdb.OutOfMemoryException as error:
            raise ValueError(
                f"audit: the database ran out of memory or disk: {_first_line(error)}. "
                "Raise memory_limit=, lower threads=, or point temp_directory= to a larger disk."
            ) from None
        except (duckdb.Error, ibis.common.exceptions.IbisError, sqlglot.errors.SqlglotError) as error:
            raise ValueError(
                f"audit: the database could not read or compare the tables: {_first_line(error)}."
            ) from None
        except RecursionError:
            raise ValueError(
                "audit: the tables have too many probability columns for one query. Give decisions: prediction=."
            ) from None
        except (OSError, MemoryError, OverflowError, UnicodeError, pa.ArrowException) as error:
            raise ValueError(f"audit: could not read the tables: {_first_line(error)}.") from None
        except Exception as error:
            if self.own or type(error).__module__.partition(".")[0] in {"builtins", "lowchurn"}:
                raise
            raise ValueError(
                f"audit: {self.backend.name} could not read or compare the tables: {_first_line(error)}."
            ) from error

    def keep(
        self, table: ibis.Table, rows: int = 0, few: bool = False, check: Callable[[], None] | None = None
    ) -> ibis.Table:
        """Store an intermediate result: in our own file, or in the caller's engine as its cache.

        Parameters
        ----------
        table : Table
            The expression of what is stored.
        rows : int
            The rows of the tables that are read for it, whose progress is shown where somebody looks.
        few : bool
            Whether few rows are stored: they stay in memory, which spares compressing them.
        check : callable, optional
            Asks our own database whether the result can be made, while the query is compiled, and raises otherwise.
        """
        if not self.own:
            return table.cache()
        with ThreadPoolExecutor(1) as beside:
            checked = None if check is None else beside.submit(check)
            query, name = self.backend.compile(table), _new_name()
        if checked is not None:
            checked.result()
        show = self.show if rows else None
        with nullcontext() if show is None else shown_progress(self.backend.con, query, rows, show):
            self.backend.con.execute(f'CREATE {"TEMP" if few else ""} TABLE "{name}" AS {query}')
        return self.backend.table(name)

    def share(self, table: ibis.Table) -> ibis.Table:
        """A table that several parts of one query read; DuckDB makes its rows once for all of them by itself."""
        return table if self.backend.name == "duckdb" else table.cache()

    def fetch(self, table: ibis.Table) -> Fetched:
        """A small result as plain Python columns (not pandas: it would turn large integers with gaps into floats)."""
        if self.own:  # as Ibis does it, but without the import of pandas
            found = table.__pyarrow_result__(self.backend.con.sql(self.backend.compile(table)).to_arrow_table())
            result: Fetched = found.to_pydict()
            return result
        # As text, because some drivers make floats of integers beside a missing value.
        wide = {name: table[name].cast("string") for name, type in table.schema().items() if type in WIDE}
        result = self.backend.to_pyarrow(table.mutate(**wide)).to_pydict()
        return result | {name: [None if text is None else int(text) for text in result[name]] for name in wide}

    def fetch_row(self, table: ibis.Table) -> dict[str, Any]:
        """A result of a single row."""
        return {name: values[0] for name, values in self.fetch(table).items()}

    @cached_property
    def quick(self) -> bool:
        """Whether the database has functions of DuckDB and Spark: ``hash``, and the first value of a group."""
        if self.own:
            return True
        try:
            self.backend.to_pyarrow(quick_hash(ibis.literal(1)))
        except Exception:  # each database has errors of its own
            return False
        return True

    def count(self, table: ibis.Table) -> int:
        """The number of rows."""
        return int(self.fetch_row(table.aggregate(n=table.count()))["n"])


def _backend_of(source: TableLike) -> ibis.BaseBackend | None:
    if not isinstance(source, ibis.Table):
        return None
    backends, _ = source._find_backends()
    return backends[0] if backends else None


def _source(table: ibis.Table, unfit: Mapping[str, ColumnType] | None = None) -> Opened:
    """A table with the types of its columns; ``unfit``: those that the database does not have, which cannot be used."""
    return Opened(table, Schema.of(dict(table.schema().items())).with_types(unfit or {}))


def _new_name() -> str:
    return f"lowchurn_{uuid.uuid4().hex}"


def _as_arrow(source: TableLike, names: list[str] | None = None) -> pa.Table:
    """A table in memory, or some of its columns, in types that DuckDB and Ibis have."""
    if isinstance(source, pa.Table):
        table = source if names is None else source.select(names)
    else:
        some = source if names is None else source[names]
        table = some.to_arrow() if hasattr(some, "to_arrow") else pa.Table.from_pandas(some, preserve_index=False)
    for i, column in enumerate(table.schema):
        held = _held_type(column.type)
        if held is not None:
            with suppress(pa.ArrowInvalid):  # where something would be lost it stays as it is
                table = table.set_column(i, column.name, table.column(i).cast(held))
    return table


def _loaded(source: TableLike) -> TableLike:
    """A source as a table of pyarrow, pandas or polars; what is no table stays as it is."""
    module = type(source).__module__.split(".")[0]
    if module == "datasets" and hasattr(source, "__len__") and not isinstance(source, dict):  # of Hugging Face
        return source.with_format("arrow")[:]
    if module == "polars" and hasattr(source, "collect"):
        return source.collect()
    if isinstance(source, pa.RecordBatch):
        return pa.Table.from_batches([source])
    if module == "pyarrow":
        load = getattr(source, "to_table", None) or getattr(source, "read_all", None)
        return source if load is None else load()
    if module not in {"pandas", "polars"} and hasattr(source, "__arrow_c_stream__"):
        # Relations of DuckDB belong to their own connection, and streams may be read once: bring them over.
        return pa.table(source)
    return source


def _held_type(type: pa.DataType) -> pa.DataType | None:
    """Another type for those that DuckDB or Ibis does not have; None for all others."""
    if pa.types.is_float16(type):
        return pa.float32()
    if pa.types.is_decimal256(type):
        return pa.decimal128(MOST_DIGITS, type.scale) if type.scale <= MOST_DIGITS else None
    if pa.types.is_timestamp(type) and type.unit == "ns" and type.tz is not None:
        return pa.timestamp("us", type.tz)
    return pa.time64("us") if type == pa.time64("ns") else None


def _uneven(schemas: dict[str, pa.Schema]) -> dict[str, str]:
    """Columns that some files lack or have in another type, with the reason."""
    first, *others = schemas
    types = {name: (first, type) for name, type in zip(schemas[first].names, schemas[first].types, strict=True)}
    found: dict[str, str] = {}
    for file in others:
        here = dict(zip(schemas[file].names, schemas[file].types, strict=True))
        for name in types.keys() ^ here.keys():
            found.setdefault(name, f"is not in all files ({first!r}, {file!r})")
        for name in types.keys() & here.keys():
            where, type = types[name]
            if pa.types.is_null(type):
                types[name] = file, here[name]
            elif not pa.types.is_null(here[name]) and _widest(type) != _widest(here[name]):
                found.setdefault(name, f"is {type} in {where!r} and {here[name]} in {file!r}")
    return found


def _widest(type: pa.DataType) -> pa.DataType:
    """One type for all that hold the same values: text however it is stored, and signed integers of any size."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    if pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return pa.string()
    return pa.int64() if pa.types.is_signed_integer(type) else type


def _csv_line(error: Exception) -> str:
    """Where a text file is broken; the database's advice, to skip such rows, is none for an audit."""
    lines = [line.strip() for line in re.split("Possible (?:fixes|Solution)", str(error))[0].splitlines()]
    if "reached an invalid state" in str(error):
        return "it is not valid CSV. Perhaps its lines end in different ways (\\r\\n and \\n): save it with one of them"
    kept = [line.removeprefix("Invalid Input Error: ") for line in lines if line and not line.startswith("Original")]
    return " ".join((kept[0], kept[-1]) if len(kept) > 1 else kept)[:300].rstrip(". ")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _close(backend: ibis.BaseBackend, place: Path) -> None:
    with suppress(Exception):  # the interpreter may be half gone: nothing is left to save
        backend.disconnect()
    shutil.rmtree(place, ignore_errors=True)


def has_low_precision(table: ibis.Table, names: tuple[str, ...]) -> bool:
    """Whether any of the columns is a float of fewer than 64 bits."""
    schema = table.schema()
    return any(isinstance(schema[name], dt.Float16 | dt.Float32) for name in names)
