"""The joined rows of two tables, after every check that refuses bad input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowchurn.audit import _counts as counts
from lowchurn.audit import _joins as joins
from lowchurn.audit._columns import Columns
from lowchurn.audit._exact import kind_of
from lowchurn.audit._joins import Table
from lowchurn.audit._sources import Engine, has_low_precision

MOST_CLASSES = 5_000  # different decisions
MOST_VALUES = 1_000  # of a slice column; nobody reads a table of more slices
MOST_NUMBERS = 30  # distinct numbers that are slices of their own; more are cut into bins
BINS = 10
EXAMPLES = 5
# What :func:`lowchurn.audit._joins.row_checks` counts, and the error; those of the first table are left out by
# on_mismatch="inner", those of the last are about columns of probabilities.
UNMATCHED = {
    "no_id": "{n:,} of {rows:,} rows of the {side} table have no id in {ids}.",
    "no_decision": "{n:,} of {rows:,} rows of the {side} table have no decision ({decision}). "
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
class Plan:
    """What is counted in the pass over both tables: slices and how they are cut, and the units of a bootstrap."""

    pairs: Table
    cuts: list[counts.Cut]
    groups: int
    """Distinct groups, where there are any."""
    notes: list[str]
    refusal: str = ""
    """Why a slice column cannot be used."""


@dataclass(frozen=True)
class Joined:
    """The joined rows and what was found on the way."""

    pairs: Table
    """Not stored: reading it reads both tables."""
    cells: Table
    """The stored result of the pass over both tables (:func:`lowchurn.audit._counts.cells`)."""
    cuts: list[counts.Cut]
    groups: int
    rows: Rows
    soft: bool
    """The probabilities of both sides can be used."""
    notes: list[str]


def join_tables(engine: Engine, tables: dict[str, Table], columns: Columns, strict: bool) -> Joined:
    """Join both tables on their ids; unless ``strict``, rows without a partner or a decision are left out."""
    _check_exact(engine, tables, columns)
    sides = {
        side: joins.project(tables[side], columns, side, tables["new" if side == "old" else "old"].columns)
        for side in ("old", "new")
    }
    notes: list[str] = []
    soft = columns.probabilistic
    tallied: dict[str, dict[str, Any]] = {}
    for side, rows in sides.items():
        tolerance = 1e-4 if has_low_precision(tables[side], columns.side(side).proba) else 1e-6
        found = tallied[side] = engine.fetch_row(joins.row_checks(rows))
        if not _sound_proba(found, tolerance):
            found |= engine.fetch_row(joins.proba_checks(rows, tolerance))
        soft &= _check_side(side, found, columns, strict, tolerance, notes)
        if found["no_id"]:
            sides[side] = rows.drop_null(joins.key_names(rows))
    plan, cells, counted = _count_pairs(engine, sides, columns, tallied, soft, strict)
    if _repeats(tallied, counted):
        for side, rows in sides.items():
            tallied[side] |= engine.fetch_row(joins.key_checks(rows))
        if strict:
            _refuse_repeats(engine, sides, tallied)
        sides = {side: joins.without_repeats(rows) for side, rows in sides.items()}
        plan, cells, counted = _count_pairs(engine, sides, columns, tallied, soft, strict)
    n_old, n_new = (int(tallied[side]["rows"]) for side in ("old", "new"))
    _check_pairs(engine, cells, counted, columns, n_old, n_new, strict)
    paired, used = counted["paired"], counted["judged"]
    left = (n_old - paired, n_new - paired)
    if any(left):
        notes.append(
            f"Judging the common ids alone left out {left[0]:,} of {n_old:,} old and {left[1]:,} of {n_new:,} new rows "
            "(no partner, a repeated id or no decision): the figures are about the others only."
        )
    if used < paired:
        notes.append(f"{paired - used:,} rows of weight 0 are left out.")
    if used == 0:
        raise ValueError(f"audit: weight {columns.weight!r} is 0 in every row that both tables have.")
    if plan.refusal:
        raise ValueError(plan.refusal)
    repeated = (int(tallied[side].get("repeated_rows", 0)) for side in ("old", "new"))
    rows = Rows(n_old, n_new, used, counted.get("labelled", 0), *left, *repeated)
    return Joined(plan.pairs, cells, plan.cuts, plan.groups, rows, soft, [*notes, *plan.notes])


def _count_pairs(
    engine: Engine,
    sides: dict[str, Table],
    columns: Columns,
    tallied: dict[str, dict[str, Any]],
    soft: bool,
    strict: bool,
) -> tuple[Plan, Table, dict[str, int]]:
    """The one pass over both tables: its plan, the stored cells, and what :func:`pair_checks` finds in them."""
    plan = _plan(engine, sides, columns, tallied, strict)
    pairs = joins.pair(sides["old"], sides["new"], columns, soft)
    unit = None
    if soft or columns.group is not None:
        rows = min(int(found["rows"]) for found in tallied.values())
        unit = counts.unit_of(pairs, columns, plan.groups or rows)
    cells = engine.keep(counts.cells(pairs, plan.cuts, unit, columns.group is not None))
    found = engine.fetch_row(counts.pair_checks(cells))
    return plan, cells, {name: int(n) for name, n in found.items()}


def _plan(
    engine: Engine, sides: dict[str, Table], columns: Columns, tallied: dict[str, dict[str, Any]], strict: bool
) -> Plan:
    """How each slice column is cut, by its values or into bins, and how many groups there are.

    All values of a table are counted already. Where some of its rows may not be judged, a number that matters is
    counted once more among the rows that are.
    """
    pairs = joins.pair(sides["old"], sides["new"], columns, soft=False, how="inner")
    pairs = pairs.filter(joins.judged(pairs))

    def judged_rows(side: str) -> Table:
        rows = sides[side]
        if not strict or (columns.weight is not None and "w" not in rows.columns):
            return pairs
        return rows.filter(rows.w > 0) if "w" in rows.columns else rows

    def values(column: str, most: int) -> tuple[str, int]:
        side = "new" if column in sides["new"].columns else "old"
        found = int(tallied[side][f"{column}_values"])
        if found > most and not (strict and columns.weight is None):
            rows = judged_rows(side)
            found = int(engine.fetch_row(rows.aggregate(n=rows[column].nunique()))["n"])
        return side, found

    cuts, notes, refusal = [], [], ""
    for i, name in enumerate((*columns.by, *columns.features)):
        column = f"b{i}"
        side = "new" if column in sides["new"].columns else "old"
        is_number = kind_of(sides[side][column].type()) in {"integer", "float", "decimal"}
        side, found = values(column, MOST_NUMBERS if is_number else MOST_VALUES)
        edges: tuple[float, ...] = ()
        if is_number and found > MOST_NUMBERS:
            shares = [i / BINS for i in range(1, BINS)]
            cut_at = engine.fetch_row(counts.quantiles(judged_rows(side), column, shares, int(tallied[side]["rows"])))
            edges = tuple(sorted({float(edge) for edge in cut_at.values() if edge is not None}))
            notes.append(f"{name} has {found:,} values and is cut into {len(edges) + 1} bins.")
        elif found > MOST_VALUES:
            refusal = refusal or (
                f"audit: slice column {name!r} has {found:,} values, more than {MOST_VALUES:,}. "
                "Group them into fewer first."
            )
        cuts.append(counts.Cut(name, column, edges))
    groups = values("g", 0)[1] if columns.group is not None else 0
    return Plan(pairs, [] if refusal else cuts, groups, notes, refusal)


def _repeats(tallied: dict[str, dict[str, Any]], counted: dict[str, int]) -> bool:
    """Whether any id comes more than once in a table.

    If each id with a partner comes ``a`` times in the old and ``b`` times in the new table, then the join has the sum
    of ``a b`` pairs, and the tables the sums of ``a`` and of ``b`` rows with a partner: all three are equal only where
    every ``a`` and ``b`` is 1. Ids without a partner are counted one by one.
    """
    for side, found in tallied.items():
        partnered = int(found["rows"]) - int(found["no_id"]) - counted[f"only_{side}"]
        if counted["matched"] != partnered or counted[f"repeated_{side}"]:
            return True
    return False


def _check_pairs(
    engine: Engine, cells: Table, counted: dict[str, int], columns: Columns, n_old: int, n_new: int, strict: bool
) -> None:
    """Refuse ids without a partner, and labels that contradict each other."""
    if strict and not counted["paired"] == n_old == n_new:
        _refuse_unmatched(engine, cells, counted, n_old, n_new)
    if counted["paired"] == 0:
        raise ValueError(
            f"audit: the tables have no id of {', '.join(columns.id)} in common ({n_old:,} old and {n_new:,} new rows)."
        )
    if counted.get("conflicts"):
        raise ValueError(
            f"audit: the two tables have different labels for {counted['conflicts']:,} ids, such as "
            f"{shown_ids(engine, counts.contradicting(cells))}. Keep the label column in one of them."
        )


def shown_ids(engine: Engine, rows: Table) -> str:
    """The first ids of some rows, for a message."""
    keys = joins.key_names(rows)
    found = engine.fetch(rows.select(*keys).order_by(keys).limit(EXAMPLES))
    return ", ".join(repr(row[0] if len(row) == 1 else row) for row in zip(*found.values(), strict=True))


def _check_exact(engine: Engine, tables: dict[str, Table], columns: Columns) -> None:
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


def _sound_proba(found: dict[str, Any], tolerance: float) -> bool:
    """Whether all rows of a side have probabilities, none below 0, that sum to 1; or there are no such columns."""
    if "proba_known" not in found or found["rows"] == 0:
        return True
    return found["proba_known"] == found["rows"] and found["proba_off"] <= tolerance and found["proba_least"] >= 0


def _check_side(
    side: str, found: dict[str, Any], columns: Columns, strict: bool, tolerance: float, notes: list[str]
) -> bool:
    """Refuse what no join can mend; True where the side's probabilities can be used."""
    if found["rows"] == 0:
        raise ValueError(f"audit: the {side} table must have at least one row, got none.")
    predicted = columns.side(side)
    soft = columns.probabilistic
    checks = (UNMATCHED if strict else {}) | REFUSED | (REFUSED_PROBA if soft and predicted.proba else {})
    for name, message in checks.items():
        if found.get(name):
            words = message.format(
                n=found[name],
                rows=found["rows"],
                side=side,
                ids=", ".join(columns.id),
                decision=predicted.words(),
                weight=columns.weight,
                group=columns.group,
                tolerance=tolerance,
                worst=found.get("worst_sum"),
            )
            raise ValueError(f"audit: {words}")
    about = int(found.get("decision_values", 0))
    if predicted.label is not None and about > MOST_CLASSES:
        raise ValueError(
            f"audit: the {side} table has about {about:,} different decisions ({predicted.words()}), more than "
            f"{MOST_CLASSES:,}. If they are scores, name them: score= with threshold=."
        )
    if soft and (found.get("outside") or found.get("no_proba")):
        notes.append(f"Scores of the {side} table are not all in [0, 1], so they are not taken for probabilities.")
        return False
    return soft


def _refuse_repeats(engine: Engine, sides: dict[str, Table], tallied: dict[str, dict[str, Any]]) -> None:
    for side, found in tallied.items():
        if found["repeated"]:
            raise ValueError(
                f"audit: {found['repeated']:,} ids come more than once in the {side} table "
                f"({found['repeated_rows']:,} rows), such as {shown_ids(engine, joins.repeated_ids(sides[side]))}. "
                "Name all key columns in id=, remove the repeats, or use on_mismatch='inner' to leave these ids out."
            )


def _refuse_unmatched(engine: Engine, cells: Table, counted: dict[str, int], n_old: int, n_new: int) -> None:
    found = []
    for side in ("old", "new"):
        if number := counted[f"only_{side}"]:
            some = shown_ids(engine, counts.only_in(cells, side))
            found.append(f"{number:,} ids are only in the {side} table, such as {some}")
    raise ValueError(
        f"audit: the tables must hold the same ids ({n_old:,} old and {n_new:,} new rows), but {'; '.join(found)}. "
        "Use on_mismatch='inner' to judge the common ones only."
    )


def check_classes(engine: Engine, cells: Table, columns: Columns) -> None:
    """Refuse labels or decisions that are no class of the other side's scores."""
    derived = [side for side in ("old", "new") if columns.side(side).label is None]
    for name in ("old", "new", "label"):
        if not derived or name in derived or name not in cells.columns:
            continue
        checked = engine.fetch_row(counts.class_checks(cells, name, columns))
        strange, known = int(checked["strange"]), int(checked["known"])
        # A class that the model was not trained on is a label like any other; one that nobody named is a mistake.
        if strange and (strange == known or not columns.classes_given):
            raise ValueError(
                f"audit: {strange:,} of {known:,} {'labels' if name == 'label' else f'{name} decisions'}, such as "
                f"{checked['example']!r}, are none of the classes {list(columns.classes)[:EXAMPLES]} that the "
                f"{' and '.join(derived)} decisions are made of. Name the classes with classes=."
            )
