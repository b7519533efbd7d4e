"""Checks of arguments.

Every message contains who complains, the rule, the value that broke it and, where there is one, the remedy:
``Distill: lam must be in [0, 1], got 1.3.`` Nothing is silently repaired, but for rounding in probabilities.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from lowchurn._types import Values

ROUNDING = 1e-6  # how far single precision may carry a probability below 0
MOST_NAMES = 50  # in a message
LARGEST_EXACT = 2**53  # float64 holds every whole number up to here
Array = Any  # a numpy array or torch tensor: anything that array_api_compat supports


def as_array(values: object) -> Array:
    """Leave arrays of the array API as they are; make numpy arrays of everything else."""
    return values if array_api_compat.is_array_api_obj(values) else np.asarray(values)


def as_floats(who: str, name: str, values: Values) -> Array:
    """Like :func:`as_array`, but of a floating dtype (integers and booleans become float64)."""
    array = as_array(values)
    xp = array_api_compat.array_namespace(array)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "fiub":
        raise ValueError(f"{who}: {name} must hold numbers, got dtype {array.dtype}.")
    return array if xp.isdtype(array.dtype, "real floating") else xp.astype(array, xp.float64)


def as_labels(labels: Values) -> np.ndarray:
    """A numpy array of labels in the type that holds them exactly."""
    if hasattr(labels, "to_numpy") and not type(labels).__module__.startswith("pyarrow"):
        # pandas and polars have types of their own; numpy would turn some into float64
        return np.asarray(labels.to_numpy())
    array = to_numpy(labels)
    if array.dtype.kind == "T":  # numpy's strings of any length, which few libraries take
        array = array.astype(object)
    if isinstance(labels, list | tuple) and array.ndim == 1:
        wide = array.dtype.kind == "f" and any(isinstance(v, int) and abs(v) > LARGEST_EXACT for v in labels)
        mixed = array.dtype.kind == "U" and not all(isinstance(v, str) for v in labels)
        if wide or mixed:  # numpy has rounded them, or made text of numbers
            array = np.empty(len(labels), dtype=object)
            array[:] = labels
    return array


def to_numpy(values: Values) -> np.ndarray:
    """A numpy view or copy of any array, tensors on other devices included."""
    if array_api_compat.is_torch_array(values):
        values = values.detach().cpu()
    return np.asarray(values)


def check_number(
    who: str,
    name: str,
    value: float,
    low: float,
    high: float,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> float:
    """A real number within an interval."""
    inside = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    inside = inside and (value > low if open_low else value >= low)
    inside = inside and (value < high if open_high else value <= high)
    if not inside:
        raise ValueError(
            f"{who}: {name} must be in {'(' if open_low else '['}{low:g}, {high:g}{')' if open_high else ']'}, "
            f"got {value!r}."
        )
    return float(value)


def check_share(who: str, name: str, value: float) -> float:
    """A real number between 0 and 1, neither of them."""
    return check_number(who, name, value, 0, 1, open_low=True, open_high=True)


def check_whole(who: str, name: str, value: object, low: int = 1, high: int = 2**31 - 1) -> int:
    """A whole number within limits, as Python's own; True and False are none."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
        raise ValueError(f"{who}: {name} must be a whole number of at least {low}, got {value!r}.")
    if value > high:
        raise ValueError(f"{who}: {name} must be at most {high}, got {value!r}.")
    return int(value)


def check_choice(who: str, name: str, value: object, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise ValueError(f"{who}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def unknown_name(who: str, kind: str, name: object, known: Iterable[str]) -> ValueError:
    """The error for a name that is not known; it lists the near ones first."""
    names = sorted(map(str, known))
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ValueError(f"{who}: unknown {kind} {name!r}. {hint}Known: {', '.join(names[:MOST_NAMES])}{more}.")


def check_rows(who: str, **arrays: Array) -> int:
    """All arrays have the same, positive number of rows, which is returned."""
    lengths = {name: int(values.shape[0]) if values.ndim else -1 for name, values in arrays.items()}
    for name, length in lengths.items():
        if length < 0:
            raise ValueError(f"{who}: {name} must be an array with one entry per row, got a single value.")
        if length == 0:
            raise ValueError(f"{who}: {name} must have at least one row, got an empty array.")
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ValueError(f"{who}: all arrays must have the same number of rows; {shown}.")
    return next(iter(lengths.values()))


def check_proba(who: str, name: str, values: Values) -> Array:
    """Rows that are distributions: shape (n, m), finite, not negative, each summing to one.

    The sum may be off by 1e-6 in double precision and by 1e-4 in lower ones. Values of up to 1e-6 below 0 are rounding
    and become 0.
    """
    proba = as_floats(who, name, values)
    if proba.ndim != 2:
        raise ValueError(f"{who}: {name} must have shape (rows, classes), got shape {tuple(proba.shape)}.")
    check_rows(who, **{name: proba})
    xp = array_api_compat.array_namespace(proba)
    tolerance = 1e-6 if proba.dtype == xp.float64 else 1e-4
    fit = xp.all((proba >= 0) & (proba <= 1)) & xp.all(xp.abs(xp.sum(proba, axis=1) - 1.0) <= tolerance)
    if bool(fit):  # asked for at once, since every answer of a GPU has to be waited for
        return proba
    proba = clip_rounding(proba)
    check_weightlike(who, name, proba)
    sums = xp.sum(proba, axis=1)
    off = xp.abs(sums - 1.0)
    if bool(xp.any(off > tolerance)):
        row = int(xp.argmax(off))
        raise ValueError(
            f"{who}: every row of {name} must sum to 1, row {row} sums to {float(sums[row]):.6g}. "
            f"Divide each row by its sum if that is what you mean."
        )
    return proba


def clip_rounding(proba: Array) -> Array:
    """Probabilities with 0 in place of values that rounding carried below it; larger violations stay to be refused."""
    xp = array_api_compat.array_namespace(proba)
    rounded = (proba < 0) & (proba >= -ROUNDING)
    return xp.where(rounded, xp.zeros_like(proba), proba) if bool(xp.any(rounded)) else proba


def check_weightlike(who: str, name: str, values: Array) -> None:
    """Finite numbers that are not negative."""
    xp = array_api_compat.array_namespace(values)
    bad = ~xp.isfinite(values)
    if bool(xp.any(bad)):
        count = int(xp.sum(xp.astype(bad, xp.int64)))
        raise ValueError(f"{who}: {name} must be finite, got {count} NaN or infinite value(s).")
    if bool(xp.any(values < 0)):
        raise ValueError(f"{who}: {name} must not be negative, got {float(xp.min(values)):.6g}.")


def check_bounded(who: str, name: str, values: Values, bound: float) -> np.ndarray:
    """One value per row in [0, bound], as float64."""
    values = to_numpy(as_floats(who, name, values)).astype(float)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{who}: {name} must hold one value per row for at least one row, got shape {values.shape}.")
    # A divergence of equal rows can come out as -1e-17.
    values = np.where((values < 0) & (values > -1e-9 * bound), 0.0, values)
    check_weightlike(who, name, values)
    if values.max() > bound:
        raise ValueError(f"{who}: {name} must be at most bound={bound:g}, got {values.max():.6g}. Give a larger bound.")
    return values


def check_weights(who: str, name: str, values: Values, rows: int) -> Array:
    """One finite, non-negative weight per row, not all zero."""
    weights = as_floats(who, name, values)
    if weights.ndim != 1 or int(weights.shape[0]) != rows:
        raise ValueError(
            f"{who}: {name} must hold one weight for each of {rows} rows, got shape {tuple(weights.shape)}."
        )
    check_weightlike(who, name, weights)
    xp = array_api_compat.array_namespace(weights)
    if not bool(xp.any(weights > 0)):
        raise ValueError(f"{who}: {name} must not be all zero.")
    return weights


def check_class_index(who: str, name: str, values: Values, classes: int) -> Array:
    """Integer labels in 0 .. classes - 1."""
    y = as_array(values)
    xp = array_api_compat.array_namespace(y)
    if y.ndim != 1:
        raise ValueError(f"{who}: {name} must hold one label per row, got shape {tuple(y.shape)}.")
    if isinstance(y, np.ndarray) and y.dtype.kind not in "iufb":
        raise ValueError(
            f"{who}: {name} must hold class indices 0 to {classes - 1}, got dtype {y.dtype}. "
            "Encode the labels first (sklearn.preprocessing.LabelEncoder)."
        )
    check_rows(who, **{name: y})
    whole = y
    if not xp.isdtype(y.dtype, "integral"):
        if xp.isdtype(y.dtype, "real floating") and not bool(xp.all(xp.isfinite(y))):
            raise ValueError(f"{who}: {name} must be finite, got NaN or infinite labels.")
        whole = xp.astype(y, xp.int64)
        if not xp.isdtype(y.dtype, "bool") and bool(xp.any(xp.astype(whole, y.dtype) != y)):
            raise ValueError(f"{who}: {name} must hold whole class indices, got fractions.")
    if not bool(xp.all((whole >= 0) & (whole < classes))):
        low, high = int(xp.min(whole)), int(xp.max(whole))
        raise ValueError(f"{who}: {name} must hold class indices 0 to {classes - 1}, got {low if low < 0 else high}.")
    return whole


def check_labels(who: str, **columns: Values) -> dict[str, Array]:
    """Columns of labels (numbers, booleans or strings) that can be compared with each other."""
    arrays: dict[str, Array] = {
        name: values if array_api_compat.is_array_api_obj(values) else as_labels(values)
        for name, values in columns.items()
    }
    kinds: dict[str, str] = {}
    for name, labels in arrays.items():
        if labels.ndim != 1:
            raise ValueError(
                f"{who}: {name} must hold one label per row, got shape {tuple(labels.shape)}. "
                "Take the argmax of probabilities first."
            )
        if isinstance(labels, np.ndarray):
            if labels.dtype.kind == "O":
                labels = arrays[name] = _plain_objects(who, name, labels)
            kinds[name] = {"U": "text", "S": "text", "M": "dates"}.get(labels.dtype.kind, "numbers")
            missing = labels.dtype.kind in "fM" and bool((labels != labels).any())
        else:
            kinds[name] = "numbers"
            missing = labels.dtype.is_floating_point and bool(labels.isnan().any())
        if missing:
            raise ValueError(f"{who}: {name} must not have missing labels, got NaN.")
    check_rows(who, **arrays)
    if len(set(kinds.values())) > 1:
        shown = ", ".join(f"{name} holds {kind}" for name, kind in kinds.items())
        raise ValueError(f"{who}: labels must be of one kind, but {shown}. Convert one side.")
    return _exact(who, arrays)


def _exact(who: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Columns whose comparison rounds nothing: numpy compares whole numbers with others as float64."""
    columns = {name: labels for name, labels in arrays.items() if isinstance(labels, np.ndarray)}
    whole = [labels for labels in columns.values() if labels.dtype.kind in "iu"]
    floats = {labels.dtype.name: labels for labels in columns.values() if labels.dtype.kind == "f"}
    if len(floats) > 1 and any((labels != np.rint(labels)).any() for labels in floats.values()):
        raise ValueError(
            f"{who}: labels with fractions must have one precision, got {' and '.join(sorted(floats))}. "
            "Convert one side."
        )
    if floats and any(abs(int(v)) > LARGEST_EXACT for labels in whole for v in (labels.min(), labels.max())):
        return {name: labels.astype(object) if name in columns else labels for name, labels in arrays.items()}
    return arrays


def _plain_objects(who: str, name: str, labels: np.ndarray) -> np.ndarray:
    missing = sum(label is None or label != label for label in labels)
    if missing:
        raise ValueError(f"{who}: {name} must not have missing labels, got {missing}.")
    texts = sum(isinstance(label, str) for label in labels)
    if texts not in (0, len(labels)):
        raise ValueError(f"{who}: {name} mixes text and other labels. Convert them to one kind.")
    return labels.astype(str) if texts else as_labels(labels.tolist())
