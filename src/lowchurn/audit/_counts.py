"""The database counts: Ibis expressions that pair two tables of predictions and count what changed.

Every function here maps tables to tables; nothing is computed before the engine is asked for a (small) result.
The same expressions run on DuckDB and on Spark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import ibis
import numpy as np

from lowchurn.audit._columns import Columns, Predicted
from lowchurn.audit._csv import ANY_NUMBER, INTEGER
from lowchurn.scoring import LogScore

Table: TypeAlias = ibis.Table
Column: TypeAlias = ibis.Value

CALIBRATION_BINS = 15
SHIFT_BINS = 20
# More units than this are put into bags by a hash: a bootstrap of 2,000 bags knows a variance to 3 %.
MOST_UNITS = 10_000
BAGS = 2_000
SEPARATOR = "\x1f"
# Sums of squares of weights in this range neither overflow nor vanish.
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100


def project(table: Table, columns: Columns, side: str, other: Sequence[str]) -> Table:
    """The few columns of one side that matter, under names of our own."""
    told = columns.side(side)
    chosen = {f"k{i}": compared(table[key], type) for i, (key, type) in enumerate(_id_columns(columns))}
    proba = _proba(table, told)
    chosen["decision"] = _decision(table, told, proba, columns)
    chosen |= {f"p{i}": p for i, p in enumerate(proba)}
    extras = {"label": columns.label, "weight": columns.weight, "group": columns.group}
    extras |= {f"b{i}": name for i, name in enumerate((*columns.by, *columns.features))}
    for role, name in extras.items():
        # The candidate's table has the word where both have the column; of labels, both are compared.
        wanted = name is not None and name in table.columns
        if wanted and (side == "new" or role == "label" or name not in other):
            chosen[role] = _plain(table[name])
    if "label" in chosen:
        chosen["label"] = compared(table[columns.label], columns.answer)
    if "weight" in chosen:
        chosen["weight"] = chosen["weight"].cast("float64")
    return table.select(**chosen)


def _proba(table: Table, told: Predicted) -> list[Column]:
    if told.proba:
        return [table[name].cast("float64") for name in told.proba]
    if told.score is not None:
        score = table[told.score].cast("float64")
        return [1 - score, score]
    return []


def _decision(table: Table, told: Predicted, proba: list[Column], columns: Columns) -> Column:
    if told.label is not None:
        return compared(table[told.label], columns.answer)
    classes = class_literals(columns)
    if told.score is not None:
        score, threshold = table[told.score], told.threshold
        if score.type().is_float32():  # 0.7 in 32 bits is below 0.7, and yet it is that score
            threshold = float(np.float32(threshold))
        score = _known(score.cast("float64"))
        return ibis.cases((score >= threshold, classes[1]), (score < threshold, classes[0]))
    # The largest probability decides; of equal ones the first, as numpy's argmax does.
    top = ibis.greatest(*proba)
    return ibis.cases(*[(p == top, c) for p, c in zip(proba, classes, strict=True)])


def _id_columns(columns: Columns) -> list[tuple[str, str]]:
    return list(zip(columns.id, columns.id_types, strict=True))


def class_literals(columns: Columns) -> list[Column]:
    """The classes as values of the type that labels and decisions are compared in."""
    return [ibis.literal(c, columns.answer) for c in columns.classes]


def compared(column: Column, answer: str) -> Column:
    """A column in the type that it is compared in."""
    column = _plain(column)
    if column.type().is_boolean() and answer not in {"boolean", "string"}:
        column = column.cast("int8")
    return column.cast(answer)


def _plain(column: Column) -> Column:
    """NaN is a missing value, and there is one zero."""
    if not column.type().is_floating():
        return column
    return (column == 0).ifelse(ibis.literal(0, column.type()), _known(column))


def _known(column: Column) -> Column:
    return column.isnan().ifelse(ibis.null(column.type()), column)


def unfit(column: Column, rule: str, limit: int) -> Column:
    """Whether a value breaks a rule of :class:`lowchurn.audit._exact.Check`."""
    if rule == "no numbers":
        # Every other spelling of a number than that of a whole one.
        return column.re_search(f"^({ANY_NUMBER})$") & ~column.re_search(f"^({INTEGER})$")
    if rule == "float32":
        number = _known(column)
        return number.cast("float32").cast("float64") != number
    if rule == "small":
        number = _known(column)
        return ~number.isinf() & (number.abs() > limit)
    large = (column > limit) | (column < -limit)
    return large | (column.floor() != column) if column.type().is_decimal() else large


def unfit_values(table: Table, name: str, rule: str, limit: int, most: int) -> Table:
    """How many values break a rule, and some of them."""
    broken = table.filter(unfit(table[name], rule, limit))
    return broken.group_by(value=broken[name].cast("string")).aggregate(n=broken.count()).order_by("value").limit(most)


def count_if(condition: Column) -> Column:
    return condition.fill_null(False).cast("int64").sum().fill_null(0)


def row_checks(rows: Table, tolerance: float) -> Table:
    """One row of counts of what is wrong in one (projected) side."""
    keys, proba = _keys(rows), _probas(rows)
    checks = {"rows": rows.count(), "no_id": count_if(_any(k.isnull() for k in keys))}
    checks["no_decision"] = count_if(rows.decision.isnull())
    if "weight" in rows.columns:
        bad = rows.weight.isnull() | rows.weight.isnan() | rows.weight.isinf() | (rows.weight < 0)
        checks["bad_weight"] = count_if(bad)
        extreme = (rows.weight > MOST_WEIGHT) | ((rows.weight > 0) & (rows.weight < LEAST_WEIGHT))
        checks["extreme_weight"] = count_if(~bad & extreme)
        checks["all_zero"] = (count_if(~bad & (rows.weight > 0)) == 0).cast("int64")
    if "group" in rows.columns:
        checks["no_group"] = count_if(rows.group.isnull())
    if proba:
        wrong = _any(p.isnull() | p.isnan() | p.isinf() for p in proba)
        checks["no_proba"] = count_if(wrong)
        checks["outside"] = count_if(~wrong & _any((p < 0) | (p > 1 + tolerance) for p in proba))
        off = (_total(proba) - 1).abs()
        checks["off_sum"] = count_if(~wrong & (off > tolerance))
        checks["worst_sum"] = wrong.ifelse(ibis.null("float64"), off).max()
    return rows.aggregate(**checks)


def known_values(table: Table, name: str) -> Table:
    """How many values a column has."""
    return table.aggregate(n=_plain(table[name]).count())


def class_checks(pairs: Table, name: str, columns: Columns) -> Table:
    """How many labels or decisions there are, how many are none of the classes, and one of these."""
    column = pairs[name]
    strange = column.notnull() & ~column.isin(class_literals(columns))
    return pairs.aggregate(
        known=column.count(),
        strange=count_if(strange),
        example=strange.ifelse(column, ibis.null(column.type())).min(),
    )


def key_checks(rows: Table) -> Table:
    """How many distinct ids there are, how many of them come more than once, and in how many rows."""
    keys = key_names(rows)
    each = rows.select(*keys).drop_null(keys).group_by(keys).aggregate(times=lambda t: t.count())
    return each.aggregate(
        ids=each.count(),
        repeated=count_if(each.times > 1),
        repeated_rows=(each.times > 1).ifelse(each.times, 0).sum().fill_null(0),
    )


def repeated_ids(rows: Table) -> Table:
    """Ids that come more than once."""
    keys = key_names(rows)
    each = rows.select(*keys).drop_null(keys).group_by(keys).aggregate(times=lambda t: t.count())
    return each.filter(each.times > 1)


def only_in(rows: Table, other: Table) -> Table:
    """Ids of the rows that have no partner."""
    keys = key_names(rows)
    return rows.select(*keys).drop_null(keys).anti_join(other.select(*keys), keys)


def without_repeats(rows: Table) -> Table:
    """Leave out every row whose id comes more than once: no join could say which one is meant."""
    return rows.anti_join(repeated_ids(rows), key_names(rows))


def pair(old: Table, new: Table, columns: Columns, soft: bool) -> Table:
    """Join both (projected) sides on their ids: one row an id, with both decisions and what is needed of the rest."""
    keys = key_names(old)
    old = old.rename({f"o_{c}": c for c in old.columns if c not in keys})
    new = new.rename({f"n_{c}": c for c in new.columns if c not in keys})
    both = old.join(new, keys, how="inner")
    chosen: dict[str, Column] = {k: both[k] for k in keys}
    chosen |= {"old": both.o_decision, "new": both.n_decision}
    sides = {c[2:]: both[c] for c in both.columns if c[:2] in {"o_", "n_"}}
    if "label" in sides:
        labels = [both[c] for c in ("n_label", "o_label") if c in both.columns]
        chosen["label"] = ibis.coalesce(*labels) if len(labels) > 1 else labels[0]
        if len(labels) > 1:
            chosen["label_conflict"] = (labels[0] != labels[1]).fill_null(False)
    for role, name in (("weight", "w"), ("group", "g")):
        if role in sides:
            chosen[name] = sides[role]
    chosen |= {name: column for name, column in sides.items() if name[0] == "b" and name[1:].isdigit()}
    pairs = both.filter(both.o_decision.notnull() & both.n_decision.notnull())
    if soft:
        chosen |= _soft_columns(both, columns, chosen.get("label"))
    return pairs.select(**chosen)


def pair_checks(pairs: Table) -> Table:
    """One row of counts of the joined rows: all, of a weight above 0, with a label, with two different labels."""
    wanted = {"paired": pairs.count()}
    if "w" in pairs.columns:
        wanted["weighty"] = count_if(pairs.w > 0)
    if "label" in pairs.columns:
        wanted["labelled"] = count_if(pairs.label.notnull())
    if "label_conflict" in pairs.columns:
        wanted["conflicts"] = count_if(pairs.label_conflict)
    return pairs.aggregate(**wanted)


def _soft_columns(both: Table, columns: Columns, label: Column | None) -> dict[str, Column]:
    """Per-row losses of both sides, and what calibration needs; probabilities themselves are not kept."""
    floor = LogScore().epsilon
    size = len(columns.classes)
    before = [both[f"o_p{i}"] for i in range(size)]
    after = [both[f"n_p{i}"] for i in range(size)]
    clip = [[ibis.greatest(p, floor) for p in side] for side in (before, after)]
    terms = [(u > 0).ifelse(u * (a.ln() - b.ln()), 0.0) for u, a, b in zip(before, clip[0], clip[1], strict=True)]
    moved = _any(u != v for u, v in zip(before, after, strict=True))
    chosen = {"soft": _total(terms), "moved": moved}
    # With two classes the chance of the second says it all; with more, that of the likeliest class.
    for side, proba in (("o", before), ("n", after)):
        chosen[f"c_{side}"] = proba[1] if size == 2 else ibis.greatest(*proba)
    if label is None:
        return chosen
    classes = class_literals(columns)
    for side, proba, clipped in (("o", before, clip[0]), ("n", after, clip[1])):
        chosen[f"ll_{side}"] = ibis.cases(*[(label == c, -p.ln()) for c, p in zip(classes, clipped, strict=True)])
        if size == 2:
            # As scikit-learn: of two classes the square of one error, of more the sum over all classes.
            errors = [proba[1] * proba[1], (1 - proba[1]) * (1 - proba[1])]
        else:
            squares = _total([p * p for p in proba])  # sum of (p - indicator)^2 = sum of p^2 - 2 p_label + 1
            errors = [squares - 2 * p + 1 for p in proba]
        chosen[f"br_{side}"] = ibis.cases(*[(label == c, e) for c, e in zip(classes, errors, strict=True)])
        if size == 2:
            hit = ibis.cases((label == classes[1], 1.0), (label == classes[0], 0.0))
        else:
            top = ibis.greatest(*proba)
            likeliest = ibis.cases(*[(p == top, c) for p, c in zip(proba, classes, strict=True)])
            hit = _any(label == c for c in classes).ifelse((likeliest == label).cast("float64"), ibis.null("float64"))
        chosen[f"h_{side}"] = hit
    return chosen


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
        number = _known(column.cast("float64"))
        bins = [(number <= edge, ibis.literal(str(i))) for i, edge in enumerate(self.edges)]
        return ibis.cases(*bins, (number > self.edges[-1], ibis.literal(str(len(self.edges)))))

    def words(self, value: str | None) -> str:
        """What to call the slice."""
        if value is None:
            return "(missing)"
        if not self.edges:
            return value
        i, edges = int(value), self._edge_words()
        if i == 0:
            return f"up to {edges[0]}"
        if i == len(edges):
            return f"over {edges[-1]}"
        return f"{edges[i - 1]} to {edges[i]}"

    def _edge_words(self) -> list[str]:
        """The edges in as few digits as tell them apart."""
        for digits in range(6, 18):
            words = [f"{edge:.{digits}g}" for edge in self.edges]
            if len(set(words)) == len(words):
                break
        return words


def _slices(pairs: Table, cuts: Sequence[Cut], columns: Sequence[str], unit: Column | None) -> list[Table]:
    """The pairs once as a whole (slice -1) and once for each cut."""
    views = []
    for i, cut in enumerate((None, *cuts), start=-1):
        value = ibis.null("string") if cut is None else cut.value(pairs)
        extra = {} if unit is None else {"unit": unit}
        views.append(pairs.select(*columns, cut=ibis.literal(i, "int16"), value=value, **extra))
    return views


def kind_of(rows: Table) -> Column:
    """One word for each row: what changed, against the truth where it is known (see ``infer.KINDS``)."""
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
    columns = [c for c in ("label", "old", "new", "w") if c in pairs.columns]
    groups = ["cut", "value", "kind", "old", "new"]
    counted = []
    for i, view in enumerate(_slices(pairs, cuts, columns, None)):
        view = view.mutate(kind=kind_of(view))
        if i:
            view = view.mutate(old=ibis.null(pairs.old.type()), new=ibis.null(pairs.new.type()))
        sums = {"n": view.count()}
        if "w" in columns:
            sums |= {"weight": view.w.sum(), "weight2": (view.w * view.w).sum()}
        counted.append(view.group_by(groups).aggregate(**sums))
    return ibis.union(*counted) if len(counted) > 1 else counted[0]


def rows_by_label(pairs: Table, labels: Sequence[str]) -> Table:
    """How many rows have each of these labels."""
    some = pairs.filter(pairs.label.isin(labels))
    return some.group_by("label").aggregate(n=some.count()).order_by("label")


def distinct_answers(pairs: Table) -> Table:
    """About how many different decisions there are."""
    return pairs.aggregate(old=pairs.old.approx_nunique(), new=pairs.new.approx_nunique())


def count_units(pairs: Table, cuts: Sequence[Cut], unit: Column) -> Table:
    """What each unit (a group of rows, or a bag of groups) adds to the counts, by slice."""
    columns = [c for c in ("label", "old", "new", "w") if c in pairs.columns]
    counted = []
    for view in _slices(pairs, cuts, columns, unit):
        weight = view.w if "w" in columns else ibis.literal(1.0)

        def weigh(condition: Column, weight: Column = weight) -> Column:
            return (condition.fill_null(False).cast("float64") * weight).sum()

        sums = {"weight": weigh(view.old.notnull()), "changed": weigh(view.old != view.new)}
        if "label" in columns:
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
    weight = t.w if "w" in t.columns else ibis.literal(1.0)
    sums = {
        "n": t.count(),
        "weight": (weight + 0.0 * t.soft).sum(),
        "soft": (weight * t.soft).sum(),
        "moved": count_if(t.moved),
    }
    if "ll_o" in t.columns:
        known = t.ll_o.notnull().cast("float64")
        sums |= {"labelled_rows": count_if(t.ll_o.notnull()), "labelled": (weight * known).sum()}
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
            weight=t.w if "w" in t.columns else ibis.literal(1.0),
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


def quantiles(pairs: Table, column: str, shares: Sequence[float], rows: int, most: int = 5_000_000) -> Table:
    """Edges for bins; of very many rows a part, chosen by a hash of the id, is enough."""
    if rows > most:
        pairs = pairs.filter((_key_text(pairs).hash() % math.ceil(rows / most)) == 0)
    number = _known(pairs[column].cast("float64"))
    return pairs.aggregate(**{f"q{i}": number.quantile(q) for i, q in enumerate(shares)})


def _key_text(rows: Table) -> Column:
    keys = [k.cast("string") for k in _keys(rows)]
    text = keys[0]
    for key in keys[1:]:
        text = text + SEPARATOR + key
    return text


def key_names(rows: Table) -> list[str]:
    return [c for c in rows.columns if c[0] == "k" and c[1:].isdigit()]


def _keys(rows: Table) -> list[Column]:
    return [rows[name] for name in key_names(rows)]


def _probas(rows: Table) -> list[Column]:
    return [rows[c] for c in rows.columns if c[0] == "p" and c[1:].isdigit()]


def _any(conditions: Iterable[Column]) -> Column:
    return _folded(list(conditions), lambda a, b: a | b)


def _total(columns: Sequence[Column]) -> Column:
    return _folded(list(columns), lambda a, b: a + b)


def _folded(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """All columns joined by halves: a chain of hundreds would be too deep for the compilers of queries."""
    if len(columns) == 1:
        return columns[0]
    middle = len(columns) // 2
    return join(_folded(columns[:middle], join), _folded(columns[middle:], join))
