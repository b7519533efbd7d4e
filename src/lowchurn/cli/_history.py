"""What ``lowchurn history`` does with its parsed arguments: settings, history, files."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lowchurn._files import PathLike, check_outputs, write_files
from lowchurn._terminal import printable
from lowchurn.audit import History, history
from lowchurn.audit._history import history_of_tables, named_releases
from lowchurn.audit._history_summary import details, headline, heads, markdown, rows, table_lines
from lowchurn.audit._paths import files_of
from lowchurn.audit._settings import NAMES, Origin, Settings, read_config
from lowchurn.cli._audit import DEFAULT_CONFIG
from lowchurn.cli._printing import console_beside, print_line, print_written, rows_bar
from lowchurn.report import html_page

FILES = ("html", "json", "markdown")
TAKEN = [name for name in inspect.signature(history).parameters if name in NAMES]


def run_history(given: Mapping[str, Any]) -> None:
    """Make a history from the command line's arguments and write what was asked for."""
    releases, paths = given["releases"], {name: given[name] for name in FILES if name in given}
    config = given.get("config", DEFAULT_CONFIG if os.path.isfile(DEFAULT_CONFIG) else None)
    _check_paths(releases, paths, config)
    settings = _settings(given, config)
    command = shlex.join(["lowchurn", *sys.argv[1:]])
    tables = named_releases(releases, given.get("names"))
    with rows_bar() as show:
        found = history_of_tables(tables, settings, Origin(command, config), show)
    make = {"html": lambda: html_page(found), "json": found.to_json, "markdown": lambda: markdown(found)}
    made: dict[PathLike, bytes | str] = {path: make[name]() for name, path in paths.items()}
    write_files(made)
    console = console_beside(paths.values())
    _print(console, found)
    print_written(paths.values(), console)


def _settings(given: Mapping[str, Any], config: str | None) -> Settings:
    """Those of the file that a history takes, overridden by options."""
    table = {} if config is None else read_config(config)["audit"]
    flags = {name: given[name] for name in TAKEN if given.get(name) not in (None, [])}
    for name in ("prediction", "score"):
        if len(flags.get(name, ())) == 1:
            flags[name] = flags[name][0]
    return Settings(**{name: value for name, value in table.items() if name in TAKEN} | flags)


def _check_paths(releases: list[str], paths: Mapping[str, str], config: str | None) -> None:
    """Refuse, before any work, outputs that would replace an input or each other."""
    inputs: dict[str, str | Path | None] = {"--config": config}
    for source in releases:
        read = [Path(source)] if os.path.isdir(source) else files_of(source)
        inputs |= {f"the release {str(path)!r}": path for path in read}
    check_outputs("history", {f"--{name}": path for name, path in paths.items()}, inputs)


def _print(console: Console, found: History) -> None:
    """On a terminal the table fits its width; elsewhere each release is one line."""
    print_line(headline(found), console)
    if console.is_terminal:
        table = Table(*heads(found))
        for row in rows(found):
            table.add_row(*(Text(printable(cell)) for cell in row))
        console.print(table)
    lines = details(found) if console.is_terminal else [*table_lines(found), *details(found)]
    for line in lines:
        print_line(line, console)
