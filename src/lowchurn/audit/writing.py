"""Whole files or none: written beside their place and then moved there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def check_writable(path: str | Path) -> None:
    """Refuse early, before any work: the folder must exist and take files.

    Examples
    --------
    >>> from lowchurn.audit import check_writable
    >>> check_writable("no-such-folder/report.html")
    Traceback (most recent call last):
    ...
    ValueError: write: cannot write 'no-such-folder/report.html': there is no folder 'no-such-folder'.
    """
    path = Path(path)
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"write: cannot write {str(path)!r}: there is no folder {str(folder)!r}.")
    if path.is_dir():
        raise ValueError(f"write: cannot write {str(path)!r}: it is a folder.")
    try:
        handle, name = tempfile.mkstemp(prefix=".lowchurn-", dir=folder)
    except OSError as error:
        raise ValueError(f"write: cannot write {str(path)!r}: {error.strerror}.") from None
    os.close(handle)
    os.unlink(name)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from lowchurn.audit import write_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(pathlib.Path(folder) / "a.txt", "whole")
    ...     (pathlib.Path(folder) / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=".lowchurn-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise ValueError(f"write: cannot write {str(path)!r}: {error.strerror}.") from None
    try:
        # Data may hold lone surrogates, which UTF-8 cannot: show them instead of failing at the last step.
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
        os.chmod(name, 0o666 & ~_umask())  # mkstemp makes files that only the owner may read
        os.replace(name, path)
    except OSError as error:
        raise ValueError(f"write: cannot write {str(path)!r}: {error.strerror}.") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
