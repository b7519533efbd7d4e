"""What the commands print: one line per thing, with values from files and names made safe for a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lowchurn._files import goes_to_stdout, is_stream, real_place
from lowchurn._terminal import printable

QUIET = 2.0  # seconds before a bar is shown


def console_beside(paths: Iterable[str | Path]) -> Console:
    """Where a summary is printed: the standard error where an output goes to the standard output, for a program."""
    return Console(stderr=any(map(goes_to_stdout, paths)), soft_wrap=True)


@contextmanager
def rows_bar() -> Iterator[Callable[[int, int], None] | None]:
    """A bar of the rows that were read, on a terminal, for runs of more than two seconds; it goes when they end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    rows = TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows")
    columns = (TextColumn("reading"), BarColumn(), rows, TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    began, task = time.monotonic(), bar.add_task("")

    def show(done: int, rows: int) -> None:
        bar.update(task, completed=done, total=rows)
        if time.monotonic() - began > QUIET and done < rows:
            bar.start()

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def blocks_bar() -> Iterator[tuple[Callable[[object], None], Callable[[tuple[int, int, int, int]], None]]]:
    """A function for lines, and one for a bar of blocks: done, running, waiting, and on how many nodes.

    The bar is below the lines, on the standard error of a terminal, and goes when the blocks end.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield print_line, lambda progress: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("blocks"), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(value: object) -> None:
            bar.stop()  # takes it away, so that the line is above it
            print_line(value)
            bar.start()

        def show(progress: tuple[int, int, int, int]) -> None:
            done, running, waiting, nodes = progress
            words = f"{done} done, {running} running, {waiting} waiting, {nodes} node{'s' * (nodes != 1)}"
            bar.update(task, completed=done, total=done + running + waiting, description=words)

        yield tell, show


def print_line(value: object, console: Console | None = None) -> None:
    """Print one line without markup, control characters as escapes."""
    (console or Console()).print(Text(printable(value)), soft_wrap=True)


def print_written(paths: Iterable[str | Path], console: Console) -> None:
    """Name the files that were written, links followed where there are any."""
    for path in paths:
        if not is_stream(path):
            place = real_place(path)
            print_line(f"written: {path if str(place) == os.path.abspath(path) else place}", console)
