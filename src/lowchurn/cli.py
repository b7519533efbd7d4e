"""The command line: parse and call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from lowchurn import __version__

app = typer.Typer(
    help="Retrain a classifier so that few of its decisions change, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
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


@app.command()
def retrain(
    data: Annotated[Path, typer.Option(help="Old and new rows, CSV or Parquet.")],
    target: Annotated[str, typer.Option(help="Column of the labels.")],
    out: Annotated[Path, typer.Option(help="Where to write the new model.")],
    base: Annotated[Path | None, typer.Option(help="Model in production: .skops, .onnx or a saved model.")] = None,
    max_churn: Annotated[float | None, typer.Option(help="Share of decisions that may change.")] = None,
    confidence: Annotated[float | None, typer.Option(help="Certify the budget, such as 0.95.")] = None,
    report: Annotated[Path | None, typer.Option(help="Where to write what was measured, as JSON.")] = None,
    estimator: Annotated[str, typer.Option(help="base (train the same kind again), boosting or logistic.")] = "auto",
    select: Annotated[str, typer.Option(help="single or mixture.")] = "single",
    search: Annotated[str, typer.Option(help="auto (about three trainings) or grid.")] = "auto",
    new: Annotated[str | None, typer.Option(help="Column that is true for rows the base has not seen.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="Type or pickle that may be read; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the rows held out and the initial weights.", min=0)] = 0,
) -> None:
    """Retrain a model from files within a churn budget.

    Exit code 1: a certificate was asked for and not got; the report is written, the model is not.
    """
    from lowchurn.retrain import retrain_files

    columns = {"new": new, "weight": weight, "drop": drop or []}
    options = {"max_churn": max_churn, "confidence": confidence, "select": select, "search": search}
    made = retrain_files(
        data, target, out, base, report, estimator, columns, trust or [], random_state=seed, **options
    )  # fmt: skip
    console = Console()
    console.print(f"{made.model.selection_}", highlight=False, soft_wrap=True)
    if made.model.certificate_ is not None:
        console.print(f"{made.model.certificate_}", highlight=False, soft_wrap=True)
    if not made.written:
        errors.print("[bold red]not written:[/] the budget is not certified.", highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    console.print(f"written: {out}", highlight=False, soft_wrap=True)


def main() -> None:
    """Entry point: a bad value is one clear line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, ImportError) as error:
        errors.print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
