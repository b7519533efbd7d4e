"""Ibis expressions from two tables of predictions to pairs of rows: columns under names of our own, checks, the join.

The columns of a pair are the ids ``k0, k1, ...``, both decisions ``old`` and ``new``, and where they are known
``label``, the weight ``w``, the group ``g`` and the slice columns ``b0, b1, ...``. Numbers are decisions of the type
float64 here, their label is the target, and ``l_o`` and ``l_n`` are their losses where these are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import ibis
import numpy as np

from lowchurn.audit._columns import Columns, Predicted
from lowchurn.audit._csv import ANY_NUMBER, INTEGER
from lowchurn.scoring import LogScore

Table: TypeAlias = ibis.Table
Column: TypeAlias = ibis.Value

# Sums of squares of weights in this range neither overflow nor vanish.
LEAST_WEIGHT, MOST_WEIGHT = 1e-100, 1e100


def project(table: Table, columns: Columns, side: str, other: Sequence[str]) -> Table:
    """The few columns of one side that matter; ``other`` are the names of the other side's columns."""
    predicted = columns.side(side)
    chosen = {f"k{i}": compared(table[key], type) for i, (key, type) in enumerate(columns.id.items())}
    proba = _proba(table, predicted)
    chosen["decision"] = _decision(table, predicted, proba, columns)
    chosen |= {f"p{i}": p for i, p in enumerate(proba)}
    if predicted.loss is not None:
        chosen["loss"] = known(table[predicted.loss].cast("float64"))
    extras = {"label": columns.label, "weight": columns.weight, "group": columns.group}
    extras |= {f"b{i}": name for i, name in enumerate((*columns.by, *columns.features))}
    for role, name in extras.items():
        # Where both tables have the column, the candidate's is used; of labels, both are compared.
        wanted = name is not None and name in table.columns
        if wanted and (side == "new" or role == "label" or name not in other):
            chosen[role] = _plain(table[name])
    if "label" in chosen:
        chosen["label"] = compared(table[columns.label], columns.answer)
    if "weight" in chosen:
        chosen["weight"] = chosen["weight"].cast("float64")
    return table.select(**chosen)


def _proba(table: Table, predicted: Predicted) -> list[Column]:
    if predicted.score is None:
        return [table[name].cast("float64") for name in predicted.proba]
    score = table[predicted.score].cast("float64")
    return [1 - score, score]


def _decision(table: Table, predicted: Predicted, proba: list[Column], columns: Columns) -> Column:
    if predicted.label is not None:
        return compared(table[predicted.label], columns.answer)
    classes = class_literals(columns)
    if predicted.score is not None:
        score, threshold = table[predicted.score], predicted.threshold
        if score.type().is_float32():  # 0.7 in 32 bits is below 0.7, and yet it is that score
            threshold = float(np.float32(threshold))
        score = known(score.cast("float64"))
        return ibis.cases((score >= threshold, classes[1]), (score < threshold, classes[0]))
    return _likeliest(proba, classes)


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
        column = column.cast("int8")
    return column.cast(answer)


def _plain(column: Column) -> Column:
    """NaN is a missing value, and there is one zero."""
    if not column.type().is_floating():
        return column
    return (column == 0).ifelse(ibis.literal(0, column.type()), known(column))


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


def count_if(condition: Column) -> Column:
    """In how many rows a condition is true."""
    return condition.fill_null(False).cast("int64").sum().fill_null(0)


def row_checks(rows: Table, tolerance: float) -> Table:
    """One row of counts of what is wrong in one (projected) side."""
    proba = [rows[name] for name in _numbered(rows.columns, "p")]
    missing_id = _any(rows[key].isnull() for key in key_names(rows))
    checks = {"rows": rows.count(), "no_id": count_if(missing_id), "no_decision": count_if(rows.decision.isnull())}
    if "weight" in rows.columns:
        bad = rows.weight.isnull() | rows.weight.isnan() | rows.weight.isinf() | (rows.weight < 0)
        extreme = (rows.weight > MOST_WEIGHT) | ((rows.weight > 0) & (rows.weight < LEAST_WEIGHT))
        checks["bad_weight"] = count_if(bad)
        checks["extreme_weight"] = count_if(~bad & extreme)
        checks["all_zero"] = (count_if(~bad & (rows.weight > 0)) == 0).cast("int64")
    if "group" in rows.columns:
        checks["no_group"] = count_if(rows.group.isnull())
    if proba:
        wrong = _any(p.isnull() | p.isnan() | p.isinf() for p in proba)
        off = (_total(proba) - 1).abs()
        checks["no_proba"] = count_if(wrong)
        checks["outside"] = count_if(~wrong & _any((p < 0) | (p > 1 + tolerance) for p in proba))
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


def _times(rows: Table) -> Table:
    """How often each id comes."""
    return _ids(rows).group_by(key_names(rows)).aggregate(times=lambda t: t.count())


def _ids(rows: Table) -> Table:
    keys = key_names(rows)
    return rows.select(*keys).drop_null(keys)


def key_checks(rows: Table) -> Table:
    """How many ids come more than once, and in how many rows."""
    each = _times(rows)
    return each.aggregate(
        repeated=count_if(each.times > 1),
        repeated_rows=(each.times > 1).ifelse(each.times, 0).sum().fill_null(0),
    )


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


def pair(old: Table, new: Table, columns: Columns, soft: bool) -> Table:
    """Join both (projected) sides on their ids: one row per id, with both decisions and what is needed of the rest."""
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
    chosen |= {name: sides[name] for name in _numbered(sides, "b")}
    if "loss" in sides:
        chosen |= {"l_o": both.o_loss, "l_n": both.n_loss}
    if soft:
        chosen |= _soft_columns(both, columns, chosen.get("label"))
    return both.filter(both.o_decision.notnull() & both.n_decision.notnull()).select(**chosen)


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
    size = len(columns.classes)
    before, after = ([both[f"{side}_p{i}"] for i in range(size)] for side in ("o", "n"))
    clip = [[ibis.greatest(p, LogScore().epsilon) for p in side] for side in (before, after)]
    terms = [(u > 0).ifelse(u * (a.ln() - b.ln()), 0.0) for u, a, b in zip(before, *clip, strict=True)]
    chosen = {"soft": _total(terms), "moved": _any(u != v for u, v in zip(before, after, strict=True))}
    classes = class_literals(columns)
    for side, proba, clipped in (("o", before, clip[0]), ("n", after, clip[1])):
        # Of two classes the chance of the second contains everything; of more, that of the likeliest class is kept.
        chosen[f"c_{side}"] = proba[1] if size == 2 else ibis.greatest(*proba)
        if label is None:
            continue
        if size == 2:
            # As scikit-learn: of two classes the square of one error, of more the sum over all classes.
            errors = [proba[1] * proba[1], (1 - proba[1]) * (1 - proba[1])]
            hit = ibis.cases((label == classes[1], 1.0), (label == classes[0], 0.0))
        else:
            squares = _total([p * p for p in proba])  # sum of (p - indicator)^2 = sum of p^2 - 2 p_label + 1
            errors = [squares - 2 * p + 1 for p in proba]
            right = (_likeliest(proba, classes) == label).cast("float64")
            hit = _any(label == c for c in classes).ifelse(right, ibis.null("float64"))
        chosen[f"ll_{side}"] = ibis.cases(*[(label == c, -p.ln()) for c, p in zip(classes, clipped, strict=True)])
        chosen[f"br_{side}"] = ibis.cases(*[(label == c, e) for c, e in zip(classes, errors, strict=True)])
        chosen[f"h_{side}"] = hit
    return chosen


def key_names(rows: Table) -> list[str]:
    """The names of the key columns."""
    return _numbered(rows.columns, "k")


def _numbered(names: Iterable[str], letter: str) -> list[str]:
    return [name for name in names if name[0] == letter and name[1:].isdigit()]


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
