"""What ``lowchurn audit`` does with its parsed arguments: settings, audit, gate, files, exit code."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lowchurn._files import PathLike, check_outputs, real_place, write_files
from lowchurn._terminal import printable
from lowchurn.audit import Audit, Gate, Limits, Verdict
from lowchurn.audit._answers import holds_answers
from lowchurn.audit._audit import audit_tables
from lowchurn.audit._audited import Outcome
from lowchurn.audit._gate import FAIL, INCONCLUSIVE, PASS
from lowchurn.audit._paths import files_of
from lowchurn.audit._review import Review, ReviewPlan
from lowchurn.audit._rules import DECISIONS
from lowchurn.audit._settings import NAMES, Origin, Settings, read_config
from lowchurn.audit._summary import junit, markdown, text
from lowchurn.cli._printing import console_beside, print_line, print_written, rows_bar
from lowchurn.report import html_page
from lowchurn.report._frontier_file import read_frontier

DEFAULT_CONFIG = "lowchurn.toml"
LIMITS = tuple(field.name for field in fields(Limits))
OF_DECISIONS = ("disputed", "disputed_rows", "answers", "frontier", "margin", "power")
FILES = ("html", "json", "junit", "markdown", "disputed")
STYLES = {PASS: "bold green", FAIL: "bold red", INCONCLUSIVE: "bold yellow"}


def run_audit(given: Mapping[str, Any]) -> int:
    """Run an audit from the command line's arguments and return the exit code."""
    asked = _read_arguments(given)
    paths = asked.paths
    with rows_bar() as show:
        result = audit_tables(given["old"], given["new"], asked.settings, asked.origin, show)
    review = plan = None
    if isinstance(result, Audit):
        review = result.with_labels(given["answers"]) if "answers" in given else None
        plan = result.review_plan(given.get("margin", 0.005), given.get("power", 0.8))
    verdict = None if asked.gate is None else result.gate(asked.gate, review=review)

    # Everything is made before anything is written, so that a late error leaves no half of a release record.
    make: dict[str, Callable[[], str]] = {
        "html": lambda: html_page(result, verdict, plan=plan, review=review, frontier=asked.frontier),
        "json": lambda: result.to_json(verdict, review),
        "junit": lambda: junit(result, verdict) if verdict is not None else "",
        "markdown": lambda: markdown(result, verdict, review),
        "disputed": lambda: _disputed(result, given.get("disputed_rows")),
    }
    made: dict[PathLike, bytes | str] = {path: make[name]() for name, path in paths.items()}
    write_files(made)
    console = console_beside(paths.values())
    print_summary(console, result, verdict, None if result.fully_labelled else plan, review)
    print_written(paths.values(), console)
    return 0 if verdict is None else verdict.exit_code


def _disputed(result: Outcome, rows: int | None) -> str:
    assert isinstance(result, Audit)  # refused before otherwise
    return str(result.disputed(rows).to_csv(index=False))


@dataclass(frozen=True)
class _Asked:
    """The arguments, read and checked before any work."""

    settings: Settings
    gate: Gate | None
    paths: dict[str, str]
    frontier: object
    origin: Origin


def _read_arguments(given: Mapping[str, Any]) -> _Asked:
    path = given.get("config", DEFAULT_CONFIG if os.path.isfile(DEFAULT_CONFIG) else None)
    config = {"audit": {}, "gate": {}} if path is None else read_config(path)
    flags = {name: given[name] for name in NAMES if given.get(name) not in (None, [])}
    wanted, limits = read_limits(given, config["gate"])
    gate = Gate.from_dict(wanted) if wanted else None
    kept = [name for name in config["audit"] if name not in flags]
    kept += [name for name in dict(flat(config["gate"], "gate.")) if name not in limits]
    paths = {name: given[name] for name in FILES if name in given}
    _check_paths(given, paths, path)
    if "junit" in paths and gate is None:
        raise ValueError("audit: junit needs limits to judge. Set one, such as max_churn=0.03.")
    settings = Settings(**(config["audit"] | flags))
    if settings.numeric:
        for name in OF_DECISIONS:
            if name in given:
                raise ValueError(f"audit: {name}= is about decisions, and these are numbers. Leave it out.")
    elif gate is not None:
        DECISIONS.check(gate)
    frontier = read_frontier(given["frontier"]) if "frontier" in given else None
    origin = Origin(command_line(), path, tuple(kept), {} if gate is None else dict(flat(gate.given, "gate.")))
    return _Asked(settings, gate, paths, frontier, origin)


def command_line() -> str:
    """The command as it was called."""
    return shlex.join(["lowchurn", *sys.argv[1:]]) if len(sys.argv) > 1 else Origin.command


def read_limits(given: Mapping[str, Any], table: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The file's limits, overridden by options; and the names of those that an option gave."""
    options = {
        name: given[name] for name in (*LIMITS, "inconclusive", "never_break") if given.get(name) not in (None, [])
    }
    slices = {name: given[f"slice_{name}"] for name in LIMITS if f"slice_{name}" in given}
    limits = dict(table) | options
    if slices:
        try:
            Limits(**slices)
        except ValueError as error:
            raise ValueError(str(error).replace("gate: ", "gate: slice_", 1)) from None
        rules = dict(limits.get("slices", {}))
        limits["slices"] = rules | {"*": dict(rules.get("*", {})) | slices}
    named = {f"gate.{name}" for name in options} | {f"gate.slices.*.{name}" for name in slices}
    return limits, named


def _check_paths(given: Mapping[str, Any], paths: Mapping[str, str], config: str | None) -> None:
    """Refuse, before any work, outputs that would replace an input, each other, or labels that somebody filled in."""
    inputs: dict[str, str | Path | None] = {"--config": config}
    inputs |= {f"--{name}": given.get(name) for name in ("answers", "frontier")}
    for side in ("old", "new"):
        source = os.fspath(given[side])
        read = [Path(source)] if os.path.isdir(source) else files_of(source)
        inputs |= {f"the {side} table {str(path)!r}": path for path in read}
    check_outputs("audit", {f"--{name}": path for name, path in paths.items()}, inputs)
    for name, output in paths.items():
        if not given.get("force") and holds_answers(real_place(output)):
            raise ValueError(
                f"audit: --{name} must not replace labels that are filled in, got {output!r}. "
                "Write to another file, or use --force."
            )


def flat(table: Mapping[str, object], start: str) -> Iterator[tuple[str, object]]:
    """Nested tables as dotted names: ``gate.slices.country.max_churn``."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{start}{name}.")
        else:
            yield f"{start}{name}", value


def print_summary(
    console: Console,
    result: Outcome,
    verdict: Verdict | None,
    plan: ReviewPlan | None = None,
    review: Review | None = None,
) -> None:
    """Print the figures, then every check with its verdict."""
    console.print(Text(text(result, review)))
    if review is not None:
        print_line(f"  review: {review}", console)
    elif plan is not None:
        print_line(f"  review plan: {plan}", console)
    if verdict is None:
        return
    console.print(Text(verdict.outcome, style=STYLES[verdict.outcome]))
    for check in verdict.checks:
        words = f" {printable(check.words)}"
        console.print(Text("  ").append(check.outcome, style=STYLES[check.outcome]).append(words))
    for name in verdict.unjudged:
        print_line(f"  not judged, too few rows: {name}", console)
    if verdict.outcome == INCONCLUSIVE and verdict.gate.inconclusive == "warn":
        warning = "warning: the verdict is INCONCLUSIVE and lets the candidate through (inconclusive = warn)."
        print_line(warning, Console(stderr=True))
