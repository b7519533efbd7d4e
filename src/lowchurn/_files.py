"""Files that are written whole or not at all, and nothing that is left behind.

A file is written as a draft beside its place and moved there when it is complete, so a process that is killed leaves
the old file or the new one, never a half. Links are followed, the mode of an existing file is kept, and devices and
pipes (``/dev/stdout``, ``>(jq)``) are written to rather than replaced. The name of a draft contains the process that
makes it: the next run removes the drafts of processes that are gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PathLike = str | os.PathLike[str]

# Another machine's processes cannot be asked whether they are alive: their drafts count as stale after a day.
STALE_SECONDS = 24 * 3600
PIECE = 1 << 20  # of a draft that is copied to a stream
# Names of what the process has open already
_OPEN = re.compile(r"/dev/(stdout|stderr)|/(?:dev|proc/self)/fd/(\d+)")
# ".NAME.HOST-PID-RANDOM.lowchurn": a draft of a file, or a scratch folder
_MARKED = re.compile(r"\.(?:.*\.)?(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}\.lowchurn", re.DOTALL)


def _process_space() -> str:
    """What has process numbers of its own: a machine, or a container (several often share a hardware address)."""
    with contextlib.suppress(OSError):
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


_HOST = hashlib.sha256(_process_space().encode(errors="replace")).hexdigest()[:8]


def write_file(path: PathLike, data: bytes | str) -> None:
    """Write one file whole or not at all; see :func:`write_files`."""
    write_files({path: data})


def write_files(contents: Mapping[PathLike, bytes | str]) -> None:
    """Write several files: all drafts are complete before the first one is moved to its place.

    Text is written as UTF-8; lone surrogates, which UTF-8 cannot hold, are written as escapes.
    """
    drafts: list[tuple[Path, Path]] = []
    streams: list[tuple[Path, bytes]] = []
    try:
        for path, data in contents.items():
            raw = data.encode("utf-8", errors="backslashreplace") if isinstance(data, str) else data
            with _worded(path):
                if is_stream(path):
                    streams.append((Path(path), raw))
                    continue
                place = real_place(path)
                clear_stale(place.parent)
                draft = place.with_name(_mark(place.name))
                drafts.append((draft, place))
                _write_draft(draft, place, raw)
        for path_, raw in streams:
            with _worded(path_):
                _write_stream(path_, [raw])
        for draft, place in drafts:
            with _worded(place):
                os.replace(draft, place)
    finally:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def drafted(path: PathLike) -> Iterator[Path]:
    """A file to write step by step: moved to its place at the end, and removed where an error comes before that."""
    if is_stream(path):
        with scratch_folder() as folder:
            yield folder / "draft"
            with _worded(path), (folder / "draft").open("rb") as file:
                _write_stream(Path(path), iter(lambda: file.read(PIECE), b""))
        return
    place = real_place(path)
    clear_stale(place.parent)
    draft = place.with_name(_mark(place.name))
    try:
        with _worded(path):
            _write_draft(draft, place, b"")
        yield draft
        with _worded(path):
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            os.replace(draft, place)
    finally:
        draft.unlink(missing_ok=True)


def check_outputs(
    who: str, outputs: Mapping[str, PathLike | None], inputs: Mapping[str, PathLike | None] | None = None
) -> None:
    """Refuse, before any work, outputs that cannot be written, that are an input, or that are each other.

    Both map names of options (``"--json"``, ``"out"``) to paths or None. Links are followed, so two names of one file
    count as one. An input that is a folder contains the files in it.
    """
    taken: dict[tuple[object, ...], str] = {}
    for name, path in outputs.items():
        if path is None:
            continue
        if not is_stream(path):
            _check_place(who, name, path)
            for other, source in (inputs or {}).items():
                inside = source is not None and os.path.isdir(source) and real_place(source) in real_place(path).parents
                if source is not None and (inside or _identity(path) == _identity(source)):
                    raise ValueError(f"{who}: {name} must not overwrite {other}, got {os.fspath(path)!r}.")
        elif os.path.realpath(path) == os.path.realpath(os.devnull):
            continue
        key = _identity(path)
        if key in taken:
            raise ValueError(f"{who}: {taken[key]} and {name} must be different files, both are {os.fspath(path)!r}.")
        taken[key] = name


def is_stream(path: PathLike) -> bool:
    """Whether a path is a device, a pipe or another thing that is written to and cannot be replaced."""
    # Redirected to a file, /dev/stdout is a regular file that the shell has open: replacing it would lose it.
    if re.match(r"/(?:dev|proc)/", os.path.abspath(path)) and not os.path.abspath(path).startswith("/dev/shm/"):
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def goes_to_stdout(path: PathLike) -> bool:
    """Whether a path is the standard output, so that nothing else may be printed there."""
    try:
        same = is_stream(path) and os.path.samestat(os.stat(path), os.fstat(1))
        return same and not os.path.samefile(path, os.devnull)
    except OSError:
        return False


def real_place(path: PathLike) -> Path:
    """Where a file is really written: links are followed, also those that lead to a file that is not there yet."""
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def scratch_folder(folder: PathLike | None = None) -> Iterator[Path]:
    """A folder for intermediate results, removed at the end; those of killed runs are removed at the start."""
    place = make_scratch(folder)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def make_scratch(folder: PathLike | None = None) -> Path:
    """Make a scratch folder that the caller removes."""
    parent = Path(tempfile.gettempdir() if folder is None else folder)
    clear_stale(parent)
    place = parent / _mark("scratch")
    place.mkdir(mode=0o700)
    return place


def clear_stale(folder: PathLike) -> list[Path]:
    """Remove drafts and scratch folders whose process is gone; return what was removed."""
    removed = []
    try:
        entries = [e for e in os.scandir(folder) if e.name.endswith(".lowchurn")]
    except OSError:
        return []
    for entry in entries:
        found = _MARKED.fullmatch(entry.name)
        if found is None or not _is_stale(entry, found["host"], int(found["pid"])):
            continue
        with contextlib.suppress(OSError):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
            removed.append(Path(entry.path))
    return removed


def _is_stale(entry: os.DirEntry[str], host: str, pid: int) -> bool:
    if host != _HOST or os.name == "nt":  # on Windows, asking for a process by signal 0 would end it
        with contextlib.suppress(OSError):
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass
    return False


def _mark(name: str) -> str:
    # A draft's name is longer than its file's; file systems allow 255 bytes.
    short = os.fsencode(name)[:180].decode(sys.getfilesystemencoding(), errors="ignore")
    return f".{short}.{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.lowchurn"


def _write_draft(draft: Path, place: Path, data: bytes) -> None:
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(handle, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            os.chmod(draft, stat.S_IMODE(os.stat(place).st_mode))
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _write_stream(path: Path, pieces: Iterable[bytes]) -> None:
    found = _OPEN.fullmatch(os.path.abspath(path))
    if found is None:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    else:
        # Opened again, a redirected output would have a position of its own, and what is printed later would
        # overwrite what is written here.
        number = {"stdout": 1, "stderr": 2}.get(found[1]) or int(found[2])
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        handle = os.dup(number)
    with os.fdopen(handle, "wb") as file:
        file.writelines(pieces)


def _check_place(who: str, name: str, path: PathLike) -> None:
    text = os.fspath(path)
    cannot = f"{who}: {name} cannot be written to {text!r}:"
    if not text or "\0" in text:
        raise ValueError(f"{cannot} it is not a file name.")
    try:
        place = real_place(path)
        if place.is_symlink():
            raise ValueError(f"{cannot} it is a link that leads back to itself.")
        if place.is_dir() or text.endswith(os.sep):
            raise ValueError(f"{cannot} it is a folder.")
        if not place.parent.is_dir():
            shown = place.parent if os.path.islink(path) else Path(path).parent
            raise ValueError(f"{cannot} there is no folder {str(shown)!r}.")
        if place.exists() and not os.access(place, os.W_OK):
            raise ValueError(f"{cannot} the file may not be changed.")
        draft = place.with_name(_mark(place.name))
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.unlink()
    except OSError as error:
        raise ValueError(f"{cannot} {error.strerror}.") from None


def _identity(path: PathLike) -> tuple[object, ...]:
    # The second one is where a path through a folder that is not there is written: gone/../rows.csv.
    for place in (path, os.path.realpath(path)):
        with contextlib.suppress(OSError):
            found = os.stat(place)
            return found.st_dev, found.st_ino
    return (os.path.realpath(path),)


@contextlib.contextmanager
def _worded(path: PathLike) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ValueError(f"write: cannot write {os.fspath(path)!r}: {error.strerror}.") from None
