"""What was audited: the models' names, the files with their checksums, and the settings."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from lowchurn import __version__
from lowchurn.audit._paths import files_of

if TYPE_CHECKING:
    from lowchurn.audit._pairs import Rows
    from lowchurn.audit._settings import Origin, Settings
    from lowchurn.audit._sources import TableLike

# Larger inputs are not hashed: reading them a second time would take longer than the audit.
MOST_BYTES = 1 << 30
MOST_FILES = 10_000
NAMES = ("old_name", "new_name")  # shown with the tables, not with the settings


@dataclass(frozen=True)
class Source:
    """One of the audited tables."""

    name: str | None = None
    """Name and version of the model, where the caller gave one."""
    path: str | None = None
    """Path as it was given; None for a table in memory."""
    sha256: str | None = None
    """Checksum of the file; of several files that of their list, as ``sha256sum`` would print it, sorted by path.
    None where there is no file, or more than 1 GiB."""
    rows: int = 0
    modified: str | None = None
    """Time of the last change of the newest file (ISO 8601, UTC)."""


@dataclass(frozen=True)
class Provenance:
    """What was audited, and how it was set."""

    old: Source = field(default_factory=Source)
    new: Source = field(default_factory=Source)
    settings: dict[str, object] = field(default_factory=dict)
    """Settings that differ from their default; limits of the gate as ``gate.max_churn``."""
    config: str | None = None
    """The ``lowchurn.toml`` that was read."""
    from_config: tuple[str, ...] = ()
    """Names among ``settings`` whose value the file gave."""
    lowchurn: str = __version__


def describe_source(source: TableLike, name: str | None, share: float = 1.0, local: bool = True) -> Source:
    """A table before it is read; its rows are counted later.

    ``share``: of the bytes that may be hashed. ``local``: a path leads to files of this machine.
    """
    if not isinstance(source, str | os.PathLike):
        return Source(name, None)
    path = os.fspath(source)
    return describe_files(path, files_of(path) if local else [], name, share)


def describe_files(path: str | None, files: Sequence[Path], name: str | None, share: float = 1.0) -> Source:
    """The files behind a path, with their checksum."""
    if path is None:
        return Source(name, None)
    try:
        found = [os.stat(file) for file in files]
        newest = max((f.st_mtime for f in found), default=None)
        modified = None if newest is None else datetime.fromtimestamp(newest, UTC).isoformat(timespec="seconds")
        small = 0 < len(files) <= MOST_FILES and sum(f.st_size for f in found) <= share * MOST_BYTES
        return Source(name, path, _checksum(path, files) if small else None, 0, modified)
    except (OSError, ValueError, OverflowError):
        return Source(name, path)  # the error comes when it is read


def _checksum(path: str, files: Sequence[Path]) -> str:
    sums = {}
    for file in files:
        with open(file, "rb") as opened:
            sums[file] = hashlib.file_digest(opened, "sha256").hexdigest()
    if len(files) == 1 and not os.path.isdir(path):
        return sums[files[0]]
    start = Path(os.path.commonpath([file.parent for file in files]))
    listed = "".join(f"{sums[file]}  {file.relative_to(start).as_posix()}\n" for file in files)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest()


def describe_audit(old: Source, new: Source, rows: Rows, settings: Settings, origin: Origin) -> Provenance:
    """Both tables with their rows, the settings that differ from their defaults and the limits of the gate."""
    used = {name: value for name, value in settings.given.items() if name not in NAMES}
    return Provenance(
        replace(old, rows=rows.old),
        replace(new, rows=rows.new),
        used | dict(origin.limits),
        origin.config,
        origin.from_config,
    )


def versions() -> dict[str, str]:
    """The versions of Python and of the libraries that made the figures."""
    found = {"python": platform.python_version()}
    for name in ("lowchurn", "duckdb", "ibis-framework", "scipy", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
