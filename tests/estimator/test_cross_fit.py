"""Margins from folds: each row is measured by a retrain that has not seen it; the one on all rows is served."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.estimator._split import folds_of

X, Y = make_classification(6000, 12, n_informative=6, n_classes=3, class_sep=0.8, flip_y=0.05, random_state=0)
OLD, TRAIN, TEST = slice(0, 300), slice(0, 2000), slice(2000, None)
NEW = np.arange(2000) >= 300
ESTIMATOR = make_pipeline(StandardScaler(), LogisticRegression())


@pytest.fixture(scope="module")
def base():
    return clone(ESTIMATOR).fit(X[OLD], Y[OLD])


def fitted(base, folds=4, **parameters):
    options = {"max_churn": 0.05, "random_state": 0} | parameters
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, cross_fit=folds, **options)
    return model.fit(X[TRAIN], Y[TRAIN], new=NEW)


def test_the_margin_is_that_of_a_loop_over_folds(base):
    """The slow twin: retrain without each fold, sort the evidence of all new rows, take the margin at the aim."""
    model = fitted(base, strategies="sticky")
    rows = np.flatnonzero(NEW)
    folds = folds_of(X[TRAIN], Y[TRAIN], rows, 4, 0)
    evidence = np.empty(len(rows))
    for fold in range(4):
        out = rows[folds == fold]
        left = np.setdiff1d(np.arange(2000), out)
        p = clone(ESTIMATOR).fit(X[left], Y[left]).predict_proba(X[out])
        before = base.predict(X[out])
        own = p[np.arange(len(out)), before].copy()
        p[np.arange(len(out)), before] = -1
        evidence[folds == fold] = p.max(axis=1) - own
    (name,) = model.selection_.served
    margin = next(row.parameters["margin"] for row in model.frontier_ if row.name == name)
    assert model.selection_.churn == pytest.approx(np.mean(evidence > margin))
    assert model.selection_.trainings == 5
    assert model.selection_.rows["train"] == 2000
    assert model.selection_.rows["choose"] == 1700
    # What is served is the retrain on all rows.
    p, before = clone(ESTIMATOR).fit(X[TRAIN], Y[TRAIN]).predict_proba(X[TEST]), base.predict(X[TEST])
    own = p[np.arange(len(p)), before].copy()
    p[np.arange(len(p)), before] = -1
    expected = np.where(p.max(axis=1) - own > margin, p.argmax(axis=1), before)
    np.testing.assert_array_equal(model.predict(X[TEST]), expected)


def test_by_default_the_margin_grows_with_the_lead_of_the_base(base, tmp_path):
    model = fitted(base)
    assert {row.strategy for row in model.frontier_} == {"cold", "sticky"}
    assert {row.parameters["trust"] for row in model.frontier_ if row.strategy == "sticky"} == {5.0}
    assert np.mean(model.predict(X[TEST]) != base.predict(X[TEST])) < 0.08
    model.save(tmp_path / "next.skops", dial=True)
    again = lowchurn.load(tmp_path / "next.skops")
    assert again.cross_fit == 4
    np.testing.assert_array_equal(again.dial(0.02).predict(X[TEST]), model.dial(0.02).predict(X[TEST]))


def test_folds_are_dealt_out_by_class_and_do_not_depend_on_the_order():
    rows = np.arange(0, 2000, 3)
    folds = folds_of(X[TRAIN], Y[TRAIN], rows, 5, 0)
    for label in np.unique(Y):
        counts = np.bincount(folds[Y[rows] == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    order = np.random.default_rng(0).permutation(2000)
    shuffled = folds_of(X[order], Y[order], np.argsort(order)[rows], 5, 0)
    np.testing.assert_array_equal(folds, shuffled)


def test_weights_and_limits_of_classes_go_along(base):
    model = LowChurnClassifier(
        clone(ESTIMATOR), base=base, max_churn={0: 0.02, None: 0.05}, cross_fit=3, random_state=0
    )
    model.fit(X[TRAIN], Y[TRAIN], sample_weight=np.random.default_rng(0).random(2000) + 0.5, new=NEW)
    assert model.selection_.feasible
    before = base.predict(X[TEST])
    assert np.mean(model.predict(X[TEST])[before == 0] != 0) < 0.04


def test_a_base_known_by_a_table_has_a_plain_margin(base):
    """Its probabilities are not there when it serves, so that the margin cannot grow with them."""
    model = LowChurnClassifier(clone(ESTIMATOR), max_churn=0.05, cross_fit=4, random_state=0)
    model.fit(X[TRAIN], Y[TRAIN], new=NEW, base_proba=base.predict_proba(X[TRAIN]))
    same = fitted(base, strategies="sticky")
    assert model.selection_.churn == same.selection_.churn > 0
    before = base.predict(X[TEST])
    np.testing.assert_array_equal(model.predict(X[TEST], previous=before), same.predict(X[TEST]))


def test_bad_input(base):
    with pytest.raises(ValueError, match="cross_fit must be a whole number of at least 2, got 1"):
        fitted(base, folds=1)
    for name, value, message in (
        ("confidence", 0.9, "cross_fit needs confidence=None"),
        ("compress", True, "cross_fit needs compress=False"),
        ("select", "mixture", "cross_fit needs select='single'"),
        ("churn", "soft", "cross_fit needs churn='hard'"),
        ("strategies", "distill", "cross_fit needs strategies='auto' or 'sticky'"),
        ("serve_base", False, "cross_fit needs serve_base=True or strategies='sticky'"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted(base, **{name: value})
    model = LowChurnClassifier(clone(ESTIMATOR), base=base, max_churn=0.05, cross_fit=3)
    with pytest.raises(ValueError, match="cross_fit is for fits without traffic= and held_out="):
        model.fit(X[TRAIN], Y[TRAIN], traffic=X[TEST])
    with pytest.raises(ValueError, match="cross_fit=3 needs at least two rows of each class"):
        model.fit(X[:20], np.r_[np.zeros(10), np.ones(9), 2].astype(int))
    # Without a base there is nothing to choose.
    plain = LowChurnClassifier(DecisionTreeClassifier(), cross_fit=3).fit(X[:50], Y[:50])
    assert plain.selection_.trainings == 1
