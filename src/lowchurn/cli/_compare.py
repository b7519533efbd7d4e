"""What ``lowchurn compare`` and ``lowchurn bless`` do with their parsed arguments."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from lowchurn._files import PathLike, check_outputs, write_files
from lowchurn.audit import read_run
from lowchurn.audit._compare import compare_chosen, regression_gate
from lowchurn.audit._gate import Gate
from lowchurn.audit._paths import PARQUET_ENDINGS
from lowchurn.audit._settings import CHOICES, SHARED, Choices, Origin, Settings, read_config
from lowchurn.audit._summary import junit, markdown
from lowchurn.cli._audit import DEFAULT_CONFIG, command_line, flat, print_summary, read_limits
from lowchurn.cli._printing import console_beside, print_line, print_written
from lowchurn.report import html_page

FILES = ("html", "json", "junit", "markdown")
READING = ("kind", "task", "metric", "filter", "by")


def run_compare(given: Mapping[str, Any]) -> int:
    """Compare two runs from the command line's arguments and return the exit code."""
    paths = {name: given[name] for name in FILES if name in given}
    config = given.get("config", DEFAULT_CONFIG if os.path.isfile(DEFAULT_CONFIG) else None)
    inputs = {f"the {side} run": given[side] for side in ("old", "new")} | {"--config": config}
    check_outputs("compare", {f"--{name}": path for name, path in paths.items()}, inputs)
    table = {} if config is None else dict(read_config(config)["compare"])
    limits, options = read_limits(given, table.pop("gate", {}))
    Gate.from_dict(limits)  # a wrong limit is refused before any work
    flags = {name: given[name] for name in (*CHOICES, *SHARED) if given.get(name) not in (None, [])}
    wanted = table | flags
    chosen = Choices(**{name: wanted[name] for name in CHOICES if name in wanted})
    chosen.check()
    settings = Settings(**{name: wanted[name] for name in SHARED if name in wanted})
    shown = dict(flat(limits, "gate."))
    kept = [*(name for name in table if name not in flags), *(name for name in shown if name not in options)]
    origin = Origin(command_line(), config if table or kept else None, tuple(kept), shown)
    result = compare_chosen(given["old"], given["new"], chosen, settings, origin)
    verdict = result.gate(regression_gate(result, limits))
    make: dict[str, Callable[[], str]] = {
        "html": lambda: html_page(result, verdict),
        "json": lambda: result.to_json(verdict),
        "junit": lambda: junit(result, verdict),
        "markdown": lambda: markdown(result, verdict),
    }
    made: dict[PathLike, bytes | str] = {path: make[name]() for name, path in paths.items()}
    write_files(made)
    console = console_beside(paths.values())
    print_summary(console, result, verdict)
    print_written(paths.values(), console)
    return verdict.exit_code


def run_bless(given: Mapping[str, Any]) -> int:
    """Write the baseline of a run."""
    path = given["baseline"]
    if not path.lower().endswith(PARQUET_ENDINGS):
        raise ValueError(f"bless: baseline must be a Parquet file, got {path!r}. Call it baseline.parquet.")
    check_outputs("bless", {"--as": path}, {"the run": given["run"]})
    run = read_run(given["run"], **{name: given[name] for name in READING if given.get(name) not in (None, [])})
    write_files({path: run.to_parquet()})
    console = console_beside([path])
    print_line(run, console)
    for note in run.notes:
        print_line(f"  note: {note}", console)
    print_written([path], console)
    return 0
