"""The options of ``lowchurn history``; what it does is in ``_history.py``, which needs the extra."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from lowchurn.cli._audit_options import Count, Engine, Names, Number, SparkConf, SparkMaster, Text


def history(
    releases: Annotated[
        list[str], Argument(help="Predictions of each release, the oldest first: Parquet, CSV or file.duckdb::table.")
    ],
    names: Annotated[
        Names, Option("--name", help="Name of a release, in order. Repeat it per release. Default: those of the files.")
    ] = None,
    id: Annotated[Names, Option(help="Key column. May be repeated. Default: id.")] = None,
    label: Annotated[Text, Option(help="Column of the true labels, in any of the tables.")] = None,
    by: Annotated[Names, Option(help="Column whose values are slices. May be repeated.")] = None,
    weight: Annotated[Text, Option(help="Column of row weights.")] = None,
    group: Annotated[Text, Option(help="Column whose equal values mark rows that belong together.")] = None,
    prediction: Annotated[Names, Option(help="Column of the decisions: once, or once per release.")] = None,
    score: Annotated[
        Names, Option(help="Column of the scores of the positive class: once, or once per release.")
    ] = None,
    threshold: Annotated[
        Number, Option(help="Least score that is decided for the positive class. Default: 0.5.")
    ] = None,
    proba: Annotated[Names, Option(help="Column of the probabilities of a class. Repeat it per class.")] = None,
    classes: Annotated[
        Names, Option("--class", help="Class of a --proba or of --score, in order. May be repeated.")
    ] = None,
    on_mismatch: Annotated[
        Text,
        Option(help="What to do about ids that not all releases have: error (default), or inner to leave them out."),
    ] = None,
    confidence: Annotated[Number, Option(help="Confidence of every interval. Default: 0.95.")] = None,
    sample: Annotated[Count, Option(help="Rows to keep of those that changed most often. Default: 300.")] = None,
    memory_limit: Annotated[
        Text, Option(help="Memory of the database, such as 4GB; what does not fit goes to disk.")
    ] = None,
    threads: Annotated[Count, Option(help="Threads of the database.", min=1)] = None,
    temp_directory: Annotated[Text, Option(help="Folder for what does not fit into memory.")] = None,
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
    config: Annotated[
        Text,
        Option(
            help="TOML file of settings, of which [audit] is read. Default: lowchurn.toml here, where there is one."
        ),
    ] = None,
    html: Annotated[Text, Option(help="File to write the report to, one self-contained page.")] = None,
    json: Annotated[Text, Option(help="File to write every figure to.")] = None,
    markdown: Annotated[Text, Option(help="File to write a summary for a pull request to.")] = None,
) -> None:
    """Report what changed from release to release: any two of them, decisions that flip back, slices that drift."""
    given = {name: value for name, value in locals().items() if value is not None}
    from lowchurn.cli._history import run_history

    run_history(given)
