"""Which column means what: names are resolved and kinds are compared before anything is counted.

A schema here is a mapping from column name to :class:`lowchurn.audit._exact.ColumnType`, so that these rules are the
same for every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lowchurn._checks import check_number, unknown_name
from lowchurn.audit._exact import (
    NUMBERS,
    Check,
    ColumnType,
    DataType,
    Part,
    alike_as_text,
    common_type,
    kind_of,
)
from lowchurn.audit._values import class_value, type_of_classes

if TYPE_CHECKING:
    from lowchurn.audit._settings import Settings

# Names that are taken for the prediction where the caller gives none, in this order.
PREDICTION_NAMES = ("prediction", "predicted", "pred", "y_pred", "yhat", "decision", "predicted_label")
SCORE_NAMES = ("score", "y_score", "proba", "probability", "prob")
# Beside decisions, a "probability" may be that of the class that was decided, as in the files of `lowchurn score`.
SCORE_NAMES_BESIDE = ("score", "y_score")
PROBA_PREFIXES = ("proba_", "prob_", "p_")

Schema = Mapping[str, ColumnType]
Schemas = Mapping[str, Schema]  # by table: "old" and "new", or a name for each of many releases, the oldest first
# Kinds that are no plain values.
NO_VALUES = {"nested", "unknown"}
SHOWN = 10  # names in a message


@dataclass(frozen=True)
class Predicted:
    """Where the decision of one side stands: a label column, a score with a threshold, or a probability per class."""

    label: str | None = None
    score: str | None = None
    threshold: float = 0.5
    proba: tuple[str, ...] = ()
    loss: str | None = None
    """Beside a number: what it costs, or brings."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(c for c in (self.label, self.score, *self.proba, self.loss) if c is not None)

    def words(self) -> str:
        """Where the decision came from, for the report."""
        if self.label is not None:
            return f"column {self.label!r}"
        if self.score is not None:
            return f"{self.score!r} >= {self.threshold:g}"
        return f"the largest of {len(self.proba)} probability columns"


@dataclass(frozen=True)
class Numbers:
    """How numbers are compared: which moves count, and what a number costs."""

    tolerance: float = 0.0
    relative: bool = False
    """The tolerance is a share of the old number."""
    loss: str | None = None
    """The name of the losses: ``absolute error`` of a target, or that of their column; None where there are none."""
    gain: bool = False
    """Of the losses more is better."""


@dataclass(frozen=True)
class Columns:
    """The resolved meaning of the columns of all tables."""

    id: Mapping[str, str]
    """The key columns, and the type in which each is compared."""
    sides: Mapping[str, Predicted]
    """Where the decisions of each table stand."""
    classes: tuple[object, ...]
    """Classes of the probability columns, in their order; for a score the negative and the positive class."""
    answer: str
    """The type in which labels and decisions are compared, as Ibis writes it: int64, decimal(38, 2), string, ..."""
    label: str | None = None
    weight: str | None = None
    group: str | None = None
    by: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    """What has to be true of the values so that comparisons are exact."""
    classes_given: bool = True
    """The classes were named, by the caller or by columns; otherwise they are the usual ones of a score."""
    numbers: Numbers | None = None
    """Outcomes are numbers and not decisions; then ``label`` is their target."""

    @property
    def outcome(self) -> str:
        """What both tables have for every row, in words."""
        return "decision" if self.numbers is None else "value"

    @property
    def truth(self) -> str:
        """What it is compared with, in words."""
        return "label" if self.numbers is None else "target"

    def side(self, side: str) -> Predicted:
        """The decision of a table, such as the ``"old"`` one."""
        return self.sides[side]

    def used(self, side: str, names: Iterable[str]) -> list[str]:
        """The columns of a side that have a role, of those that it has."""
        roles = (*self.id, *self.side(side).columns, self.label, self.weight, self.group, *self.by, *self.features)
        present = set(names)
        return list(dict.fromkeys(name for name in roles if name is not None and name in present))

    @property
    def probabilistic(self) -> bool:
        """All tables have probabilities (a score counts once it is known to lie in [0, 1])."""
        return all(side.proba or side.score for side in self.sides.values())


def as_names(name: str, value: object) -> tuple[str, ...]:
    """One name or several."""
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(n, str) for n in names):
        raise ValueError(f"audit: {name} must be column names, got {value!r}.")
    if len(set(names)) < len(names):
        raise ValueError(f"audit: {name} must name each column once, got {list(names)}.")
    return names


def of_each(schemas: Schemas, value: Any) -> list[Any]:
    """A setting of each table: one value for all of them, or a list in their order."""
    if not isinstance(value, tuple | list):
        return [value] * len(schemas)
    if len(value) != len(schemas):
        names = ", ".join(schemas)
        raise ValueError(f"audit: give one value for all tables or one for each of {names}, got {value!r}.")
    return list(value)


def resolve(schemas: Schemas, settings: Settings) -> Columns:
    """The meaning of the columns; a wrong name is refused, with the near ones."""
    keys = as_names("id", settings.id)
    types, key_checks = key_types(keys, schemas)
    label, weight, group = settings.label, settings.weight, settings.group
    by, features = check_roles(schemas, settings)
    reserved = {*keys, *by, *features, *(name for name in (label, weight, group) if name)}
    probas, classes = _proba(schemas, settings, reserved)
    sides = _sides(schemas, settings, probas, reserved)
    parts = _answer_parts(schemas, sides, label)
    answer, checks = common_type(parts)
    known = any(part.type.kind != "null" for part in parts)
    given = settings.classes is not None or classes is not None
    if classes is None:
        named = settings.classes
        classes = tuple(named) if named is not None else _binary_classes(kind_of(answer), sides, known)
    if any(side.score for side in sides.values()) and len(classes) != 2:
        raise ValueError(f"audit: a score needs two classes (negative, positive), got {list(classes)}.")
    if classes and not known:
        answer = type_of_classes(classes)
    return Columns(
        id=types,
        sides=sides,
        classes=_fit_classes(answer, classes),
        answer=str(answer),
        label=label,
        weight=weight,
        group=group,
        by=by,
        features=features,
        checks=(*key_checks, *checks),
        classes_given=given,
    )


def key_types(keys: Sequence[str], schemas: Schemas) -> tuple[dict[str, str], list[Check]]:
    """The type in which each key column is compared, and the checks of values that this rests on."""
    if not keys:
        raise ValueError("audit: id must name the key column(s), got none. Rows are joined on keys, never on position.")
    for side, schema in schemas.items():
        for key in keys:
            if key not in schema:
                raise unknown_name("audit", f"id column in the {side} table", key, schema)
    types: dict[str, str] = {}
    checks: list[Check] = []
    for key in keys:
        parts = [Part(f"{side} id", side, key, schema[key]) for side, schema in schemas.items()]
        for part in parts:
            _check_plain("id", key, part.type)
        if not alike_as_text(parts):
            _same_kind("id", key, schemas)
        common, more = common_type(parts)
        types[key] = str(common)
        checks += more
    return types, checks


def check_roles(schemas: Schemas, settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Check the columns that are neither ids nor decisions; the names of the slice and the feature columns."""
    named: dict[str, tuple[str, ...]] = {}
    for role in ("label", "weight", "group"):
        name = getattr(settings, role)
        if not isinstance(name, str | None):
            raise ValueError(f"audit: {role} must be one column name, got {name!r}.")
        named[role] = () if name is None else (name,)
    by = named["by"] = as_names("by", settings.by)
    named["features"] = tuple(name for name in as_names("features", settings.features) if name not in by)
    for role, names in named.items():
        for name in names:
            types = [schema[name] for schema in schemas.values() if name in schema]
            if not types:
                raise unknown_name("audit", f"{role} column", name, set().union(*schemas.values()))
            if len(types) > 1 and role not in {"by", "label"}:
                _same_kind(role, name, schemas, NUMBERS)
            for type in types:
                _check_plain(role, name, type)
            if role == "weight" and types[-1].kind not in NUMBERS:
                raise ValueError(f"audit: weight column {name!r} must hold numbers, got {types[-1].kind}.")
    return by, named["features"]


def _answer_parts(schemas: Schemas, sides: Mapping[str, Predicted], label: str | None) -> list[Part]:
    """The columns of labels and decisions, which are compared with each other."""
    parts = [
        Part(f"{side} decision", side, predicted.label, schemas[side][predicted.label])
        for side, predicted in sides.items()
        if predicted.label
    ]
    held = [side for side in reversed(list(schemas)) if label is not None and label in schemas[side]]
    words = "label" if len(held) == 1 else "label of the {} table"
    return [*parts, *(Part(words.format(side), side, str(label), schemas[side][str(label)]) for side in held)]


def _check_plain(role: str, name: str, type: ColumnType) -> None:
    if type.kind in NO_VALUES:
        raise ValueError(
            f"audit: {role} column {name!r} must hold {'labels' if role == 'prediction' else 'plain values'}, "
            f"got {type.kind} ones ({type.words}). "
            "Convert them to numbers or text."
        )


def _same_kind(role: str, name: str, schemas: Schemas, alike: Iterable[str] = ()) -> None:
    kinds = {side: schema[name].kind for side, schema in schemas.items() if name in schema}
    found = {*kinds.values()}
    if len(found - {"null"}) > 1 and not found <= {*alike}:
        shown = " and ".join(f"{kind} in the {side}" for side, kind in kinds.items())
        raise ValueError(
            f"audit: {role} column {name!r} must have the same type in all tables, got {shown} one. Convert one side."
        )


def _proba(
    schemas: Schemas, settings: Settings, reserved: set[str]
) -> tuple[tuple[str, ...], tuple[object, ...] | None]:
    """The probability columns, named or found by their prefix, and the classes that they stand for."""
    proba, classes = settings.proba, settings.classes
    if isinstance(proba, Mapping):
        names = tuple(map(str, proba.values()))
    elif proba is not None:
        names = as_names("proba", proba)
    else:
        names = _found_proba(schemas, reserved)
        decided = bool(settings.prediction or settings.score)
        if not names or (decided and any(s[c].kind not in NUMBERS for s in schemas.values() for c in names)):
            return (), None
    found = (
        tuple(proba) if isinstance(proba, Mapping) else _without_prefix(names) if classes is None else tuple(classes)
    )
    if len(names) < 2:
        raise ValueError(f"audit: proba must name a column for each of at least two classes, got {list(names)}.")
    if len(found) != len(names):
        raise ValueError(
            f"audit: classes must name one class for each of {len(names)} proba columns, got {len(found)}."
        )
    for side, schema in schemas.items():
        for name in names:
            _check_column("proba", side, schema, name)
    return names, found


def _found_proba(schemas: Schemas, reserved: set[str]) -> tuple[str, ...]:
    for prefix in PROBA_PREFIXES:
        *others, last = schemas.values()
        named = [c for c in last if c.startswith(prefix) and c != prefix and c not in reserved]
        if len(found := tuple(c for c in named if all(c in schema for schema in others))) >= 2:
            return found
    return ()


def _check_column(role: str, side: str, schema: Schema, name: str) -> None:
    if name not in schema:
        raise unknown_name("audit", f"{role} column in the {side} table", name, schema)
    if role != "prediction" and (kind := schema[name].kind) not in NUMBERS:
        raise ValueError(f"audit: {role} column {name!r} must hold numbers, got {kind} in the {side} table.")


def _without_prefix(names: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in PROBA_PREFIXES:
        if all(n.startswith(prefix) and n != prefix for n in names):
            return tuple(n.removeprefix(prefix) for n in names)
    return names


def _sides(schemas: Schemas, settings: Settings, proba: tuple[str, ...], reserved: set[str]) -> dict[str, Predicted]:
    """Where the decisions of each table stand."""
    limits = of_each(schemas, settings.threshold)
    for limit in limits:
        check_number("audit", "threshold", limit, float("-inf"), float("inf"))
    predictions, scores = (of_each(schemas, names) for names in (settings.prediction, settings.score))
    named = zip(schemas.items(), predictions, scores, limits, strict=True)
    return {
        side: Predicted(*_predicted(side, schema, prediction, score, proba, reserved), limit, proba)
        for (side, schema), prediction, score, limit in named
    }


def _predicted(
    side: str,
    schema: Schema,
    prediction: str | None,
    score: str | None,
    proba: tuple[str, ...],
    reserved: set[str],
) -> tuple[str | None, str | None]:
    """The columns of the label and of the score, named or found."""
    for role, name in (("prediction", prediction), ("score", score)):
        if name is not None:
            _check_column(role, side, schema, name)
    free = [name for name in schema if name not in reserved]
    if prediction is None and score is None:
        prediction = next((name for name in PREDICTION_NAMES if name in free), None)
    if score is None and not proba and (prediction is None or schema[prediction].kind in NUMBERS):
        names = SCORE_NAMES if prediction is None else SCORE_NAMES_BESIDE
        score = next((name for name in names if name in free and schema[name].kind in NUMBERS), None)
    if prediction is None and score is None and not proba:
        if len(free) != 1:
            shown = f"{free[:SHOWN]}{' and more' if len(free) > SHOWN else ''}" if free else "no other columns"
            raise ValueError(
                f"audit: found no prediction in the {side} table among {shown}. "
                "Name it: prediction= (labels), score= with threshold=, or proba= (one column per class)."
            )
        prediction = free[0]
        if prediction in SCORE_NAMES and schema[prediction].kind == "text":
            raise ValueError(
                f"audit: column {prediction!r} of the {side} table must hold numbers, got text. "
                f"Write numbers with a decimal point, or name it as labels: prediction={prediction!r}."
            )
    if prediction is not None:
        _check_plain("prediction", prediction, schema[prediction])
    return prediction, None if proba else score


def _binary_classes(kind: str, sides: Mapping[str, Predicted], known: bool) -> tuple[object, ...]:
    if not any(p.score for p in sides.values()):
        return ()
    if known and kind not in NUMBERS:
        raise ValueError(
            f"audit: labels are {kind}, so name the one that a score above the threshold means: "
            "classes=(negative, positive)."
        )
    return (False, True) if known and kind == "boolean" else (0, 1)


def _fit_classes(answer: DataType, classes: tuple[object, ...]) -> tuple[object, ...]:
    """Give the classes the type of the labels: ``proba_0`` stands for the label 0 where labels are numbers."""
    try:
        found = tuple(class_value(c, answer) for c in classes)
    except ValueError as error:
        raise ValueError(
            f"audit: the classes {list(classes)} must be of the type of labels and decisions, but {error}. "
            "Name them with classes=."
        ) from None
    if len(set(found)) < len(found):
        raise ValueError(f"audit: classes must differ, got {list(classes)}.")
    return found
