"""Groups of rows that have limits of their own: by what the base decides, or by the values of a column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from lowchurn._checks import as_labels, unknown_name
from lowchurn._types import Rows
from lowchurn.estimator._labels import WHO, missing_labels, positions
from lowchurn.estimator._production import row_count

By: TypeAlias = str | int | Callable[[Rows], Any] | None
MOST_GROUPS = 1000


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups by their values, numbered in their order: classes where ``by`` is None, else slices of the rows."""

    by: By
    values: np.ndarray

    @classmethod
    def of(cls, by: By, tables: Sequence[Rows], classes: np.ndarray) -> Groups:
        """The classes, or the values of a column in some tables."""
        if by is None:
            return cls(None, classes)
        found: dict[Hashable, None] = {}
        each = [values_of(by, X) for X in tables]
        for values in each:
            found |= dict.fromkeys(values[~missing_labels(values)].tolist())
        if not found:
            raise ValueError(f"{WHO}: by must have a value in some row, got none.")
        if len(found) > MOST_GROUPS:
            raise ValueError(
                f"{WHO}: by must have at most {MOST_GROUPS} different values, got {len(found)}: every slice needs rows "
                "of its own. Bin the values, by= may be a function of X."
            )
        alike = [name for name, count in Counter(map(str, found)).items() if count > 1]
        if alike:
            raise ValueError(f"{WHO}: by must have values of one kind, got several that read {alike[0]!r}.")
        return cls(by, as_labels(sorted(found, key=str)))

    @property
    def names(self) -> list[str]:
        return list(map(str, self.values.tolist()))

    def codes(self, X: Rows, decided: np.ndarray) -> np.ndarray:
        """The number of each row's group; -1 for a value that is missing or was not seen at fit, or a class gone."""
        return decided if self.by is None else positions(values_of(self.by, X), self.values)

    def counts(self, X: Rows, decided: np.ndarray) -> dict[str, float]:
        """How many rows each group has."""
        codes = self.codes(X, decided)
        return dict(zip(self.names, np.bincount(codes[codes >= 0], minlength=len(self.names)).tolist(), strict=True))

    def number(self, key: Any) -> int:
        """The number of a group by its value, or by how it reads, as it does on the command line."""
        place = positions([key], self.values)[0] if isinstance(key, Hashable) else -1
        if place < 0 and str(key) in self.names:
            place = self.names.index(str(key))
        if place < 0:
            raise unknown_name(WHO, "class in max_churn" if self.by is None else "slice in max_churn", key, self.names)
        return int(place)

    def where(self, number: int) -> str:
        """A group in words."""
        name = self.names[number]
        if self.by is None:
            return f"where the base decides {name!r}"
        column = self.by if isinstance(self.by, str) else f"column {self.by}"
        return f"in slice {name!r}" if callable(self.by) else f"where {column} is {name!r}"


def values_of(by: By, X: Rows) -> np.ndarray:
    """The value of each row: of a column by its name or position, or what a function returns."""
    if callable(by):
        found = as_labels(by(X))
        if found.shape != (row_count(X),):
            raise ValueError(
                f"{WHO}: by must return one value for each of {row_count(X)} rows, got shape {found.shape}."
            )
        return found
    columns = list(getattr(X, "columns", ()))
    if by in columns:
        return as_labels(X[by])
    if not isinstance(by, int | np.integer):
        if columns:
            raise unknown_name(WHO, "column in by=", by, columns)
        raise ValueError(
            f"{WHO}: by={by!r} is the name of a column, and X has none. Give its position, or X as a data frame."
        )
    count = len(columns) or int(X.shape[1])
    if not 0 <= by < count:
        raise ValueError(f"{WHO}: by must be the name of a column or a position from 0 to {count - 1}, got {by}.")
    if columns:
        return as_labels(X[columns[by]])
    return np.asarray(X[:, [by]].toarray() if sparse.issparse(X) else X[:, by]).ravel()
