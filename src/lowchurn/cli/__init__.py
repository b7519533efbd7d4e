"""The command line: parse and call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from lowchurn import __version__
from lowchurn._exits import DEBUG, run_command
from lowchurn.cli._audit_options import audit
from lowchurn.cli._bench import bench_app, data_app
from lowchurn.cli._compare_options import bless, compare
from lowchurn.cli._help import AUDIT, CERTIFIED, EXITS, JUDGED, RETRAIN, add_command
from lowchurn.cli._history_options import history
from lowchurn.cli._promote_options import promote
from lowchurn.cli._retrain import LARGEST_SEED, dial, retrain, score

__all__: list[str] = []

# Names that settings have in Python where the option has another, for the words of errors.
ALSO = {
    "bless": {"baseline": "--as"},
    "retrain": {"trusted": "--trust", "random_state": "--seed", "classes": "--class"},
    "dial": {"trusted": "--trust", "strategies": "--strategies", "held_out": "--held-out"},
    "score": {"trusted": "--trust", "classes": "--class"},
}

app = typer.Typer(
    help="Retrain a classifier so that few of its decisions change, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=f"{EXITS}\n\nExample: lowchurn audit old.parquet new.parquet --label y --max-churn 0.03",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lowchurn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[
        bool, Option("--debug", help=f"Show the traceback of an error. The variable {DEBUG}=1 does the same.")
    ] = False,
) -> None:
    """Retrain a classifier so that few of its decisions change, and prove it."""


def demo(
    max_churn: Annotated[float, Option(help="Share of decisions that may change, such as 0.03 for 3 %.")] = 0.03,
    seed: Annotated[int, Option(help="Seed of the initial weights.", min=0, max=LARGEST_SEED)] = 0,
    out: Annotated[Path, Option(help="Folder to write the decisions and the report to.")] = Path("lowchurn-demo"),
) -> None:
    """Retrain a small network plainly and in three low-churn ways, compare them and write a report page."""
    from lowchurn._checks import check_number
    from lowchurn.cli._demo import show_demo

    check_number("demo", "max_churn", max_churn, 0, 1, open_low=True, open_high=True)
    show_demo(Console(), max_churn, seed, out)


add_command(app, demo, RETRAIN, "lowchurn demo --max-churn 0.02 --out my-demo")
add_command(
    app,
    audit,
    AUDIT,
    "lowchurn audit old.parquet new.parquet --label y --by country --max-churn 0.03 --html report.html",
    exits=JUDGED,
)
add_command(app, history, AUDIT, "lowchurn history v1.parquet v2.parquet v3.parquet --label y --html history.html")
add_command(
    app,
    compare,
    AUDIT,
    "lowchurn compare results/base results/candidate --never-break safety --markdown summary.md",
    exits=f"{JUDGED} INCONCLUSIVE is 0 without --inconclusive fail.",
)
add_command(app, bless, AUDIT, "lowchurn bless results/base --as baseline.parquet")
add_command(
    app,
    promote,
    AUDIT,
    "lowchurn promote credit last_week.parquet --label y --max-churn 0.02 --not-worse-than 0.005",
    exits=f"{JUDGED} After PASS the challenger is the champion.",
)
add_command(
    app,
    retrain,
    RETRAIN,
    "lowchurn retrain --data new.parquet --target y --base prod.skops --max-churn 0.02 --out next.skops",
    exits=CERTIFIED,
)
add_command(app, dial, RETRAIN, "lowchurn dial next.skops --max-churn 0.01 --out calmer.skops", exits=CERTIFIED)
add_command(
    app,
    score,
    RETRAIN,
    "lowchurn score --model next.skops --data rows.parquet --previous last_week.parquet --out this_week.parquet",
)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")


def main() -> None:
    """Entry point: every way out has one exit code and one line, never a traceback."""
    raise SystemExit(run_command(app, sys.argv[1:], ALSO))
