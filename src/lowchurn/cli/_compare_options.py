"""The options of ``lowchurn compare`` and ``lowchurn bless``; ``_compare.py``, which does the work, needs the extra."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from lowchurn.cli._audit_options import Count, Names, Number, Text

Kind = Annotated[
    Text, Option(help="Kind of the logs: lm-eval, inspect, promptfoo or table. Default: found by what is in them.")
]
Tasks = Annotated[Names, Option("--task", help="Task to read, or prompt of promptfoo. May be repeated. Default: all.")]
Metric = Annotated[Text, Option(help="Metric, or column, that decides what is right. Default: the first of each task.")]
Filter = Annotated[Text, Option("--filter", help="Filter of lm-eval (default: the first), or provider of promptfoo.")]
By = Annotated[Names, Option(help="Value of the items whose values are slices, as tasks are. May be repeated.")]


def compare(
    old: Annotated[
        str, Argument(help="Run of the model in production, or a baseline: a log, a folder of logs, a table.")
    ],
    new: Annotated[str, Argument(help="Run of the candidate on the same items.")],
    kind: Kind = None,
    task: Tasks = None,
    metric: Metric = None,
    filter: Filter = None,
    by: By = None,
    threshold: Annotated[
        Number, Option(help="Least number that counts as right, to make right and wrong of numbers.")
    ] = None,
    tolerance: Annotated[
        Number, Option(help="Largest change that does not count, where outcomes are numbers. Default: 0.")
    ] = None,
    other_prompts: Annotated[
        bool | None, Option("--other-prompts", help="Compare items although their prompts differ.")
    ] = None,
    never_break: Annotated[
        Names,
        Option(help="Item (gsm8k/17), task (gsm8k) or slice (lang=de) that must not break. May be repeated."),
    ] = None,
    max_broken: Annotated[Number, Option(help="Largest share of items that may go from right to wrong.")] = None,
    not_worse_than: Annotated[
        Number,
        Option(help="Largest fall in accuracy or of the mean. Default: 0, overall and by task, unless limits are set."),
    ] = None,
    max_churn: Annotated[Number, Option(help="Largest share of outcomes that may change.")] = None,
    max_worse: Annotated[
        Number, Option(help="Of numbers: largest share of items that may fall beyond --tolerance.")
    ] = None,
    max_moved: Annotated[Number, Option(help="Of numbers: largest share that may move beyond --tolerance.")] = None,
    min_rows: Annotated[Count, Option(help="Fewest outcomes on which to judge.")] = None,
    slice_max_broken: Annotated[Number, Option(help="The same as --max-broken, for each task and slice.")] = None,
    slice_not_worse_than: Annotated[
        Number, Option(help="The same as --not-worse-than, for each task and slice.")
    ] = None,
    slice_max_churn: Annotated[Number, Option(help="The same as --max-churn, for each task and slice.")] = None,
    slice_max_worse: Annotated[Number, Option(help="The same as --max-worse, for each task and slice.")] = None,
    slice_max_moved: Annotated[Number, Option(help="The same as --max-moved, for each task and slice.")] = None,
    slice_min_rows: Annotated[Count, Option(help="Fewest outcomes of a task or slice on which to judge it.")] = None,
    inconclusive: Annotated[
        Text, Option(help="What INCONCLUSIVE leads to: pass (exit code 0, default), warn (0) or fail (3).")
    ] = None,
    config: Annotated[
        Text, Option(help="TOML file with a table [compare]. Default: lowchurn.toml here, where there is one.")
    ] = None,
    confidence: Annotated[Number, Option(help="Confidence of every interval. Default: 0.95.")] = None,
    sample: Annotated[Count, Option(help="Changed items to keep as examples. Default: 300.")] = None,
    seed: Annotated[Count, Option(help="Seed of the sample. Default: 0.", min=0)] = None,
    old_name: Annotated[Text, Option(help="Name of the old model. Default: what the log has.")] = None,
    new_name: Annotated[Text, Option(help="Name of the new model. Default: what the log has.")] = None,
    html: Annotated[Text, Option(help="File to write the report to, one self-contained page.")] = None,
    json: Annotated[Text, Option(help="File to write every figure and the changed items to.")] = None,
    junit: Annotated[Text, Option(help="File to write the checks to, as test cases.")] = None,
    markdown: Annotated[Text, Option(help="File to write a summary for a pull request to.")] = None,
) -> None:
    """Compare two evaluation runs item by item; by default fail only on a shown regression.

    Logs of lm-eval, Inspect and promptfoo are read, and tables. Items that one run lacks are counted and not compared.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from lowchurn.cli._compare import run_compare

    raise typer.Exit(run_compare(given))


def bless(
    run: Annotated[str, Argument(help="Run whose answers are accepted: a log, a folder of logs, a table.")],
    baseline: Annotated[str, Option("--as", help="Parquet file to write, to be kept and compared with.")],
    kind: Kind = None,
    task: Tasks = None,
    metric: Metric = None,
    filter: Filter = None,
    by: By = None,
) -> None:
    """Write the outcomes and answers of a run to a small file that later runs are compared with.

    Later: lowchurn compare baseline.parquet results/candidate.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    from lowchurn.cli._compare import run_bless

    raise typer.Exit(run_bless(given))
