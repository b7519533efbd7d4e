"""Ibis expressions from pairs of rows with numbers to what moved: ranges, sums, bins, quantiles and the biggest moves.

The columns of a pair are those of :mod:`lowchurn.audit._joins`. A row has these variables: ``move`` (new less old),
``size`` (of the move), and where a target or losses are known ``loss_old``, ``loss_new`` and ``loss_change``; of a
target also ``square_old``, ``square_new`` and ``square_change``, the squares of the errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ibis

from lowchurn.audit import _releases as releases
from lowchurn.audit._columns import Numbers
from lowchurn.audit._counts import Cut
from lowchurn.audit._joins import Column, Table, count_if, key_names

LARGEST = 1e100  # larger numbers have squares that are no floats
MOST_SORTED = 5_000_000  # rows that quantiles are made of
NUMBERS = ("old", "new", "label", "l_o", "l_n")
MOVES = ("move", "size")
LOSSES = ("loss_old", "loss_new", "loss_change")
SQUARES = ("square_old", "square_new", "square_change")


def measured(pairs: Table, numbers: Numbers) -> Table:
    """The pairs with the variables of each row, and whether it moved, got worse or got better."""
    move = pairs.new - pairs.old
    found = {"move": move, "size": move.abs()}
    beyond = numbers.tolerance * pairs.old.abs() if numbers.relative else ibis.literal(numbers.tolerance)
    if "label" in pairs.columns:
        errors = [pairs.old - pairs.label, pairs.new - pairs.label]
        before, after = (error.abs() for error in errors)
        squares = [error * error for error in errors]
        found |= dict(zip(SQUARES, (*squares, squares[1] - squares[0]), strict=True))
        limit = beyond
    elif "l_o" in pairs.columns:
        both = pairs.l_o.notnull() & pairs.l_n.notnull()
        before, after = (both.ifelse(loss, ibis.null("float64")) for loss in (pairs.l_o, pairs.l_n))
        limit = numbers.tolerance * before.abs() if numbers.relative else beyond
    else:
        return pairs.mutate(**found, moved=move.abs() > beyond)
    change = after - before
    found |= dict(zip(LOSSES, (before, after, change), strict=True))
    harm = -change if numbers.gain else change
    return pairs.mutate(**found, moved=move.abs() > beyond, worse=harm > limit, better=-harm > limit)


def too_large(pairs: Table, name: str) -> Column:
    """Whether a number is infinite, or too large for its square."""
    return (pairs[name].abs() > LARGEST).fill_null(False)


def largest_checks(pairs: Table) -> Table:
    """How many numbers of each column are infinite or too large."""
    return pairs.aggregate(**{name: count_if(too_large(pairs, name)) for name in NUMBERS if name in pairs.columns})


def variables(rows: Table) -> list[str]:
    """The variables that are known of the rows."""
    return [name for name in (*MOVES, *LOSSES, *SQUARES) if name in rows.columns]


def ranges(rows: Table) -> Table:
    """The least and the largest value and the mean of each variable and of both numbers."""
    wanted: dict[str, Column] = {}
    for name in ("old", "new", *variables(rows)):
        wanted |= {f"{name}_low": rows[name].min(), f"{name}_high": rows[name].max(), f"{name}_mean": rows[name].mean()}
    return rows.aggregate(**wanted)


@dataclass(frozen=True)
class Scale:
    """How a variable is shifted and scaled before it is summed, so that its squares neither cancel nor overflow."""

    centre: float = 0.0
    unit: float = 1.0

    def of(self, column: Column) -> Column:
        return (column - self.centre) / self.unit


def sums(rows: Table, scales: Mapping[str, Scale], by: Mapping[str, Column]) -> Table:
    """By slice and unit: rows by what became of them, and of each variable the moments that variances are made of.

    Of a variable ``x`` and the weight ``w``: ``x_w`` is the sum of w x, ``x_v`` that of w^2 x and ``x_x`` that of
    w^2 x^2. The errors of a target have ``square_cross`` as well: w^2 times the old square and its change.
    """
    conditions = {"all": ibis.literal(True), "moved": rows.moved, "shifted": rows.move != 0}
    if "worse" in rows.columns:
        conditions |= {"known": rows.loss_old.notnull(), "worse": rows.worse, "better": rows.better}
        conditions["stirred"] = rows.loss_change != 0
    weight = rows.w if "w" in rows.columns else ibis.literal(1.0)
    scaled = {name: scales[name].of(rows[name]) for name in variables(rows)}
    also: dict[str, Column] = {}
    for name, x in scaled.items():
        also |= {f"{name}_w": weight * x, f"{name}_v": weight * weight * x, f"{name}_x": weight * weight * x * x}
    if SQUARES[0] in scaled:
        also["square_cross"] = weight * weight * scaled["square_old"] * scaled["square_change"]
    return releases.sums(rows, conditions, by, also)


def binned(column: Column, low: float, high: float, bins: int) -> Column:
    """The number of a value's bin; what lies beyond the ends counts for the first and the last one."""
    place = ((column - low) / (high - low) * bins).floor()
    return ibis.least(ibis.greatest(place, 0), bins - 1).cast("int64")


def histogram(rows: Table, low: float, high: float, bins: int) -> Table:
    """Rows by bins of the move."""
    held = rows.select(bin=binned(rows.move, low, high, bins))
    return held.group_by("bin").aggregate(n=held.count())


def density(rows: Table, low: float, high: float, bins: int) -> Table:
    """Rows by bins of the old and the new number."""
    held = rows.select(old=binned(rows.old, low, high, bins), new=binned(rows.new, low, high, bins))
    return held.group_by(["old", "new"]).aggregate(n=held.count())


def some_rows(rows: Table, size: int, most: int = MOST_SORTED) -> Table:
    """All rows or, of very many, a part that is chosen by a hash of the id."""
    if size <= most:
        return rows
    return rows.filter((_names(rows)[-1].hash() % math.ceil(size / most)) == 0)


def quantiles(rows: Table, column: str, levels: Sequence[float], by: Mapping[str, Column]) -> Table:
    """Quantiles of a column by slice, as a list in the order of the levels.

    Without weights the engine's own, which are interpolated between neighbours; with weights the least value up to
    which the weights reach the level.
    """
    held = rows.select(**by, x=rows[column], **({"w": rows.w} if "w" in rows.columns else {}))
    if "w" not in held.columns:
        wanted = {"q": held.x.quantile(list(levels))}
        return held.group_by(list(by)).aggregate(**wanted) if by else held.aggregate(**wanted)
    window = ibis.window(group_by=list(by) or None, order_by="x", preceding=None, following=0)
    whole = ibis.window(group_by=list(by) or None)
    steps = held.mutate(reached=held.w.sum().over(window), total=held.w.sum().over(whole))
    # Sums in another order differ in their last digits.
    wanted = {
        f"q{i}": steps.x.min(where=steps.reached >= level * steps.total * (1 - 1e-12)) for i, level in enumerate(levels)
    }
    return steps.group_by(list(by)).aggregate(**wanted) if by else steps.aggregate(**wanted)


def below(rows: Table, column: str, points: Sequence[float]) -> dict[str, Column]:
    """Whether a column is at most each of some points."""
    return {f"below{i}": rows[column] <= point for i, point in enumerate(points)}


def biggest(rows: Table, most: int) -> Table:
    """The rows that moved by more than the tolerance, the biggest moves first, of equal ones in the order of ids."""
    some = rows.filter(rows.moved)
    return some.order_by([some.size.desc(), *key_names(some)]).limit(most)


def rows_by_id(rows: Table, names: Sequence[str]) -> Table:
    """Rows with a loss, and those that got worse, by name: the first key column, or the first ones by a slash."""
    known = rows.loss_old.notnull() if "worse" in rows.columns else ibis.literal(False)
    worse = rows.worse if "worse" in rows.columns else ibis.literal(False)
    views = []
    for text in _names(rows):
        named = rows.select(name=text, known=known, worse=worse).filter(lambda t: t.name.isin(names))
        views.append(named.group_by("name").aggregate(n=count_if(named.known), broken=count_if(named.worse)))
    return ibis.union(*views) if len(views) > 1 else views[0]


def _names(rows: Table) -> list[Column]:
    """The first key column as text, the first two joined by a slash, and so on."""
    first, *others = (rows[key].cast("string") for key in key_names(rows))
    found = [first]
    for key in others:
        found.append(found[-1] + "/" + key)
    return found


def slice_of(cut: Cut, rows: Table) -> dict[str, Column]:
    """The column of a slice's values, as text also where they are numbers of bins."""
    return {"value": cut.value(rows).cast("string")}
