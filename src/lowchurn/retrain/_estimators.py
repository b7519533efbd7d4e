"""Estimators for tables of numbers and words, for a first training or for a base that cannot be trained again."""

from __future__ import annotations

import datetime
import warnings
from typing import TYPE_CHECKING

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from lowchurn._types import Model
from lowchurn.estimator._training import find_estimator
from lowchurn.learners._learner import NothingToTrain
from lowchurn.retrain._columns import listed

if TYPE_CHECKING:
    import pandas as pd

WHO = "retrain"
NAMES = ("auto", "base", "boosting", "logistic")
WHAT_TO_TRAIN = "Choose what to train: estimator='boosting' or estimator='logistic'."


def choose_estimator(name: str, base: Model | None, X: pd.DataFrame) -> Pipeline | None:
    """The estimator of a name; None stands for the base's own kind, which LowChurnClassifier finds."""
    if name == "base" and base is None:
        raise ValueError(f"{WHO}: estimator='base' needs a base, got none. Give base=.")
    if name == "base" or (name == "auto" and base is not None):
        try:
            find_estimator(None, base, has_base=True, seed=None)
        except NothingToTrain as error:
            raise ValueError(f"{WHO}: {error.reason} {WHAT_TO_TRAIN}") from error
        return None
    dates, empty, numbers, words = _by_kind(X)
    if dates:
        raise ValueError(
            f"{WHO}: dates cannot be features, got {listed(dates)}. Leave them out with drop=, or turn them into "
            "numbers."
        )
    if empty:
        warnings.warn(f"{WHO}: left out, since they have no value in any row: {listed(empty, 20)}.", stacklevel=2)
    infinite = [c for c in numbers if X[c].dtype.kind == "f" and np.isinf(X[c].to_numpy()).any()]
    if name == "logistic" and infinite:
        raise ValueError(
            f"{WHO}: estimator='logistic' cannot use infinite values, got some in {listed(infinite)}. Leave the "
            "columns out with drop=, or use estimator='boosting'."
        )
    if name == "logistic":
        onehot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=5, sparse_output=False)
        fill = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
        steps = ColumnTransformer([("numbers", fill, numbers), ("words", onehot, words)])
        return Pipeline([("columns", steps), ("model", LogisticRegression(max_iter=1000))])
    # Rare words share a code: trees take at most 255 of them.
    codes = OrdinalEncoder(
        handle_unknown="use_encoded_value", unknown_value=np.nan, encoded_missing_value=np.nan, max_categories=250
    )
    steps = ColumnTransformer([("words", codes, words), ("numbers", "passthrough", numbers)])
    trees = HistGradientBoostingClassifier(categorical_features=list(range(len(words))) or None)
    return Pipeline([("columns", steps), ("model", trees)])


def _by_kind(X: pd.DataFrame) -> tuple[list[str], ...]:
    """The columns of dates, without values, of numbers and of words."""
    found: dict[str, list[str]] = {"dates": [], "empty": [], "numbers": [], "words": []}
    for name in X.columns:
        kind = _kind(X[name])
        found["empty" if kind != "dates" and X[name].isna().all() else kind].append(name)
    return tuple(found.values())


def _kind(column: pd.Series) -> str:
    if column.dtype.kind in "mM":
        return "dates"
    if column.dtype.kind in "fiu":
        return "numbers"
    first = column.first_valid_index() if column.dtype.kind == "O" and not hasattr(column, "cat") else None
    dates = first is not None and isinstance(column[first], datetime.date | datetime.time | datetime.timedelta)
    return "dates" if dates else "words"
