"""What the commands print: one line per thing, with values from files and names made safe for a terminal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lowchurn._files import goes_to_stdout, is_stream, real_place
from lowchurn._terminal import printable


def console_beside(paths: Iterable[str | Path]) -> Console:
    """Where a summary is printed: the standard error where an output goes to the standard output, for a program."""
    return Console(stderr=any(map(goes_to_stdout, paths)), soft_wrap=True)


def print_line(value: object, console: Console | None = None) -> None:
    """Print one line without markup, control characters as escapes."""
    (console or Console()).print(Text(printable(value)), soft_wrap=True)


def print_written(paths: Iterable[str | Path], console: Console) -> None:
    """Name the files that were written, links followed where there are any."""
    for path in paths:
        if not is_stream(path):
            place = real_place(path)
            print_line(f"written: {path if str(place) == os.path.abspath(path) else place}", console)
