"""scikit-learn's own checks, with and without a base."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from lowchurn import LowChurnClassifier

NAMES = [-1, 0, 1, 2, 3, "one", "two", "three", "a", "b"]


class Production:
    """A base that knows every label of scikit-learn's checks and answers about any rows."""

    def __repr__(self):
        return "production"  # part of the tests' names, so it must not hold an address

    def __call__(self, X):
        rows = X.sum(axis=1) if sparse.issparse(X) else np.asarray(X, dtype=float).sum(axis=1)
        first = np.tanh(np.asarray(rows).ravel())
        if not np.isfinite(first).all():
            raise ValueError("Input contains NaN or inf")
        proba = np.exp(np.stack([np.cos((k + 1) * first) for k in range(len(NAMES))], axis=1))
        return pd.DataFrame(proba / proba.sum(axis=1, keepdims=True), columns=NAMES)


production = Production()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [
        LowChurnClassifier(),
        LowChurnClassifier(LogisticRegression(), base=production),
        LowChurnClassifier(LogisticRegression(), base=production, max_churn=0.3, select="mixture"),
        LowChurnClassifier(LogisticRegression(), base=production, max_churn=0.9, confidence=0.5, search="grid"),
        LowChurnClassifier(make_pipeline(StandardScaler(), LogisticRegression()), base=production, max_churn=0.5),
    ]
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)
