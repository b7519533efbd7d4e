"""Arrays in ``.npz`` files that somebody else may have made: sizes are checked before anything is unpacked."""

from __future__ import annotations

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from lowchurn._terminal import one_line

HEADER = 10**4  # characters that the description of an array may have; ours has about 120
NPY = ".npy"
# What a damaged file may raise while it is read.
DAMAGED = (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, lzma.LZMAError, zipfile.BadZipFile)


def array_names(path: Path) -> list[str]:
    """The names of the arrays in a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(NPY) for name in archive.namelist() if name.endswith(NPY)]
    except DAMAGED as error:
        raise _unreadable(path, error) from None


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Arrays by name; a missing one, objects, and sizes that are not what the file contains are errors."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = {info.filename: info for info in archive.infolist()}
            parts = {}
            for name in names:
                if name + NPY not in there:
                    raise ValueError(f"it has no array {name!r}")
                parts[name] = there[name + NPY]
            _check_room(sum(info.file_size for info in parts.values()))
            return {name: _read(archive, name, info) for name, info in parts.items()}
    except DAMAGED as error:
        raise _unreadable(path, error) from None


def _read(archive: zipfile.ZipFile, name: str, info: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(info) as file:
        form: Any = np.lib.format
        version = form.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"its array {name!r} is of the unknown version {version}")
        read_header = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        try:
            shape, by_columns, dtype = read_header(file, max_header_size=HEADER)
        except (ValueError, TypeError, SyntaxError, TokenError) as error:  # it is read as Python's literals
            raise ValueError(f"its array {name!r} has no description that numpy can read ({error})") from None
        if dtype.hasobject:
            raise ValueError(f"its array {name!r} contains Python objects, which may run code")
        size = math.prod(shape) * dtype.itemsize
        if not all(type(length) is int and length >= 0 for length in shape) or size != info.file_size - file.tell():
            raise ValueError(f"its array {name!r} claims the shape {shape}, but contains {info.file_size} bytes")
        content = file.read()
    if len(content) != size:
        raise ValueError(f"its array {name!r} has {len(content)} bytes instead of {size}")
    values = np.frombuffer(bytearray(content), dtype=dtype)
    return values.reshape(shape, order="F" if by_columns else "C")


def _check_room(size: int) -> None:
    """Refuse what does not fit into memory, where it takes about four times its size."""
    import torch

    from lowchurn.nets._memory import free_memory, in_words

    free = free_memory(torch.device("cpu"))
    if free is not None and 4 * size > free:
        raise ValueError(f"it unpacks to {in_words(size)}, too much for {in_words(free)} of free memory")


def _unreadable(path: Path, error: Exception) -> ValueError:
    reason = one_line(error) or type(error).__name__
    return ValueError(f"data: {path} cannot be read: {reason}. Fetch or prepare it again.")
