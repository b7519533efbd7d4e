"""The options of ``lowchurn audit``; what it does is in ``_audit.py``, which needs the extra."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

Text = str | None
Names = list[str] | None
Number = float | None
Count = int | None
Engine = Annotated[
    Text,
    Option(
        help="Where the tables are, by name: spark, or an address such as postgres://host/database. Default: files."
    ),
]
SparkMaster = Annotated[Text, Option(help="Master of --engine spark, such as yarn or local[8].")]
SparkConf = Annotated[Names, Option(help="Setting of --engine spark, as spark.name=value. May be repeated.")]


def audit(
    old: Annotated[str, Argument(help="Predictions of the model in production: Parquet, CSV or file.duckdb::table.")],
    new: Annotated[str, Argument(help="Predictions of the candidate on the same rows.")],
    id: Annotated[Names, Option(help="Key column. May be repeated. Default: id.")] = None,
    label: Annotated[Text, Option(help="Column of the true labels.")] = None,
    by: Annotated[Names, Option(help="Column whose values are slices. May be repeated.")] = None,
    features: Annotated[
        Names, Option("--feature", help="Column in which to look for drivers of change. May be repeated.")
    ] = None,
    weight: Annotated[Text, Option(help="Column of row weights.")] = None,
    group: Annotated[Text, Option(help="Column whose equal values mark rows that belong together.")] = None,
    prediction: Annotated[Text, Option(help="Column of the decisions.")] = None,
    score: Annotated[Text, Option(help="Column of the scores of the positive class.")] = None,
    threshold: Annotated[
        Number, Option(help="Least score that is decided for the positive class. Default: 0.5.")
    ] = None,
    proba: Annotated[Names, Option(help="Column of the probabilities of a class. Repeat it per class.")] = None,
    classes: Annotated[
        Names, Option("--class", help="Class of a --proba or of --score, in order. May be repeated.")
    ] = None,
    value: Annotated[Text, Option(help="Column of the numbers, where outcomes are numbers and not decisions.")] = None,
    target: Annotated[Text, Option(help="Column of the true numbers.")] = None,
    loss: Annotated[Text, Option(help="Instead of --target: column of what a row costs.")] = None,
    gain: Annotated[Text, Option(help="Instead of --target: column of what a row brings; more is better.")] = None,
    tolerance: Annotated[Number, Option(help="Largest move of a number that does not count. Default: 0.")] = None,
    relative: Annotated[
        bool | None, Option("--relative", help="Take the tolerance for a share of the old number.")
    ] = None,
    on_mismatch: Annotated[
        Text, Option(help="What to do about ids on one side only: error (default), or inner to leave them out.")
    ] = None,
    confidence: Annotated[Number, Option(help="Confidence of every interval. Default: 0.95.")] = None,
    bootstrap: Annotated[
        Count, Option(help="Draws of the bootstrap, for figures of probabilities. Default: 1000.")
    ] = None,
    sample: Annotated[Count, Option(help="Changed rows (of numbers, the biggest moves) to keep. Default: 300.")] = None,
    seed: Annotated[Count, Option(help="Seed of the bootstrap and of the samples. Default: 0.", min=0)] = None,
    memory_limit: Annotated[
        Text, Option(help="Memory of the database, such as 4GB; what does not fit goes to disk.")
    ] = None,
    threads: Annotated[Count, Option(help="Threads of the database.", min=1)] = None,
    temp_directory: Annotated[Text, Option(help="Folder for what does not fit into memory.")] = None,
    old_name: Annotated[Text, Option(help="Name and version of the model in production.")] = None,
    new_name: Annotated[Text, Option(help="Name and version of the candidate.")] = None,
    partitions: Annotated[
        bool | None, Option("--partitions", help="Read folders called name=value as a column.")
    ] = None,
    remote: Annotated[
        bool | None, Option("--remote", help="Let DuckDB read addresses such as https://; it downloads an extension.")
    ] = None,
    views: Annotated[
        bool | None, Option("--views", help="Allow views in a DuckDB file, which can read any file.")
    ] = None,
    engine: Engine = None,
    spark_master: SparkMaster = None,
    spark_conf: SparkConf = None,
    max_churn: Annotated[Number, Option(help="Largest share of decisions that may change.")] = None,
    max_broken: Annotated[Number, Option(help="Largest share that may go from right to wrong.")] = None,
    max_moved: Annotated[Number, Option(help="Largest share of numbers that may move beyond --tolerance.")] = None,
    max_worse: Annotated[Number, Option(help="Largest share whose loss may grow beyond --tolerance.")] = None,
    not_worse_than: Annotated[
        Number, Option(help="Largest fall in accuracy; of numbers, largest rise of the mean loss.")
    ] = None,
    min_rows: Annotated[Count, Option(help="Fewest rows on which to judge.")] = None,
    slice_max_churn: Annotated[Number, Option(help="The same as --max-churn, for each slice.")] = None,
    slice_max_broken: Annotated[Number, Option(help="The same as --max-broken, for each slice.")] = None,
    slice_max_moved: Annotated[Number, Option(help="The same as --max-moved, for each slice.")] = None,
    slice_max_worse: Annotated[Number, Option(help="The same as --max-worse, for each slice.")] = None,
    slice_not_worse_than: Annotated[Number, Option(help="The same as --not-worse-than, for each slice.")] = None,
    slice_min_rows: Annotated[Count, Option(help="Fewest rows of a slice on which to judge it.")] = None,
    inconclusive: Annotated[
        Text, Option(help="What INCONCLUSIVE leads to: fail (exit code 3, default), warn or pass (0).")
    ] = None,
    never_break: Annotated[
        Names,
        Option(help="Slice (country=DE) or id of which no row may break (or get worse). May be repeated."),
    ] = None,
    config: Annotated[
        Text, Option(help="TOML file of settings. Default: lowchurn.toml here, where there is one.")
    ] = None,
    html: Annotated[Text, Option(help="File to write the report to, one self-contained page.")] = None,
    json: Annotated[Text, Option(help="File to write every figure to.")] = None,
    junit: Annotated[Text, Option(help="File to write the checks of the gate to, as test cases.")] = None,
    markdown: Annotated[Text, Option(help="File to write a summary for a pull request to.")] = None,
    disputed: Annotated[
        Text, Option(help="CSV file to write disagreements to, shuffled and blinded, for labelling.")
    ] = None,
    disputed_rows: Annotated[Count, Option(help="Number of disagreements to write. Default: all.", min=1)] = None,
    answers: Annotated[
        Text, Option(help="File of labelled disagreements, with an id and a label column; the gate uses them.")
    ] = None,
    force: Annotated[
        bool | None, Option("--force", help="Let --disputed replace a file with labels that are filled in.")
    ] = None,
    frontier: Annotated[
        Text, Option(help="File of the settings that were tried: a JSON list, or the report of retrain.")
    ] = None,
    margin: Annotated[Number, Option(help="Fall in accuracy that the review plan is to exclude.")] = None,
    power: Annotated[Number, Option(help="Power of the review plan.")] = None,
) -> None:
    """Report what changed between two versions of a model, and judge it where there are limits.

    Two tables of predictions on the same rows are joined by id. Every figure has an interval, and limits are judged on
    its bounds. --inconclusive warn or pass makes INCONCLUSIVE exit code 0.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from lowchurn.cli._audit import run_audit

    raise typer.Exit(run_audit(given))
