"""The command line: parse and call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lowchurn import __version__
from lowchurn.bench.commands import bench_app, data_app

if TYPE_CHECKING:
    from lowchurn.retrain import Retrained

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


@app.command(name="audit")
def audit_command(
    old: Annotated[
        str, typer.Argument(help="Predictions of the model in production: Parquet, CSV or file.duckdb::table.")
    ],
    new: Annotated[str, typer.Argument(help="Predictions of the candidate on the same rows.")],
    id: Annotated[list[str] | None, typer.Option("--id", help="Key column; again for more. Default: id.")] = None,
    label: Annotated[str | None, typer.Option(help="Column with the truth.")] = None,
    by: Annotated[list[str] | None, typer.Option(help="Slice column; again for more.")] = None,
    feature: Annotated[list[str] | None, typer.Option(help="Column to look for drivers in; again for more.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column with the weights of rows.")] = None,
    group: Annotated[str | None, typer.Option(help="Column that says which rows belong together.")] = None,
    prediction: Annotated[str | None, typer.Option(help="Column with the decision.")] = None,
    score: Annotated[str | None, typer.Option(help="Column with the score of the positive class.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Score from which on it is decided for. Default: 0.5.")
    ] = None,
    proba: Annotated[list[str] | None, typer.Option(help="Probability column; one for each class.")] = None,
    classes: Annotated[list[str] | None, typer.Option("--class", help="Class of a --proba or score, in order.")] = None,
    on_mismatch: Annotated[
        str | None, typer.Option(help="error (default) or inner: judge the common ids only.")
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Of every interval. Default: 0.95.")] = None,
    max_churn: Annotated[float | None, typer.Option(help="Largest share of changed decisions.")] = None,
    max_broken: Annotated[float | None, typer.Option(help="Largest share that goes from right to wrong.")] = None,
    not_worse_than: Annotated[float | None, typer.Option(help="How far the accuracy may fall.")] = None,
    min_rows: Annotated[int | None, typer.Option(help="Fewest rows to judge on.")] = None,
    slice_max_churn: Annotated[float | None, typer.Option(help="The same limits for each slice ...")] = None,
    slice_max_broken: Annotated[float | None, typer.Option(help="...")] = None,
    slice_not_worse_than: Annotated[float | None, typer.Option(help="...")] = None,
    slice_min_rows: Annotated[int | None, typer.Option(help="Slices with fewer rows are not judged.")] = None,
    config: Annotated[str | None, typer.Option(help="Settings; ./lowchurn.toml is read where there is one.")] = None,
    html: Annotated[str | None, typer.Option(help="Write the report, one self-contained page.")] = None,
    json: Annotated[str | None, typer.Option(help="Write every figure.")] = None,
    junit: Annotated[str | None, typer.Option(help="Write the gate's checks as test cases.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write a summary for a pull request.")] = None,
    disputed: Annotated[
        str | None, typer.Option(help="Write disagreements to label, shuffled and blinded (CSV).")
    ] = None,
    disputed_rows: Annotated[int | None, typer.Option(help="How many of them. Default: all.", min=1)] = None,
    answers: Annotated[str | None, typer.Option(help="Read labelled disagreements: an id and a label column.")] = None,
    frontier: Annotated[
        str | None, typer.Option(help="Settings that were tried: a JSON list, or retrain's report.")
    ] = None,
    margin: Annotated[float | None, typer.Option(help="Fall in accuracy that the review plan is to exclude.")] = None,
    power: Annotated[float | None, typer.Option(help="Power of the review plan.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the bootstrap and the samples.", min=0)] = None,
    memory_limit: Annotated[
        str | None, typer.Option(help="Of the database, such as 4GB; the rest goes to disk.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Of the database.", min=1)] = None,
    temp_directory: Annotated[str | None, typer.Option(help="Folder for what does not fit in memory.")] = None,
) -> None:
    """Say what changed between two versions and judge it: exit code 0 PASS, 1 FAIL, 3 INCONCLUSIVE, 2 bad usage."""
    given = {name: value for name, value in locals().items() if value is not None}
    try:
        from lowchurn.report.command import run_audit
    except ImportError as error:
        raise ValueError(str(error)) from None

    raise typer.Exit(run_audit(given, Console(soft_wrap=True)))


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
    strategies: Annotated[
        list[str] | None, typer.Option(help="dial, auto, or the name of a strategy; names may be repeated.")
    ] = None,
    new: Annotated[str | None, typer.Option(help="Column that is true for rows the base has not seen.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="Type or pickle that may be read; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the rows held out and the initial weights.", min=0)] = 0,
) -> None:
    """Retrain a model from files within a churn budget.

    With --strategies dial or auto the whole dial is written, and `lowchurn dial` makes models for other budgets of it.

    Exit code 1: a certificate was asked for and not got; the report is written, the model is not.
    """
    from lowchurn.retrain import retrain_files

    columns = {"new": new, "weight": weight, "drop": drop or []}
    made = retrain_files(
        data,
        target,
        out,
        base,
        report,
        estimator,
        columns,
        trust or [],
        random_state=seed,
        max_churn=max_churn,
        confidence=confidence,
        select=select,
        search=search,
        strategies=strategies[0] if strategies is not None and len(strategies) == 1 else strategies,
    )
    _say(made, out)


@app.command()
def dial(
    model: Annotated[Path, typer.Argument(help="What `lowchurn retrain --strategies dial` wrote.")],
    max_churn: Annotated[float, typer.Option(help="Share of decisions that may change.")],
    out: Annotated[Path, typer.Option(help="Where to write the model for this budget.")],
    confidence: Annotated[float | None, typer.Option(help="Certify the budget; as retrained by default.")] = None,
    report: Annotated[Path | None, typer.Option(help="Where to write what was measured, as JSON.")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="Type that may be read; may be repeated.")] = None,
) -> None:
    """Make the model for another budget, at once and without training.

    Exit code 1: a certificate was asked for and not got; the report is written, the model is not.
    """
    from lowchurn.retrain import dial_file

    _say(dial_file(model, max_churn, out, confidence, report, trust or []), out)


def _say(made: Retrained, out: Path) -> None:
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
    except (ValueError, ImportError, OSError) as error:
        errors.print("[bold red]error:[/]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
