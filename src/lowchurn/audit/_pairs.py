"""The joined rows of two tables, after every check that refuses bad input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowchurn.audit import _joins as joins
from lowchurn.audit._columns import Columns
from lowchurn.audit._counts import distinct_answers
from lowchurn.audit._joins import Table
from lowchurn.audit._sources import Engine, has_low_precision

MOST_CLASSES = 5_000  # different decisions
EXAMPLES = 5
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
class Joined:
    """The joined rows and what was found on the way."""

    table: Table
    rows: Rows
    soft: bool
    """The probabilities of both sides can be used."""
    notes: list[str]


def join_tables(engine: Engine, tables: dict[str, Table], columns: Columns, strict: bool) -> Joined:
    """Join both tables on their ids; unless ``strict``, rows without a partner or a decision are left out."""
    check_exact(engine, tables, columns)
    sides = {
        side: joins.project(tables[side], columns, side, tables["new" if side == "old" else "old"].columns)
        for side in ("old", "new")
    }
    notes: list[str] = []
    soft = columns.probabilistic
    tallied: dict[str, dict[str, Any]] = {}
    for side, rows in sides.items():
        tolerance = 1e-4 if has_low_precision(tables[side], columns.side(side).proba) else 1e-6
        found = engine.fetch_row(joins.row_checks(rows, tolerance)) | engine.fetch_row(joins.key_checks(rows))
        tallied[side] = found
        soft &= _check_side(side, found, columns, strict, tolerance, notes)
    if strict:
        _refuse_repeats(engine, sides, tallied)
    else:
        sides = {
            side: joins.without_repeats(rows) if tallied[side]["repeated_rows"] else rows
            for side, rows in sides.items()
        }
    stored = engine.keep("pairs", joins.pair(sides["old"], sides["new"], columns, soft))
    found = {name: int(n) for name, n in engine.fetch_row(joins.pair_checks(stored)).items()}
    n_old, n_new, paired = int(tallied["old"]["rows"]), int(tallied["new"]["rows"]), found["paired"]
    if strict and not paired == n_old == n_new:
        _refuse_unmatched(engine, sides, n_old, n_new)
    if paired == 0:
        raise ValueError(
            f"audit: the tables have no id of {', '.join(columns.id)} in common ({n_old:,} old and {n_new:,} new rows)."
        )
    if found.get("conflicts"):
        raise ValueError(
            f"audit: the two tables have different {columns.truth}s for {found['conflicts']:,} ids, such as "
            f"{shown_ids(engine, stored.filter(stored.label_conflict))}. "
            f"Keep the {columns.truth} column in one of them."
        )
    left = (n_old - paired, n_new - paired)
    if any(left):
        notes.append(
            f"Judging the common ids alone left out {left[0]:,} of {n_old:,} old and {left[1]:,} of {n_new:,} new rows "
            f"(no partner, a repeated id or no {columns.outcome}): the figures are about the others only."
        )
    used = found.get("weighty", paired)
    if used < paired:
        notes.append(f"{paired - used:,} rows of weight 0 are left out.")
    if used == 0:
        raise ValueError(f"audit: weight {columns.weight!r} is 0 in every row that both tables have.")
    repeated = (int(tallied[side]["repeated_rows"]) for side in ("old", "new"))
    return Joined(stored, Rows(n_old, n_new, used, found.get("labelled", 0), *left, *repeated), soft, notes)


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
                outcome=columns.outcome,
                decision=predicted.words(),
                weight=columns.weight,
                group=columns.group,
                tolerance=tolerance,
                worst=found.get("worst_sum"),
            )
            raise ValueError(f"audit: {words}")
    if soft and (found["outside"] or found["no_proba"]):
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


def _refuse_unmatched(engine: Engine, sides: dict[str, Table], n_old: int, n_new: int) -> None:
    found = []
    for side, other in (("old", "new"), ("new", "old")):
        lonely = joins.only_in(sides[side], sides[other])
        if number := engine.count(lonely):
            found.append(f"{number:,} ids are only in the {side} table, such as {shown_ids(engine, lonely)}")
    raise ValueError(
        f"audit: the tables must hold the same ids ({n_old:,} old and {n_new:,} new rows), but {'; '.join(found)}. "
        "Use on_mismatch='inner' to judge the common ones only."
    )


def check_classes(engine: Engine, pairs: Table, columns: Columns) -> None:
    """Refuse scores given for labels, and labels or decisions that are no class of the other side's scores."""
    for side, found in engine.fetch_row(distinct_answers(pairs, columns.sides)).items():
        if int(found) > MOST_CLASSES:
            raise ValueError(
                f"audit: the {side} table has about {int(found):,} different decisions "
                f"({columns.side(side).words()}), more than {MOST_CLASSES:,}. "
                "If they are scores, name them: score= with threshold=."
            )
    derived = [side for side, predicted in columns.sides.items() if predicted.label is None]
    for name in (*columns.sides, "label"):
        if not derived or name in derived or name not in pairs.columns:
            continue
        checked = engine.fetch_row(joins.class_checks(pairs, name, columns))
        strange, known = int(checked["strange"]), int(checked["known"])
        # A class that the model was not trained on is a label like any other; one that nobody named is a mistake.
        if strange and (strange == known or not columns.classes_given):
            raise ValueError(
                f"audit: {strange:,} of {known:,} {'labels' if name == 'label' else f'{name} decisions'}, such as "
                f"{checked['example']!r}, are none of the classes {list(columns.classes)[:EXAMPLES]} that the "
                f"{' and '.join(derived)} decisions are made of. Name the classes with classes=."
            )
