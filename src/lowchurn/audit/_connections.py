"""Databases that tables are named in: Spark, and those that Ibis connects to by an address.

The audit of such tables runs where they are. Nothing here knows how a database counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import ibis

from lowchurn._checks import unknown_name
from lowchurn._extras import importing
from lowchurn._terminal import one_line
from lowchurn.audit._columns import as_names
from lowchurn.audit._paths import PARQUET_ENDINGS

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings

SECRETS = ("password", "passwd", "pwd", "token", "secret")


@dataclass(frozen=True)
class Connected:
    """A database and what its tables are called."""

    backend: ibis.BaseBackend
    read_files: Callable[[str], ibis.Table] | None = None
    """Reads a Parquet file or folder; None where the database has tables only."""

    def table(self, side: str, name: str) -> ibis.Table:
        """A table by its name (``table``, ``schema.table``, ``catalog.schema.table``), or the files at a path."""
        if "/" in name or name.lower().endswith(PARQUET_ENDINGS):
            return self._files(side, name)
        *database, table = name.split(".")
        place = tuple(database) if len(database) > 1 else (*database, None)[0]
        try:
            return self.backend.table(table, database=place)
        except Exception as error:
            try:
                known = self.backend.list_tables(database=place)
            except Exception:  # no list of names to compare with; the first error says what is wrong
                known = [table]
            if table not in known:
                raise unknown_name("audit", f"{side} table", name, [".".join((*database, t)) for t in known]) from None
            raise ValueError(f"audit: cannot read the {side} table {name!r}: {one_line(error)}.") from error

    def _files(self, side: str, path: str) -> ibis.Table:
        if self.read_files is None:
            raise ValueError(
                f"audit: the {side} table must be the name of a table of {self.backend.name}, got the path {path!r}. "
                "Load the file there, or leave out engine=."
            )
        try:
            return self.read_files(path)
        except Exception as error:
            raise ValueError(f"audit: cannot read {path!r} for the {side} table: {one_line(error)}.") from error


def connect(engine: str, settings: Settings) -> Connected:
    """The database that ``engine=`` names: ``"spark"`` or an address such as ``postgres://host/database``."""
    options = as_names("spark_conf", settings.spark_conf)
    if engine == "spark":
        return _spark(settings.spark_master, options, settings.partitions)
    if settings.spark_master is not None or options:
        raise ValueError(f"audit: spark_master= and spark_conf= are settings of engine='spark', got {engine!r}.")
    if "://" not in engine:
        raise ValueError(
            f"audit: engine must be 'spark' or an address such as 'postgres://host/database', got {engine!r}."
        )
    refuse_secrets("engine", engine, "Use the variables or the file that the database's own client reads")
    try:
        return Connected(ibis.connect(engine))
    except ImportError as error:
        kind = urlsplit(engine).scheme
        raise ImportError(
            f"audit: engine={engine!r} needs {error.name or 'a driver'}. "
            f'Run: pip install "ibis-framework[{"postgres" if kind == "postgresql" else kind}]"'
        ) from error
    except Exception as error:
        raise ValueError(f"audit: cannot connect to engine={engine!r}: {one_line(error)}.") from error


def refuse_secrets(what: str, address: str, remedy: str) -> None:
    """Refuse an address with a password in it: commands and reports show the address."""
    parts = urlsplit(address)
    words = [name for name in parse_qs(parts.query) if any(secret in name.lower() for secret in SECRETS)]
    if parts.password or words:
        shown = f"{parts.scheme}://...{parts.path}"
        raise ValueError(f"audit: {what} must not contain a password, reports would show it, got {shown!r}. {remedy}.")


def _spark(master: str | None, options: Sequence[str], partitions: bool) -> Connected:
    """A session of Spark: the one that runs, or a new one as ``spark-defaults.conf`` and these settings have it."""
    with importing("audit: engine='spark'", "spark"):
        from pyspark.sql import SparkSession
    builder = SparkSession.builder.appName("lowchurn")
    for option in options:
        name, equals, value = option.partition("=")
        if not (equals and name.startswith("spark.")):
            raise ValueError(f"audit: spark_conf must be spark.name=value, got {option!r}.")
        builder = builder.config(name, value)
    if master is not None:
        builder = builder.master(master)
    running = SparkSession.getActiveSession() is not None
    try:
        session = builder.getOrCreate()
    except Exception as error:
        cure = "Check the master" if os.environ.get("JAVA_HOME") else "Check the master and that Java is installed"
        raise ValueError(f"audit: Spark did not start: {one_line(error)}. {cure}.") from error
    if not running and str(session.sparkContext.master).startswith("local"):
        _spare_tasks(session, options)
    backend = ibis.pyspark.connect(session)

    def read_files(path: str) -> ibis.Table:
        # As DuckDB reads a folder: every Parquet file below it, and no columns made of the names of folders.
        how: dict[str, object] = {"mergeSchema": True, "recursiveFileLookup": not partitions}
        if not path.lower().endswith(PARQUET_ENDINGS) and not any(c in path for c in "*?["):
            how["pathGlobFilter"] = "*.parquet"
        return backend.read_parquet(path, **how)

    return Connected(backend, read_files)


def _spare_tasks(session: Any, options: Sequence[str]) -> None:
    """On one machine, a few tasks for each step: Spark's default is 200, each of which costs more than its rows."""
    name, default = "spark.sql.shuffle.partitions", "200"
    if session.conf.get(name) == default and not any(option.startswith(f"{name}=") for option in options):
        session.conf.set(name, str(8 * session.sparkContext.defaultParallelism))
