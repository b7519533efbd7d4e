"""The database counts: Ibis expressions from pairs of rows (see :mod:`lowchurn.audit._joins`) to what changed.

One query reads both tables and makes *cells* of the pairs (:func:`cells`): pairs that agree are counted together, a
pair that differs is a cell of its own, with its id. Everything else is asked of the cells, which are few. Every
function here maps tables to tables; nothing is computed before the engine is asked for a (small) result. The same
expressions run on DuckDB, on Spark and in other databases that Ibis knows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import ibis
import ibis.expr.datatypes as dt

from lowchurn.audit._cells import JOINED, SINGLED, part, rows_where, singled, sizes, together
from lowchurn.audit._columns import Columns
from lowchurn.audit._joins import BOTH, Column, Table, class_literals, count_if, judged, key_names, known, quick_hash

CALIBRATION_BINS = 15
SHIFT_BINS = 20
# More units than this are put into bags by the last bits of a hash. 2,048 bags find a standard error to 1.6 %, the 256
# that losses are added up in to 4.4 %: as much as 1,000 draws leave open at each end of an interval.
MOST_UNITS = 10_000
BAGS = 2_048
LOSS_BAGS = 256
PLACES = (CALIBRATION_BINS + 1) ** 2
SEPARATOR = "\x1f"
# Parts of the cells, beyond those of :mod:`lowchurn.audit._cells`.
SLICES, UNITS, SHIFT, LOSSES = range(2, 6)
ANSWERS = ("old", "new", "label", "conflict", "heavy")


@dataclass(frozen=True)
class Cut:
    """A slice column: as it is, or cut into bins at these edges."""

    name: str
    column: str
    edges: tuple[float, ...] = ()

    def value(self, pairs: Table) -> Column:
        column = pairs[self.column]
        if not self.edges:
            return column
        number = known(column.cast("float64"))
        bins = [(number <= edge, ibis.literal(i, "int8")) for i, edge in enumerate(self.edges)]
        return ibis.cases(*bins, (number > self.edges[-1], ibis.literal(len(self.edges), "int8")))

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


def cells(pairs: Table, cuts: Sequence[Cut], unit: Column | None, bag: Column | None) -> Table:
    """All that is counted of the (outer) pairs, in parts that one pass over both tables makes.

    ``unit`` is given where rows are grouped, ``bag`` where there are probabilities (see :func:`unit_of`).

    - ``JOINED``: by side, decisions and label.
    - ``SINGLED``: by id, those that lack a partner, whose decisions differ or that have two labels.
    - ``SLICES``: by what changed, for each slice column by its values.
    - ``UNITS``: where rows are grouped, the same by unit, of all rows (slice -1) and of each slice.
    - ``SHIFT``: where there are probabilities, by bins of both of them.
    - ``LOSSES``: the same by bag and wider bins, with sums of the losses.
    """
    wanted = {f"x{i}": cut.value(pairs) for i, cut in enumerate(cuts)} | _change(pairs)
    if unit is not None:
        wanted["unit"] = ibis.cases((judged(pairs), unit))
    if bag is not None:
        wanted |= _soft_keys(pairs, bag)
    rows = pairs.mutate(**wanted)
    answers, change = [c for c in ANSWERS if c in rows.columns], list(_change(pairs))
    shown = [*answers, *(c for c in ("c_o", "c_n") if bag is not None), *(cut.column for cut in cuts)]
    differs = ~rows.same | rows.conflict if "conflict" in rows.columns else ~rows.same
    parts = [part(rows, JOINED, ["side", *answers]), singled(rows, differs, shown)]
    parts += [_by_slice(rows, SLICES, i, change) for i in range(len(cuts))]
    if unit is not None:
        parts += [_by_slice(rows, UNITS, i, [*change, "unit"]) for i in range(-1, len(cuts))]
    if bag is not None:
        parts.append(part(rows, SHIFT, ["shift"], {"moved": count_if(rows.moved)}))
        parts.append(_losses(rows))
    return together(parts)


def _soft_keys(pairs: Table, bag: Column) -> dict[str, Column]:
    """By what judged pairs with probabilities are counted.

    A numbered bag and the bins of both sides are one number of 16 bits: DuckDB adds up by such a key without a hash
    table, in half the time.
    """
    keys = {"shift": _both_bins(pairs, SHIFT_BINS), "place": _both_bins(pairs, CALIBRATION_BINS)}
    if bag.type().is_integer():
        keys["place"] += (bag - LOSS_BAGS // 2) * PLACES
    # The cast comes last: only then does DuckDB take the range of the type for that of the key.
    found = {name: ibis.cases((judged(pairs), key)).cast("int16") for name, key in keys.items()}
    return found if bag.type().is_integer() else found | {"bag": ibis.cases((judged(pairs), bag))}


def _both_bins(pairs: Table, bins: int) -> Column:
    """The bins of both probabilities as one number; a probability of 1 has a bin of its own."""
    old, new = (_floor(pairs[f"c_{side}"] * bins) for side in ("o", "n"))
    return old * (bins + 1) + new


@ibis.udf.scalar.builtin(name="floor")
def _floor(value: dt.float64) -> dt.float64:
    """Of DuckDB and Spark: that of Ibis makes an integer of it, which takes longer than the rest of a key."""


def _bins(both: Column, bins: int) -> tuple[Column, Column]:
    """The old and the new bin in the number that :func:`_both_bins` returns, that of 1 together with the one below."""
    return ibis.least(both // (bins + 1), bins - 1), ibis.least(both % (bins + 1), bins - 1)


def _by_slice(rows: Table, number: int, cut: int, keys: list[str]) -> Table:
    found = part(rows, number, [*keys, *([f"x{cut}"] if cut >= 0 else [])])
    value = found[f"x{cut}"].cast("string") if cut >= 0 else ibis.null("string")
    return found.select(*keys, *sizes(rows), "part", cut=ibis.literal(cut, "int16"), value=value)


def _losses(rows: Table) -> Table:
    """The part with the sums of the losses."""
    if "bag" in rows.columns:
        found = part(rows, LOSSES, ["bag", "place"], _loss_sums(rows))
        bag, place = found.bag, found.place
    else:
        found = part(rows, LOSSES, ["place"], _loss_sums(rows))
        number = found.place.cast("int32") + LOSS_BAGS // 2 * PLACES
        bag, place = (number // PLACES).cast("int16"), number % PLACES
    bin_o, bin_n = _bins(place, CALIBRATION_BINS)
    return found.mutate(unit=bag, bin_o=bin_o, bin_n=bin_n)


def _loss_sums(rows: Table) -> dict[str, Column]:
    names = [c for c in ("soft", "ll_o", "ll_n", "br_o", "br_n", "gap_o", "gap_n") if c in rows.columns]
    sums = {f"sum_{c}": (rows.w * rows[c] if "w" in rows.columns else rows[c]).sum() for c in names}
    if "known" in rows.columns:
        sums["labelled"] = rows.known.sum()
        if "w" in rows.columns:
            sums["labelled_w"] = (rows.w * rows.known).sum()
    return sums


def _change(pairs: Table) -> dict[str, Column]:
    """What changed, in as few operations as the many rows allow; :func:`_kind` gives it a name."""
    found = {"same": pairs.old == pairs.new}
    if "label" in pairs.columns:
        found |= {"was_right": pairs.old == pairs.label, "is_right": pairs.new == pairs.label}
    return found | ({"heavy": pairs.w > 0} if "w" in pairs.columns else {})


def _kind(cells: Table) -> Column:
    """The kind of judged pairs (:data:`lowchurn.audit._inference.KINDS`)."""
    plain = cells.same.ifelse("same", "changed")
    if "was_right" not in cells.columns:
        return plain
    return ibis.cases(
        (cells.was_right.isnull(), plain),
        (cells.same, cells.was_right.ifelse("right", "wrong")),
        (cells.was_right, "broken"),
        (cells.is_right, "fixed"),
        else_="lateral",
    )


def _judged(cells: Table, part: int = JOINED) -> Table:
    """The cells of judged pairs."""
    return cells.filter((cells.part == part) & (cells.side == BOTH) & judged(cells))


def pair_conditions(cells: Table) -> dict[str, Column]:
    """What is counted of the pairs of decisions, for :func:`lowchurn.audit._cells.pair_checks`."""
    paired = cells.old.notnull() & cells.new.notnull()
    found = {"paired": paired, "judged": judged(cells)}
    if "label" in cells.columns:
        found["labelled"] = paired & cells.label.notnull()
    if "conflict" in cells.columns:
        found["conflicts"] = paired & cells.conflict
    return found


def sound(cells: Table) -> dict[str, Column]:
    """True of the cells with the judged pairs whose probabilities are sound, where there are any."""
    return {"sound": (cells.part == SHIFT) & cells.shift.notnull()} if "shift" in cells.columns else {}


def contradicting(cells: Table) -> Table:
    """The pairs with two different labels."""
    decided = cells.old.notnull() & cells.new.notnull()
    return cells.filter((cells.part == SINGLED) & (cells.side == BOTH) & decided & cells.conflict)


def count(cells: Table, cuts: Sequence[Cut] = ()) -> Table:
    """The counts that everything hard rests on, in one expression.

    Of all rows (slice -1) by kind, old and new decision; of each slice by kind, so that its size does not depend on
    how many classes there are.
    """
    names = [name for name in ("n", "w", "w2") if name in cells.columns]
    whole = _judged(cells)
    whole = whole.mutate(**_change(whole))
    whole = whole.mutate(kind=_kind(whole))
    whole = whole.group_by(["kind", "old", "new"]).aggregate(**{name: whole[name].sum() for name in names})
    whole = whole.mutate(cut=ibis.literal(-1, "int16"), value=ibis.null("string"))
    if not cuts:
        return whole
    slices = _changes(cells, SLICES)
    return ibis.union(whole, slices.select(*whole.columns).cast(whole.schema()))  # Spark stores literals as it likes


def _changes(cells: Table, part: int) -> Table:
    """A part of the cells with the kind of judged pairs."""
    rows = cells.filter((cells.part == part) & cells.same.notnull())
    rows = rows.filter(rows.heavy) if "heavy" in rows.columns else rows
    return rows.mutate(kind=_kind(rows))


def count_units(cells: Table) -> Table:
    """What each unit (a group of rows, or a bag of groups) adds to the counts, by kind and slice."""
    rows = _changes(cells, UNITS)
    return rows.select("cut", "value", "unit", "kind", weight=rows["w" if "w" in rows.columns else "n"].cast("float64"))


def answers(cells: Table) -> Table:
    """Both decisions and the label of judged pairs, and how many pairs have them."""
    return _judged(cells).select(*(c for c in ("old", "new", "label", "n") if c in cells.columns))


def rows_by_label(cells: Table, labels: Sequence[str]) -> Table:
    """How many rows have each of these labels."""
    some = answers(cells).filter(lambda t: t.label.isin(labels))
    return some.group_by("label").aggregate(n=some.n.sum()).order_by("label")


def labels(cells: Table) -> Table:
    """The labels that there are."""
    some = answers(cells)
    return some.filter(some.label.notnull()).select("label").distinct()


def distinct_answers(rows: Table, sides: Iterable[str] = ("old", "new")) -> Table:
    """About how many different decisions there are on each side."""
    return rows.aggregate(**{side: rows[side].approx_nunique() for side in sides})


def class_checks(answers: Table, name: str, columns: Columns) -> Table:
    """How many labels or decisions there are, how many are none of the classes, and one of these."""
    column = answers[name]
    strange = column.notnull() & ~column.isin(class_literals(columns))
    return answers.aggregate(
        known=rows_where(answers, column.notnull()),
        strange=rows_where(answers, strange),
        example=ibis.cases((strange, column)).min(),
    )


def soft_sums(cells: Table) -> Table:
    """What each unit adds to the losses."""
    t = cells.filter((cells.part == LOSSES) & cells.unit.notnull())
    names = [c for c in t.columns if c.startswith("sum_") or c in {"n", "labelled", "labelled_w"}]
    sums = {name: t[name].sum().fill_null(0) for name in names}
    return t.group_by("unit").aggregate(**sums, weight=t["w" if "w" in t.columns else "n"].sum())


def calibration_sums(cells: Table) -> Table:
    """What each unit adds to each bin of confidence, for both sides (0 old, 1 new)."""
    t = cells.filter((cells.part == LOSSES) & cells.unit.notnull() & (cells.labelled > 0))
    weight = t["labelled_w" if "labelled_w" in t.columns else "labelled"].cast("float64")
    views = []
    for i, side in enumerate(("o", "n")):
        bin = t[f"bin_{side}"].cast("int32")  # Spark stores the two in types of its own choice
        rows = t.select("unit", side=ibis.literal(i, "int8"), bin=bin, weight=weight, gap=t[f"sum_gap_{side}"])
        views.append(rows.group_by(["side", "unit", "bin"]).aggregate(weight=rows.weight.sum(), gap=rows.gap.sum()))
    return ibis.union(*views)


def shift(cells: Table) -> Table:
    """Rows by bins of the old and the new probability, and how many of them have other probabilities than before."""
    t = cells.filter((cells.part == SHIFT) & cells.shift.notnull())
    old, new = _bins(t.shift, SHIFT_BINS)
    return t.group_by(old=old, new=new).aggregate(n=t.n.sum(), moved=t.moved.sum())


def unit_of(pairs: Table, columns: Columns, units: int, quick: bool = True, bags: int = BAGS) -> Column:
    """What is resampled: the group or else the row; too many of them are put into numbered bags by a hash.

    ``quick``: the database has the function of :func:`quick_hash`.
    """
    if columns.group is not None:
        unit, name = pairs.g, pairs.g.cast("string")
    else:
        unit = name = _key_text(pairs)
        if len(key_names(pairs)) == 1:
            unit = pairs.k0
    if units <= MOST_UNITS:
        return name
    return ((quick_hash(unit) if quick else name.hash()) & (bags - 1)).cast("int16")


def changed(cells: Table) -> Table:
    """The judged pairs whose decisions differ."""
    rows = _judged(cells, SINGLED)
    return rows.filter(rows.old != rows.new)


def shuffled(rows: Table, seed: int, n: int | None = None) -> Table:
    """Rows in an order that depends on nothing but the id and the seed; the first ``n`` of them."""
    order = (_key_text(rows) + f"{SEPARATOR}{int(seed)}").hash()
    rows = rows.mutate(lowchurn_order=order).order_by(["lowchurn_order", *key_names(rows)]).drop("lowchurn_order")
    return rows if n is None else rows.limit(n)


def rows_by_id(pairs: Table, names: Sequence[str]) -> Table:
    """Labelled and broken rows by name: the value of the first key column, or of the first ones joined by a slash."""
    keys = [pairs[key].cast("string") for key in key_names(pairs)]
    texts = [keys[0]]
    for key in keys[1:]:
        texts.append(texts[-1] + "/" + key)
    pairs = pairs.mutate(**_change(pairs))
    kind = _kind(pairs)
    views = []
    for text in texts:
        named = pairs.select(name=text, kind=kind).filter(lambda t: t.name.isin(names))
        broken, labelled = count_if(named.kind == "broken"), count_if(~named.kind.isin(["same", "changed"]))
        views.append(named.group_by("name").aggregate(n=labelled, broken=broken))
    return ibis.union(*views) if len(views) > 1 else views[0]


def quantiles(rows: Table, column: str, shares: Sequence[float], size: int, most: int = 5_000_000) -> Table:
    """Edges for bins; of very many rows a part, chosen by a hash of the id, is enough."""
    if size > most:
        rows = rows.filter((_key_text(rows).hash() % math.ceil(size / most)) == 0)
    number = known(rows[column].cast("float64"))
    return rows.aggregate(**{f"q{i}": number.quantile(q) for i, q in enumerate(shares)})


def _key_text(rows: Table) -> Column:
    keys = [rows[key].cast("string") for key in key_names(rows)]
    text = keys[0]
    for key in keys[1:]:
        text = text + SEPARATOR + key
    return text
