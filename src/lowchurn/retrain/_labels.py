"""Labels of the type that the base decides in: text is text, numbers are compared exactly, the rest is refused."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np

from lowchurn._types import ArrayLike

if TYPE_CHECKING:
    import pyarrow as pa

# What pandas reads as a missing value: a base that was fitted on a CSV file saw them so.
MISSING = frozenset(
    ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA",
     "NULL", "NaN", "None", "n/a", "nan", "null"]
)  # fmt: skip
WHOLE = re.compile(r"[+-]?\d+(?:\.0*)?")
# Written as Python writes numbers: '007' and '1e3' are text.
PLAIN_WHOLE = re.compile(r"0|-?[1-9]\d*")
PLAIN_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
TRUE_FALSE = {"True": True, "TRUE": True, "true": True, "False": False, "FALSE": False, "false": False}
INT64 = np.iinfo(np.int64)


def classes_from_text(
    where: str, texts: list[str], known: ArrayLike | None = None, whose: str = "the base"
) -> np.ndarray:
    """Labels of a CSV file: of the type of the base's classes ``known``, or of the type that all values have.

    ``where`` and ``whose`` are the words of an error for the column, and for what has these classes.
    """
    kind = _kind(known)
    names = set(np.asarray(known).tolist()) if kind == "text" else set()
    empty = Counter(text for text in texts if text in MISSING and text not in names)
    if empty:
        shown = ", ".join(repr(text) for text in sorted(empty))
        raise ValueError(
            f"{where} must not be missing, got {empty.total()} row(s) without it ({shown}). Leave them out, or give a "
            "class of that name another one."
        )
    if kind == "text":
        return np.array(texts)
    different = set(texts)
    if kind != "numbers" and different <= set(TRUE_FALSE):
        return np.array([TRUE_FALSE[text] for text in texts])
    if kind == "booleans":
        if all(WHOLE.fullmatch(text) for text in different) and {int(Decimal(t)) for t in different} <= {0, 1}:
            return np.array([bool(int(Decimal(text))) for text in texts])
        raise _unlike(where, known, different, whose=whose)
    if kind == "numbers":
        if different <= set(TRUE_FALSE) and set(np.asarray(known).tolist()) <= {0, 1}:
            return _as_numbers(where, [TRUE_FALSE[text] for text in texts], known)
        wrong = {text for text in different if NUMBER.fullmatch(text) is None}
        if wrong:
            raise _unlike(where, known, wrong, whose=whose)
        return _as_numbers(where, [Decimal(text) for text in texts], known)
    if all(PLAIN_WHOLE.fullmatch(text) for text in different):
        return _whole(where, [int(text) for text in texts])
    if all(PLAIN_NUMBER.fullmatch(text) for text in different):
        if len({float(text) for text in different}) < len(different):  # '1' and '1.0' would be one class
            return np.array(texts)
        return _floats(where, np.array([float(text) for text in texts]))
    return np.array(texts)


def classes_from_values(
    where: str, column: pa.ChunkedArray, known: ArrayLike | None = None, whose: str = "the base"
) -> np.ndarray:
    """Labels of a Parquet file, exactly; of the type of the base's classes where that holds the same values."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    missing = column.null_count
    if pa.types.is_floating(kind):
        missing += int(np.isnan(column.drop_null().to_numpy()).sum())
    if missing:
        raise ValueError(f"{where} must not be missing, got {missing} row(s) without it.")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        labels = column.to_numpy()
    elif pa.types.is_floating(kind):
        labels = _floats(where, column.to_numpy())
    elif pa.types.is_decimal(kind):
        numbers = column.to_pylist()
        fraction = next((number for number in numbers if number != int(number)), None)
        if fraction is not None:
            raise ValueError(f"{where} must be classes, got the decimal {fraction}. Write them as text.")
        labels = _whole(where, [int(number) for number in numbers])
    elif is_text(kind):
        labels = np.array(column.to_pylist())
    else:
        raise ValueError(f"{where} must be text, whole numbers or booleans, got {kind}. Write the classes as text.")
    wanted = _kind(known)
    if wanted in ("text", "numbers", "booleans") and (wanted == "text") != (labels.dtype.kind == "U"):
        raise _unlike(where, known, {str(label) for label in labels[:100].tolist()}, str(kind), whose)
    if wanted == "numbers" and labels.dtype.kind != np.asarray(known).dtype.kind:
        return _as_numbers(where, labels.tolist(), known)
    if wanted == "booleans" and labels.dtype.kind != "b" and set(np.unique(labels).tolist()) <= {0, 1}:
        return labels.astype(bool)
    return labels


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type contains text, also where it is written as categories."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    views = getattr(pa.types, "is_string_view", lambda _: False)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or views(kind))


def _kind(known: ArrayLike | None) -> str:
    if known is None:
        return "unknown"
    classes = np.asarray(known)
    if classes.dtype.kind == "O" and all(isinstance(c, str) for c in classes.tolist()):
        return "text"
    return {"b": "booleans", "i": "numbers", "u": "numbers", "f": "numbers", "U": "text"}.get(
        classes.dtype.kind, "unknown"
    )


def _as_numbers(where: str, numbers: Sequence[Decimal | float], known: ArrayLike | None) -> np.ndarray:
    """Numbers in the type of the base's classes, where it holds them all exactly."""
    kind = np.asarray(known).dtype
    if all(number == int(number) for number in numbers):
        whole = _whole(where, [int(number) for number in numbers])
        converted = whole.astype(kind)
        # by numbers of Python: numpy compares int64 with float64 and uint64 through float64
        return converted if [int(c) for c in converted.tolist()] == whole.tolist() else whole
    return _floats(where, np.array([float(number) for number in numbers]))


def _whole(where: str, numbers: list[int]) -> np.ndarray:
    if numbers and not INT64.min <= min(numbers) <= max(numbers) <= INT64.max:
        raise ValueError(f"{where} must be within 64 bits, got {max(numbers, key=abs)}. Write the classes as text.")
    return np.array(numbers, dtype=np.int64)


def _floats(where: str, numbers: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        fractions = numbers[~(np.isfinite(numbers) & (numbers == np.floor(numbers)))]
    if len(fractions):
        raise ValueError(f"{where} must be classes, got {fractions[0]:g}. Name the classes by words or whole numbers.")
    return numbers.astype(np.float64)


def _unlike(
    where: str, known: ArrayLike | None, found: set[str], kind: str = "", whose: str = "the base"
) -> ValueError:
    shown = ", ".join(repr(text) for text in sorted(found)[:3])
    own = ", ".join(repr(c) for c in np.asarray(known).tolist()[:3])
    names = "; where its file has no names of classes, give them with base_classes=" if whose == "the base" else ""
    return ValueError(
        f"{where} must be of the type of the classes of {whose} ({own}), got {shown}"
        f"{f' of type {kind}' if kind else ''}. Write the labels as {whose} decides{names}."
    )
