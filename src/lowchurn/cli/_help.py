"""How the help of a command is laid out: its options in groups, what its exit codes mean, and an example at the end."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import typer
from typer.models import OptionInfo

from lowchurn._exits import CODES

EXITS = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in CODES.items()) + "."
DONE = "Exit codes: 0 done; 2 bad input; 4 internal error, a bug in lowchurn."
CERTIFIED = DONE.replace("0 done;", "0 done; 1 a certificate was asked for (--confidence) and not obtained;")
JUDGED = "Exit codes: 0 PASS; 1 FAIL; 2 bad input; 3 INCONCLUSIVE; 4 internal error, a bug in lowchurn."

# Groups of options by the names of the parameters. A group is shown where a command has one of its options.
AUDIT = {
    "What to compare": """id label prediction score threshold proba classes value target loss gain tolerance relative
        by features weight group on_mismatch names old_name new_name champion challenger kind task metric filter
        other_prompts answers""",
    "Limits": """max_churn max_broken max_moved max_worse not_worse_than min_rows never_break inconclusive
        slice_max_churn slice_max_broken slice_max_moved slice_max_worse slice_not_worse_than slice_min_rows""",
    "Output": "html json junit markdown baseline disputed disputed_rows force frontier margin power sample",
    "Settings": """config confidence bootstrap seed partitions remote views memory_limit threads temp_directory
        engine spark_master spark_conf
        tracking_uri registry_uri dry_run""",
}
RETRAIN = {
    "Data": "data target model base new held_out traffic previous id previous_decision weight drop keep all_columns",
    "Limits": "max_churn max_broken by confidence",
    "What is trained and served": """strategies estimator search select serve_base cross_fit compress seed jobs cluster
        address""",
    "Files": "out report base_classes classes trust",
}
BENCH = {
    "What to run": """part network strategy start ablation trials initial validation batch scale patience loss epochs
        seed one_order""",
    "Files": "store data out again",
    "How to run it": "device dtype jobs block retry_failed",
    "On a cluster": "cluster address gpus_per_block cpus_per_block",
}


def add_command(
    app: typer.Typer,
    function: Callable[..., Any],
    groups: Mapping[str, str],
    example: str,
    name: str | None = None,
    exits: str = DONE,
) -> None:
    """Register a function as a command whose help ends with ``example``."""
    hints = get_type_hints(function, include_extras=True)
    panels = {option: title for title, names in groups.items() for option in names.split()}
    for parameter, hint in hints.items():
        for info in getattr(hint, "__metadata__", ()):
            if isinstance(info, OptionInfo):
                info.rich_help_panel = panels.get(parameter)
    places = {option: place for place, option in enumerate(panels)}
    given = inspect.signature(function)
    ordered = sorted(given.parameters.values(), key=lambda p: places.get(p.name, -1))  # the order of the groups
    by_name = [p.replace(kind=p.KEYWORD_ONLY, annotation=hints[p.name]) for p in ordered]
    function.__annotations__ = hints  # read once: reading them again would make other options
    function.__signature__ = given.replace(parameters=by_name)  # type: ignore[attr-defined]
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    words = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    app.command(name, help=words, epilog=f"{exits}\n\nExample: {example}")(function)
