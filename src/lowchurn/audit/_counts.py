"""The database counts: Ibis expressions from pairs of rows (see :mod:`lowchurn.audit._joins`) to what changed.

Every function here maps tables to tables; nothing is computed before the engine is asked for a (small) result.
The same expressions run on DuckDB and on Spark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import ibis

from lowchurn.audit._columns import Columns
from lowchurn.audit._joins import Column, Table, count_if, key_names, known

CALIBRATION_BINS = 15
SHIFT_BINS = 20
# More units than this are put into bags by a hash: a bootstrap of 2,000 bags finds a variance to 3 %.
MOST_UNITS = 10_000
BAGS = 2_000
SEPARATOR = "\x1f"


@dataclass(frozen=True)
class Cut:
    """A slice column: as it is, or cut into bins at these edges."""

    name: str
    column: str
    edges: tuple[float, ...] = ()

    def value(self, pairs: Table) -> Column:
        column = pairs[self.column]
        if not self.edges:
            return column.cast("string")
        number = known(column.cast("float64"))
        bins = [(number <= edge, ibis.literal(str(i))) for i, edge in enumerate(self.edges)]
        return ibis.cases(*bins, (number > self.edges[-1], ibis.literal(str(len(self.edges)))))

    def words(self, value: str | None) -> str:
        """What to call the slice."""
        if value is None:
            return "(missing)"
        if not self.edges:
            return value
        for digits in range(6, 18):  # as few as make the edges differ
            edges = [f"{edge:.{digits}g}" for edge in self.edges]
            if len(set(edges)) == len(edges):
                break
        i = int(value)
        if i == 0:
            return f"up to {edges[0]}"
        return f"over {edges[-1]}" if i == len(edges) else f"{edges[i - 1]} to {edges[i]}"


def _slices(pairs: Table, cuts: Sequence[Cut], **extra: Column) -> list[Table]:
    """The pairs once as a whole (slice -1) and once for each cut."""
    columns = [c for c in ("label", "old", "new", "w") if c in pairs.columns]
    values = [ibis.null("string"), *(cut.value(pairs) for cut in cuts)]
    return [
        pairs.select(*columns, cut=ibis.literal(i, "int16"), value=value, **extra)
        for i, value in enumerate(values, start=-1)
    ]


def _weight(rows: Table) -> Column:
    return rows.w if "w" in rows.columns else ibis.literal(1.0)


def _weigh(rows: Table, condition: Column) -> Column:
    return (condition.fill_null(False).cast("float64") * _weight(rows)).sum()


def _change(rows: Table) -> Column:
    """The kind of each row (:data:`lowchurn.audit._inference.KINDS`): what changed, and against the truth if known."""
    same = rows.old == rows.new
    if "label" not in rows.columns:
        return same.ifelse("same", "changed")
    return ibis.cases(
        (rows.label.isnull(), same.ifelse("same", "changed")),
        (same, (rows.old == rows.label).ifelse("right", "wrong")),
        (rows.old == rows.label, "broken"),
        (rows.new == rows.label, "fixed"),
        else_="lateral",
    )


def count(pairs: Table, cuts: Sequence[Cut] = ()) -> Table:
    """The counts that everything hard rests on, in one expression.

    Of all rows (slice -1) by kind, old and new decision; of each slice by kind, so that its size does not depend on
    how many classes there are.
    """
    counted = []
    for i, view in enumerate(_slices(pairs, cuts)):
        view = view.mutate(kind=_change(view))
        if i:
            view = view.mutate(old=ibis.null(pairs.old.type()), new=ibis.null(pairs.new.type()))
        sums = {"n": view.count()}
        if "w" in view.columns:
            sums |= {"weight": view.w.sum(), "weight2": (view.w * view.w).sum()}
        counted.append(view.group_by(["cut", "value", "kind", "old", "new"]).aggregate(**sums))
    return ibis.union(*counted) if len(counted) > 1 else counted[0]


def rows_by_label(pairs: Table, labels: Sequence[str]) -> Table:
    """How many rows have each of these labels."""
    some = pairs.filter(pairs.label.isin(labels))
    return some.group_by("label").aggregate(n=some.count()).order_by("label")


def distinct_answers(pairs: Table, sides: Iterable[str] = ("old", "new")) -> Table:
    """About how many different decisions there are on each side."""
    return pairs.aggregate(**{side: pairs[side].approx_nunique() for side in sides})


def count_units(pairs: Table, cuts: Sequence[Cut], unit: Column) -> Table:
    """What each unit (a group of rows, or a bag of groups) adds to the counts, by slice."""
    counted = []
    for view in _slices(pairs, cuts, unit=unit):
        weigh = partial(_weigh, view)
        sums = {"weight": weigh(view.old.notnull()), "changed": weigh(view.old != view.new)}
        if "label" in view.columns:
            right, still = view.old == view.label, view.new == view.label
            sums |= {
                "labelled": weigh(view.label.notnull()),
                "broken": weigh(right & ~still),
                "fixed": weigh(~right & still),
                "lateral": weigh(~right & ~still & (view.old != view.new)),
                "right": weigh(right),
                "right_new": weigh(still),
            }
        counted.append(view.group_by(["cut", "value", "unit"]).aggregate(**sums))
    return ibis.union(*counted) if len(counted) > 1 else counted[0]


def soft_sums(pairs: Table, unit: Column) -> Table:
    """What each unit adds to the losses."""
    t = pairs.mutate(unit=unit)
    weight = _weight(t)
    sums = {
        "n": t.count(),
        "weight": (weight + 0.0 * t.soft).sum(),
        "soft": (weight * t.soft).sum(),
        "moved": count_if(t.moved),
    }
    if "ll_o" in t.columns:
        labelled = t.ll_o.notnull()
        sums |= {"labelled_rows": count_if(labelled), "labelled": (weight * labelled.cast("float64")).sum()}
        sums |= {c: (weight * t[c]).sum().fill_null(0.0) for c in ("ll_o", "ll_n", "br_o", "br_n")}
    return t.group_by("unit").aggregate(**sums)


def calibration_sums(pairs: Table, unit: Column) -> Table:
    """What each unit adds to each bin of confidence, for both sides (0 old, 1 new)."""
    views = []
    for i, side in enumerate(("o", "n")):
        t = pairs.filter(pairs[f"h_{side}"].notnull())
        t = t.select(
            side=ibis.literal(i, "int8"),
            unit=unit,
            bin=_bin(t[f"c_{side}"], CALIBRATION_BINS),
            weight=_weight(t),
            sure=t[f"c_{side}"],
            hit=t[f"h_{side}"],
        )
        views.append(
            t.group_by(["side", "unit", "bin"]).aggregate(
                weight=t.weight.sum(), sure=(t.weight * t.sure).sum(), hit=(t.weight * t.hit).sum()
            )
        )
    return ibis.union(*views)


def shift(pairs: Table) -> Table:
    """Rows by bins of the old and the new probability."""
    t = pairs.select(old=_bin(pairs.c_o, SHIFT_BINS), new=_bin(pairs.c_n, SHIFT_BINS))
    return t.group_by(["old", "new"]).aggregate(n=t.count())


def _bin(column: Column, bins: int) -> Column:
    return ibis.least(ibis.greatest((column * bins).floor().cast("int64"), 0), bins - 1)


def unit_of(pairs: Table, columns: Columns, units: int) -> Column:
    """What is resampled: the group or else the row; too many of them are put into bags by a hash."""
    if columns.group is not None:
        unit, name = pairs.g, pairs.g.cast("string")
    else:
        unit = name = _key_text(pairs)
        if len(key_names(pairs)) == 1:
            unit = pairs.k0
    if units <= MOST_UNITS:
        return name
    # A remainder of a negative number is negative in SQL: twice as many bags, which harms nothing.
    return (unit.hash() % (BAGS // 2)).cast("string")


def flipped(pairs: Table, seed: int, n: int | None = None) -> Table:
    """The disagreements in an order that depends on nothing but the id and the seed; the first ``n`` of them."""
    rows = pairs.filter(pairs.old != pairs.new)
    order = (_key_text(rows) + f"{SEPARATOR}{int(seed)}").hash()
    rows = rows.mutate(lowchurn_order=order).order_by(["lowchurn_order", *key_names(rows)]).drop("lowchurn_order")
    return rows if n is None else rows.limit(n)


def rows_by_id(pairs: Table, names: Sequence[str]) -> Table:
    """Labelled and broken rows by name: the value of the first key column, or of the first ones joined by a slash."""
    keys = [pairs[key].cast("string") for key in key_names(pairs)]
    texts = [keys[0]]
    for key in keys[1:]:
        texts.append(texts[-1] + "/" + key)
    kind = _change(pairs)
    views = []
    for text in texts:
        named = pairs.select(name=text, kind=kind).filter(lambda t: t.name.isin(names))
        broken, labelled = count_if(named.kind == "broken"), count_if(~named.kind.isin(["same", "changed"]))
        views.append(named.group_by("name").aggregate(n=labelled, broken=broken))
    return ibis.union(*views) if len(views) > 1 else views[0]


def quantiles(pairs: Table, column: str, shares: Sequence[float], rows: int, most: int = 5_000_000) -> Table:
    """Edges for bins; of very many rows a part, chosen by a hash of the id, is enough."""
    if rows > most:
        pairs = pairs.filter((_key_text(pairs).hash() % math.ceil(rows / most)) == 0)
    number = known(pairs[column].cast("float64"))
    return pairs.aggregate(**{f"q{i}": number.quantile(q) for i, q in enumerate(shares)})


def _key_text(rows: Table) -> Column:
    keys = [rows[key].cast("string") for key in key_names(rows)]
    text = keys[0]
    for key in keys[1:]:
        text = text + SEPARATOR + key
    return text
