"""The options of ``lowchurn promote``; what it does is in ``_promote.py``, which needs the extra."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from lowchurn.cli._audit_options import Count, Names, Number, Text


def promote(
    name: Annotated[str, Argument(help="Registered model of MLflow.")],
    data: Annotated[str, Argument(help="Rows that both versions predict: Parquet or CSV.")],
    label: Annotated[Text, Option(help="Column of the true labels.")] = None,
    id: Annotated[Names, Option(help="Key column. May be repeated. Default: the number of the row.")] = None,
    by: Annotated[Names, Option(help="Column whose values are slices. May be repeated.")] = None,
    champion: Annotated[str, Option(help="Alias of the version in production.")] = "champion",
    challenger: Annotated[str, Option(help="Alias of the candidate.")] = "challenger",
    classes: Annotated[
        Names, Option("--class", help="Class of a column of probabilities, in order. May be repeated.")
    ] = None,
    max_churn: Annotated[Number, Option(help="Largest share of decisions that may change.")] = None,
    max_broken: Annotated[Number, Option(help="Largest share that may go from right to wrong.")] = None,
    not_worse_than: Annotated[Number, Option(help="Largest fall in accuracy.")] = None,
    min_rows: Annotated[Count, Option(help="Fewest rows on which to judge.")] = None,
    slice_max_churn: Annotated[Number, Option(help="The same as --max-churn, for each slice.")] = None,
    slice_max_broken: Annotated[Number, Option(help="The same as --max-broken, for each slice.")] = None,
    slice_not_worse_than: Annotated[Number, Option(help="The same as --not-worse-than, for each slice.")] = None,
    slice_min_rows: Annotated[Count, Option(help="Fewest rows of a slice on which to judge it.")] = None,
    inconclusive: Annotated[
        Text, Option(help="What INCONCLUSIVE leads to: fail (exit code 3, default), warn or pass (promoted, 0).")
    ] = None,
    never_break: Annotated[
        Names, Option(help="Slice (country=DE) or id of which no row may go from right to wrong. May be repeated.")
    ] = None,
    config: Annotated[
        Text, Option(help="TOML file with limits. Default: lowchurn.toml here, where there is one.")
    ] = None,
    tracking_uri: Annotated[
        Text, Option(help="MLflow to use, such as http://host:5000. Default: MLFLOW_TRACKING_URI.")
    ] = None,
    registry_uri: Annotated[Text, Option(help="Registry, where it is another one.")] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Judge, and change nothing in MLflow.")] = False,
) -> None:
    """Audit the challenger of a model in MLflow against its champion, and move the alias where it passes.

    Both versions predict the rows of a file. Figures, report and verdict are logged to the challenger's run.
    """
    given = {key: value for key, value in locals().items() if value is not None}
    from lowchurn.cli._promote import run_promote

    raise typer.Exit(run_promote(given))
