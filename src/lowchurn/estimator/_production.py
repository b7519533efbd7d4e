"""The base: the model in production, in any form that gives probabilities, aligned with the new classes by name.

What the base returns in production is what we measure against, so the object itself is asked, always: its ``predict``
decides, its ``predict_proba`` gives probabilities. A native form is for saving and for starting training only.

Classes that the base never saw get probability 0. Classes that are gone are left out and the rest of the row is scaled
up to sum to one (evenly spread where nothing is left); a decision for such a class counts as changed, whatever the new
model decides. Hard labels become rows of zeros and a one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import _safe_indexing

from lowchurn._checks import ROUNDING, as_floats, as_labels, check_weightlike, clip_rounding, to_numpy
from lowchurn._extras import importing
from lowchurn._terminal import one_line
from lowchurn._types import ArrayLike, Model, Rows
from lowchurn.estimator._labels import GONE, WHO, codes, positions
from lowchurn.learners import native_model
from lowchurn.learners._boosted import BoostedModel
from lowchurn.learners._model import BehindPreprocessing, inside_wrappers, unwrap
from lowchurn.learners._native import NATIVE_ENDINGS
from lowchurn.learners._torch import is_network
from lowchurn.metrics import decide

Asked: TypeAlias = Model | Callable[[Rows], Any]  # the production object: a classifier, or a function of rows
BOOSTING = ("catboost", "lightgbm", "xgboost")
# Where libraries keep the names of columns.
NAMES_OF_FEATURES: tuple[Callable[[Any], Any], ...] = (
    lambda model: model.feature_names_in_,  # scikit-learn, and most that follow it
    lambda model: model.feature_names_,  # CatBoost
    lambda model: model.feature_name_,  # LightGBM's classifier
    lambda model: model.feature_name(),  # LightGBM's booster
    lambda model: model.get_booster().feature_names,  # XGBoost's classifier
    lambda model: model.feature_names,  # XGBoost's booster
)
# Names that libraries make up for arrays: Column_0 (LightGBM), 0 (CatBoost), f0 (XGBoost).
MADE_UP = re.compile(r"(?:Column_|f)?(\d+)")


class Base:
    """A base that can be asked about any rows, and so be served itself."""

    name = "base"

    def __init__(self, model: Asked, classes: np.ndarray, names: ArrayLike | None = None) -> None:
        self.model = model
        self.classes = classes
        self.names = names  # of its columns of probabilities, where the model does not name them

    def made(self) -> Base:
        return self

    def at(self, X: Rows, rows: np.ndarray) -> Rows:
        """What to ask about some of the rows."""
        return _safe_indexing(X, rows)

    def proba(self, X: Rows) -> np.ndarray:
        """Aligned probabilities, shape (n, m)."""
        return self._aligned(self._ask("predict_proba", "predict", X))

    def decisions(self, X: Rows) -> np.ndarray:
        """What the base decides, as indices of the new classes; -1 for a class that is gone."""
        return read_decisions("the base", self._ask("predict", "predict_proba", X), self._names, self.classes)

    def answers(self, X: Rows) -> tuple[np.ndarray, np.ndarray]:
        """What :meth:`proba` and :meth:`decisions` return; what an earlier release serves is asked once for both."""
        both = getattr(self.model, "labels_and_proba", None)
        if both is None:
            return self.proba(X), self.decisions(X)
        labels, given = self._call(both, X)
        return self._aligned(given), read_decisions("the base", labels, self._names, self.classes)

    def _aligned(self, given: Any) -> np.ndarray:
        model = self.model
        own_labels = hasattr(model, "predict") and hasattr(model, "predict_proba") and not hasattr(given, "columns")
        table, labels = read_probabilities("the base", given, self._names, self.classes, any_sum=own_labels)
        return align(table, labels, self.classes)

    def start(self, X: Rows) -> BehindPreprocessing | None:
        """What training can start from; None where the base contains no model, or one of other features."""
        columns = getattr(X, "columns", None)
        names = feature_names(self.model, columns)
        return None if names is not None and columns is not None and names != list(columns) else unwrap(self.model)

    @property
    def threshold(self) -> float | None:
        """The probability of the second of two classes from which on the base decides for it, where it has its own."""
        found = decision_threshold(self.model)
        if found is None:
            return None
        names = self.classes if self._names is None else self._names
        return found if positions(names, self.classes).tolist() == [0, 1] else None

    @property
    def _names(self) -> ArrayLike | None:
        return getattr(self.model, "classes_", self.names)

    @property
    def names_its_classes(self) -> bool:
        return self.names is not None or hasattr(self.model, "classes_")

    @property
    def has_lost_classes(self) -> bool:
        """Whether the base may decide for a class that is gone."""
        return self._names is None or bool((positions(self._names, self.classes) < 0).any())

    @property
    def known_classes(self) -> np.ndarray:
        """Which of the classes the base can decide for, as a mask; all where it does not name its own."""
        names = self.classes if self._names is None else self._names
        return np.isin(np.arange(len(self.classes)), positions(names, self.classes))

    def _ask(self, first: str, second: str, X: Rows) -> Any:
        """What the production object itself returns, by the first of two methods that it has."""
        has = [getattr(self.model, name) for name in (first, second) if hasattr(self.model, name)]
        given = self._call(self.model if callable_only(self.model) else has[0], X)
        if not hasattr(given, "shape") and not isinstance(given, Sequence | np.ndarray):
            raise ValueError(
                f"{WHO}: the base must give labels or probabilities as an array, a list or a data frame, got "
                f"{type(given).__name__}."
            )
        rows, answers = row_count(X), row_count(given)
        if rows != answers:
            raise ValueError(f"{WHO}: the base must answer every row, got {answers} answers for {rows} rows.")
        return given

    def _call(self, ask: Any, X: Rows) -> Any:
        try:
            return ask(own_features(self.model, X))
        except NotFittedError as error:
            raise ValueError(
                f"{WHO}: the base must be fitted, and it is not ({one_line(error)}). Fit it first."
            ) from error
        except Exception as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{WHO}: the base cannot predict these rows ({type(error).__name__}: {one_line(error)}). "
                "It must be fitted, and on the same features."
            ) from error


class GivenBase:
    """A base of which only the probabilities of the rows at hand are given; it cannot be served."""

    names_its_classes = True
    threshold = None

    def __init__(
        self, given: Any, given_classes: ArrayLike | None, ids: ArrayLike | None, n: int, classes: np.ndarray
    ) -> None:
        if ids is not None or isinstance(given, Mapping):
            given, given_classes = look_up(given, given_classes, ids, n)
        decided = read_decisions("base_proba", given, given_classes, classes)
        table, labels = read_probabilities("base_proba", given, given_classes, classes)
        if len(table) != n:
            raise ValueError(
                f"{WHO}: base_proba must have one row for each of {n} rows of X, got {len(table)}. "
                "Give a table keyed by id, and ids=, where the rows differ."
            )
        self._proba = align(table, labels, classes)
        self._decisions = decided
        seen = decided if only_labels(given) else positions(labels, classes)
        self.known_classes = np.isin(np.arange(len(classes)), seen)

    def at(self, X: Rows, rows: np.ndarray) -> np.ndarray:
        return rows

    def start(self, X: Rows) -> None:
        return None

    def proba(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._proba[rows])

    def decisions(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._decisions[rows])

    def answers(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.proba(rows), self.decisions(rows)


def decision_threshold(model: Any) -> float | None:
    """The threshold of a wrapper of scikit-learn's or of a LowChurnClassifier; None where it has none."""
    while type(model).__name__ == "FrozenEstimator" or (isinstance(model, Pipeline) and len(model)):
        model = model[-1] if isinstance(model, Pipeline) else model.estimator
    if type(model).__name__ not in ("FixedThresholdClassifier", "TunedThresholdClassifierCV"):
        own = getattr(model, "threshold_", None)
        return own if isinstance(own, float) else None
    by_proba = model.response_method != "decision_function" and hasattr(model, "predict_proba")
    if not by_proba or getattr(model, "pos_label", None) not in (None, model.classes_[1]):
        return None
    found: Any = getattr(model, "best_threshold_", getattr(model, "threshold", None))
    return 0.5 if isinstance(found, str) else float(found)


def find_threshold(threshold: float | None, base: Base | GivenBase | None, classes: np.ndarray) -> float | None:
    """The threshold of the second of two classes: the one asked for, else the base's own."""
    if threshold is None:
        return None if base is None else base.threshold
    if len(classes) != 2:
        raise ValueError(f"{WHO}: threshold decides between two classes, got {len(classes)} classes. Leave it out.")
    return float(threshold)


def callable_only(model: Any) -> bool:
    """A plain function rather than an estimator."""
    return callable(model) and not hasattr(model, "predict")


def find_base(base: Any, load: Callable[[Path], Any], classes: ArrayLike | None = None) -> Any:
    """The production object behind ``base``: a path is read (saved models by ``load``), all else is returned as it is.

    ``classes`` are the labels in the order of the outputs of a native file that contains none.
    """
    if not isinstance(base, str | Path):
        if is_network(base):
            raise ValueError(
                f"{WHO}: base must be a fitted classifier, got a torch module, which has no names for its classes. "
                "Wrap it: NetworkClassifier.wrap(module, classes, features)."
            )
        if not _answers(base):
            raise ValueError(
                f"{WHO}: base must be a fitted classifier, a function that gives probabilities or a path, "
                f"got {type(base).__name__}. Hand probabilities to fit as base_proba."
            )
        return base
    path = Path(base)
    if not path.is_file():
        raise ValueError(f"{WHO}: base must be a file that is there, got {str(path)!r}.")
    model = model_of_file(path, load, classes)
    if not _answers(model):
        raise ValueError(
            f"{WHO}: base must be the file of a fitted classifier, and {str(path)!r} contains a "
            f"{type(model).__name__}. Save the model itself, with its preprocessing in a Pipeline."
        )
    return model


def model_of_file(path: Path, load: Callable[[Path], Any], classes: ArrayLike | None = None) -> Any:
    """The model in a file of any kind: ONNX, a file of a boosting library, or what ``load`` reads."""
    if path.suffix.lower() == ".onnx":
        return OnnxModel(path)
    return native_model(path, classes) if path.suffix.lower() in NATIVE_ENDINGS else load(path)


def _answers(model: Any) -> bool:
    return hasattr(model, "predict_proba") or hasattr(model, "predict") or callable(model)


def feature_names(model: Any, columns: Any = None) -> list[str] | None:
    """The names of the columns that a model was fitted on, spelled as ``columns`` are; None where it has none.

    Names that libraries make up for arrays count only where they are among ``columns``.
    """
    model = inside_wrappers(model)
    if isinstance(model, BoostedModel):
        return feature_names(model.stages[0].booster, columns)
    if isinstance(model, Pipeline) and len(model) == 1:
        return feature_names(model[-1], columns)
    present = [] if columns is None else list(columns)
    boosting = any(kind.__module__.split(".")[0] in BOOSTING for kind in type(model).__mro__)
    for find in NAMES_OF_FEATURES if boosting else NAMES_OF_FEATURES[:1]:
        try:
            names = find(model)
        except Exception:  # another library's, or unfitted
            continue
        if names is not None and len(names) and (not _made_up(names) or set(names) <= set(present)):
            return as_spelled([str(name) for name in names], present)
    return None


def _made_up(names: Any) -> bool:
    found = [MADE_UP.fullmatch(str(name)) for name in names]
    return all(match is not None and int(match[1]) == k for k, match in enumerate(found))


def as_spelled(names: list[str], columns: Any) -> list[str]:
    """Names of columns as a table spells them: LightGBM writes each space in a name as an underscore."""
    present = [] if columns is None else list(columns)
    spaced = {name.replace(" ", "_"): name for name in present if isinstance(name, str)}
    known = set(present)
    return [name if name in known else spaced.get(name, name) for name in names]


def own_features(model: Any, X: Any) -> Any:
    """The columns that a model was fitted on, by name, where both sides have names."""
    columns = getattr(X, "columns", None)
    names = feature_names(model, columns)
    if names is None or columns is None:
        return X
    present = list(columns)
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(f"X lacks the features {missing[:5]} that it was fitted on ({len(missing)} in all)")
    return X if names == present else X[names]


def row_count(rows: Any) -> int:
    return int(rows.shape[0]) if hasattr(rows, "shape") else len(rows)


def only_labels(given: Any, who: str = "the base") -> bool:
    """Whether an answer is one label per row rather than one probability per class."""
    shape = as_table(who, given).shape if not hasattr(given, "shape") else given.shape
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def as_table(who: str, given: Any) -> np.ndarray:
    try:
        return np.asarray(to_numpy(given))
    except ValueError as error:  # rows of several lengths
        raise ValueError(
            f"{WHO}: {who} must give one probability per class in every row ({one_line(error)})."
        ) from None


def read_decisions(who: str, given: Any, labels: Any, classes: np.ndarray) -> np.ndarray:
    """What was decided, as indices of ``classes``: by label, or by the largest probability; the first of equals."""
    if only_labels(given, who):
        return codes(who, given, classes)
    table, names = read_probabilities(who, given, labels, classes)
    return positions(names, classes)[decide(table)]


def read_probabilities(
    who: str, given: Any, labels: Any, classes: np.ndarray, any_sum: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, shape (n, k), and the k labels of their columns; labels alone become one-hot rows.

    ``any_sum`` allows other sums than 1 (within 1e-3, as rounded ones have) for three classes or more: those of one
    model per class against the rest, whose ``predict`` decides.
    """
    if only_labels(given, who):
        index = codes(who, given, classes)
        table = np.zeros((len(index), len(classes)))
        table[index != GONE, index[index != GONE]] = 1.0
        return table, classes
    if hasattr(given, "columns"):  # a data frame: the columns are the classes
        labels = list(given.columns) if labels is None else labels
        given = given.to_numpy()
    table = as_table(who, given)
    if table.dtype.kind == "O" and all(isinstance(value, Real) for value in table.ravel()):
        table = table.astype(float)
    if table.ndim != 2:
        raise ValueError(f"{WHO}: {who} must give probabilities of shape (rows, classes), got shape {table.shape}.")
    table = np.asarray(as_floats(WHO, f"probabilities of {who}", table), dtype=float)
    if labels is None:
        if table.shape[1] != len(classes):
            raise ValueError(
                f"{WHO}: {who} gives {table.shape[1]} columns for {len(classes)} classes. "
                "Name the classes: give a data frame with their names, or base_classes=."
            )
        labels = classes
    labels = as_labels(labels)
    if labels.ndim != 1:
        raise ValueError(f"{WHO}: the classes of {who} must be a list of {table.shape[1]} labels, got {labels!r}.")
    if len(labels) != table.shape[1]:
        raise ValueError(f"{WHO}: {who} gives {table.shape[1]} columns but names {len(labels)} classes.")
    if len(set(labels.tolist())) < len(labels):
        raise ValueError(f"{WHO}: {who} must name every class once, got {labels.tolist()[:10]}.")
    table = clip_rounding(table)
    check_weightlike(WHO, f"probabilities of {who}", table)
    sums = table.sum(axis=1)
    if any_sum and table.shape[1] > 2 and len(sums) and sums.min() > 0 and table.max() <= 1 + ROUNDING:
        if np.abs(sums - 1).max() <= 1e-3:
            return table, labels
        warnings.warn(
            f"{WHO}: the probabilities of {who} do not sum to 1, as where there is one model per class. Each row is "
            "divided by its sum; what it predicts is taken from its own predict.",
            stacklevel=2,
        )
        return table / sums[:, None], labels
    if len(sums) and np.abs(sums - 1).max() > 1e-3:
        row = int(np.abs(sums - 1).argmax())
        raise ValueError(
            f"{WHO}: every row of probabilities of {who} must sum to 1, row {row} sums to {sums[row]:.6g}."
        )
    return table, labels


def align(table: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Columns in the order of ``classes``, by name, each row summing to one."""
    place = positions(labels, classes)
    known = place >= 0
    if not known.any():
        raise ValueError(
            f"{WHO}: the base has none of the classes {classes.tolist()[:5]}; it has {labels.tolist()[:5]}. "
            "Labels must be of the same kind on both sides."
        )
    if np.array_equal(place, np.arange(len(classes))) and (np.abs(table.sum(axis=1) - 1) < 1e-9).all():
        return table  # to the last bit what the model returns
    aligned = np.zeros((len(table), len(classes)))
    aligned[:, place[known]] = table[:, known]
    sums = aligned.sum(axis=1, keepdims=True)
    empty = sums[:, 0] <= 0
    aligned[empty] = 1.0
    sums[empty] = len(classes)
    return aligned / sums


def look_up(given: Any, given_classes: Any, ids: Any, n: int) -> tuple[Any, Any]:
    """The rows of a table keyed by id, in the order of ``ids``: a mapping, or a data frame indexed by id."""
    if ids is None:
        raise ValueError(f"{WHO}: base_proba keyed by id needs ids=, one for each row of X.")
    # A list keeps the types that it has: numpy would turn some numbers into text, or into float64.
    wanted = list(ids) if isinstance(ids, list | tuple) else np.asarray(ids).tolist()
    wanted = [tuple(key) if isinstance(key, list) else key for key in wanted]
    if len(wanted) != n:
        raise ValueError(f"{WHO}: ids must hold one id for each of {n} rows, got {len(wanted)}.")
    if isinstance(given, Mapping):
        keys, values = list(given), list(given.values())
        table = as_table("base_proba", values) if values and np.ndim(values[0]) else as_labels(values)
    elif hasattr(given, "index") and hasattr(given, "iloc"):  # pandas
        keys, table = given.index.tolist(), given.to_numpy()
        if hasattr(given, "columns") and given_classes is None:
            given_classes = list(given.columns)
    elif hasattr(given, "columns") and "id" in given.columns:  # polars has no index
        keys = np.asarray(given["id"]).tolist()
        names = [name for name in given.columns if name != "id"]
        table = np.stack([np.asarray(given[name]) for name in names], axis=1)
        given_classes = names if given_classes is None else given_classes
    else:
        raise ValueError(
            f"{WHO}: with ids=, base_proba must be a mapping of id to probabilities or a data frame indexed by id, "
            f"got {type(given).__name__}."
        )
    row = dict(zip(keys, range(len(keys)), strict=True))
    if len(row) < len(keys):
        raise ValueError(f"{WHO}: ids of base_proba must be unique, got {len(keys) - len(row)} duplicate(s).")
    missing = [key for key in wanted if key not in row]
    if missing:
        raise ValueError(f"{WHO}: base_proba lacks {len(missing)} of {n} ids, such as {missing[:3]}.")
    return table[[row[key] for key in wanted]], given_classes


class OnnxModel:
    """A classifier in an ONNX file: one input table, or one input per column; labels and probabilities out.

    The label that the file gives decides, as it does in production.
    """

    def __init__(self, path: Path) -> None:
        with importing(WHO, "onnx"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong with a file is in the error, once
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(f"{WHO}: {str(path)!r} must be a readable ONNX file ({one_line(error)}).") from error
        inputs = self._session.get_inputs()
        if len(inputs) > 1:
            self.feature_names_in_ = np.array([each.name for each in inputs], dtype=object)
        elif inputs and inputs[0].shape and isinstance(inputs[0].shape[-1], int):
            self.n_features_in_ = inputs[0].shape[-1]

    def predict(self, X: Any) -> Any:
        """The file's labels; its probabilities where it gives no labels."""
        labels, proba = self._outputs(X)
        return proba if labels is None else labels

    def predict_proba(self, X: Any) -> Any:
        """The file's probabilities (the names of the classes go to ``classes_``); its labels where it has none."""
        labels, proba = self._outputs(X)
        return labels if proba is None else proba

    def _outputs(self, X: Any) -> tuple[Any, Any]:
        inputs = self._session.get_inputs()
        if len(inputs) == 1:
            feed = {inputs[0].name: _as_input(np.asarray(X), inputs[0].type)}
        else:
            feed = {i.name: _as_input(np.asarray(X[i.name]).reshape(-1, 1), i.type) for i in inputs}
        labels = proba = None
        for out in self._session.run(None, feed):
            if isinstance(out, list) and out and isinstance(out[0], dict):  # skl2onnx's ZipMap
                self.classes_ = as_labels(list(out[0]))
                proba = np.array([list(row.values()) for row in out])
            elif isinstance(out, np.ndarray) and out.dtype.kind == "f":
                wide = out.reshape(len(out), -1)
                proba = np.hstack([1 - wide, wide]) if wide.shape[1] == 1 else wide
            elif isinstance(out, np.ndarray):
                labels = out.ravel()
        return labels, proba


def _as_input(values: np.ndarray, kind: str) -> np.ndarray:
    kinds = {"tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(string)": str}
    return np.ascontiguousarray(values.astype(kinds.get(kind, np.float32)))
