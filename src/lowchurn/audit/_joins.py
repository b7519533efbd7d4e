"""Ibis expressions from two tables of predictions to pairs of rows: columns under names of our own, checks, the join.

The columns of a pair are the ids ``k0, k1, ...``, both decisions ``old`` and ``new``, and where they are known
``label``, the weight ``w``, the group ``g`` and the slice columns ``b0, b1, ...``. A row without a partner is a pair
too, in which everything of the other side is missing; ``side`` is where the id comes from. Numbers are
decisions of the type float64 here, their label is the target, and ``l_o`` and ``l_n`` are losses that are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import ibis
import ibis.expr.datatypes as dt
import numpy as np

from lowchurn.audit._columns import Columns, Predicted
from lowchurn.audit._csv import ANY_NUMBER, INTEGER
from lowchurn.scoring import LogScore

Table: TypeAlias = ibis.Table
Column: TypeAlias = ibis.Value

# Where the id of a pair comes from.
BOTH, OLD_ONLY, NEW_ONLY = range(3)
# Sums of squares of weights in this range neither overflow nor vanish.
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100


def project(table: Table, columns: Columns, side: str, other: Sequence[str]) -> Table:
    """The few columns of one side that matter; ``other`` are the names of the other side's columns."""
    predicted = columns.side(side)
    chosen = {f"k{i}": compared(table[key], type) for i, (key, type) in enumerate(columns.id.items())}
    if predicted.score is None:
        chosen |= {f"p{i}": table[name].cast("float64") for i, name in enumerate(predicted.proba)}
    else:
        chosen["p1"] = table[predicted.score].cast("float64")  # the first of the two classes has the rest
    chosen["decision"] = _decision(table, predicted, columns)
    if predicted.loss is not None:
        chosen["loss"] = known(table[predicted.loss].cast("float64"))
    extras = {"label": columns.label, "w": columns.weight, "g": columns.group}
    extras |= {f"b{i}": name for i, name in enumerate((*columns.by, *columns.features))}
    for role, name in extras.items():
        # Where both tables have the column, the candidate's is used; of labels, both are compared.
        wanted = name is not None and name in table.columns
        if wanted and (side == "new" or role == "label" or name not in other):
            chosen[role] = _plain(table[name])
    if "label" in chosen:
        chosen["label"] = compared(table[columns.label], columns.answer)
    if "w" in chosen:
        chosen["w"] = chosen["w"].cast("float64")
    return table.select(**chosen)


def _proba(rows: Table, prefix: str = "") -> list[Column]:
    """The probability of each class; none where a side has decisions alone."""
    names = _numbered((name.removeprefix(prefix) for name in rows.columns if name.startswith(prefix)), "p")
    found = [rows[prefix + name] for name in names]
    return [1 - found[0], found[0]] if names == ["p1"] else found


def _decision(table: Table, predicted: Predicted, columns: Columns) -> Column:
    if predicted.label is not None:
        return compared(table[predicted.label], columns.answer)
    classes = class_literals(columns)
    if predicted.score is not None:
        score, threshold = table[predicted.score], predicted.threshold
        if score.type().is_float32():  # 0.7 in 32 bits is below 0.7, and yet it is that score
            threshold = float(np.float32(threshold))
        score = known(score.cast("float64"))
        return ibis.cases((score >= threshold, classes[1]), (score < threshold, classes[0]))
    return _likeliest([table[name].cast("float64") for name in predicted.proba], classes)


def _likeliest(proba: list[Column], classes: list[Column]) -> Column:
    """The class of the largest probability; of equal ones the first, as numpy's argmax."""
    top = ibis.greatest(*proba)
    return ibis.cases(*[(p == top, c) for p, c in zip(proba, classes, strict=True)])


def class_literals(columns: Columns) -> list[Column]:
    """The classes as values of the type that labels and decisions are compared in."""
    return [ibis.literal(c, columns.answer) for c in columns.classes]


def compared(column: Column, answer: str) -> Column:
    """A column in the type that it is compared in."""
    column = _plain(column)
    if column.type().is_boolean() and answer not in {"boolean", "string"}:
        column = as_number(column)
    return column.cast(answer)


def _plain(column: Column) -> Column:
    """NaN is a missing value, and there is one zero."""
    if not column.type().is_floating():
        return column
    return (column == 0).ifelse(ibis.literal(0, column.type()), known(column))


def as_number(condition: Column) -> Column:
    """1 where a condition is true and 0 where it is false; the type is the one that every database makes of it."""
    return condition.cast("int32")


def known(column: Column) -> Column:
    """NaN as a missing value."""
    return column.isnan().ifelse(ibis.null(column.type()), column)


def unfit_values(table: Table, name: str, rule: str, limit: int, most: int) -> Table:
    """Some values that break a rule of :class:`lowchurn.audit._exact.Check`, and how often each."""
    broken = table.filter(_unfit(table[name], rule, limit))
    return broken.group_by(value=broken[name].cast("string")).aggregate(n=broken.count()).order_by("value").limit(most)


def _unfit(column: Column, rule: str, limit: int) -> Column:
    if rule == "no numbers":
        # Every other spelling of a number than that of a whole one.
        return column.re_search(f"^({ANY_NUMBER})$") & ~column.re_search(f"^({INTEGER})$")
    if rule == "float32":
        number = known(column)
        return number.cast("float32").cast("float64") != number
    if rule == "small":
        number = known(column)
        return ~number.isinf() & (number.abs() > limit)
    large = (column > limit) | (column < -limit)
    return large | (column.floor() != column) if column.type().is_decimal() else large


@ibis.udf.agg.builtin(name="count_if")
def _count_if(condition: dt.boolean) -> dt.int64:
    """Of DuckDB and Spark: several times faster than a sum or a filter, which it is translated to elsewhere."""


@ibis.udf.scalar.builtin(name="hash")
def quick_hash(value) -> dt.int64:  # type: ignore[no-untyped-def]  # of any type
    """The hash of DuckDB (never negative) or Spark: several times faster than Ibis' own, which makes it one type.

    See :attr:`lowchurn.audit._sources.Engine.quick` for databases that have no such function.
    """


def count_if(condition: Column) -> Column:
    """In how many rows a condition is true."""
    return _count_if(condition).fill_null(0)  # of no rows DuckDB counts none, not 0


def row_checks(rows: Table) -> Table:
    """One row of counts of what is wrong in one (projected) side.

    Counts of known values are the cheapest that there are: a file often has them beside its columns.
    """
    first, *others = key_names(rows)
    ids = count_if(_all(rows[key].notnull() for key in (first, *others))) if others else rows[first].count()
    checks = {"rows": rows.count(), "no_id": rows.count() - ids, "no_decision": rows.count() - rows.decision.count()}
    if "w" in rows.columns:
        bad = rows.w.isnull() | rows.w.isnan() | rows.w.isinf() | (rows.w < 0)
        extreme = (rows.w > MOST_WEIGHT) | ((rows.w > 0) & (rows.w < LEAST_WEIGHT))
        checks["bad_weight"] = count_if(bad)
        checks["extreme_weight"] = count_if(~bad & extreme)
        checks["all_zero"] = (count_if(~bad & (rows.w > 0)) == 0).ifelse(1, 0)
    if "g" in rows.columns:
        checks["no_group"] = rows.count() - rows.g.count()
    return rows.aggregate(**checks)


def values(rows: Table, name: str, first: int | None = None) -> Table:
    """How many values a column has, in all rows or in the ``first`` ones that the database reads."""
    some = rows.select(value=rows[name])
    some = some if first is None else some.limit(first)
    return some.aggregate(n=some.value.nunique())


def proba_bounds(rows: Table, first: int | None = None) -> Table:
    """One row of what shows that the probabilities of one (projected) side are sound, in all or the ``first`` rows."""
    rows = rows.select(*_numbered(rows.columns, "p"))
    rows = rows if first is None else rows.limit(first)
    proba = _proba(rows)
    off = (_total(proba) - 1).abs()  # missing or NaN where one of them is
    found = {"rows": rows.count(), "known": off.count(), "off": off.max(), "least": ibis.least(*proba).min()}
    if len(proba) == 2 and "p0" in rows.columns:
        found["rest"] = count_if(rows.p0 == 1 - rows.p1)
    return rows.aggregate(**found)


def sound_proba(rows: Table, tolerance: float, spared: bool) -> Table:
    """One (projected) side with its probabilities missing in rows where they are not sound.

    ``spared``: the first of two probabilities has to be what the second leaves, to the last bit, and is left out.
    """
    proba = _proba(rows)
    summed = rows.p0 == 1 - rows.p1 if spared else (_total(proba) - 1).abs() <= tolerance
    sound = _all([summed, *(p >= 0 for p in proba)])
    found = rows.mutate(**{name: ibis.cases((sound, rows[name])) for name in _numbered(rows.columns, "p")})
    return found.drop("p0") if spared else found


def proba_checks(rows: Table, tolerance: float) -> Table:
    """One row of counts of what is wrong with the probabilities of one (projected) side."""
    proba = _proba(rows)
    wrong = _any(p.isnull() | p.isnan() | p.isinf() for p in proba)
    off = (_total(proba) - 1).abs()
    return rows.aggregate(
        no_proba=count_if(wrong),
        outside=count_if(~wrong & _any((p < 0) | (p > 1 + tolerance) for p in proba)),
        off_sum=count_if(~wrong & (off > tolerance)),
        worst_sum=wrong.ifelse(ibis.null("float64"), off).max(),
    )


def some_value(table: Table, name: str) -> Table:
    """One known value of a column, if there is any."""
    column = _plain(table[name])
    return table.filter(column.notnull()).select(name).limit(1)


def _times(rows: Table) -> Table:
    """How often each id comes."""
    return _ids(rows).group_by(key_names(rows)).aggregate(times=lambda t: t.count())


def _ids(rows: Table) -> Table:
    return known_ids(rows.select(*key_names(rows)))


def key_checks(rows: Table) -> Table:
    """How many ids come more than once, and in how many rows."""
    each = _times(rows)
    return each.aggregate(
        repeated=count_if(each.times > 1),
        repeated_rows=(each.times > 1).ifelse(each.times, 0).sum().fill_null(0),
    )


def some_rows(rows: Table, share: float) -> Table:
    """A random part of the rows; all of them where the share is 1."""
    return rows if share >= 1 else rows.filter(ibis.random() < share)


def repeated_ids(rows: Table) -> Table:
    """Ids that come more than once."""
    each = _times(rows)
    return each.filter(each.times > 1)


def only_in(rows: Table, other: Table) -> Table:
    """Ids of the rows that have no partner."""
    keys = key_names(rows)
    return _ids(rows).anti_join(other.select(*keys), keys)


def without_repeats(rows: Table) -> Table:
    """The rows whose id comes once: of the others no join could find the one that is meant."""
    return rows.anti_join(repeated_ids(rows), key_names(rows))


def pair(old: Table, new: Table, how: str = "outer") -> Table:
    """Both sides, each with ids ``k0, k1, ...`` that are known, beside each other.

    The columns of a side are ``o_...`` or ``n_...``, whatever they are; the ids come once, and ``side`` is where the
    id comes from. With ``how="inner"`` only ids that both sides have.
    """
    keys = key_names(old)
    old = old.rename({f"o_{c}": c for c in old.columns})
    new = new.rename({f"n_{c}": c for c in new.columns})
    both = old.join(new, [old[f"o_{key}"] == new[f"n_{key}"] for key in keys], how=how)
    return both.select(
        **{key: ibis.coalesce(both[f"o_{key}"], both[f"n_{key}"]) for key in keys},
        side=ibis.cases((both.n_k0.isnull(), OLD_ONLY), (both.o_k0.isnull(), NEW_ONLY), else_=BOTH),
        **{c: both[c] for c in both.columns if c[2:] not in keys},
    )


def known_ids(rows: Table) -> Table:
    """The rows that have an id."""
    return rows.drop_null(key_names(rows))


def compared_pair(both: Table, columns: Columns, soft: bool = False) -> Table:
    """The columns of a pair of decisions (see above), from what :func:`pair` made of two projected sides.

    With ``soft`` also what is needed of probabilities.
    """
    chosen: dict[str, Column] = {key: both[key] for key in (*key_names(both), "side")}
    chosen |= {"old": both.o_decision, "new": both.n_decision}
    sides = {c[2:]: both[c] for c in both.columns if c[:2] in {"o_", "n_"}}
    if "label" in sides:
        labels = [both[c] for c in ("n_label", "o_label") if c in both.columns]
        chosen["label"] = ibis.coalesce(*labels) if len(labels) > 1 else labels[0]
        if len(labels) > 1:
            chosen["conflict"] = (labels[0] != labels[1]).fill_null(False)
    chosen |= {name: sides[name] for name in ("w", "g", *_numbered(sides, "b")) if name in sides}
    if "loss" in sides:
        chosen |= {"l_o": both.o_loss, "l_n": both.n_loss}
    if soft:
        chosen |= _soft_columns(both, columns, chosen.get("label"))
    return both.select(**chosen)


def judged(pairs: Table) -> Column:
    """Whether a pair is one that the figures rest on: two decisions, and a weight above 0."""
    decided = pairs.old.notnull() & pairs.new.notnull()
    return decided & (pairs.w > 0) if "w" in pairs.columns else decided


def _soft_columns(both: Table, columns: Columns, label: Column | None) -> dict[str, Column]:
    """Losses of both sides and how far their probabilities are off the truth (``gap``), per row.

    ``known`` is 1 where the label is one of the classes; all the others are 0 or missing where it is 0.
    """
    before, after = _proba(both, "o_"), _proba(both, "n_")
    least = LogScore().epsilon  # by cases, which DuckDB computes faster than the greatest of two
    logs = [[ibis.ifelse(p > least, p, least).ln() for p in side] for side in (before, after)]
    terms = [u * (a - b) for u, a, b in zip(before, *logs, strict=True)]
    chosen = {"soft": _total(terms), "moved": _any(u != v for u, v in zip(before, after, strict=True))}
    classes = class_literals(columns)
    hits = [] if label is None else [as_number(label == c).cast("float64") for c in classes]
    if hits:
        chosen["known"] = _total(hits)
    for side, proba, log in (("o", before, logs[0]), ("n", after, logs[1])):
        # Of two classes the chance of the second contains everything; of more, that of the likeliest class is kept.
        sure = chosen[f"c_{side}"] = proba[1] if len(proba) == 2 else ibis.greatest(*proba)
        if label is None:
            continue
        if len(proba) == 2:
            # As scikit-learn: of two classes the square of one error, of more the sum over all classes.
            gap = chosen["known"] * sure - hits[1]
            loss = -(hits[0] * log[0] + hits[1] * log[1])
            error = gap * gap
        else:
            squares = _total([p * p for p in proba])  # sum of (p - indicator)^2 = sum of p^2 - 2 p_label + 1
            gap = chosen["known"] * (sure - as_number(_likeliest(proba, classes) == label))
            loss = ibis.cases(*[(label == c, -one) for c, one in zip(classes, log, strict=True)])
            error = ibis.cases(*[(label == c, squares - 2 * p + 1) for c, p in zip(classes, proba, strict=True)])
        chosen |= {f"ll_{side}": loss, f"br_{side}": error, f"gap_{side}": gap}
    return chosen


def key_names(rows: Table) -> list[str]:
    """The names of the key columns."""
    return _numbered(rows.columns, "k")


def _numbered(names: Iterable[str], letter: str) -> list[str]:
    return [name for name in names if name[0] == letter and name[1:].isdigit()]


def _all(conditions: Iterable[Column]) -> Column:
    return folded(list(conditions), lambda a, b: a & b)


def _any(conditions: Iterable[Column]) -> Column:
    return folded(list(conditions), lambda a, b: a | b)


def _total(columns: Sequence[Column]) -> Column:
    return folded(list(columns), lambda a, b: a + b)


def folded(columns: list[Column], join: Callable[[Column, Column], Column]) -> Column:
    """All columns joined by halves: a chain of hundreds would be too deep for the compilers of queries."""
    if len(columns) == 1:
        return columns[0]
    middle = len(columns) // 2
    return join(folded(columns[:middle], join), folded(columns[middle:], join))
