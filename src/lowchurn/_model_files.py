"""What all model files share: archives that are unpacked within limits, and labels and numbers as plain data.

A model file may be damaged or made by somebody else. Whatever is wrong with it is one ValueError with one line.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, TypeVar

import numpy as np

from lowchurn._reading import read_json
from lowchurn._terminal import one_line
from lowchurn._types import ArrayLike

# An archive may unpack to this many bytes, or to this many times its own size where that is more.
ALWAYS_ALLOWED = 256 * 2**20
RATIO = 100
MOST_ENTRIES = 1_000_000
# Labels are few and short; numpy would reserve room for what a damaged dtype asks for.
MOST_LABEL_BYTES = 64 * 2**20
# More threads than any machine has; libraries end the process where it cannot have as many as are asked for.
MOST_THREADS = 1024
CHUNK = 2**20
_DTYPE = re.compile(r"O|\|b1|[<>|][iuf][1248]|[<>]U\d{1,9}|[<>]M8\[\d{0,9}[a-zA-Z]{1,2}\]")


T = TypeVar("T")


class Refused(ValueError):
    """A file that is not read, with the reason as a complete sentence."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever a library raises about a part of a file into one line that names the part."""
    try:
        yield
    except (ImportError, Refused):  # a library that is not installed, and what is worded already
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("load: "):
            raise Refused(one_line(error) + ".") from error
        text = one_line(error)
        reason = type(error).__name__ + (f": {text}" if text else "")
        raise Refused(f"load: {what} is damaged or of another kind ({reason}).") from error


def read_zip(what: str, data: bytes, nested: bool = False) -> dict[str, bytes]:
    """Unpack an archive in memory: its sizes are checked before unpacking, and held to while unpacking.

    An archive that is ``nested`` in another one may not unpack to more than its own size, so that they do not multiply.
    """
    allowed = len(data) if nested else most_unpacked(data)
    with reading(what), zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        _check_entries(what, entries, len(data), allowed)
        parts: dict[str, bytes] = {}
        for entry in entries:
            parts[entry.filename] = _unpack(archive, entry, what, allowed)
            allowed -= len(parts[entry.filename])
        return parts


def write_zip(parts: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of named parts."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def most_unpacked(data: bytes, nested: bool = False) -> int:
    """How many bytes the content of an archive may take in memory; archives inside each other do not multiply."""
    return max(ALWAYS_ALLOWED, len(data) * (1 if nested else RATIO))


def _check_entries(what: str, entries: Sequence[zipfile.ZipInfo], size: int, allowed: int) -> None:
    if len(entries) > MOST_ENTRIES:
        raise Refused(f"load: {what} has {len(entries)} entries, at most {MOST_ENTRIES} are read.")
    total = sum(entry.file_size for entry in entries)
    if total > allowed:
        raise Refused(
            f"load: {what} would unpack from {size} to {total} bytes, at most {allowed} are allowed. "
            "Such a file is made to fill the memory."
        )
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename
        steps = PurePosixPath(name).parts + PureWindowsPath(name).parts
        if not name or ".." in steps or PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor:
            raise Refused(f"load: {what} has an entry outside of itself, {name!r}.")
        if name in seen:
            raise Refused(f"load: {what} has two entries called {name!r}.")
        if entry.flag_bits & 0x1:
            raise Refused(f"load: {what} has an encrypted entry, {name!r}.")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise Refused(f"load: {what} is compressed in a way that is not read. Write it with ZIP_DEFLATED.")
        seen.add(name)


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, what: str, allowed: int) -> bytes:
    """The content of one entry; zipfile checks its CRC at the end."""
    found = bytearray()
    with archive.open(entry) as file:
        while chunk := file.read(CHUNK):
            found += chunk
            if len(found) > allowed:
                raise Refused(f"load: {what} unpacks to more than its entries state.")
    return bytes(found)


def read_record(what: str, data: bytes, kind: type[T]) -> T:
    """JSON of a model file, checked against a dataclass; see :func:`lowchurn._reading.read_json`."""
    try:
        return read_json("load", what, data, kind)
    except ValueError as error:
        raise Refused(str(error)) from None


def hex_number(what: str, text: str, finite: bool = True) -> float:
    """A number written with ``float.hex``; finite unless ``finite=False``."""
    with contextlib.suppress(ValueError, OverflowError):
        number = float.fromhex(text)
        if math.isfinite(number) or not finite:
            return number
    raise Refused(f"load: {what} must be a finite number, got {text[:40]!r}.")


Label = bool | int | float | str | None


def labels_to_plain(classes: ArrayLike) -> dict[str, Any]:
    """Labels as JSON and their dtype, so that :func:`labels_from_plain` gives them back exactly."""
    classes = np.asarray(classes)
    dtype = "O" if classes.dtype.kind == "O" else classes.dtype.str
    if not _DTYPE.fullmatch(dtype):
        raise _unwritable(f"dtype {classes.dtype}")
    plain = classes.astype(np.int64).tolist() if classes.dtype.kind == "M" else classes.tolist()
    plain = [label.item() if isinstance(label, np.generic) else label for label in plain]
    for label in plain:
        if not isinstance(label, Label) or (isinstance(label, float) and math.isnan(label)):
            raise _unwritable(f"a {type(label).__name__}")
    return {"classes": plain, "dtype": dtype}


def _unwritable(kind: str) -> ValueError:
    return ValueError(
        f"save: labels must be numbers, text or dates of numpy to be written to a file, got {kind}. "
        "Train on labels of one of these types."
    )


def labels_from_plain(what: str, labels: Sequence[Label], dtype: str, least: int = 2) -> np.ndarray:
    """What :func:`labels_to_plain` wrote, checked: different from each other, enough of them, of the dtype's kind."""
    if not _DTYPE.fullmatch(dtype):
        raise Refused(f"load: the classes of {what} have an unknown dtype, {dtype[:40]!r}.")
    with reading(f"the list of classes of {what}"):
        kind = np.dtype(dtype)
        if kind.itemsize * len(labels) > MOST_LABEL_BYTES:
            raise Refused(f"load: the classes of {what} have a dtype that is too large, {dtype!r}.")
        fits = {"b": bool, "i": int, "u": int, "M": int, "f": int | float, "U": str, "O": object}[kind.kind]
        if not all(isinstance(label, fits) and (kind.kind in "bO" or not isinstance(label, bool)) for label in labels):
            raise Refused(f"load: the classes of {what} are not of their dtype {dtype!r}, got {labels[:5]}.")
        if kind.kind == "M":
            made = np.asarray(labels, dtype=np.int64).view("M8" + dtype[3:]).astype(kind)
        else:
            made = np.asarray(labels, dtype=kind)
        # Strings that do not fit the dtype would be cut off in silence.
        same = kind.kind == "M" or made.tolist() == list(labels)
        if len(labels) < least or len(set(made.tolist())) < len(labels) or not same:
            few = "one" if least == 1 else "two"
            raise Refused(f"load: the classes of {what} must be at least {few} different ones, got {labels[:5]}.")
    return made
