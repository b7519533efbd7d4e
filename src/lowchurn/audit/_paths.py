"""The files behind a path: a file, a folder of Parquet files, a pattern, or ``file.duckdb::table``."""

from __future__ import annotations

import glob
import os
from pathlib import Path

CSV_ENDINGS = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".csv.zst")
PARQUET_ENDINGS = (".parquet", ".pq", ".parq")
DATABASE_ENDINGS = (".duckdb", ".ddb", ".db")
SHOWN = 5  # names of files in a message


def split_path(path: str) -> tuple[str, str]:
    """The file and the table of ``file.duckdb::table``; an existing file may have :: in its name."""
    name, _, table = (path, "", "") if os.path.exists(path) else path.partition("::")
    return name, table


def is_remote(name: str) -> bool:
    """Whether a path is an address such as ``s3://``; an existing file is read literally."""
    return "://" in name and not os.path.exists(name)


def files_of(path: str | os.PathLike[str]) -> list[Path]:
    """The files that the audit reads for a path; none where it is remote or leads to no file."""
    name, _ = split_path(os.fspath(path))
    if os.path.isfile(name):
        return [Path(name)]
    if os.path.isdir(name):
        name = os.path.join(glob.escape(name), "**", "*.parquet")
    elif "\0" in name or is_remote(name) or not any(c in name for c in "*?["):
        return []
    return sorted(Path(found) for found in glob.glob(name, recursive=True) if os.path.isfile(found))


def files_to_read(side: str, path: str) -> list[str]:
    """The files behind a local path; an error that gives the reason where there are none or they cannot be read."""
    name, _ = split_path(path)
    found = list(map(str, files_of(path)))
    if found and (os.path.isdir(name) or not os.path.exists(name)):
        return found
    if os.path.isdir(name):
        raise ValueError(f"audit: cannot read {path!r} for the {side} table: the folder has no .parquet files.")
    if not os.path.exists(name):
        folder = Path(name).absolute().parent
        near = sorted(p.name for p in folder.glob("*"))[:SHOWN] if folder.is_dir() else []
        hint = f" That folder holds {', '.join(near)}." if near else " There is no such folder."
        raise ValueError(f"audit: no file {path!r} for the {side} table.{hint}")
    if not os.access(name, os.R_OK):
        raise ValueError(f"audit: no permission to read {path!r} for the {side} table.")
    if not os.path.isfile(name):
        raise ValueError(f"audit: {path!r} for the {side} table is not a file. Tables are read twice: copy it to one.")
    if os.path.getsize(name) == 0:
        raise ValueError(f"audit: the file {path!r} for the {side} table is empty.")
    return [name]


def format_of(path: str) -> str:
    """``"CSV"``, ``"Parquet"`` or ``"a DuckDB database"``, by the name of a file or its first bytes."""
    lower = path.lower()
    if lower.endswith(CSV_ENDINGS):
        return "CSV"
    if lower.endswith(PARQUET_ENDINGS) or "://" in path:
        return "Parquet"
    if lower.endswith(DATABASE_ENDINGS):
        return "a DuckDB database"
    try:
        with open(path, "rb") as file:
            if file.read(4) == b"PAR1":
                return "Parquet"
    except OSError:
        pass
    raise ValueError(
        f"audit: the format of {path!r} is not known. Its name should end in one of "
        f"{', '.join((*PARQUET_ENDINGS, *CSV_ENDINGS, *DATABASE_ENDINGS))}."
    )
