"""What ``lowchurn audit`` does with its parsed arguments: settings, audit, gate, files, exit code."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from lowchurn.audit import Gate, audit, check_writable, junit, markdown, read_config, write_text
from lowchurn.audit.gate import FAIL, INCONCLUSIVE, PASS
from lowchurn.audit.summary import text
from lowchurn.checks import unknown_name

DEFAULT_CONFIG = "lowchurn.toml"
SETTINGS = (
    "id",
    "label",
    "by",
    "features",
    "weight",
    "group",
    "prediction",
    "score",
    "threshold",
    "proba",
    "classes",
    "on_mismatch",
    "confidence",
    "bootstrap",
    "sample",
    "seed",
    "memory_limit",
    "threads",
    "temp_directory",
)
LIMITS = ("max_churn", "max_broken", "not_worse_than", "min_rows")
FILES = ("html", "json", "junit", "markdown", "disputed")
STYLES = {PASS: "bold green", FAIL: "bold red", INCONCLUSIVE: "bold yellow"}


def run_audit(given: Mapping[str, Any], console: Console) -> int:
    """Run an audit from the command line's arguments and return the exit code.

    Examples
    --------
    >>> from rich.console import Console
    >>> from lowchurn.report.command import run_audit
    >>> run_audit({"old": "no-such.parquet", "new": "no-such.parquet", "id": ["id"]}, Console())
    Traceback (most recent call last):
    ...
    ValueError: audit: no file 'no-such.parquet' for the old table...
    """
    config = _config(given)
    settings = dict(config["audit"])
    for name in settings:
        if name not in SETTINGS:
            raise unknown_name("audit", "setting", name, SETTINGS)
    renamed = {**given, **({"features": given["feature"]} if given.get("feature") else {})}
    settings |= {name: renamed[name] for name in SETTINGS if renamed.get(name) not in (None, [])}
    gate = _gate(given, config["gate"])
    paths = {name: given[name] for name in FILES if name in given}
    if len({os.path.abspath(path) for path in paths.values()}) < len(paths):
        raise ValueError(f"audit: the outputs must go to different files, got {list(paths.values())}.")
    for name, path in paths.items():
        check_writable(path)
        if any(os.path.abspath(path) == os.path.abspath(given[source]) for source in ("old", "new")):
            raise ValueError(f"audit: --{name} must not overwrite an input, got {path!r}.")
    if "junit" in paths and gate is None:
        raise ValueError("audit: --junit needs limits to judge. Set one, such as --max-churn 0.03.")
    frontier = _read_frontier(given["frontier"]) if "frontier" in given else None
    result = audit(given["old"], given["new"], **settings)
    result.command = shlex.join(["lowchurn", *sys.argv[1:]]) if len(sys.argv) > 1 else result.command
    verdict = result.gate(gate) if gate is not None else None
    plan = result.review_plan(given.get("margin", 0.005), given.get("power", 0.8))
    review = result.with_labels(given["answers"]) if "answers" in given else None

    # Everything is made before anything is written, so that a late error leaves no half of a release record.
    made: dict[str, str] = {}
    if "html" in paths:
        from lowchurn.report.page import html_page

        made["html"] = html_page(result, verdict, plan=plan, review=review, frontier=frontier)
    if "json" in paths:
        made["json"] = result.to_json(verdict, review)
    if "junit" in paths and verdict is not None:
        made["junit"] = junit(result, verdict)
    if "markdown" in paths:
        made["markdown"] = markdown(result, verdict, review)
    if "disputed" in paths:
        made["disputed"] = result.disputed(given.get("disputed_rows")).to_csv(index=False)
    for name, content in made.items():
        write_text(paths[name], content)

    console.print(Text(text(result)))
    if review is not None:
        console.print(Text(f"  review: {review}"))
    else:
        console.print(Text(f"  review plan: {plan}"))
    if verdict is None:
        return 0
    console.print(Text(verdict.outcome, style=STYLES[verdict.outcome]))
    for check in verdict.checks:
        console.print(Text("  ").append(check.outcome, style=STYLES[check.outcome]).append(f" {check.words}"))
    for name in verdict.unjudged:
        console.print(Text(f"  not judged, too few rows: {name}"))
    return verdict.exit_code


def _read_frontier(path: str) -> Any:
    """A list of settings, or the whole report of ``lowchurn retrain``, which knows what is served and the budget."""
    try:
        points = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"audit: cannot read the frontier {path!r}: {error.strerror}.") from None
    except ValueError as error:
        raise ValueError(f"audit: the frontier {path!r} is not valid JSON: {error}.") from None
    listed = points.get("frontier") if isinstance(points, dict) else points
    if not isinstance(listed, list) or not all(isinstance(p, dict) for p in listed):
        raise ValueError(
            f"audit: the frontier {path!r} must be a list of objects with accuracy and churn, "
            "or what lowchurn retrain --report wrote."
        )
    return points


def _config(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    if "config" in given:
        return read_config(given["config"])
    return read_config(DEFAULT_CONFIG) if os.path.isfile(DEFAULT_CONFIG) else {"audit": {}, "gate": {}}


def _gate(given: Mapping[str, Any], table: Mapping[str, Any]) -> Gate | None:
    """The file's limits; a flag has the word over them."""
    limits = dict(table) | {name: given[name] for name in LIMITS if name in given}
    slices = {name: given[f"slice_{name}"] for name in LIMITS if f"slice_{name}" in given}
    if slices:
        rules = dict(limits.get("slices", {}))
        limits["slices"] = rules | {"*": dict(rules.get("*", {})) | slices}
    return Gate.from_dict(limits) if limits else None
