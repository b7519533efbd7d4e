"""The command line: parse and call."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lowchurn import __version__
from lowchurn._exits import CODES, DEBUG, run_command, tell
from lowchurn._files import goes_to_stdout, is_stream, real_place
from lowchurn._terminal import printable
from lowchurn.cli._bench import bench_app, data_app

if TYPE_CHECKING:
    from lowchurn.retrain import Retrained

# Names that settings have in Python where the option is called otherwise, for the words of errors.
ALSO = {
    "audit": {"features": "--feature"},
    "retrain": {"trusted": "--trust", "random_state": "--seed", "classes": "--class"},
    "dial": {"trusted": "--trust", "strategies": "--strategies", "held_out": "--held-out"},
}
# What numpy takes, and the demo adds one.
LARGEST_SEED = 2**32 - 2
EXITS = "Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in CODES.items()) + "."

app = typer.Typer(
    help="Retrain a classifier so that few of its decisions change, and prove it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=EXITS,
)
app.add_typer(bench_app, name="bench")
app.add_typer(data_app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lowchurn {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of an error. The variable {DEBUG}=1 does the same.")
    ] = False,
) -> None:
    """Retrain a classifier so that few of its decisions change, and prove it."""


@app.command()
def demo(
    max_churn: Annotated[float, typer.Option(help="Share of predictions that may change, such as 0.05.")] = 0.05,
    seed: Annotated[
        int, typer.Option(help="Seed of the split and of the initial weights.", min=0, max=LARGEST_SEED)
    ] = 0,
) -> None:
    """Retrain a digit classifier the plain way and the low-churn way, and compare them (a few seconds)."""
    from lowchurn._checks import check_number
    from lowchurn.demo import show_demo

    check_number("demo", "max_churn", max_churn, 0, 1, open_low=True, open_high=True)
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
    slice_max_churn: Annotated[float | None, typer.Option(help="The same as --max-churn, for each slice.")] = None,
    slice_max_broken: Annotated[float | None, typer.Option(help="The same as --max-broken, for each slice.")] = None,
    slice_not_worse_than: Annotated[
        float | None, typer.Option(help="The same as --not-worse-than, for each slice.")
    ] = None,
    slice_min_rows: Annotated[int | None, typer.Option(help="Slices with fewer rows are not judged.")] = None,
    inconclusive: Annotated[
        str | None, typer.Option(help="What INCONCLUSIVE means: fail (exit code 3, default), warn or pass (0).")
    ] = None,
    old_name: Annotated[str | None, typer.Option(help="Name and version of the model in production.")] = None,
    new_name: Annotated[str | None, typer.Option(help="Name and version of the candidate.")] = None,
    config: Annotated[str | None, typer.Option(help="Settings; ./lowchurn.toml is read where there is one.")] = None,
    html: Annotated[str | None, typer.Option(help="Write the report, one self-contained page.")] = None,
    json: Annotated[str | None, typer.Option(help="Write every figure.")] = None,
    junit: Annotated[str | None, typer.Option(help="Write the gate's checks as test cases.")] = None,
    markdown: Annotated[str | None, typer.Option(help="Write a summary for a pull request.")] = None,
    disputed: Annotated[
        str | None, typer.Option(help="Write disagreements to label, shuffled and blinded (CSV).")
    ] = None,
    disputed_rows: Annotated[int | None, typer.Option(help="How many of them. Default: all.", min=1)] = None,
    answers: Annotated[
        str | None, typer.Option(help="Read labelled disagreements, an id and a label column; the gate uses them.")
    ] = None,
    force: Annotated[
        bool | None, typer.Option("--force", help="Let --disputed replace a file with labels that are filled in.")
    ] = None,
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
    partitions: Annotated[
        bool | None, typer.Option("--partitions", help="Take folders called name=value for a column.")
    ] = None,
    remote: Annotated[
        bool | None, typer.Option("--remote", help="Allow paths such as s3://, which download extensions.")
    ] = None,
    views: Annotated[
        bool | None, typer.Option("--views", help="Allow views in a DuckDB file, which can read any file.")
    ] = None,
) -> None:
    """Report what changed between two versions and judge it.

    Exit code 0: PASS; 1: FAIL; 3: INCONCLUSIVE (0 with --inconclusive warn or pass); 2: bad input.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    try:
        from lowchurn.cli._audit import run_audit
    except ImportError as error:
        raise ValueError(str(error)) from None

    raise typer.Exit(run_audit(given, Console(soft_wrap=True)))


@app.command(epilog=EXITS)
def retrain(
    data: Annotated[Path, typer.Option(help="Old and new rows: a .csv or .parquet file.")],
    target: Annotated[str, typer.Option(help="Column of the labels.")],
    out: Annotated[Path, typer.Option(help="File to write the new model to.")],
    base: Annotated[
        Path | None,
        typer.Option(help="Model in production: .skops, .onnx, a saved model or a native file of a boosting library."),
    ] = None,
    max_churn: Annotated[
        float | None, typer.Option(help="Share of decisions that may change, such as 0.02 for 2 %.")
    ] = None,
    confidence: Annotated[
        float | None, typer.Option(help="Certify the budget with this confidence, such as 0.95.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="File to write what was measured to, as JSON.")] = None,
    estimator: Annotated[
        str,
        typer.Option(
            help="What is trained: base (the kind of the base again), boosting, logistic, or auto: base where there is "
            "one, boosting without."
        ),
    ] = "auto",
    select: Annotated[
        str, typer.Option(help="Serve one model (single) or a weighted mean of several (mixture).")
    ] = "single",
    search: Annotated[str, typer.Option(help="Train about three candidates (auto) or the whole grid (grid).")] = "auto",
    strategies: Annotated[
        list[str] | None, typer.Option(help="dial, auto, or the name of a strategy. Names may be repeated.")
    ] = None,
    new: Annotated[
        str | None,
        typer.Option(help="Column that marks rows the base has not seen: true/false, yes/no or 1/0."),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Column that marks the rows to choose on, such as the latest ones; a random share without it."
        ),
    ] = None,
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Column to leave out. May be repeated.")] = None,
    all_columns: Annotated[
        bool, typer.Option("--all-columns", help="Train on columns that the base does not have as well.")
    ] = False,
    base_classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class",
            help="Class of an output of the base, in order, where its file has no names of classes. May be repeated.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None, typer.Option(help="Type or pickle file that may be read. May be repeated.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed of the rows held out and of the initial weights.", min=0, max=LARGEST_SEED)
    ] = 0,
) -> None:
    """Retrain a model from files within a churn budget.

    The columns of the base are used; others are named and left out.

    With --strategies dial or auto the whole dial is written, and `lowchurn dial` makes models for other budgets of it.

    Exit code 1: a certificate was asked for and not obtained. The report is written, the model is not.
    """
    from lowchurn.retrain import retrain_files

    made = retrain_files(
        data,
        target,
        out,
        base,
        report,
        estimator,
        {"new": new, "held_out": held_out, "weight": weight, "drop": drop or []},
        trust or [],
        all_columns=all_columns,
        base_classes=base_classes,
        random_state=seed,
        max_churn=max_churn,
        confidence=confidence,
        select=select,
        search=search,
        strategies=strategies[0] if strategies is not None and len(strategies) == 1 else strategies,
        verbose=int(sys.stderr is not None and sys.stderr.isatty()),
    )
    _show(made, out, report)


@app.command(epilog=EXITS)
def dial(
    model: Annotated[Path, typer.Argument(help="What `lowchurn retrain --strategies dial` wrote.")],
    max_churn: Annotated[float, typer.Option(help="Share of decisions that may change, such as 0.02 for 2 %.")],
    out: Annotated[Path, typer.Option(help="File to write the model for this budget to.")],
    confidence: Annotated[
        float | None, typer.Option(help="Certify the budget with this confidence. Default: as retrained.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="File to write what was measured to, as JSON.")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="Type that may be read. May be repeated.")] = None,
) -> None:
    """Make the model for another budget, at once and without training.

    Exit code 1: a certificate was asked for and not obtained. The report is written, the model is not.
    """
    from lowchurn.retrain import dial_file

    _show(dial_file(model, max_churn, out, confidence, report, trust or []), out, report)


def _show(made: Retrained, out: Path, report: Path | None) -> None:
    """Print what was chosen, on the standard error where the model or the report goes to the standard output."""
    console = Console(stderr=any(path is not None and goes_to_stdout(path) for path in (out, report)))
    for text in (made.model.selection_, made.model.certificate_):
        for line in [] if text is None else str(text).splitlines():
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True, emoji=False)
    if not made.written:
        tell("not written", "the budget is not certified.", "bold red")
        raise typer.Exit(1)
    for path in (out, report):
        if path is not None and not is_stream(path):
            console.print(
                f"written: {printable(_true_path(path))}", markup=False, highlight=False, soft_wrap=True, emoji=False
            )


def _true_path(path: Path) -> Path:
    """Where a file is, links followed; as it was given where there are none."""
    place = real_place(path)
    return path if place == Path(os.path.abspath(path)) else place


def main() -> None:
    """Entry point: every way out has one exit code and one line, never a traceback."""
    raise SystemExit(run_command(app, sys.argv[1:], ALSO))


if __name__ == "__main__":
    main()
