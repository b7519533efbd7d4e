"""A type in which columns of different tables can be compared without rounding.

Equality is only as good as the type in which it is asked: float64 merges whole numbers above 2^53, text makes 1 and 1.0
different. The rules here find a type that holds every part exactly, list what must be true of the values for that,
and refuse the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import ibis.expr.datatypes as dt

DataType: TypeAlias = dt.DataType
NUMBERS = frozenset({"boolean", "integer", "float", "decimal"})
# Kinds of which every value has one spelling in a text file, so that they can be read as text too.
ONE_SPELLING = frozenset({"integer", "date"})
MOST_DIGITS = 38  # of a decimal
KINDS = {
    "boolean": dt.Boolean,
    "integer": dt.Integer,
    "float": dt.Floating,
    "decimal": dt.Decimal,
    "text": dt.String,
    "uuid": dt.UUID,
    "date": dt.Date,
    "time": dt.Time,
    "binary": dt.Binary,
    "nested": dt.Array | dt.Map | dt.Struct,
}


@dataclass(frozen=True)
class ColumnType:
    """The type of a column; of one in a text file, the type that all of its values can be read as."""

    kind: str
    dtype: dt.DataType
    written: bool = False
    """Comes from a text file, in which the number 1 and the text '1' look the same."""
    rounded: bool = False
    """Some values have more digits than a float holds."""
    reason: str = ""
    """Why a column cannot be used."""

    @classmethod
    def of(cls, dtype: dt.DataType) -> ColumnType:
        return cls(kind_of(dtype), dtype)

    @property
    def words(self) -> str:
        if self.kind == "unknown":
            return self.reason or str(getattr(self.dtype, "raw_type", self.dtype))
        return f"{self.dtype}" if self.kind in {"float", "decimal"} else self.kind


NULL = ColumnType("null", dt.null)
TEXT = ColumnType("text", dt.string)


def kind_of(dtype: dt.DataType) -> str:
    """The kind of a type, in words that mean the same in every engine."""
    if isinstance(dtype, dt.Null) or "NULL" in str(getattr(dtype, "raw_type", "")):
        return "null"
    if isinstance(dtype, dt.Timestamp):
        return "timestamp" if dtype.timezone is None else "timestamp with zone"
    return next((kind for kind, type in KINDS.items() if isinstance(dtype, type)), "unknown")


class Schema(Mapping[str, ColumnType]):
    """The types of a table's columns; those of a text file are found when they are asked for."""

    def __init__(self, names: Iterable[str], find: Callable[[str], ColumnType]) -> None:
        self._names = dict.fromkeys(names)
        self._find = find
        self._found: dict[str, ColumnType] = {}

    @classmethod
    def of(cls, dtypes: Mapping[str, dt.DataType]) -> Schema:
        return cls(dtypes, lambda name: ColumnType.of(dtypes[name]))

    def __getitem__(self, name: str) -> ColumnType:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._found:
            self._found[name] = self._find(name)
        return self._found[name]

    def __contains__(self, name: object) -> bool:  # without looking for the type
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def with_types(self, types: Mapping[str, ColumnType]) -> Schema:
        """With other types for some columns, or with further columns."""
        return Schema((*self._names, *types), lambda name: types[name] if name in types else self[name])


@dataclass(frozen=True)
class Part:
    """One column that takes part in a comparison."""

    words: str
    side: str
    column: str
    type: ColumnType


@dataclass(frozen=True)
class Check:
    """What must be true of a column's values so that the comparison is exact.

    The rules are ``"whole"`` (no fraction, not beyond ``limit``), ``"small"`` (not beyond ``limit``), ``"float32"``
    (not changed by rounding to 32 bits) and ``"no numbers"`` (a text that is no other spelling of a number).
    """

    part: Part
    rule: str
    limit: int
    reason: str


def common_type(parts: Sequence[Part]) -> tuple[dt.DataType, tuple[Check, ...]]:
    """The type that holds every part exactly, and the checks of values that this rests on; or ValueError."""
    known = [p for p in parts if p.type.kind != "null"]
    kinds = {p.type.kind for p in known}
    if not known:
        return dt.string, ()
    for part in known:
        if part.type.rounded:
            raise ValueError(
                f"audit: the {part.words} (column {part.column!r}) has numbers of more digits than a float holds, so "
                "they cannot be compared exactly. Write them as Parquet with a decimal or text type."
            )
    if kinds == {"boolean"}:
        return dt.boolean, ()
    if kinds <= {"boolean", "integer"}:
        return _integer(known), ()
    if kinds <= {"boolean", "integer", "decimal"}:
        return _decimal(known), ()
    if kinds <= NUMBERS:
        return _floating(known)
    if kinds in ({"timestamp"}, {"timestamp with zone"}):
        return _timestamp(known), ()
    if len(kinds) == 1:
        return known[0].type.dtype, ()
    shown = ", ".join(f"the {p.words} is {p.type.words}" for p in parts)
    if not alike_as_text(known):
        raise ValueError(f"audit: labels and decisions must be of one type, but {shown}. Convert one side.")
    reason = f"{shown}, and as text these are not the number that they spell"
    return dt.string, tuple(Check(p, "no numbers", 0, reason) for p in known if p.type.kind == "text")


def alike_as_text(parts: Sequence[Part]) -> bool:
    """Whether text is compared with columns of a text file whose values have one spelling each."""
    others = [p for p in parts if p.type.kind != "text"]
    return len(others) < len(parts) and all(p.type.written and p.type.kind in ONE_SPELLING for p in others)


def _integer(parts: Sequence[Part]) -> dt.DataType:
    wide = [p for p in parts if isinstance(p.type.dtype, dt.UInt64)]
    if not wide:
        return dt.int64
    return dt.uint64 if len(wide) == len(parts) else dt.Decimal(20, 0)


def _digits(part: Part) -> tuple[int, int]:
    """Digits before and after the point."""
    dtype = part.type.dtype
    if isinstance(dtype, dt.Decimal):
        scale = 18 if dtype.scale is None else dtype.scale
        return (MOST_DIGITS if dtype.precision is None else dtype.precision) - scale, scale
    return (1 if part.type.kind == "boolean" else 20 if isinstance(dtype, dt.UInt64) else 19), 0


def _decimal(parts: Sequence[Part]) -> dt.DataType:
    whole, fraction = (max(values) for values in zip(*map(_digits, parts), strict=True))
    # A value that does not fit into 38 digits is an error of the database, never a rounded value.
    return dt.Decimal(min(whole + fraction, MOST_DIGITS), fraction)


def _timestamp(parts: Sequence[Part]) -> dt.DataType:
    types = {p.type.dtype for p in parts}
    if len(types) == 1:
        return parts[0].type.dtype
    scales = [6 if t.scale is None else t.scale for t in types]
    zones = sorted({t.timezone for t in types if t.timezone is not None})
    return dt.Timestamp(timezone=zones[0] if zones else None, scale=max(scales))


def _floating(parts: Sequence[Part]) -> tuple[dt.DataType, tuple[Check, ...]]:
    floats = [p for p in parts if p.type.kind == "float"]
    single = [p for p in floats if not isinstance(p.type.dtype, dt.Float64)]
    if len(single) == len(parts):
        return dt.float32, ()
    shown = " and ".join(sorted({f"the {p.words} is {p.type.dtype}" for p in parts}))
    checks = []
    if single:
        reason = f"{shown}, and rounding to 32 bits changes them"
        checks += [Check(p, "float32", 0, reason) for p in floats if p not in single]
    if len(floats) < len(parts):
        limit = 2**24 if single else 2**53
        reason = f"{shown}, and these values are not exact as floats"
        checks += [Check(p, "small", limit, reason) for p in floats]
        checks += [Check(p, "whole", limit, reason) for p in parts if _may_exceed(p.type.dtype, limit)]
    return dt.float64, tuple(checks)


def _may_exceed(dtype: dt.DataType, limit: int) -> bool:
    if isinstance(dtype, dt.Decimal):
        return True
    return isinstance(dtype, dt.Integer) and (dtype.nbytes == 8 or (dtype.nbytes == 4 and limit < 2**31))
