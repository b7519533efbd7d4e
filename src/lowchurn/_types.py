"""Types that stand in many signatures: tables, arrays and classifiers of any library, by what they can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

ArrayLike: TypeAlias = np.ndarray | Sequence[Any]  # what numpy makes an array of
Rows: TypeAlias = Any  # a table of rows: array, sparse matrix, pandas or polars data frame, which share no base class


class AsArray(Protocol):
    """A tensor or a column of a data frame: numpy makes an array of it."""

    def __array__(self, dtype: Any = ..., /) -> np.ndarray: ...


Values: TypeAlias = ArrayLike | AsArray


class Classifier(Protocol):
    """An unfitted classifier in scikit-learn's manner."""

    def fit(self, X: Rows, y: ArrayLike) -> Any: ...

    def get_params(self, deep: bool = ...) -> dict[str, Any]: ...

    def set_params(self, **parameters: Any) -> Any: ...


class Transformer(Protocol):
    """Fitted preprocessing: rows in, rows out."""

    def transform(self, X: Rows) -> Rows: ...


@runtime_checkable
class Model(Protocol):
    """A fitted classifier: what it calls its classes, their probabilities, and what it decides."""

    @property
    def classes_(self) -> np.ndarray: ...

    def predict_proba(self, X: Rows) -> np.ndarray: ...

    def predict(self, X: Rows) -> np.ndarray: ...
