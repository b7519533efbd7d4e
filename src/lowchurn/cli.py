"""The command line: parse and call."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from lowchurn import __version__
from lowchurn.bench.commands import bench_app, data_app

app = typer.Typer(
    help="Retrain a classifier so that few of its decisions change, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")
errors = Console(stderr=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lowchurn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Say the version and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    max_churn: Annotated[float, typer.Option(help="Share of predictions that may change.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Decides the split and the initial weights.", min=0)] = 0,
) -> None:
    """Retrain a digit classifier the plain way and the low-churn way, and compare them (a few seconds)."""
    from lowchurn.checks import check_number
    from lowchurn.demo import show_demo

    check_number("demo", "max_churn", max_churn, 0, 1)
    show_demo(Console(), max_churn, seed)


def main() -> None:
    """Entry point: a bad value is one clear line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, ImportError, OSError) as error:
        errors.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
