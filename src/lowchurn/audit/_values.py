"""Values that people, options and names of columns write as text, read as values of a type.

What names a class in a setting is read strictly, because nobody looks at it again: ``1`` is the whole number 1, while
``01``, ``1.0`` and ``1e0`` are not. What a person filled into a table is read loosely: spreadsheets write 1 as ``1.0``.
"""

from __future__ import annotations

import datetime
import math
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import ibis.expr.datatypes as dt
import pyarrow as pa

from lowchurn._json import plain
from lowchurn.audit._exact import MOST_DIGITS, kind_of

_NUMBER = re.compile(r"([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf(?:inity)?)))", re.ASCII)
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0*)?", re.ASCII)


def type_of_classes(classes: Sequence[Any]) -> dt.DataType:
    """The type of classes where neither labels nor decisions have one."""
    values = plain(list(classes), exact=True)
    if all(isinstance(v, str) for v in values):
        return dt.int64 if all(_is_integer(v) and abs(int(v)) < 2**63 for v in values) else dt.string
    if all(isinstance(v, bool) for v in values):
        return dt.boolean
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return dt.int64 if all(-(2**63) <= v < 2**63 for v in values) else dt.Decimal(MOST_DIGITS, 0)
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return dt.float64
    if all(type(v) is datetime.date for v in values):
        return dt.date
    raise ValueError(f"audit: classes must be of one type, got {list(classes)}.")


def class_value(value: Any, dtype: dt.DataType) -> Any:
    """A class as a value of the type of labels and decisions; ValueError where it is not exactly one.

    A text (a part of a column's name, an option) is read as a number only where it is the one way to write it: '1' is
    the whole number 1, while '01', ' 1', '1.0', '1e0' and other digits are not.
    """
    value = plain(value, exact=True)
    try:
        return _STRICT[kind_of(dtype).removesuffix(" with zone")](value, dtype)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        raise ValueError(f"{value!r} is no value of type {dtype}") from None


def _is_integer(text: str) -> bool:
    try:
        return str(int(text)) == text
    except ValueError:
        return False


def _require(condition: bool, value: Any) -> Any:
    if not condition:
        raise ValueError(value)
    return value


def _as_text(value: Any, dtype: dt.DataType) -> str:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(_require(isinstance(value, str) or whole, value))


def _as_boolean(value: Any, dtype: dt.DataType) -> bool:
    if isinstance(value, str):
        return {"true": True, "false": False, "1": True, "0": False}[value.lower() if value.isascii() else value]
    return bool(_require(value in (0, 1), value))


def _as_integer(value: Any, dtype: dt.Integer) -> int:
    if isinstance(value, str):
        _require(_is_integer(value), value)
    number = int(value)
    _require(isinstance(value, str) or number == value, value)
    return int(_require(dtype.bounds.lower <= number <= dtype.bounds.upper, number))


def _as_float(value: Any, dtype: dt.DataType) -> float:
    number = float(value)
    if isinstance(value, str):
        _require(repr(number) == value or (_is_integer(value) and abs(number) <= 2**53), value)
    else:
        _require(number == value, value)
    return float(_require(not math.isnan(number), number))


def _as_decimal(value: Any, dtype: dt.Decimal) -> Decimal:
    number = Decimal(value)
    if isinstance(value, str):
        _require(value.isascii() and format(number, "f") == value, value)
    _require(number.is_finite() and number == round(number, dtype.scale or 0), value)
    return number


def _as_date(value: Any, dtype: dt.DataType) -> datetime.date:
    if isinstance(value, str):
        day = datetime.date.fromisoformat(value)
        _require(day.isoformat() == value, value)
        return day
    return _require(type(value) is datetime.date, value)


def _as_timestamp(value: Any, dtype: dt.Timestamp) -> datetime.datetime:
    moment = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    _require(isinstance(moment, datetime.datetime), value)
    return _require((moment.tzinfo is None) == (dtype.timezone is None), moment)


def _as_uuid(value: Any, dtype: dt.DataType) -> uuid.UUID:
    return value if isinstance(value, uuid.UUID) else uuid.UUID(_require(isinstance(value, str), value))


_STRICT: dict[str, Callable[[Any, Any], Any]] = {
    "text": _as_text,
    "boolean": _as_boolean,
    "integer": _as_integer,
    "float": _as_float,
    "decimal": _as_decimal,
    "date": _as_date,
    "timestamp": _as_timestamp,
    "uuid": _as_uuid,
}


def class_reader(known: Iterable[Any]) -> Callable[[Any], Any]:
    """A function from what somebody wrote to the class that it means; None where it is no class.

    Text is compared as it is, and without surrounding spaces where that leaves one class. Numbers are compared
    exactly: ``1.50`` is the class 1.5 where classes are floats or decimals, ``1.0`` is the integer 1, and ``1e3`` or
    ``01`` is no integer. Truth values are true, false, 1 and 0 in any case; dates are in ISO format.
    """
    classes = {value: value for value in known}
    trimmed: dict[str, list[str]] = {}
    for value in classes:
        if isinstance(value, str):
            trimmed.setdefault(value.strip(), []).append(value)
    # As str() writes them, which is how they were exported.
    spelled = Counter(map(str, classes))
    written = {str(v): v for v in classes if spelled[str(v)] == 1 and not isinstance(v, str)}
    kinds = {_kind_of_value(value) for value in classes}
    parsers = [parse for kind, (_, parse) in _LOOSE.items() if kind in kinds]

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            with suppress(TypeError):  # a list or a dict is no class
                if value in classes:
                    return classes[value]
            value = str(value)
        if value in classes:
            return value
        alike = trimmed.get(value.strip(), ())
        if len(alike) == 1:
            return alike[0]
        for parse in parsers:
            with suppress(ValueError, KeyError, ArithmeticError):
                return classes[parse(value.strip())]
        return written.get(value.strip())

    return read


def _kind_of_value(value: Any) -> str:
    """The most specific of the kinds: True is an int and a time stamp is a date as well."""
    return next((kind for kind, (type, _) in _LOOSE.items() if isinstance(value, type)), "text")


def _matching(pattern: re.Pattern[str], make: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        found = pattern.fullmatch(text)
        if found is None:
            raise ValueError(text)
        return make(found[1])

    return parse


def _iso_date(text: str) -> datetime.date:
    found = datetime.datetime.fromisoformat(text)
    if "-" not in text or found != datetime.datetime.combine(found.date(), datetime.time.min):
        raise ValueError(text)
    return found.date()


# What is read as each kind; ValueError, KeyError or ArithmeticError where it is none.
_LOOSE: dict[str, tuple[type, Callable[[str], Any]]] = {
    "boolean": (bool, lambda text: {"true": True, "false": False, "1": True, "0": False}[text.casefold()]),
    "integer": (int, _matching(_WHOLE, int)),
    "float": (float, _matching(_NUMBER, float)),
    "decimal": (Decimal, _matching(_NUMBER, Decimal)),
    "timestamp": (datetime.datetime, datetime.datetime.fromisoformat),
    "date": (datetime.date, _iso_date),
}


def id_value(value: Any, kind: str, type: pa.DataType) -> Any:
    """An id that somebody wrote, in the type of the audited ids without loss; an error of Python or arrow otherwise."""
    if kind == "text":
        return str(value)
    if isinstance(value, str):
        text = value.strip()
        number = kind in {"boolean", "integer", "float", "decimal"}
        value = _LOOSE[kind][1](text) if number else pa.scalar(text).cast(type).as_py()
    typed = pa.scalar(int(value) if kind == "integer" else value, type=type).as_py()
    if kind != "float" and typed != value:
        raise ValueError(value)
    return typed
