"""Which columns of a file are features: those of the base, where it has names or a number of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline

from lowchurn._types import ArrayLike, Model
from lowchurn.estimator._production import feature_names
from lowchurn.estimator._serving import Served

if TYPE_CHECKING:
    import pandas as pd

# Where a fitted model keeps the models inside it.
_INSIDE = ("estimator", "estimator_", "estimators_", "calibrated_classifiers_", "base_estimator_", "model")


@dataclass(frozen=True)
class Words:
    """How an error names the command, the model whose columns are wanted, and the argument with the rows."""

    who: str = "retrain"
    model: str = "the base"
    source: str = "data"

    @property
    def rows(self) -> str:
        return "the data" if self.source == "data" else f"the rows of {self.source}="

    @property
    def leave_out(self) -> str:
        """How a column is left out: not every command has an option for it."""
        return "with drop=" if self.source == "data" else "of the file"


RETRAIN = Words()


@dataclass(frozen=True)
class Chosen:
    """The columns that are features, and those that are left out because the base does not have them."""

    features: list[str]
    left_out: tuple[str, ...] = ()


def choose_features(
    model: Model | None,
    columns: Sequence[str],
    taken: Collection[str],
    index: Collection[str] = (),
    all_columns: bool = False,
    words: Words = RETRAIN,
) -> Chosen:
    """The features among all columns of a file; ``taken`` are those that have another role or are left out.

    The ``index`` of a table of pandas is a feature only where the model has it, or with ``all_columns``.
    """
    named = feature_names(model, columns) or ()
    skipped = [] if all_columns else [name for name in index if name not in {*taken, *named}]
    free = [name for name in columns if name not in {*taken, *skipped}]
    chosen = choose_columns(model, free, taken, all_columns, words)
    return Chosen(chosen.features, (*skipped, *chosen.left_out))


def choose_columns(
    base: Model | None,
    columns: Sequence[str],
    dropped: Collection[str] = (),
    all_columns: bool = False,
    words: Words = RETRAIN,
) -> Chosen:
    """The features among ``columns``, which have no other role; ``dropped`` are those that the user left out."""
    if not columns:
        use = "train on beside the target" if words.who == "retrain" else "decide on beside the id"
        raise ValueError(f"{words.who}: there are no columns to {use}.")
    names = feature_names(base, columns)
    if names is None:
        _check_number(base, columns, words)
        return Chosen(list(columns))
    present = set(columns)
    missing = [name for name in names if name not in present]
    if missing:
        again = [name for name in missing if name in dropped]
        remedy = f"Do not drop {listed(again)}, nor give it another role" if again else "Add them, or rename yours"
        raise ValueError(
            f"{words.who}: {words.rows} lack {len(missing)} of {len(names)} columns that {words.model} was fitted on: "
            f"{listed(missing)}. {remedy}."
        )
    own = set(names)
    others = tuple(name for name in columns if name not in own)
    return Chosen([*names, *others]) if all_columns else Chosen(list(names), others)


def _check_number(base: Model | None, columns: Sequence[str], words: Words) -> None:
    number = _feature_count(base)
    if isinstance(number, int | np.integer) and number != len(columns):
        more = len(columns) - number
        advice = f"Leave {more} of them out {words.leave_out}." if more > 0 else "Add the others."
        raise ValueError(
            f"{words.who}: {words.model} was fitted on {number} columns without names, and {words.rows} have "
            f"{len(columns)}: {listed(columns, 20)}. {advice}"
        )


def _feature_count(model: Any) -> Any:
    for find in (
        lambda: model.n_features_in_,
        lambda: len(model.feature_names_),  # CatBoost
        lambda: model.stages[0].booster.num_feature(),  # LightGBM
        lambda: model.stages[0].booster.num_features(),  # XGBoost
    ):
        try:
            return find()
        except Exception:  # another library's, or unknown
            continue
    return None


def as_fitted(model: Model, X: pd.DataFrame) -> pd.DataFrame | np.ndarray:
    """Rows as the model was fitted on them: a table, or an array where it knows no names of columns."""
    return X if feature_names(model, X.columns) is not None else X.to_numpy()


def has_text(column: pd.Series) -> bool:
    """Whether a column of a table contains text, also as categories."""
    import pandas as pd

    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    return bool(pd.api.types.infer_dtype(values, skipna=True) == "string")


def text_columns(model: Model | None) -> set[str]:
    """The columns in which the base was fitted with text: those whose encoder has learned text."""
    return {name for name, categories in _encoded(model, None, 0) if _all_text(categories)}


def _encoded(model: Any, columns: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """Columns and the categories that an encoder inside a model has learned of each."""
    if model is None or isinstance(model, str) or depth > 10:
        return
    if isinstance(model, Pipeline):
        for step in model.named_steps.values():
            yield from _encoded(step, columns, depth + 1)
    elif isinstance(model, ColumnTransformer) and hasattr(model, "transformers_"):
        for _, step, own in model.transformers_:
            yield from _encoded(step, own, depth + 1)
    elif hasattr(model, "categories_"):
        names = getattr(model, "feature_names_in_", columns)
        if isinstance(names, str):
            names = [names]
        if isinstance(names, list | np.ndarray) and len(names) == len(model.categories_):
            yield from ((name, c) for name, c in zip(names, model.categories_, strict=True) if isinstance(name, str))
    else:
        for part in _parts(model):
            yield from _encoded(part, columns, depth + 1)


def _parts(model: Any) -> Iterator[Any]:
    yield getattr(model, "preprocessing", None)  # a model behind its preprocessing
    served = getattr(model, "_served", model)
    if isinstance(served, Served):  # of a LowChurnClassifier
        yield from (part.made().model for part in served.weights)
    for name in _INSIDE:
        inner = getattr(model, name, None)
        for part in inner if isinstance(inner, list | tuple) else [inner]:
            if hasattr(part, "get_params") or hasattr(part, "estimator"):
                yield part


def _all_text(categories: ArrayLike) -> bool:
    words = [c for c in np.asarray(categories, dtype=object).tolist() if c is not None and c == c]
    return bool(words) and all(isinstance(c, str) for c in words)


def listed(names: Sequence[str], most: int = 5) -> str:
    """Names for a message, the first few of many: 'a', 'b' and 1 more."""
    shown = ", ".join(map(repr, names[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
