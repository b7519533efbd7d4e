"""Values that people, options and names of columns write as text, read as values of a type.

What names a class in a setting is read strictly, because nobody looks at it again: ``1`` is the whole number 1, while
``01``, ``1.0`` and ``1e0`` are not. What a person filled into a table is read loosely: spreadsheets write 1 as ``1.0``.
"""

from __future__ import annotations

import datetime
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
from lowchurn.audit._csv import INTEGER
from lowchurn.audit._exact import MOST_DIGITS, kind_of

_NUMBER = re.compile(r"([+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|(?i:inf(?:inity)?)))", re.ASCII)
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))(?:\.0*)?", re.ASCII)


def type_of_classes(classes: Sequence[object]) -> dt.DataType:
    """The type of classes where neither labels nor decisions have one."""
    values = plain(list(classes), exact=True)
    if all(isinstance(v, str) for v in values):
        return dt.int64 if all(re.fullmatch(INTEGER, v) and abs(Decimal(v)) < 2**63 for v in values) else dt.string
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
    """A class as a value of the type of labels and decisions; ValueError where it is not exactly one."""
    value = plain(value, exact=True)
    kind = kind_of(dtype).removesuffix(" with zone")
    try:
        typed, fits = _typed(_read_strictly(value, kind) if isinstance(value, str) else value, kind, dtype)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"{value!r} is not a value of type {dtype}")
    return typed


def _read_strictly(text: str, kind: str) -> Any:
    """The value of a text that is the one way to write it: '1' is a whole number, '01', ' 1' and '1.0' are not."""
    if kind in {"text", "uuid"}:
        return text
    value = _PARSERS[kind][1](text)
    spelled = _SPELLINGS.get(kind, lambda _: text)(value)
    whole = kind == "float" and abs(value) <= 2**53 and str(int(value)) == text
    if text != spelled and not whole:
        raise ValueError(text)
    return value


def _typed(value: Any, kind: str, dtype: Any) -> tuple[Any, bool]:
    """A value as one of a type, and whether it is exactly that."""
    if kind == "text":
        return str(value), isinstance(value, str | int) and not isinstance(value, bool)
    if kind == "boolean":
        return bool(value), value in (0, 1)
    if kind == "integer":
        number = int(value)
        return number, number == value and dtype.bounds.lower <= number <= dtype.bounds.upper
    if kind == "float":
        return float(value), float(value) == value
    if kind == "decimal":
        exact = Decimal(value)
        return exact, exact.is_finite() and exact == round(exact, dtype.scale or 0)
    if kind == "date":
        return value, type(value) is datetime.date
    if kind == "timestamp":
        moment = isinstance(value, datetime.datetime)
        return value, moment and (value.tzinfo is None) == (dtype.timezone is None)
    if kind == "uuid":
        value = uuid.UUID(value) if isinstance(value, str) else value
    return value, kind == "uuid" and isinstance(value, uuid.UUID)


def class_reader(known: Iterable[object]) -> Callable[[object], object]:
    """A function from what somebody wrote to the class that it means; None where it is not a class.

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
    parsers = [parse for kind, (_, parse) in _PARSERS.items() if kind in kinds]

    def read(value: object) -> object:
        if not isinstance(value, str):
            with suppress(TypeError):  # a list or a dict is not a class
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


def _kind_of_value(value: object) -> str:
    """The most specific of the kinds: True is an int and a time stamp is a date as well."""
    return next((kind for kind, (type, _) in _PARSERS.items() if isinstance(value, type)), "text")


def _matching(pattern: re.Pattern[str], make: Callable[[str], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        found = pattern.fullmatch(text)
        if found is None:
            raise ValueError(text)
        return make(found[1])

    return parse


def _lower(text: str) -> str:
    return text.lower() if text.isascii() else text


def _iso_date(text: str) -> datetime.date:
    found = datetime.datetime.fromisoformat(text)
    if "-" not in text or found != datetime.datetime.combine(found.date(), datetime.time.min):
        raise ValueError(text)
    return found.date()


# How each kind is read; ValueError, KeyError or ArithmeticError where a text is none.
_PARSERS: dict[str, tuple[type, Callable[[str], Any]]] = {
    "boolean": (bool, lambda text: {"true": True, "false": False, "1": True, "0": False}[_lower(text)]),
    "integer": (int, _matching(_WHOLE, int)),
    "float": (float, _matching(_NUMBER, float)),
    "decimal": (Decimal, _matching(_NUMBER, Decimal)),
    "timestamp": (datetime.datetime, datetime.datetime.fromisoformat),
    "date": (datetime.date, _iso_date),
}
# The one way to write a value of each kind; a whole float may be written without its point.
_SPELLINGS: dict[str, Callable[[Any], str]] = {"integer": str, "float": repr, "decimal": "{:f}".format, "date": str}


def id_value(value: Any, kind: str, type: pa.DataType) -> object:
    """An id that somebody wrote, in the type of the audited ids without loss; an error of Python or arrow otherwise."""
    if kind == "text":
        return str(value)
    if isinstance(value, str):
        text = value.strip()
        number = kind in {"boolean", "integer", "float", "decimal"}
        value = _PARSERS[kind][1](text) if number else pa.scalar(text).cast(type).as_py()
    typed = pa.scalar(int(value) if kind == "integer" else value, type=type).as_py()
    if kind != "float" and typed != value:
        raise ValueError(value)
    return typed
