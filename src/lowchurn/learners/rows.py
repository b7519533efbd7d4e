"""Soft targets for any scikit-learn classifier that takes ``sample_weight``, as weighted rows.

A row with targets (0.7, 0.3) becomes two rows, class 0 with weight 0.7 and class 1 with weight 0.3. For a learner
that minimises log-loss this is exact: the weighted losses add up to the cross-entropy against the targets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import has_fit_parameter

from lowchurn.checks import as_floats, check_rows, check_weightlike, check_weights, to_numpy


def fit_soft(estimator: Any, X: Any, targets: Any, classes: Any, sample_weight: Any = None, least: float = 1e-3) -> Any:
    """Fit a clone of ``estimator`` to soft targets.

    Parameters
    ----------
    estimator : classifier
        Any scikit-learn classifier whose ``fit`` takes ``sample_weight``.
    X : table of shape (n, features)
        The rows.
    targets : array of shape (n, m)
        Non-negative; column j belongs to ``classes[j]``.
    classes : array of shape (m,)
        The labels.
    sample_weight : array of shape (n,), optional
        Weights of the rows, on top of the targets.
    least : float, default 1e-3
        Targets below it make no row: they cost time and change nothing. The rest keep their values, and the
        largest target of each row is always kept.

    Returns
    -------
    classifier
        A fitted clone.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from lowchurn.learners import fit_soft
    >>> X = np.array([[0.0], [1.0]])
    >>> model = fit_soft(LogisticRegression(C=1e6), X, [[0.8, 0.2], [0.3, 0.7]], classes=["no", "yes"])
    >>> model.predict_proba(X).round(2)
    array([[0.8, 0.2],
           [0.3, 0.7]])
    """
    who = "fit_soft"
    targets = to_numpy(as_floats(who, "targets", targets))
    classes = np.asarray(classes)
    if targets.ndim != 2 or targets.shape[1] != classes.shape[0]:
        raise ValueError(
            f"{who}: targets must have one column for each of {classes.shape[0]} classes, got shape {targets.shape}."
        )
    check_rows(who, targets=targets)
    check_weightlike(who, "targets", targets)
    n = X.shape[0] if hasattr(X, "shape") else len(X)
    if n != targets.shape[0]:
        raise ValueError(f"{who}: X and targets must have the same number of rows, got {n} and {targets.shape[0]}.")
    if not has_fit_parameter(estimator, "sample_weight"):
        raise ValueError(
            f"{who}: {type(estimator).__name__}.fit must take sample_weight, and it does not. "
            "Choose a classifier that does."
        )
    if sample_weight is not None:
        targets = targets * to_numpy(check_weights(who, "sample_weight", sample_weight, n))[:, None]
    kept = (targets >= least) | (targets == targets.max(axis=1, keepdims=True))
    row, column = np.nonzero(kept & (targets > 0))
    return clone(estimator).fit(_safe_indexing(X, row), classes[column], sample_weight=targets[row, column])
