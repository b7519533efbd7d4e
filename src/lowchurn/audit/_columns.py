"""Which column means what: names are resolved and kinds are compared before anything is counted.

A schema here is a mapping from column name to :class:`lowchurn.audit._exact.ColumnType`, so that these rules are the
same for every engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowchurn._checks import check_number, unknown_name
from lowchurn.audit._exact import (
    NUMBERS,
    Check,
    ColumnType,
    Part,
    class_value,
    common_type,
    kind_of,
    type_of_classes,
)

# Names that are taken for the prediction where the caller says nothing, in this order.
PREDICTION_NAMES = ("prediction", "predicted", "pred", "y_pred", "yhat", "decision", "predicted_label")
SCORE_NAMES = ("score", "proba", "probability", "prob", "y_score")
PROBA_PREFIXES = ("proba_", "prob_", "p_")

Schema = Mapping[str, ColumnType]
# Kinds that are no plain values.
NO_VALUES = {"nested", "unknown"}
SHOWN = 10  # names in a message


@dataclass(frozen=True)
class Predicted:
    """How one side tells its decision: a label column, a score with a threshold, or a probability a class."""

    label: str | None = None
    score: str | None = None
    threshold: float = 0.5
    proba: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(c for c in (self.label, self.score, *self.proba) if c is not None)

    def words(self) -> str:
        """For the report: where the decision came from."""
        if self.label is not None:
            return f"column {self.label!r}"
        if self.score is not None:
            return f"{self.score!r} >= {self.threshold:g}"
        return f"the largest of {len(self.proba)} probability columns"


@dataclass(frozen=True)
class Columns:
    """The resolved meaning of the columns of both tables."""

    id: tuple[str, ...]
    old: Predicted
    new: Predicted
    classes: tuple[Any, ...]
    """Classes of the probability columns, in their order; for a score the negative and the positive class."""
    answer: str
    """The type in which labels and decisions are compared, as Ibis writes it: int64, decimal(38, 2), string, ..."""
    label: str | None = None
    weight: str | None = None
    group: str | None = None
    by: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    id_types: tuple[str, ...] = ()
    """The type of each key column."""
    checks: tuple[Check, ...] = ()
    """What has to be true of the values so that comparisons are exact."""
    classes_given: bool = True
    """The classes were named, by the caller or by columns; otherwise they are the usual ones of a score."""

    def used(self, side: str, names: Iterable[str]) -> list[str]:
        """The columns of a side that have a role, of those that it has."""
        told: Predicted = getattr(self, side)
        roles = (*self.id, *told.columns, self.label, self.weight, self.group, *self.by, *self.features)
        present = set(names)
        return list(dict.fromkeys(name for name in roles if name is not None and name in present))

    @property
    def probabilistic(self) -> bool:
        """Both sides give probabilities (a score counts once it is known to lie in [0, 1])."""
        return bool((self.old.proba or self.old.score) and (self.new.proba or self.new.score))


def as_names(name: str, value: Any) -> tuple[str, ...]:
    """One name or several."""
    if value is None:
        return ()
    names = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    if not all(isinstance(n, str) for n in names):
        raise ValueError(f"audit: {name} must be column names, got {value!r}.")
    if len(set(names)) < len(names):
        raise ValueError(f"audit: {name} must name each column once, got {list(names)}.")
    return names


def as_pair(value: Any) -> tuple[Any, Any]:
    """One value for both tables, or a pair: the old one's and the new one's."""
    if isinstance(value, tuple | list):
        if len(value) != 2:
            raise ValueError(f"audit: give one value for both tables or a pair (old, new), got {value!r}.")
        return value[0], value[1]
    return value, value


def resolve(
    old: Schema,
    new: Schema,
    *,
    id: Any,
    label: str | None,
    by: Any,
    features: Any,
    weight: str | None,
    group: str | None,
    prediction: Any,
    score: Any,
    threshold: Any,
    proba: Any,
    classes: Sequence[Any] | None,
) -> Columns:
    """Settle the names; a wrong one is refused, naming the near ones."""
    keys = as_names("id", id)
    if not keys:
        raise ValueError("audit: id must name the key column(s), got none. Rows are joined on keys, never on position.")
    for side, schema in (("old", old), ("new", new)):
        for key in keys:
            if key not in schema:
                raise unknown_name("audit", f"id column in the {side} table", key, schema)
    id_types, checks = _id_types(keys, old, new)
    slices, bins = as_names("by", by), as_names("features", features)
    bins = tuple(b for b in bins if b not in slices)
    for role, names in (
        ("label", as_names("label", label)),
        ("weight", as_names("weight", weight)),
        ("group", as_names("group", group)),
        ("by", slices),
        ("features", bins),
    ):
        for name in names:
            if name not in old and name not in new:
                raise unknown_name("audit", f"{role} column", name, {*old, *new})
            if name in old and name in new and role not in {"by", "label"}:
                _same_kind(role, name, old[name].kind, new[name].kind, NUMBERS)
            for schema in (old, new):
                if name in schema:
                    _check_plain(role, name, schema[name])
    if weight is not None and (kind := (new if weight in new else old)[weight].kind) not in NUMBERS:
        raise ValueError(f"audit: weight column {weight!r} must hold numbers, got {kind}.")
    reserved = {*keys, *slices, *bins, *(n for n in (label, weight, group) if n)}
    limits = as_pair(threshold)
    for value in limits:
        check_number("audit", "threshold", value, float("-inf"), float("inf"))
    named = {"prediction": as_pair(prediction), "score": as_pair(score)}
    probas, found_classes = _proba(old, new, proba, classes, reserved, explicit=bool(prediction or score))
    sides = []
    for i, (side, schema, other) in enumerate((("old", old, new), ("new", new, old))):
        sides.append(
            _predicted(side, schema, other, named["prediction"][i], named["score"][i], limits[i], probas, reserved)
        )
    parts = [
        Part(f"{side} decision", side, told.label, schema[told.label])
        for side, schema, told in zip(("old", "new"), (old, new), sides, strict=True)
        if told.label
    ]
    if label is not None:
        held = [(side, schema) for side, schema in (("new", new), ("old", old)) if label in schema]
        words = "label" if len(held) == 1 else "label of the {} table"
        parts += [Part(words.format(side), side, label, schema[label]) for side, schema in held]
    answer, more = common_type(parts)
    known = any(part.type.kind != "null" for part in parts)
    given = classes is not None or found_classes is not None
    if found_classes is None:
        found_classes = tuple(classes) if classes is not None else _binary_classes(kind_of(answer), sides, known)
    if any(p.score for p in sides) and len(found_classes) != 2:
        raise ValueError(f"audit: a score needs two classes (negative, positive), got {list(found_classes)}.")
    if found_classes and not known:
        answer = type_of_classes(found_classes)
    return Columns(
        keys,
        sides[0],
        sides[1],
        _fit_classes(answer, found_classes),
        str(answer),
        label,
        weight,
        group,
        slices,
        bins,
        id_types,
        (*checks, *more),
        given,
    )


def _id_types(keys: Sequence[str], old: Schema, new: Schema) -> tuple[tuple[str, ...], tuple[Check, ...]]:
    types: list[str] = []
    checks: list[Check] = []
    for key in keys:
        parts = [Part(f"{side} id", side, key, schema[key]) for side, schema in (("old", old), ("new", new))]
        for part in parts:
            _check_plain("id", key, part.type)
        kinds = {part.type.kind for part in parts}
        if "text" not in kinds or not any(part.type.written for part in parts):
            _same_kind("id", key, old[key].kind, new[key].kind)
        try:
            common, more = common_type(parts)
        except ValueError:
            _same_kind("id", key, old[key].kind, new[key].kind)
            raise
        types.append(str(common))
        checks += more
    return tuple(types), tuple(checks)


def _check_plain(role: str, name: str, type: ColumnType) -> None:
    if type.kind in NO_VALUES:
        raise ValueError(
            f"audit: {role} column {name!r} must hold {'labels' if role == 'prediction' else 'plain values'}, "
            f"got {type.kind} ones ({type.words}). "
            "Convert them to numbers or text."
        )


def _same_kind(role: str, name: str, old: str, new: str, alike: Iterable[str] = ()) -> None:
    if old != new and "null" not in (old, new) and not (old in alike and new in alike):
        raise ValueError(
            f"audit: {role} column {name!r} must have the same type in both tables, "
            f"got {old} in the old and {new} in the new one. Convert one side."
        )


def _proba(
    old: Schema, new: Schema, proba: Any, classes: Sequence[Any] | None, reserved: set[str], explicit: bool
) -> tuple[tuple[str, ...], tuple[Any, ...] | None]:
    """The probability columns, named or found by their prefix, and the classes that they stand for."""
    if isinstance(proba, Mapping):
        names, found = tuple(map(str, proba.values())), tuple(proba)
    elif proba is not None:
        names = as_names("proba", proba)
        found = tuple(classes) if classes is not None else _without_prefix(names)
    else:
        for prefix in PROBA_PREFIXES:
            names = tuple(c for c in new if c.startswith(prefix) and c in old and c not in reserved and c != prefix)
            if len(names) >= 2:
                break
        else:
            return (), None
        if explicit and any(schema[c].kind not in NUMBERS for schema in (old, new) for c in names):
            return (), None
        found = tuple(classes) if classes is not None else _without_prefix(names)
    if len(names) < 2:
        raise ValueError(f"audit: proba must name a column for each of at least two classes, got {list(names)}.")
    if len(found) != len(names):
        raise ValueError(
            f"audit: classes must name one class for each of {len(names)} proba columns, got {len(found)}."
        )
    for side, schema in (("old", old), ("new", new)):
        for name in names:
            if name not in schema:
                raise unknown_name("audit", f"proba column in the {side} table", name, schema)
            if (kind := schema[name].kind) not in NUMBERS:
                raise ValueError(f"audit: proba column {name!r} must hold numbers, got {kind} in the {side} table.")
    return names, found


def _without_prefix(names: tuple[str, ...]) -> tuple[str, ...]:
    for prefix in PROBA_PREFIXES:
        if all(n.startswith(prefix) and n != prefix for n in names):
            return tuple(n.removeprefix(prefix) for n in names)
    return names


def _predicted(
    side: str,
    schema: Schema,
    other: Schema,
    prediction: str | None,
    score: str | None,
    threshold: float,
    proba: tuple[str, ...],
    reserved: set[str],
) -> Predicted:
    for role, name in (("prediction", prediction), ("score", score)):
        if name is not None and name not in schema:
            raise unknown_name("audit", f"{role} column in the {side} table", name, schema)
    if score is not None and (kind := schema[score].kind) not in NUMBERS:
        raise ValueError(f"audit: score column {score!r} must hold numbers, got {kind} in the {side} table.")
    if prediction is None and score is None:
        prediction = next((n for n in PREDICTION_NAMES if n in schema and n not in reserved), None)
    if score is None and not proba:
        score = next((n for n in SCORE_NAMES if n in schema and n not in reserved and schema[n].kind in NUMBERS), None)
    if prediction is None and score is None and not proba:
        left = [n for n in schema if n not in reserved]
        if len(left) != 1:
            shown = f"{left[:SHOWN]}{' and more' if len(left) > SHOWN else ''}" if left else "no other columns"
            raise ValueError(
                f"audit: found no prediction in the {side} table among {shown}. "
                "Name it: prediction= (labels), score= with threshold=, or proba= (one column a class)."
            )
        prediction = left[0]
        if prediction in SCORE_NAMES and schema[prediction].kind == "text":
            raise ValueError(
                f"audit: column {prediction!r} of the {side} table must hold numbers, got text. "
                f"Write numbers with a decimal point, or say that it holds labels: prediction={prediction!r}."
            )
    if prediction is not None:
        _check_plain("prediction", prediction, schema[prediction])
    return Predicted(prediction, None if proba else score, threshold, proba)


def _binary_classes(kind: str, sides: Sequence[Predicted], known: bool) -> tuple[Any, ...]:
    if not any(p.score for p in sides):
        return ()
    if known and kind not in NUMBERS:
        raise ValueError(
            f"audit: labels are {kind}, so say which one a score above the threshold means: "
            "classes=(negative, positive)."
        )
    return (False, True) if known and kind == "boolean" else (0, 1)


def _fit_classes(answer: Any, classes: tuple[Any, ...]) -> tuple[Any, ...]:
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
