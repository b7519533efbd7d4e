"""What ``lowchurn promote`` does with its parsed arguments: rows, limits, the registry."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lowchurn._extras import importing
from lowchurn.audit._gate import Gate
from lowchurn.audit._settings import read_config
from lowchurn.cli._audit import DEFAULT_CONFIG, print_summary, read_limits
from lowchurn.cli._printing import console_beside, print_line

ARGUMENTS = ("label", "id", "by", "champion", "challenger", "classes", "dry_run")


def run_promote(given: Mapping[str, Any]) -> int:
    """Judge the challenger from the command line's arguments, promote it where it passes, return the exit code."""
    path = given.get("config", DEFAULT_CONFIG if os.path.isfile(DEFAULT_CONFIG) else None)
    limits, _ = read_limits(given, {} if path is None else read_config(path)["gate"])
    if not limits:
        raise ValueError("promote: needs limits to judge. Set one, such as max_churn=0.02.")
    gate = Gate.from_dict(limits)  # a wrong limit is refused before any work
    with importing("promote", "mlflow"):
        import mlflow
    from lowchurn.integrations.mlflow import promote

    if "tracking_uri" in given:
        mlflow.set_tracking_uri(given["tracking_uri"])
    if "registry_uri" in given:
        mlflow.set_registry_uri(given["registry_uri"])
    for uri in (mlflow.get_tracking_uri(), mlflow.get_registry_uri()):
        file = uri.removeprefix("sqlite:///")
        if file != uri and not os.path.isfile(file):  # MLflow would make an empty one
            raise ValueError(
                f"promote: there is no database {file!r}. Set tracking_uri='http://host:5000', or the variable "
                "MLFLOW_TRACKING_URI."
            )
    wanted = {name: given[name] for name in ARGUMENTS if given.get(name) not in (None, [])}
    found = promote(given["name"], given["data"], gate=gate, **wanted)
    console = console_beside([])
    print_summary(console, found.audit, found.verdict)
    print_line(str(found), console)
    return found.verdict.exit_code
