"""``lowchurn retrain``, ``lowchurn dial`` and ``lowchurn score``: parse and call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lowchurn._display import share_text
from lowchurn._exits import tell
from lowchurn.cli._cluster_options import AddressOption, ClusterOption, on_cluster
from lowchurn.cli._printing import console_beside, print_line, print_written

if TYPE_CHECKING:
    from lowchurn.retrain import Retrained, Scored

# What numpy takes, and the demo adds one.
LARGEST_SEED = 2**32 - 2

OutOption = Annotated[Path, Option(help="File to write the new model to.")]
TrustOption = Annotated[list[str] | None, Option(help="Type that may be read. May be repeated.")]
ReportOption = Annotated[Path | None, Option(help="File to write what was measured to, as JSON.")]
ChurnOption = Annotated[
    list[str] | None,
    Option(
        help="Share of decisions that may change, such as 0.02 for 2 %; NAME=SHARE for those of a class that the base "
        "decides, or of a slice (--by). May be repeated."
    ),
]
BrokenOption = Annotated[
    float | None, Option(help="Share of rows that the base decides rightly and the new model may decide wrongly.")
]


def retrain(
    data: Annotated[Path, Option(help="Old and new rows: a .csv or .parquet file.")],
    target: Annotated[str, Option(help="Column of the labels.")],
    out: OutOption,
    base: Annotated[
        Path | None,
        Option(help="Model in production: .skops, .onnx, a saved model or a native file of a boosting library."),
    ] = None,
    max_churn: ChurnOption = None,
    max_broken: BrokenOption = None,
    by: Annotated[
        str | None, Option(help="Column of slices: each keeps --max-churn, or those that are named keep theirs.")
    ] = None,
    confidence: Annotated[float | None, Option(help="Certify the limits with this confidence, such as 0.95.")] = None,
    report: ReportOption = None,
    estimator: Annotated[
        str,
        Option(
            help="What is trained: base (the kind of the base again), boosting, logistic, or auto: base where there is "
            "one, boosting without."
        ),
    ] = "auto",
    select: Annotated[str, Option(help="Serve one model (single) or a weighted mean of several (mixture).")] = "single",
    search: Annotated[str, Option(help="Train about three candidates (auto) or the whole grid (grid).")] = "auto",
    strategies: Annotated[
        list[str] | None,
        Option(
            help="What to try: auto (the default), sticky, dial, paper, or the name of another strategy. Names may be "
            "repeated."
        ),
    ] = None,
    serve_base: Annotated[
        bool, Option(help="Whether the base may stay in service beside the new model, as sticky decisions need.")
    ] = True,
    cross_fit: Annotated[
        int | None,
        Option(help="Set the margin on so many folds instead of held-out rows, and serve the retrain on all rows."),
    ] = None,
    compress: Annotated[
        bool, Option("--compress", help="Serve one model, trained to decide as the several that were chosen.")
    ] = False,
    new: Annotated[
        str | None,
        Option(help="Column that marks rows the base has not seen: true/false, yes/no or 1/0."),
    ] = None,
    held_out: Annotated[
        str | None,
        Option(help="Column that marks the rows to choose on, such as the latest ones; a random share without it."),
    ] = None,
    traffic: Annotated[
        Path | None,
        Option(
            help="Recent rows without labels, a .csv or .parquet file. Churn is measured and certified on them, and "
            "all rows with labels are trained on."
        ),
    ] = None,
    weight: Annotated[str | None, Option(help="Column of row weights.")] = None,
    drop: Annotated[list[str] | None, Option(help="Column to leave out. May be repeated.")] = None,
    all_columns: Annotated[
        bool, Option("--all-columns", help="Train on columns that the base does not have as well.")
    ] = False,
    base_classes: Annotated[
        list[str] | None,
        Option(
            "--class",
            help="Class of an output of the base, in order, where its file has no names of classes. May be repeated.",
        ),
    ] = None,
    trust: Annotated[list[str] | None, Option(help="Type or pickle file that may be read. May be repeated.")] = None,
    seed: Annotated[
        int, Option(help="Seed of the rows held out and of the initial weights.", min=0, max=LARGEST_SEED)
    ] = 0,
    jobs: Annotated[int | None, Option(help="Candidates to train at a time; -1 for all cores. Default: one.")] = None,
    cluster: ClusterOption = None,
    address: AddressOption = None,
) -> None:
    """Retrain a model from files within a churn budget.

    The columns of the base are used; others are named and left out.

    With --strategies auto (the default), sticky or dial the whole dial is written, and `lowchurn dial` makes models for
    other budgets of it.

    Where a certificate was asked for and not obtained, the report is written and the model is not.
    """
    from lowchurn.retrain import Roles, retrain_files

    with _trained_on(cluster, address):
        made = retrain_files(
            data,
            target,
            out,
            base,
            report,
            estimator,
            Roles(new, held_out, weight, tuple(drop or ())),
            trust or (),
            traffic=traffic,
            all_columns=all_columns,
            base_classes=base_classes,
            random_state=seed,
            max_churn=churn_budgets("retrain", max_churn),
            max_broken=max_broken,
            by=by,
            confidence=confidence,
            select=select,
            search=search,
            strategies="auto" if not strategies else strategies[0] if len(strategies) == 1 else strategies,
            serve_base=serve_base,
            cross_fit=cross_fit,
            compress=compress,
            n_jobs=-1 if jobs is None and cluster is not None else jobs,
            verbose=int(sys.stderr is not None and sys.stderr.isatty()),
        )
    _show(made, out, report)


def _trained_on(cluster: str | None, address: str | None) -> AbstractContextManager[None]:
    """Where candidates are trained: in this process or its own ones, or on a cluster."""
    if not on_cluster("retrain", cluster, address=address):
        return nullcontext()
    from lowchurn._ray import training_on

    return training_on("retrain", address)


def dial(
    model: Annotated[Path, Argument(help="What `lowchurn retrain` wrote.")],
    out: OutOption,
    max_churn: ChurnOption = None,
    max_broken: BrokenOption = None,
    confidence: Annotated[
        float | None, Option(help="Certify the limits with this confidence. Default: as retrained.")
    ] = None,
    report: ReportOption = None,
    traffic: Annotated[
        Path | None,
        Option(help="Recent rows without labels, a .csv or .parquet file. Churn is measured and certified on them."),
    ] = None,
    trust: TrustOption = None,
) -> None:
    """Make the model for other limits or for today's traffic, at once and without training.

    Limits that are not given are those of the model.

    Where a certificate was asked for and not obtained, the report is written and the model is not.
    """
    from lowchurn.retrain import dial_file

    budget = churn_budgets("dial", max_churn)
    made = dial_file(model, budget, out, confidence, report, trust or (), traffic, max_broken=max_broken)
    _show(made, out, report)


def churn_budgets(who: str, given: Sequence[str] | None) -> float | dict[str | None, float] | None:
    """What ``--max-churn`` stands for: a number, or those of classes or slices by their names."""
    found: dict[str | None, float] = {}
    for text in given or ():
        name, named, number = text.rpartition("=")
        try:
            most = float(number)
        except ValueError:
            raise ValueError(f"{who}: max_churn must be a number or NAME=NUMBER, got {text!r}.") from None
        key = name if named else None
        if key in found:
            raise ValueError(f"{who}: max_churn must be given once for each class or slice, got {text!r} as well.")
        found[key] = most
    return found[None] if list(found) == [None] else found or None


def score(
    model: Annotated[
        Path,
        Option(
            help="What `lowchurn retrain` wrote, a scikit-learn model in a .skops file, an .onnx file or a native file "
            "of a boosting library."
        ),
    ],
    data: Annotated[Path, Option(help="Rows to decide: a .csv or .parquet file of any size.")],
    out: Annotated[Path, Option(help="File to write the decisions to, .csv or .parquet.")],
    previous: Annotated[
        Path | None,
        Option(
            help="Decisions that the rows have now: a .csv or .parquet file with their ids, such as the last --out."
        ),
    ] = None,
    id: Annotated[str, Option(help="Column of the ids, in --data and in --previous.")] = "id",
    previous_decision: Annotated[str, Option(help="Column of the decisions in --previous.")] = "decision",
    drop: Annotated[list[str] | None, Option(help="Column to leave out. May be repeated.")] = None,
    keep: Annotated[
        list[str] | None, Option(help="Column to write beside the decisions, such as the labels. May be repeated.")
    ] = None,
    classes: Annotated[
        list[str] | None,
        Option(
            "--class",
            help="Class of an output of the model, in order, where its file has no names of classes. May be repeated.",
        ),
    ] = None,
    trust: TrustOption = None,
) -> None:
    """Decide the rows of a file, and keep the decisions of last time where the model is sticky.

    Rows are read and written in batches, so that memory does not grow with their number. Previous decisions are joined
    by id. The columns that are written are the id, decision, probability, changed, margin and those to keep.
    """
    from lowchurn.retrain import Previous, score_file

    before = None if previous is None else Previous(previous, previous_decision)
    made = score_file(model, data, out, before, id, drop or (), trust or (), classes, keep or ())
    print_line(f"{out}: {_counted(made)}", console_beside([out]))


def _counted(made: Scored) -> str:
    """How many rows were decided, how many of them otherwise than before, and how many had no decision before."""
    words = f"{made.rows:,} rows scored"
    if made.compared:
        share = share_text(made.changed / made.compared)
        words += f", {made.changed:,} of {made.compared:,} decisions changed ({share})"
    else:
        words += ", none compared with a decision before"
    if made.unknown is not None:
        words += f", {made.unknown:,} ids without a previous decision"
    return f"{words}."


def _table(compared: list[dict[str, Any]], hard: bool) -> list[str]:
    """Base, plain retrain and what is served, one line each; what is not known is a dash."""
    rows = [("", "accuracy", "changed" if hard else "soft churn", "broken", "fixed", "models")]
    for row in compared:
        churn = share_text(row["churn"]) if hard else f"{row['churn']:.4g}"
        shares = [share_text(row["accuracy"]), churn, share_text(row["broken"]), share_text(row["fixed"])]
        rows.append((row["model"], *("-" if text == "undefined" else text for text in shares), str(row["models"])))
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ["  ".join(text.rjust(width) for text, width in zip(row[1:], others, strict=True)) for row in rows]
    return [f"{row[0].ljust(first)}  {line}" for row, line in zip(rows, lines, strict=True)] if compared else []


def _show(made: Retrained, out: Path, report: Path | None) -> None:
    """Print what was chosen and which files were written; exit code 1 where the budget is not certified."""
    paths = [path for path in (out, report) if path is not None]
    console = console_beside(paths)
    certificate = made.model.certificate_
    for line in (
        *_table(made.compared, made.model.churn == "hard"),
        *made.model.selection_.sentences,
        *([] if certificate is None else str(certificate).splitlines()),
    ):
        print_line(line, console)
    if not made.written:
        tell("not written", "the budget is not certified.", "bold red")
        raise typer.Exit(1)
    print_written(paths, console)
