"""The command line: parse and call."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer import Option

from lowchurn import __version__
from lowchurn._exits import CODES, DEBUG, run_command
from lowchurn.cli._audit_options import audit
from lowchurn.cli._bench import bench_app, data_app
from lowchurn.cli._compare_options import bless, compare
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
EXITS = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in CODES.items()) + "."

app = typer.Typer(
    help="Retrain a classifier so that few of its decisions change, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXITS,
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


@app.command()
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


app.command()(audit)
app.command(epilog=EXITS)(history)
app.command()(compare)
app.command(epilog=EXITS)(bless)
app.command()(promote)
app.command(epilog=EXITS)(retrain)
app.command(epilog=EXITS)(dial)
app.command(epilog=EXITS)(score)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")


def main() -> None:
    """Entry point: every way out has one exit code and one line, never a traceback."""
    raise SystemExit(run_command(app, sys.argv[1:], ALSO))
