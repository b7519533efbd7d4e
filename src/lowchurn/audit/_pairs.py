"""The joined rows of two tables, after every check that refuses bad input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lowchurn.audit import _cells as parts
from lowchurn.audit import _counts as counts
from lowchurn.audit import _joins as joins
from lowchurn.audit._columns import Columns
from lowchurn.audit._exact import kind_of
from lowchurn.audit._joins import Column, Table
from lowchurn.audit._sources import Engine, has_low_precision

MOST_CLASSES = 5_000  # different decisions
MOST_VALUES = 1_000  # of a slice column; nobody reads a table of more slices
MOST_NUMBERS = 30  # distinct numbers that are slices of their own; more are cut into bins
BINS = 10
EXAMPLES = 5
FIRST_ROWS = 100_000
FEW_ROWS = 5_000  # whatever their ids are, all their pairs are soon counted
MANY_ROWS = 50_000_000  # of both tables; what changed in fewer is kept in memory, 0.24 kB per row
# What :func:`lowchurn.audit._joins.row_checks` counts, and the error; those of the first table are left out by
# on_mismatch="inner", those of the last are about columns of probabilities.
UNMATCHED = {
    "no_id": "{n:,} of {rows:,} rows of the {side} table have no id in {ids}.",
    "no_decision": "{n:,} of {rows:,} rows of the {side} table have no {outcome} ({decision}). "
    "Leave them out on both sides, or use on_mismatch='inner'.",
}
REFUSED = {
    "bad_weight": "weight {weight!r} must be finite and not negative, {n:,} rows of the {side} table are not.",
    "extreme_weight": f"weight {{weight!r}} must be 0 or in [{joins.LEAST_WEIGHT:g}, {joins.MOST_WEIGHT:g}], "
    "{n:,} rows of the {side} table are not. Multiply all weights by one number.",
    "all_zero": "weight {weight!r} must not be all zero.",
    "no_group": "group {group!r} must be known, {n:,} rows of the {side} table have none.",
}
REFUSED_PROBA = {
    "no_proba": "proba columns must be finite, {n:,} rows of the {side} table are not.",
    "outside": "proba columns must be in [0, 1], {n:,} rows of the {side} table are not.",
    "off_sum": "probabilities must sum to 1, {n:,} of {rows:,} rows of the {side} table are off by more than "
    "{tolerance:g} (at most {worst:.3g}). "
    "Name every class's column in proba=, or divide each row by its sum if that is what you mean.",
}


@dataclass(frozen=True)
class Rows:
    """How many rows there were and how many could be paired."""

    old: int
    new: int
    paired: int
    """Rows that the figures rest on: in both tables, and of a weight above 0."""
    labelled: int
    left_out_old: int = 0
    left_out_new: int = 0
    repeated_old: int = 0
    repeated_new: int = 0


@dataclass(frozen=True)
class Counted:
    """What one pass over both tables counted."""

    cells: Table
    """The stored result of :func:`lowchurn.audit._counts.cells`."""
    cuts: list[counts.Cut]
    groups: int
    """Distinct groups, where there are any."""
    notes: list[str]
    checks: dict[str, int]
    """The result of :func:`check_pairs`."""


@dataclass(frozen=True)
class Joined:
    """The joined rows and what was found on the way."""

    pairs: Table
    """The judged rows of both tables; stored where they are numbers, otherwise reading them reads the tables."""
    counted: Counted
    rows: Rows
    soft: bool
    """The probabilities of both sides can be used."""
    notes: list[str]


class RepeatedIds(Exception):
    """Ids that come more than once in both tables, so often that they cannot be joined."""


@dataclass
class Sides:
    """Both tables under names of our own, and what is known of them before they are joined."""

    engine: Engine
    columns: Columns
    strict: bool
    tables: dict[str, Table]
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The counts of :func:`lowchurn.audit._joins.row_checks`."""
    soft: bool = False
    """The probabilities of both sides are used."""
    spared: bool = False
    """The first of two probabilities is what the second leaves, to the last bit: one of them is enough."""
    tolerances: dict[str, float] = field(default_factory=dict)
    """How far the probabilities of each side may sum to another number than 1."""
    stored: Table | None = None
    """All pairs, where outcomes are numbers: no two of them need to be the same, so there is nothing to group by."""

    @property
    def rows(self) -> tuple[int, int]:
        """How many rows the old and the new table have."""
        return self.found["old"]["rows"], self.found["new"]["rows"]

    @property
    def leaves_out(self) -> bool:
        """Whether rows may be left out of what is judged, which only the joined rows tell."""
        return not self.strict or self.columns.weight is not None

    def pairs(self, how: str = "outer", soft: bool = False) -> Table:
        tables = self.tables
        if soft:
            tables = {s: joins.sound_proba(t, self.tolerances[s], self.spared) for s, t in tables.items()}
        both = joins.pair(joins.known_ids(tables["old"]), joins.known_ids(tables["new"]), how)
        return joins.compared_pair(both, self.columns, soft)

    def judged_pairs(self) -> Table:
        pairs = self.pairs("inner") if self.stored is None else self.stored
        return pairs.filter(joins.judged(pairs))

    def judged_rows(self, side: str) -> Table:
        """A table with all values of a side's columns that will be judged; if possible the side itself."""
        rows = self.tables[side]
        if not self.strict or (self.columns.weight is not None and "w" not in rows.columns):
            return self.judged_pairs()
        return rows.filter(rows.w > 0) if "w" in rows.columns else rows

    def values(self, column: str, most: int) -> tuple[int, str]:
        """How many values a column has, those of judged rows if they are more than ``most``; and the side it is of."""
        side = "new" if column in self.tables["new"].columns else "old"
        found = values(self.engine, self.tables[side], column)
        if found > most and self.leaves_out:
            found = values(self.engine, self.judged_rows(side), column)
        return found, side

    def cuts(self) -> tuple[list[counts.Cut], list[str]]:
        """How each slice column is cut, and notes."""
        cuts, notes = [], []
        for i, name in enumerate((*self.columns.by, *self.columns.features)):
            values, side = self.values(f"b{i}", MOST_NUMBERS)
            size = self.found[side]["rows"]
            cut, note = choose_cut(self.engine, partial(self.judged_rows, side), name, f"b{i}", values, size)
            cuts.append(cut)
            notes += note
        return cuts, notes

    def count(self, look: bool = False) -> Counted:
        """The one pass over both tables; if it should ``look``, :class:`RepeatedIds` may be raised before it."""
        self.stored = None
        early = self.leaves_out or not self.engine.own  # something else joins the tables before the pass
        if look and early:
            _check_sample(self)
        check = partial(_check_sample, self) if look and not early else None
        cuts, notes = self.cuts()
        grouped = self.columns.group is not None
        groups, _ = self.values("g", 0) if grouped else (0, "")
        if self.columns.numbers is not None:
            self.stored = self.engine.keep(self.pairs(), sum(self.rows), check=check)
            cells = parts.every_row(self.stored)
            return Counted(cells, cuts, groups, notes, check_pairs(self.engine, cells, counts.pair_conditions(cells)))
        pairs = self.engine.share(self.pairs(soft=self.soft))
        units = groups if grouped else min(self.rows)
        unit_of = partial(counts.unit_of, pairs, self.columns, units, self.engine.quick)
        unit = unit_of() if grouped else None
        bag = unit_of(bags=counts.LOSS_BAGS) if self.soft else None
        rows = sum(self.rows)
        cells = self.engine.keep(counts.cells(pairs, cuts, unit, bag), rows, few=rows < MANY_ROWS, check=check)
        checks = check_pairs(self.engine, cells, counts.pair_conditions(cells), counts.sound(cells))
        return Counted(cells, cuts, groups, notes, checks)


def join_tables(engine: Engine, tables: dict[str, Table], columns: Columns, strict: bool) -> Joined:
    """Join both tables on their ids; unless ``strict``, rows without a partner or a decision are left out."""
    check_exact(engine, tables, columns)
    sides = Sides(engine, columns, strict, tables, soft=columns.probabilistic)
    notes = _check_sides(sides)
    repeated = False
    try:
        counted = sides.count(look=True)
    except RepeatedIds:
        repeated = True
        _leave_out_repeats(sides)
        counted = sides.count()
    if sides.soft and counted.checks["sound"] < counted.checks["judged"]:  # the first rows were not like all of them
        notes += _check_proba(sides)
        counted = sides.count()
    if not repeated and has_repeats(sides.found, counted.checks):
        _leave_out_repeats(sides)
        counted = sides.count()
    _check_pairs(sides, counted)
    (n_old, n_new), paired, used = sides.rows, counted.checks["paired"], counted.checks["judged"]
    left = (n_old - paired, n_new - paired)
    if any(left):
        notes.append(
            f"Judging the common ids alone left out {left[0]:,} of {n_old:,} old and {left[1]:,} of {n_new:,} new rows "
            f"(no partner, a repeated id or no {columns.outcome}): the figures are about the others only."
        )
    if used < paired:
        notes.append(f"{paired - used:,} rows of weight 0 are left out.")
    if used == 0:
        raise ValueError(f"audit: weight {columns.weight!r} is 0 in every row that both tables have.")
    times = (int(sides.found[side].get("repeated_rows", 0)) for side in ("old", "new"))
    rows = Rows(n_old, n_new, used, counted.checks.get("labelled", 0), *left, *times)
    return Joined(sides.judged_pairs(), counted, rows, sides.soft, [*notes, *counted.notes])


def _check_sides(sides: Sides) -> list[str]:
    """Refuse rows that no join can mend, in either table; what has to be noted of the others."""
    given, notes = sides.tables, []
    sides.tables = {
        side: joins.project(given[side], sides.columns, side, given["new" if side == "old" else "old"].columns)
        for side in ("old", "new")
    }
    for side, rows in sides.tables.items():
        sides.tolerances[side] = 1e-4 if has_low_precision(given[side], sides.columns.side(side).proba) else 1e-6
        sides.found[side] = sides.engine.fetch_row(joins.row_checks(rows))
        _check_side(side, sides)
        # A look at some rows, so that scores are refused before each of them is counted.
        if sides.columns.numbers is None and values(sides.engine, rows, "decision", FIRST_ROWS) > MOST_CLASSES:
            check_decisions(side, values(sides.engine, rows, "decision"), sides.columns)
    if sides.soft:
        # Where all rows have to be judged, the pass itself shows that their probabilities are sound.
        notes += _check_proba(sides, FIRST_ROWS if sides.strict and sides.columns.weight is None else None)
    return notes


def _check_sample(sides: Sides) -> None:
    """Raise where some of the rows have the same id: a wrong key column makes a pair of all of them with all others.

    An id that comes ``n`` times in both tables makes ``n`` squared pairs. A random sample has those of a large ``n``;
    the pass itself finds the others.
    """
    if min(sides.rows) <= FEW_ROWS:
        return
    samples = (
        joins.some_rows(rows, FIRST_ROWS / found) for rows, found in zip(sides.tables.values(), sides.rows, strict=True)
    )
    if all(sides.engine.fetch_row(joins.key_checks(sample))["repeated"] for sample in samples):
        raise RepeatedIds


def _leave_out_repeats(sides: Sides) -> None:
    """Refuse ids that come more than once, or go on with the others."""
    for side, rows in sides.tables.items():
        sides.found[side] |= sides.engine.fetch_row(joins.key_checks(rows))
    if sides.strict:
        _refuse_repeats(sides)
    # Stored, since a database may join before it leaves them out.
    sides.tables = {side: sides.engine.keep(joins.without_repeats(rows)) for side, rows in sides.tables.items()}


def _check_proba(sides: Sides, first: int | None = None) -> list[str]:
    """Refuse bad probabilities, in all rows or the ``first`` ones; notes of scores that are none."""
    notes, sides.spared = [], True
    for side, rows in sides.tables.items():
        bounds = sides.engine.fetch_row(joins.proba_bounds(rows, first))
        sides.spared &= bounds.get("rest") == bounds["rows"]
        if not _sound(bounds, sides.tolerances[side]):
            sides.found[side] |= sides.engine.fetch_row(joins.proba_checks(rows, sides.tolerances[side]))
            _check_side(side, sides)
        if sides.found[side].get("outside") or sides.found[side].get("no_proba"):
            notes.append(f"Scores of the {side} table are not all in [0, 1], so they are not taken for probabilities.")
            sides.soft = False
    return notes


def values(engine: Engine, rows: Table, column: str, first: int | None = None) -> int:
    """How many values a column has, in all rows or in the ``first`` ones."""
    return int(engine.fetch_row(joins.values(rows, column, first))["n"])


def check_pairs(
    engine: Engine, cells: Table, conditions: Mapping[str, Column], beside: Mapping[str, Column] | None = None
) -> dict[str, int]:
    """The counts of :func:`lowchurn.audit._cells.pair_checks`, and the repeated ids without a partner."""
    checks = {name: int(n) for name, n in engine.fetch_row(parts.pair_checks(cells, conditions, beside)).items()}
    alone = checks["only_old"] + checks["only_new"]
    return checks | {"repeated_alone": engine.count(parts.repeated_alone(cells)) if alone else 0}


def has_repeats(found: Mapping[str, Mapping[str, Any]], checks: Mapping[str, int]) -> bool:
    """Whether any id comes more than once in a table.

    If an id with a partner comes ``a`` times in the old and ``b`` times in the new table, the join has the sum of
    ``a b`` pairs, and the tables have the sums of ``a`` and of ``b`` rows with a partner: all three are equal only
    where every ``a`` and ``b`` is 1. Ids without a partner are counted one by one.
    """
    partnered = [int(rows["rows"]) - int(rows["no_id"]) - checks[f"only_{side}"] for side, rows in found.items()]
    return checks["repeated_alone"] > 0 or any(rows != checks["matched"] for rows in partnered)


def _check_pairs(sides: Sides, counted: Counted) -> None:
    """Refuse ids without a partner, and labels that contradict each other."""
    checks, cells, (n_old, n_new) = counted.checks, counted.cells, sides.rows
    if sides.strict and not checks["paired"] == n_old == n_new:
        alone = [
            f"{checks[f'only_{side}']:,} ids are only in the {side} table, such as "
            f"{shown_ids(sides.engine, parts.only_in(cells, side))}"
            for side in ("old", "new")
            if checks[f"only_{side}"]
        ]
        raise ValueError(
            f"audit: the tables must hold the same ids ({n_old:,} old and {n_new:,} new rows), but {'; '.join(alone)}. "
            "Use on_mismatch='inner' to judge the common ones only."
        )
    if checks["paired"] == 0:
        names = ", ".join(sides.columns.id)
        raise ValueError(f"audit: the tables have no id of {names} in common ({n_old:,} old and {n_new:,} new rows).")
    if checks.get("conflicts"):
        raise ValueError(
            f"audit: the two tables have different {sides.columns.truth}s for {checks['conflicts']:,} ids, such as "
            f"{shown_ids(sides.engine, counts.contradicting(cells))}. "
            f"Keep the {sides.columns.truth} column in one of them."
        )


def choose_cut(
    engine: Engine, rows: Callable[[], Table], name: str, column: str, values: int, size: int
) -> tuple[counts.Cut, list[str]]:
    """How a slice column is cut: by its values, or into bins where it holds many numbers; and notes.

    ``rows`` returns the rows with the column, which is not needed otherwise; they are about ``size``.
    """
    if values > MOST_NUMBERS:
        table = rows()
        if kind_of(table[column].type()) in {"integer", "float", "decimal"}:
            edges = engine.fetch_row(counts.quantiles(table, column, [i / BINS for i in range(1, BINS)], size))
            known = sorted({float(edge) for edge in edges.values() if edge is not None})
            cut = counts.Cut(name, column, tuple(known))
            return cut, [f"{name} has {values:,} values and is cut into {len(known) + 1} bins."]
    if values > MOST_VALUES:
        raise ValueError(
            f"audit: slice column {name!r} has {values:,} values, more than {MOST_VALUES:,}. "
            "Group them into fewer first."
        )
    return counts.Cut(name, column), []


def shown_ids(engine: Engine, rows: Table) -> str:
    """The first ids of some rows, for a message."""
    keys = joins.key_names(rows)
    found = engine.fetch(rows.select(*keys).order_by(keys).limit(EXAMPLES))
    return ", ".join(repr(row[0] if len(row) == 1 else row) for row in zip(*found.values(), strict=True))


def check_exact(engine: Engine, tables: dict[str, Table], columns: Columns) -> None:
    """Refuse values that the type of a comparison does not hold exactly."""
    for check in columns.checks:
        part = check.part
        some = joins.unfit_values(tables[part.side], part.column, check.rule, check.limit, EXAMPLES)
        values = engine.fetch(some)["value"]
        if values:
            raise ValueError(
                f"audit: {check.reason}: column {part.column!r} of the {part.side} table has values such as "
                f"{', '.join(map(repr, values))}. Convert one side, so that both have one type."
            )


def _sound(bounds: dict[str, Any], tolerance: float) -> bool:
    """Whether all rows of a side have probabilities, none below 0, that sum to 1."""
    if bounds["rows"] == 0:
        return True
    return bool(bounds["known"] == bounds["rows"] and bounds["off"] <= tolerance and bounds["least"] >= 0)


def _check_side(side: str, sides: Sides) -> None:
    found, columns = sides.found[side], sides.columns
    if found["rows"] == 0:
        raise ValueError(f"audit: the {side} table must have at least one row, got none.")
    predicted = columns.side(side)
    proba = columns.probabilistic and predicted.proba
    checks = (UNMATCHED if sides.strict else {}) | REFUSED | (REFUSED_PROBA if proba else {})
    for name, message in checks.items():
        if found.get(name):
            words = message.format(
                n=found[name],
                rows=found["rows"],
                side=side,
                ids=", ".join(columns.id),
                outcome=columns.outcome,
                decision=predicted.words(),
                weight=columns.weight,
                group=columns.group,
                tolerance=sides.tolerances[side],
                worst=found.get("worst_sum"),
            )
            raise ValueError(f"audit: {words}")


def check_decisions(side: str, number: int, columns: Columns) -> None:
    """Refuse scores given for labels."""
    if number > MOST_CLASSES:
        raise ValueError(
            f"audit: the {side} table has about {number:,} different decisions ({columns.side(side).words()}), more "
            f"than {MOST_CLASSES:,}. If they are scores, name them: score= with threshold=."
        )


def _refuse_repeats(sides: Sides) -> None:
    for side, found in sides.found.items():
        if found["repeated"]:
            some = shown_ids(sides.engine, joins.repeated_ids(sides.tables[side]))
            raise ValueError(
                f"audit: {found['repeated']:,} ids come more than once in the {side} table "
                f"({found['repeated_rows']:,} rows), such as {some}. "
                "Name all key columns in id=, remove the repeats, or use on_mismatch='inner' to leave these ids out."
            )


def check_classes(engine: Engine, answers: Table, columns: Columns) -> None:
    """Refuse labels or decisions that are no class of the other side's scores; ``n`` is how often answers come."""
    derived = [side for side, predicted in columns.sides.items() if predicted.label is None]
    for name in (*columns.sides, "label"):
        if not derived or name in derived or name not in answers.columns:
            continue
        checked = engine.fetch_row(counts.class_checks(answers, name, columns))
        strange, known = int(checked["strange"]), int(checked["known"])
        # A class that the model was not trained on is a label like any other; one that nobody named is a mistake.
        if strange and (strange == known or not columns.classes_given):
            raise ValueError(
                f"audit: {strange:,} of {known:,} {'labels' if name == 'label' else f'{name} decisions'}, such as "
                f"{checked['example']!r}, are none of the classes {list(columns.classes)[:EXAMPLES]} that the "
                f"{' and '.join(derived)} decisions are made of. Name the classes with classes=."
            )
