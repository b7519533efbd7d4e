"""Labels of any type: read without a change of type, compared exactly.

A label is matched by what it is. Whole numbers are compared as whole numbers (never through float64), True and 1 are
the same label, "1" is another, and a day equals the midnight it begins with, whichever type holds it.
"""

from __future__ import annotations

import datetime
from collections.abc import Hashable
from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from lowchurn._checks import as_labels
from lowchurn._types import ArrayLike

WHO = "LowChurnClassifier"
GONE = -1  # the code of a decision for a class that is gone


def target_labels(y: ArrayLike, who: str = WHO) -> np.ndarray:
    """The labels to learn, one per row: none is missing, and all can be put in order."""
    labels = as_labels(y)
    labels = column_or_1d(labels, warn=True) if labels.ndim != 1 else labels
    if missing_labels(labels).any():
        raise ValueError(f"{who}: y must not have missing labels. Input y contains NaN.")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{who}: y must be finite. Input y contains infinity.")
    kinds = sorted({type(label).__name__ for label in labels.tolist()}) if labels.dtype.kind == "O" else []
    if len(kinds) > 1:
        try:
            np.unique(labels)
        except TypeError:
            raise ValueError(
                f"{who}: y must hold labels of one kind, got {' and '.join(kinds)}. Convert them to one kind."
            ) from None
    return labels


def missing_labels(labels: np.ndarray) -> np.ndarray:
    """Which labels are None, NaN, NaT or pandas' NA, as a mask."""
    if labels.dtype.kind == "f":
        return np.isnan(labels)
    if labels.dtype.kind == "M":
        return np.isnat(labels)
    if labels.dtype.kind != "O":
        return np.zeros(labels.shape, dtype=bool)
    return np.array([_is_missing(label) for label in labels.ravel().tolist()], dtype=bool).reshape(labels.shape)


def _is_missing(label: Any) -> bool:
    try:
        return label is None or bool(label != label)
    except TypeError:  # pandas' NA is neither true nor false
        return True


def unusual(classes: np.ndarray) -> bool:
    """Whether learners refuse such labels, though they can be told apart: Decimals, dates, bytes, huge integers."""
    return classes.dtype.kind == "S" or (
        classes.dtype.kind == "O" and not all(isinstance(label, str) for label in classes.tolist())
    )


def training_labels(classes: np.ndarray) -> np.ndarray:
    """What stands for the classes in training: themselves, or their positions where learners refuse them."""
    return np.arange(len(classes)) if unusual(classes) else classes


def positions(labels: ArrayLike, classes: np.ndarray) -> np.ndarray:
    """Where each label is in ``classes``, or -1."""
    place = {key: i for i, key in enumerate(_keys(classes))}
    return np.array([place.get(key, GONE) for key in _keys(as_labels(labels))], dtype=np.intp)


def codes(who: str, decided: Any, classes: np.ndarray) -> np.ndarray:
    """Decided labels, shape (n,) or (n, 1), as indices of ``classes``; -1 for a class that is gone."""
    labels = as_labels(decided)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels.ravel()  # CatBoost's answer for several classes
    if labels.ndim != 1:
        raise ValueError(f"{WHO}: {who} must give one label per row, got shape {labels.shape}.")
    if missing := int(missing_labels(labels).sum()):
        raise ValueError(f"{WHO}: {who} must decide every row, got {missing} missing decision(s).")
    if labels.dtype.kind == "O":
        places: dict[Any, int] = {}
        odd = next((label for label in labels.tolist() if not isinstance(label, Hashable)), None)
        if odd is not None:
            raise ValueError(
                f"{WHO}: {who} must give one label or one row of numbers per row, got a {type(odd).__name__}."
            )
        index = np.array([places.setdefault(label, len(places)) for label in labels.tolist()], dtype=np.intp)
        found = np.empty(len(places), dtype=object)
        found[:] = list(places)
    else:
        found, index = np.unique(labels, return_inverse=True)
    if found.dtype.kind == "f" and classes.dtype.kind != "f":
        broken = found[found != np.rint(found)]
        if len(broken):
            raise ValueError(
                f"{WHO}: {who} gives one column with fractions such as {broken[0]:.6g}: one column holds labels. "
                "Give one column of probabilities per class; for two classes numpy.stack([1 - p, p], axis=1)."
            )
    return np.asarray(positions(found, classes)[index])


def _keys(labels: np.ndarray) -> list[Any]:
    """One hashable value per label, equal where the labels are."""
    if labels.dtype.kind == "M":
        return [_moment(label) for label in labels.ravel()]
    values = labels.ravel().tolist()
    return [_key(value) for value in values] if labels.dtype.kind == "O" else values


def _key(label: Any) -> Any:
    if isinstance(label, np.datetime64):
        return _moment(label)
    if isinstance(label, datetime.datetime):  # pandas' Timestamp is one, and finer
        return ("ns", getattr(label, "value", 0)) if getattr(label, "nanosecond", 0) else label
    if isinstance(label, datetime.date):
        return datetime.datetime.combine(label, datetime.time.min)
    return label


def _moment(label: np.datetime64) -> Any:
    micro = label.astype("M8[us]")
    return micro.tolist() if micro == label else ("ns", int(label.astype("M8[ns]").astype(np.int64)))
