"""The paper's claims beside what was found here: how often each method is best, table by table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

from lowchurn.bench._paper import PaperTable
from lowchurn.bench._tables import METHODS, NOT_RUN, Cell, Table, Variant, variant_name, win_counts


def claims_table(tables: Iterable[tuple[PaperTable, Table]], ran: Set[str], variant: Variant) -> Table:
    """For each table of the paper: its claim, and in how many percent of the rows here each method is best.

    Of data sets of which something was run (``ran``), every table is shown, also one that was not run.
    """
    lines = [_line(paper, table) for paper, table in tables if ran & set(paper.datasets)]
    return Table(
        "claims",
        f"How often distillation is best in the paper, and how often each method is best here; {variant_name(variant)}",
        ("table", "distillation in the paper", "rows compared", "trials"),
        (*(f"{name}, %" for name in METHODS), "distill N/A"),
        lines if any(cell.value is not None for _, cells in lines for cell in cells) else [],
        decimals=0,
        bold=lambda cells: _largest(cells[:-1]),
        notes=[
            "Best: the least churn at cold accuracy; ties count for each. "
            "Distill N/A: rows in which no setting of distillation is as accurate as the cold start."
        ],
    )


def _line(paper: PaperTable, table: Table) -> tuple[tuple[str, ...], list[Cell]]:
    ((_, cells),) = win_counts(table, paper).rows
    trials = sorted({cell.trials for _, some in table.rows for cell in some if cell.trials})
    place = table.columns.index("distill")
    undefined = sum(math.isnan(value) for _, some in table.rows if (value := some[place].value) is not None)
    labels = (
        paper.name,
        paper.claim or "-",
        f"{cells[0].trials} of {paper.size}",
        " to ".join(map(str, dict.fromkeys(trials[:1] + trials[-1:]))) or "-",
    )
    return labels, [*cells, Cell(float(undefined))] if trials else [NOT_RUN] * (len(cells) + 1)


def _largest(cells: list[Cell]) -> set[int]:
    known = {k: cell.value for k, cell in enumerate(cells) if cell.value is not None}
    return {k for k, value in known.items() if value == max(known.values())}
