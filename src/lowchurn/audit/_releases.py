"""Ibis expressions from the predictions of many releases to counts of what changed between any two of them.

The columns of a joined row are the ids ``k0, k1, ...``, the decision of each release ``d0, d1, ...``, and where they
are known ``label``, the weight ``w``, the group ``g`` and the slice columns ``b0, b1, ...``. What is counted needs no
values: ``c3`` is the first release that decided as release 3 does, so two releases agree where these numbers are equal,
and ``t`` is the first release that decided rightly, so release 3 is right where ``c3`` equals it. They are small
numbers whatever the decisions are, and no table grows with the number of classes.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from itertools import pairwise

import ibis

from lowchurn.audit._joins import Column, Table, as_number, count_if, folded, key_names, known_ids

BATCH = 8  # releases that are joined at once; each needs a table of all ids in memory or on disk


def once_each(rows: Table, quick: bool = True) -> Table:
    """The rows of one (projected) release whose id is known and comes once.

    Neither form can be moved behind a join, where ids that repeat would multiply. ``quick``: the database has the first
    value of a group; elsewhere a window counts.
    """
    keys, known = key_names(rows), known_ids(rows)
    if quick:
        kept = {name: known[name].arbitrary() for name in known.columns if name not in keys}
        each = known.group_by(keys).aggregate(times=known.count(), **kept)
    else:
        each = known.mutate(times=known.count().over(group_by=keys))
    return each.filter(each.times == 1).drop("times")


def numbered(rows: Table, i: int) -> Table:
    """The columns of release ``i`` under names of its own: its decision and label."""
    names = {"decision": f"d{i}", "label": f"l{i}"}
    return rows.rename({new: old for old, new in names.items() if old in rows.columns})


def join(tables: Sequence[Table]) -> Table:
    """The rows whose id all tables have."""
    both, *others = tables
    for other in others:
        both = both.join(other, key_names(both), how="inner")
    return both


def compared(joined: Table, releases: int) -> Table:
    """The joined rows in which every release has a decision, with the positions that all counts are made of."""
    rows = joined.filter([joined[f"d{i}"].notnull() for i in range(releases)])
    labels = [rows[f"l{i}"] for i in reversed(range(releases)) if f"l{i}" in rows.columns]
    chosen = {name: rows[name] for name in rows.columns if name[0] != "l"}
    decisions = [rows[f"d{i}"] for i in range(releases)]
    for i in range(1, releases):
        chosen[f"c{i}"] = _first_equal(decisions[i], decisions[:i])
    chosen["changes"] = _total([a != b for a, b in pairwise(decisions)])
    if labels:
        label = chosen["label"] = ibis.coalesce(*labels) if len(labels) > 1 else labels[0]
        chosen["t"] = label.isnull().ifelse(ibis.null("int8"), _first_equal(label, decisions))
        if len(labels) > 1:
            chosen["label_conflict"] = _total([(other != label).fill_null(False) for other in labels]) > 0
    return rows.select(**chosen)


def _first_equal(value: Column, decisions: Sequence[Column]) -> Column:
    """The first of the decisions that equals a value; their number where none does."""
    places = [(value == decision, i) for i, decision in enumerate(decisions)]
    return ibis.cases(*places, else_=len(decisions)).cast("int8")


def _total(conditions: Sequence[Column]) -> Column:
    """How many of the conditions are true of a row."""
    return folded([as_number(condition) for condition in conditions], operator.add)


def _place(rows: Table, i: int) -> Column:
    return rows[f"c{i}"] if i else ibis.literal(0, "int8")


def join_checks(rows: Table) -> Table:
    """One row of counts of the joined rows: all of them, and those with two different labels."""
    wanted = {"paired": rows.count()}
    if "label_conflict" in rows.columns:
        wanted["conflicts"] = count_if(rows.label_conflict)
    return rows.aggregate(**wanted)


def totals(rows: Table, releases: int) -> dict[str, Column]:
    """All rows, those with a label, and those that each release decides rightly (``right3``)."""
    found = {"all": ibis.literal(True)}
    if "t" in rows.columns:
        found["labelled"] = rows.t.notnull()
        found |= {f"right{i}": _place(rows, i) == rows.t for i in range(releases)}
    return found


def moves(rows: Table, pairs: Sequence[tuple[int, int]]) -> dict[str, Column]:
    """Between two releases: changed decisions (``changed0-3``), broken ones and fixed ones."""
    found = {}
    for i, j in pairs:
        old, new = _place(rows, i), _place(rows, j)
        found[f"changed{i}-{j}"] = old != new
        if "t" in rows.columns:
            found[f"broken{i}-{j}"] = (old == rows.t) & (new != rows.t)
            found[f"fixed{i}-{j}"] = (old != rows.t) & (new == rows.t)
    return found


def returns(rows: Table, releases: int) -> dict[str, Column]:
    """Changes back to a decision that an earlier release made (``back3``), and the rows with any of them (``back``)."""
    found = {f"back{i}": (_place(rows, i) != _place(rows, i - 1)) & (rows[f"c{i}"] < i) for i in range(2, releases)}
    return found | {"back": _total(list(found.values())) > 0}


def sums(
    rows: Table, conditions: Mapping[str, Column], by: Mapping[str, Column], also: Mapping[str, Column] | None = None
) -> Table:
    """By slice or unit, the rows of which each condition is true (``n_changed0-3``).

    Where rows have weights, also the sums of these (``w_changed0-3``) and of their squares (``v_changed0-3``). Columns
    of ``also`` are summed under their names.
    """
    also = also or {}
    names = list(conditions)
    weights = [rows.w, rows.w * rows.w] if "w" in rows.columns else []
    held = rows.select(
        **by,
        **{f"x{i}": conditions[name].fill_null(False) for i, name in enumerate(names)},
        **{f"y{i}": weight for i, weight in enumerate(weights)},
        **{f"z{i}": column for i, column in enumerate(also.values())},
    )
    wanted = {}
    for i, name in enumerate(names):
        hit = held[f"x{i}"]
        wanted[f"n_{name}"] = count_if(hit)
        for k, letter in enumerate("wv"[: len(weights)]):
            wanted[f"{letter}_{name}"] = hit.ifelse(held[f"y{k}"], 0.0).sum().fill_null(0.0)
    wanted |= {name: held[f"z{i}"].sum().fill_null(0.0) for i, name in enumerate(also)}
    return held.group_by(list(by)).aggregate(**wanted) if by else held.aggregate(**wanted)


def by_changes(rows: Table) -> Table:
    """Rows by the number of their changes."""
    return rows.group_by("changes").aggregate(n=rows.count()).order_by("changes")


def most_changed(rows: Table, most: int) -> Table:
    """The rows that changed most often, of the same number in the order of their ids."""
    some = rows.filter(rows.changes > 0)
    return some.order_by([some.changes.desc(), *key_names(some)]).limit(most)
