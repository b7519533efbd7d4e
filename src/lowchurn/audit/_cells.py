"""One pass over two joined tables: the parts of a result that the database makes together.

Each part is a group-by of the same pairs (:func:`lowchurn.audit._joins.pair`), and all of them are rows of one table
with a column ``part``, so that one query reads both tables once and keeps nothing but what was counted: DuckDB hands
each joined row to every part. A part needs to be a group-by for that; anything else would store all rows first.

Two parts are always there: ``JOINED``, which counts the pairs by where their ids come from, and ``SINGLED``, in which
a pair is a row of its own, with its id: those that lack a partner, and those that somebody may want to see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ibis

from lowchurn.audit._joins import BOTH, NEW_ONLY, OLD_ONLY, Column, Table, key_names

JOINED, SINGLED = 0, 1  # further parts have larger numbers


def part(rows: Table, number: int, keys: Sequence[str], sums: Mapping[str, Column] | None = None) -> Table:
    """Rows counted and weighed (``n``, ``w``, ``w2``) by some of their columns, with further sums."""
    counted = rows.group_by(keys).aggregate(**sizes(rows), **(sums or {}))
    return counted.mutate(part=ibis.literal(number, "int8"))


def sizes(rows: Table) -> dict[str, Column]:
    """Rows and, where they have weights, the sums of these and of their squares."""
    weights = {"w": rows.w.sum(), "w2": (rows.w * rows.w).sum()} if "w" in rows.columns else {}
    return {"n": rows.count(), **weights}


def singled(rows: Table, chosen: Column, keys: Sequence[str]) -> Table:
    """The pairs without a partner and the ``chosen`` ones, by id and by other columns."""
    some = rows.filter((rows.side != BOTH) | chosen)
    return part(some, SINGLED, [*key_names(rows), "side", *keys])


def together(parts: Sequence[Table]) -> Table:
    """One table of all parts; columns that a part lacks are missing there."""
    types = {name: type for part in parts for name, type in part.schema().items()}
    filled = (
        part.select(**{name: part[name] if name in part.columns else ibis.null(type) for name, type in types.items()})
        for part in parts
    )
    return ibis.union(*filled)


def every_row(pairs: Table) -> Table:
    """Stored pairs as cells of their own, where nothing is grouped: each is counted, and each can be seen."""
    cells = (pairs.mutate(part=ibis.literal(number, "int8"), n=ibis.literal(1)) for number in (JOINED, SINGLED))
    return ibis.union(*cells)


def rows_where(cells: Table, condition: Column) -> Column:
    """How many rows the cells hold in which a condition is true."""
    return ibis.cases((condition, cells.n)).sum().fill_null(0)


def pair_checks(cells: Table, conditions: Mapping[str, Column], beside: Mapping[str, Column] | None = None) -> Table:
    """One row of counts of what was joined: pairs, rows of each side without a partner, and others.

    ``conditions`` are true of cells of ``JOINED`` that are to be counted; rows without a partner are none of them.
    ``beside`` are true of cells of other parts.
    """
    joined = cells.part == JOINED
    wanted = {"matched": joined & (cells.side == BOTH), **(beside or {})}
    wanted |= {name: wanted["matched"] & condition for name, condition in conditions.items()}
    wanted |= {"only_old": joined & (cells.side == OLD_ONLY), "only_new": joined & (cells.side == NEW_ONLY)}
    return cells.aggregate(**{name: rows_where(cells, condition) for name, condition in wanted.items()})


def repeated_alone(cells: Table) -> Table:
    """Ids without a partner that come more than once."""
    alone = cells.filter((cells.part == SINGLED) & (cells.side != BOTH))
    each = alone.group_by(["side", *key_names(cells)]).aggregate(times=alone.n.sum())
    return each.filter(each.times > 1)


def only_in(cells: Table, side: str) -> Table:
    """The rows that only the ``"old"`` or the ``"new"`` table has."""
    return cells.filter((cells.part == SINGLED) & (cells.side == (OLD_ONLY if side == "old" else NEW_ONLY)))
