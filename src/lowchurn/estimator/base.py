"""The base: the model in production, in any form that gives probabilities, aligned with the new classes by name.

Classes that the base never saw get probability 0. Classes that are gone are left out and the rest of the row is scaled
up to sum to one (evenly spread where nothing is left); a decision for such a class counts as changed, whatever the new
model says. Hard labels become rows of zeros and a one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline

from lowchurn._reading import one_line
from lowchurn.checks import as_floats, check_weightlike, to_numpy
from lowchurn.learners import ALL
from lowchurn.learners.base import extra_missing
from lowchurn.learners.torch import is_network

WHO = "LowChurnClassifier"
GONE = -1  # the code of a decision for a class that is gone


class Base:
    """A base that can be asked about any rows, and so be served itself."""

    servable = True

    def __init__(self, model: Any, classes: np.ndarray) -> None:
        self.model = model
        self.served = as_served(model)
        self.classes = classes

    def proba(self, X: Any) -> np.ndarray:
        """Aligned probabilities, shape (n, m)."""
        return align(*self._ask(X), self.classes)

    def decisions(self, X: Any) -> np.ndarray:
        """What the base decides, as indices of the new classes; -1 for a class that is gone."""
        if hasattr(self.model, "predict") and not callable_only(self.model):
            return codes(self._call(self.model.predict, X), self.classes)
        return decide(*self._ask(X), self.classes)

    def _ask(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        model = self.model
        if callable_only(model):
            return read_probabilities("the base", self._call(model, X), getattr(model, "classes_", None), self.classes)
        if hasattr(model, "predict_proba"):
            given = self._call(self.served.predict_proba, X)
            return read_probabilities("the base", given, getattr(model, "classes_", None), self.classes)
        return read_probabilities("the base", self._call(model.predict, X), None, self.classes)

    def _call(self, ask: Any, X: Any) -> Any:
        try:
            return ask(own_features(self.model, X))
        except NotFittedError as error:
            raise ValueError(f"{WHO}: the base must be fitted, and it is not ({error}). Fit it first.") from error
        except Exception as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{WHO}: the base cannot predict these rows ({type(error).__name__}: {error}). "
                "It must be fitted, and on the same features."
            ) from error


class Behind:
    """A fitted model behind fitted preprocessing, in the form that is saved."""

    def __init__(self, preprocessing: Any, model: Any, features: Any = None) -> None:
        self.preprocessing = preprocessing
        self.model = model
        if features is not None:
            self.feature_names_in_ = np.asarray(features, dtype=object)

    @property
    def classes_(self) -> np.ndarray:
        return np.asarray(self.model.classes_)

    def predict_proba(self, X: Any) -> np.ndarray:
        rows = X if self.preprocessing is None else self.preprocessing.transform(X)
        return np.asarray(self.model.predict_proba(rows))

    def predict(self, X: Any) -> np.ndarray:
        rows = X if self.preprocessing is None else self.preprocessing.transform(X)
        return np.asarray(self.model.predict(rows)).ravel()


def as_served(model: Any) -> Any:
    """A base in the form in which it can be saved without a pickle, so that a loaded one gives the same bits."""
    if callable_only(model) or isinstance(model, Behind):
        return model
    preprocessing, inner = inner_model(model)
    features = getattr(model, "feature_names_in_", None)
    if hasattr(model, "_served"):  # a LowChurnClassifier
        return model if inner is None else Behind(preprocessing, inner, features)
    for learner in ALL:
        try:
            native = learner.as_served(inner)
        except Exception:  # unfitted, or with an objective of its own: the base answers for itself
            native = None
        if native is not None:
            return Behind(preprocessing, native, features)
    return model


class GivenBase:
    """A base known only by its probabilities of the rows at hand; it cannot be served."""

    servable = False
    model = None

    def __init__(self, given: Any, given_classes: Any, ids: Any, n: int, classes: np.ndarray) -> None:
        if ids is not None or isinstance(given, Mapping):
            given, given_classes = look_up(given, given_classes, ids, n)
        table, labels = read_probabilities("base_proba", given, given_classes, classes)
        if len(table) != n:
            raise ValueError(
                f"{WHO}: base_proba must have one row for each of {n} rows of X, got {len(table)}. "
                "Give a table keyed by id, and ids=, where the rows differ."
            )
        self._proba = align(table, labels, classes)
        self._decisions = decide(table, labels, classes)

    def proba(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._proba[rows])

    def decisions(self, rows: np.ndarray) -> np.ndarray:
        return np.asarray(self._decisions[rows])


def callable_only(model: Any) -> bool:
    """A plain function rather than an estimator."""
    return callable(model) and not hasattr(model, "predict")


def find_base(base: Any, trusted: Any = ()) -> Any:
    """The model behind ``base``: a path is read, everything else is handed back."""
    if not isinstance(base, str | Path):
        if is_network(base):
            raise ValueError(
                f"{WHO}: base must be a fitted classifier, got a torch module, which does not say its classes. "
                "Wrap it: NetworkClassifier.wrap(module, classes, features)."
            )
        if not (hasattr(base, "predict_proba") or hasattr(base, "predict") or callable(base)):
            raise ValueError(
                f"{WHO}: base must be a fitted classifier, a function that gives probabilities or a path, "
                f"got {type(base).__name__}. Hand probabilities to fit as base_proba."
            )
        return base
    path = Path(base)
    if not path.is_file():
        raise ValueError(f"{WHO}: base must be a file that is there, got {str(path)!r}.")
    if path.suffix == ".onnx":
        return OnnxModel(path)
    from lowchurn.estimator.saving import load

    return load(path, trusted=trusted)


def inner_model(base: Any) -> tuple[Any, Any]:
    """Fitted preprocessing (or None) and fitted model inside a base, for starts from its weights."""
    if hasattr(base, "estimator") and type(base).__name__ == "FrozenEstimator":
        return inner_model(base.estimator)
    if hasattr(base, "_served"):  # a LowChurnClassifier, which serves one model or a mixture
        single = base._single
        return (None, None) if single is None else (single.preprocessing, single.model)
    if isinstance(base, Behind):
        return base.preprocessing, base.model
    if isinstance(base, Pipeline):
        return (base[:-1] if len(base) > 1 else None), base[-1]
    return None, (base if hasattr(base, "fit") or hasattr(base, "predict_proba") else None)


def start_of(base: Base | GivenBase, X: Any) -> tuple[Any, Any]:
    """What training can start from; nothing where the base is no model, or one of other features."""
    names, columns = getattr(base.model, "feature_names_in_", None), getattr(X, "columns", None)
    other = names is not None and columns is not None and list(names) != list(columns)
    return (None, None) if other or not base.servable else inner_model(base.model)


def own_features(model: Any, X: Any) -> Any:
    """The columns that a model was fitted on, by name, where both sides have names."""
    names = getattr(model, "feature_names_in_", None)
    columns = getattr(X, "columns", None)
    if names is None or columns is None:
        return X
    names, present = list(names), list(columns)
    missing = [name for name in names if name not in present]
    if missing:
        raise ValueError(f"X lacks the features {missing[:5]} that it was fitted on ({len(missing)} in all)")
    return X if names == present else X[names]


def read_probabilities(who: str, given: Any, labels: Any, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, shape (n, k), and the k labels of their columns; labels alone become one-hot rows."""
    if hasattr(given, "columns"):  # a data frame: the columns are the classes
        labels = np.asarray(list(given.columns), dtype=object) if labels is None else np.asarray(labels)
        given = np.stack([np.asarray(given[name]) for name in given.columns], axis=1)
    table = np.asarray(to_numpy(given))
    if table.ndim == 1:
        found, index = np.unique(table, return_inverse=True)
        return np.eye(len(found))[index], found
    if table.ndim != 2:
        raise ValueError(f"{WHO}: {who} must give probabilities of shape (rows, classes), got shape {table.shape}.")
    table = np.asarray(as_floats(WHO, f"probabilities of {who}", table), dtype=float)
    if labels is None:
        if table.shape[1] != len(classes):
            raise ValueError(
                f"{WHO}: {who} gives {table.shape[1]} columns for {len(classes)} classes. "
                "Say which classes they are: a data frame with their names, or base_classes=."
            )
        labels = classes
    labels = np.asarray(labels)
    if len(labels) != table.shape[1]:
        raise ValueError(f"{WHO}: {who} gives {table.shape[1]} columns but names {len(labels)} classes.")
    check_weightlike(WHO, f"probabilities of {who}", table)
    sums = table.sum(axis=1)
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
            f"{WHO}: the base knows none of the classes {classes.tolist()[:5]}; its own are {labels.tolist()[:5]}. "
            "Labels must be of the same kind on both sides."
        )
    if np.array_equal(place, np.arange(len(classes))) and (np.abs(table.sum(axis=1) - 1) < 1e-9).all():
        return table  # to the last bit what the model says
    aligned = np.zeros((len(table), len(classes)))
    aligned[:, place[known]] = table[:, known]
    sums = aligned.sum(axis=1, keepdims=True)
    empty = sums[:, 0] <= 0
    aligned[empty] = 1.0
    sums[empty] = len(classes)
    return aligned / sums


def decide(table: np.ndarray, labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The likeliest class of each row, as an index of ``classes``; the first of equals, as in scikit-learn."""
    return positions(labels, classes)[table.argmax(axis=1)]


def codes(predicted: Any, classes: np.ndarray) -> np.ndarray:
    """Predicted labels as indices of ``classes``."""
    found, index = np.unique(np.asarray(predicted).ravel(), return_inverse=True)
    return positions(found, classes)[index]


def positions(labels: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Where each label stands in ``classes``, or -1; True and 1 are the same label, "1" is another."""
    place = {label: i for i, label in enumerate(np.asarray(classes).tolist())}
    return np.array([place.get(label, GONE) for label in np.asarray(labels).tolist()], dtype=np.intp)


def look_up(given: Any, given_classes: Any, ids: Any, n: int) -> tuple[Any, Any]:
    """The rows of a table keyed by id, in the order of ``ids``: a mapping, or a data frame indexed by id."""
    if ids is None:
        raise ValueError(f"{WHO}: base_proba keyed by id needs ids=, one for each row of X.")
    wanted = np.asarray(ids).tolist()
    if len(wanted) != n:
        raise ValueError(f"{WHO}: ids must hold one id for each of {n} rows, got {len(wanted)}.")
    if isinstance(given, Mapping):
        keys, table = list(given), np.asarray(list(given.values()))
    elif hasattr(given, "index") and hasattr(given, "columns"):
        keys, table = given.index.tolist(), given.to_numpy()
        given_classes = list(given.columns) if given_classes is None else given_classes
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
    """A classifier in an ONNX file: one input table, or one input a column; labels and probabilities out."""

    def __init__(self, path: Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise extra_missing(WHO, "onnxruntime", "onnx") from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # what is wrong with a file is told by the error, once
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ValueError(
                f"{WHO}: base must be a readable ONNX file, got {str(path)!r} ({one_line(error)})."
            ) from error

    def __call__(self, X: Any) -> Any:
        inputs = self._session.get_inputs()
        if len(inputs) == 1:
            feed = {inputs[0].name: _as_input(np.asarray(X), inputs[0].type)}
        else:
            feed = {i.name: _as_input(np.asarray(X[i.name]).reshape(-1, 1), i.type) for i in inputs}
        outputs = self._session.run(None, feed)
        for out in outputs:
            if isinstance(out, list) and out and isinstance(out[0], dict):  # skl2onnx's ZipMap
                self.classes_ = np.asarray(list(out[0]))
                return np.array([list(row.values()) for row in out])
        floats = [out for out in outputs if isinstance(out, np.ndarray) and out.dtype.kind == "f"]
        if floats:
            proba = floats[-1].reshape(len(floats[-1]), -1)
            return np.hstack([1 - proba, proba]) if proba.shape[1] == 1 else proba
        return np.asarray(outputs[0]).ravel()


def _as_input(values: np.ndarray, kind: str) -> np.ndarray:
    kinds = {"tensor(double)": np.float64, "tensor(int64)": np.int64, "tensor(string)": str}
    return np.ascontiguousarray(values.astype(kinds.get(kind, np.float32)))
