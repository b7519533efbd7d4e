"""Soft targets as weighted rows, against closed forms."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from lowchurn.learners import fit_soft

# A categorical feature: the best probabilities of each category are the mean target of its rows.
RNG = np.random.default_rng(0)
CATEGORY = RNG.integers(3, size=300)
X = np.eye(3)[CATEGORY]
TARGETS = RNG.dirichlet([2, 1, 1], size=300)
CLASSES = np.array(["a", "b", "c"])
BEST = np.stack([TARGETS[CATEGORY == k].mean(axis=0) for k in range(3)])


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
    model = fit_soft(estimator, X, TARGETS, CLASSES, least=0)
    assert model is not estimator
    assert list(model.classes_) == list(CLASSES)
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), BEST, atol=2e-3)


def test_sample_weights_multiply_the_targets():
    weights = RNG.integers(0, 3, size=300)
    best = np.stack([np.average(TARGETS[CATEGORY == k], axis=0, weights=weights[CATEGORY == k]) for k in range(3)])
    model = fit_soft(DecisionTreeClassifier(), X, TARGETS, CLASSES, sample_weight=weights, least=0)
    np.testing.assert_allclose(model.predict_proba(np.eye(3)), best, atol=1e-9)


def test_hard_targets_are_ordinary_training():
    y = RNG.integers(3, size=300)
    soft = fit_soft(LogisticRegression(), X, np.eye(3)[y], CLASSES)
    np.testing.assert_allclose(soft.coef_, LogisticRegression().fit(X, CLASSES[y]).coef_, atol=1e-10)


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="KNeighborsClassifier.fit must take sample_weight"):
        fit_soft(KNeighborsClassifier(), X, TARGETS, CLASSES)
    with pytest.raises(ValueError, match="one column for each of 2 classes"):
        fit_soft(LogisticRegression(), X, TARGETS, ["a", "b"])
    with pytest.raises(ValueError, match="same number of rows, got 300 and 5"):
        fit_soft(LogisticRegression(), X, TARGETS[:5], CLASSES)
    with pytest.raises(ValueError, match="targets must not be negative"):
        fit_soft(LogisticRegression(), X, -TARGETS, CLASSES)
