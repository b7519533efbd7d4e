"""Soft targets as weighted rows, against closed forms."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from lowchurn.learners._sklearn import soft_rows

# A categorical feature: the best probabilities of each category are the mean target of its rows.
RNG = np.random.default_rng(0)
CATEGORY = RNG.integers(3, size=300)
X = np.eye(3)[CATEGORY]
TARGETS = RNG.dirichlet([2, 1, 1], size=300)
CLASSES = np.array(["a", "b", "c"])
BEST = np.stack([TARGETS[CATEGORY == k].mean(axis=0) for k in range(3)])


def fit(estimator, targets, weights=None, least=0.0):
    row, column, weight = soft_rows(targets, weights, least)
    return estimator.fit(X[row], CLASSES[column], sample_weight=weight)


def test_a_row_becomes_one_row_per_class():
    row, column, weight = soft_rows(np.array([[0.7, 0.3], [0.0, 1.0]]))
    assert (row.tolist(), column.tolist(), weight.tolist()) == ([0, 0, 1], [0, 1, 1], [0.7, 0.3, 1.0])
    row, column, weight = soft_rows(np.array([[0.9995, 0.0005], [0.0004, 0.0003]]))
    assert (row.tolist(), column.tolist()) == ([0, 1], [0, 0])  # the largest of a row stays


@pytest.mark.parametrize(
    "estimator",
    [
        LogisticRegression(C=1e8, max_iter=2000, tol=1e-10),
        DecisionTreeClassifier(),
        HistGradientBoostingClassifier(max_iter=400, min_samples_leaf=1),
    ],
    ids=lambda e: type(e).__name__,
)
def test_soft_targets_reach_the_closed_form(estimator):
    model = fit(estimator, TARGETS)
    assert list(model.classes_) == list(CLASSES)
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), BEST, atol=2e-3)


def test_sample_weights_multiply_the_targets():
    weights = RNG.integers(0, 3, size=300)
    best = np.stack([np.average(TARGETS[CATEGORY == k], axis=0, weights=weights[CATEGORY == k]) for k in range(3)])
    model = fit(DecisionTreeClassifier(), TARGETS, weights)
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), best, atol=1e-9)


def test_hard_targets_are_ordinary_training():
    y = RNG.integers(3, size=300)
    soft = fit(LogisticRegression(), np.eye(3)[y], least=1e-3)
    np.testing.assert_allclose(soft.coef_, LogisticRegression().fit(X, CLASSES[y]).coef_, atol=1e-10)
