"""SoftTargetClassifier: scikit-learn's contract around one training on a matrix of class probabilities."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.utils import Tags, _safe_indexing, check_random_state, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, check_is_fitted

from lowchurn._checks import as_labels, check_proba, to_numpy
from lowchurn._types import ArrayLike, Classifier, Rows
from lowchurn.estimator._labels import positions, target_labels, training_labels, unusual
from lowchurn.estimator._training import checked_table, find_estimator, fit_steps, refuse_nan, unfitted
from lowchurn.learners import Job, learner_for
from lowchurn.learners._model import split_pipeline
from lowchurn.metrics import decide
from lowchurn.strategies import one_hot

WHO = "SoftTargetClassifier"
TWO = "For two classes give numpy.stack([1 - p, p], axis=1)."


class SoftTargetClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
    """Train a classifier on class probabilities instead of labels.

    Soft targets come from a teacher (distillation), from several annotators, or from smoothed labels. Every row is used
    once where the library can train on probabilities: LightGBM, XGBoost, CatBoost with two classes, and torch networks.
    Other classifiers get one weighted row per class, which is exact for log-loss.

    Parameters
    ----------
    estimator : classifier
        What to train: LightGBM, XGBoost, CatBoost, a torch network (a module or a
        :class:`~lowchurn.learners.NetworkClassifier`), any scikit-learn classifier that takes ``sample_weight``, or a
        Pipeline that ends in one. It is cloned, never changed.
    classes : array of shape (m,), optional
        The label of each column of the probabilities, sorted. By default the names of the columns of a data frame, or
        0 to m - 1 for an array.
    random_state : int, RandomState or None
        Seeds an estimator that has no seed of its own, and decides which rows are held out for early stopping.

    Attributes
    ----------
    model_, preprocessing_
        The fitted model, and the fitted steps of a Pipeline before it (None without).
    notes_ : list of str
        What the parameters of the estimator do not show, such as the number of rounds where it stopped early.
    classes_, n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Notes
    -----
    An estimator stops early where its own parameters ask for it (``early_stopping_rounds`` and its other names), on the
    cross-entropy against soft targets: on the rows that ``fit`` is given for it, or else on one row in ten, after which
    it is trained on all rows with the number of rounds that was best.

    The steps of a Pipeline before the classifier are fitted without weights, except that whole numbers count copies of
    a row. A step that needs labels gets the likeliest class of each row.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from lowchurn import SoftTargetClassifier
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> proba = np.array([[0.9, 0.1], [0.7, 0.3], [0.4, 0.6], [0.2, 0.8]])
    >>> model = SoftTargetClassifier(LogisticRegression(C=100), classes=["no", "yes"]).fit(X, proba)
    >>> model.predict_proba(X).round(1)
    array([[0.9, 0.1],
           [0.7, 0.3],
           [0.4, 0.6],
           [0.2, 0.8]])
    >>> model.predict([[2.5]])
    array(['yes'], dtype='<U3')
    """

    def __init__(
        self,
        estimator: Classifier,
        *,
        classes: ArrayLike | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.estimator = estimator
        self.classes = classes
        self.random_state = random_state

    def fit(
        self,
        X: Rows,
        y: Any,
        sample_weight: ArrayLike | None = None,
        *,
        X_val: Rows | None = None,
        y_val: Any = None,
        sample_weight_val: ArrayLike | None = None,
    ) -> Self:
        """Train on class probabilities.

        Parameters
        ----------
        X : table of shape (n, features)
            Rows: array, sparse matrix, pandas or polars.
        y : array or data frame of shape (n, m)
            The probabilities of the classes: no value is negative and each row sums to one. Labels of shape (n,) are
            taken as well, as probabilities of zero and one.
        sample_weight : array of shape (n,), optional
            Weights of the rows.
        X_val, y_val, sample_weight_val : optional
            Rows to stop early on, in the same forms, for an estimator that stops early.
        """
        if y is None:
            raise ValueError(f"{WHO} requires y to be passed, but the target y is None.")
        seed = None if self.random_state is None else int(check_random_state(self.random_state).randint(2**31 - 1))
        estimator = find_estimator(self.estimator, None, False, seed, WHO)
        X = checked_table(self, X, estimator, WHO)
        self.classes_, targets = self._targets("y", y)
        check_consistent_length(X, targets)
        weight = self._weights(sample_weight, len(targets))
        if weight is not None and not weight.all():  # a row without weight is no row
            used = np.flatnonzero(weight)
            X, targets, weight = _safe_indexing(X, used), targets[used], weight[used]
        if (found := int((targets > 0).any(axis=0).sum())) < 2:
            raise ValueError(f"{WHO}: y must have at least two classes, got {found} class. There is nothing to decide.")
        labels = training_labels(self.classes_)
        steps, final = split_pipeline(estimator)
        self.preprocessing_, X = fit_steps(steps, X, labels[decide(targets)], weight)
        learner = learner_for(final, labels)
        refuse_nan(X, learner, WHO)
        held_out = None
        if X_val is not None or y_val is not None:
            if not learner.stops_on_rows:
                raise ValueError(
                    f"{WHO}: X_val and y_val are for an estimator that stops early on them, and "
                    f"{type(final).__name__} as given does not. Set its parameter for early stopping, or give none."
                )
            held_out = self._held_out(X_val, y_val, sample_weight_val)
        job = Job(targets, sample_weight=weight, seed=seed, held_out=held_out)
        self.model_ = learner.fit(X, job)
        self.notes_ = list(learner.notes)
        return self

    def predict_proba(self, X: Rows) -> np.ndarray:
        """Return the probabilities of the classes in the order of ``classes_``."""
        check_is_fitted(self)
        found = np.asarray(self.model_.predict_proba(self._rows(X)), dtype=float)
        proba = np.zeros((len(found), len(self.classes_)))
        proba[:, positions(self.model_.classes_, training_labels(self.classes_))] = found
        return proba

    def predict(self, X: Rows) -> np.ndarray:
        """Return the likeliest class of each row."""
        decided = decide(self.predict_proba(X))
        return np.asarray(self.classes_[decided])

    def predict_log_proba(self, X: Rows) -> np.ndarray:
        """Return the logarithms of :meth:`predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def score(self, X: Rows, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy; against probabilities the expected one, their mean at the predicted classes."""
        check_is_fitted(self)
        if _is_matrix(y):
            targets = self._targets("y", y, self.classes_)[1]
            decided = decide(self.predict_proba(X))
            return float(np.average(targets[np.arange(len(targets)), decided], weights=sample_weight))
        return float(super().score(X, y, sample_weight))

    def _targets(self, name: str, y: Any, classes: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes and the probabilities of the rows; ``classes`` are those that are known already."""
        given = classes
        if given is None and self.classes is not None:
            given = as_labels(self.classes)
            if given.ndim != 1 or len(set(given.tolist())) < len(given):
                raise ValueError(f"{WHO}: classes must have one label per column, each once, got {self.classes!r}.")
        if not _is_matrix(y):
            labels = target_labels(y, WHO)
            if labels.dtype.kind == "f" and (labels % 1 != 0).any():
                raise ValueError(f"{WHO}: {name} must have one column per class. Unknown label type: continuous. {TWO}")
            if not unusual(labels):
                check_classification_targets(labels)
            found = np.unique(labels) if given is None else given
            places = positions(labels, found)
            if (places < 0).any():
                raise ValueError(f"{WHO}: {name} has the label {labels[places < 0][0]!r}, which is not in classes.")
            return found, one_hot(places, len(found))
        if given is None:
            given = as_labels(list(y.columns)) if hasattr(y, "columns") else np.arange(np.shape(y)[1])
        proba = to_numpy(check_proba(WHO, name, y.to_numpy() if hasattr(y, "columns") else y)).astype(float)
        if len(given) != proba.shape[1]:
            raise ValueError(
                f"{WHO}: {name} must have one column for each of {len(given)} classes, got {proba.shape[1]} columns."
            )
        if hasattr(y, "columns") and list(y.columns) != given.tolist():
            raise ValueError(
                f"{WHO}: the columns of {name} must be the classes {given.tolist()}, got {list(y.columns)}."
            )
        if given.tolist() != sorted(given.tolist()):
            raise ValueError(
                f"{WHO}: classes must be sorted, as everywhere in scikit-learn, got {given.tolist()}. "
                f"Sort them, and the columns of {name} with them."
            )
        return given, proba / proba.sum(axis=1, keepdims=True)

    def _held_out(self, X: Rows, y: Any, sample_weight: ArrayLike | None) -> tuple[Rows, np.ndarray, Any]:
        if X is None or y is None:
            raise ValueError(f"{WHO}: X_val and y_val must be given together, got one of them.")
        rows, targets = self._rows(X), self._targets("y_val", y, self.classes_)[1]
        check_consistent_length(rows, targets)
        return rows, targets, self._weights(sample_weight, len(targets))

    @staticmethod
    def _weights(weight: ArrayLike | None, rows: int) -> np.ndarray | None:
        if weight is None:
            return None
        return np.asarray(_check_sample_weight(weight, np.empty((rows, 1)), dtype=float, ensure_non_negative=True))

    def _rows(self, X: Rows) -> Rows:
        """Return new rows, checked, as the model takes them."""
        X = checked_table(self, X, self.estimator, WHO, reset=False)
        return X if self.preprocessing_ is None else self.preprocessing_.transform(X)

    def __sklearn_clone__(self) -> SoftTargetClassifier:
        inner = unfitted(self.estimator) if hasattr(self.estimator, "fit") else clone(self.estimator, safe=False)
        return type(self)(inner, classes=self.classes, random_state=clone(self.random_state, safe=False))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        try:
            inner = get_tags(self.estimator)
        except Exception:  # an estimator without tags
            return tags
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags = inner.classifier_tags
        return tags


def _is_matrix(y: Any) -> bool:
    """Whether y has a column per class; one column contains labels."""
    shape = y.shape if hasattr(y, "shape") else np.asarray(y).shape
    return len(shape) == 2 and shape[1] != 1
