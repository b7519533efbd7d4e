"""SoftTargetClassifier: closed forms, slow twins, early stopping on soft rows, scikit-learn's contract."""

import pickle

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier
from sklearn.base import clone
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import parametrize_with_checks
from xgboost import XGBClassifier

from lowchurn import LowChurnClassifier, SoftTargetClassifier
from lowchurn.learners import NetworkClassifier
from lowchurn.scoring import LogScore

ROUNDS = 120
CAT = {"thread_count": 1, "verbose": 0, "allow_writing_files": False}
EXACT = {  # estimators that can fit any probabilities of a categorical feature
    "LightGBM": LGBMClassifier(n_estimators=ROUNDS, min_child_samples=1, min_child_weight=0, n_jobs=1, verbose=-1),
    "XGBoost": XGBClassifier(n_estimators=ROUNDS, reg_lambda=0, min_child_weight=0, n_jobs=1),
    "CatBoost": CatBoostClassifier(iterations=ROUNDS, learning_rate=0.3, l2_leaf_reg=0, bootstrap_type="No", **CAT),
    "logistic": LogisticRegression(C=1e8, max_iter=2000, tol=1e-10),
    "histogram": HistGradientBoostingClassifier(max_iter=ROUNDS, min_samples_leaf=1),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression(C=1e8, max_iter=2000, tol=1e-10)),
    "network": NetworkClassifier("fcn-32", epochs=60, patience=60, learning_rate=0.01, device="cpu"),
}


def world(m, n=300, seed=0):
    """Rows of a categorical feature; the best probabilities are the mean target of each category."""
    rng = np.random.default_rng(seed)
    category = rng.integers(3, size=n)
    proba = rng.dirichlet(np.arange(1, m + 1), size=n)
    weight = rng.uniform(0.2, 3, n)
    best = np.stack([np.average(proba[category == k], axis=0, weights=weight[category == k]) for k in range(3)])
    return np.eye(3)[category], proba, weight, best


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("name", EXACT)
def test_probabilities_reach_the_closed_form(name, m):
    X, proba, weight, best = world(m)
    model = SoftTargetClassifier(EXACT[name], classes=list("abcd")[:m], random_state=0)
    found = model.fit(X, proba, sample_weight=weight).predict_proba(np.eye(3))
    np.testing.assert_allclose(found, best, atol=0.06 if name == "network" else 5e-3)
    assert model.classes_.tolist() == list("abcd")[:m]
    assert model.predict(np.eye(3)).tolist() == [list("abcd")[k] for k in found.argmax(axis=1)]


@pytest.mark.parametrize("estimator", [LogisticRegression(tol=1e-9), DecisionTreeClassifier(random_state=0)])
def test_the_slow_twin_is_one_weighted_row_per_class(estimator):
    rng = np.random.default_rng(0)
    X, proba, weight = rng.normal(size=(80, 3)), rng.dirichlet([1, 1, 1], 80), rng.uniform(0.5, 2, 80)
    twin = clone(estimator).fit(np.repeat(X, 3, axis=0), np.tile([0, 1, 2], 80), (proba * weight[:, None]).ravel())
    model = SoftTargetClassifier(estimator).fit(X, proba, weight)
    np.testing.assert_allclose(model.predict_proba(X), twin.predict_proba(X), atol=1e-3)  # targets below 0.001 are 0


@given(order=st.permutations(range(3)), seed=st.integers(0, 5))
@settings(max_examples=15, deadline=None)
def test_the_order_of_the_classes_has_no_meaning(order, seed):
    rng = np.random.default_rng(seed)
    X, proba = rng.normal(size=(60, 2)), rng.dirichlet([1, 2, 1], 60)
    estimator = LogisticRegression(tol=1e-10, max_iter=1000)
    one = SoftTargetClassifier(estimator).fit(X, proba).predict_proba(X)
    other = SoftTargetClassifier(estimator).fit(X, proba[:, order]).predict_proba(X)
    np.testing.assert_allclose(one[:, order], other, atol=1e-5)


@pytest.mark.parametrize("name", ["LightGBM", "XGBoost", "CatBoost", "logistic"])
def test_labels_are_the_estimators_own_training(name):
    X, proba, _, _ = world(3)
    y = np.array(["x", "y", "z"])[proba.argmax(axis=1)]
    own = clone(EXACT[name]).fit(X, proba.argmax(axis=1)).predict_proba(X)
    for target in (y, pd.DataFrame(np.eye(3)[proba.argmax(axis=1)], columns=["x", "y", "z"])):
        model = SoftTargetClassifier(EXACT[name]).fit(X, target)
        assert model.classes_.tolist() == ["x", "y", "z"]
        np.testing.assert_allclose(model.predict_proba(X), own, atol=1e-6)


STOPPING = {
    "LightGBM": LGBMClassifier(n_estimators=60, early_stopping_round=5, num_leaves=7, n_jobs=1, verbose=-1),
    "XGBoost": XGBClassifier(n_estimators=60, early_stopping_rounds=5, max_depth=3, n_jobs=1),
    "CatBoost": CatBoostClassifier(iterations=60, learning_rate=0.3, early_stopping_rounds=5, depth=3, **CAT),
}
FIXED = {
    "LightGBM": lambda n: LGBMClassifier(n_estimators=n, num_leaves=7, n_jobs=1, verbose=-1),
    "XGBoost": lambda n: XGBClassifier(n_estimators=n, max_depth=3, n_jobs=1),
    "CatBoost": lambda n: CatBoostClassifier(iterations=n, learning_rate=0.3, depth=3, **CAT),
}


def noisy(m, n=400, seed=1):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    logits = X[:, :m] * 1.5 + rng.normal(size=(n, m))
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return X, proba, rng.uniform(0.5, 2, n)


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("name", STOPPING)
def test_early_stopping_is_on_the_cross_entropy_of_soft_rows(name, m):
    """The slow twin trains with every number of rounds and takes the best before the first five without progress."""
    X, proba, weight = noisy(m)
    train, held = slice(0, 300), slice(300, 400)
    model = SoftTargetClassifier(STOPPING[name], random_state=0).fit(
        X[train], proba[train], weight[train], X_val=X[held], y_val=proba[held], sample_weight_val=weight[held]
    )
    losses = []
    while len(losses) <= np.argmin(losses or [0]) + 5 and len(losses) < 60:
        twin = SoftTargetClassifier(FIXED[name](len(losses) + 1), random_state=0)
        found = twin.fit(X[train], proba[train], weight[train]).predict_proba(X[held])
        losses.append(np.average(LogScore().expected(proba[held], found), weights=weight[held]))
    rounds = int(np.argmin(losses)) + 1
    assert 1 < rounds < 55
    assert f"trained {rounds} rounds, the best number on the rows given for it" in model.notes_[0]
    best = SoftTargetClassifier(FIXED[name](rounds), random_state=0).fit(X[train], proba[train], weight[train])
    np.testing.assert_allclose(model.predict_proba(X), best.predict_proba(X), atol=1e-6)
    assert pickle.loads(pickle.dumps(model)).predict_proba(X).tolist() == model.predict_proba(X).tolist()


@pytest.mark.parametrize("name", STOPPING)
def test_without_rows_for_it_one_in_ten_is_held_out(name):
    X, proba, weight = noisy(3)
    model = SoftTargetClassifier(STOPPING[name], random_state=0).fit(X, proba, weight)
    (note,) = model.notes_
    rounds = int(note.split(" trained ")[1].split()[0])
    assert 1 < rounds < 60
    assert "rounds on all rows, the number at which it stopped early where one row in 10 was held out" in note
    fixed = SoftTargetClassifier(FIXED[name](rounds), random_state=0).fit(X, proba, weight)
    np.testing.assert_allclose(model.predict_proba(X), fixed.predict_proba(X), atol=1e-6)


class Seen(HistGradientBoostingClassifier):
    """Keeps what its fit was given."""

    def fit(self, X, y, sample_weight=None, *, X_val=None, y_val=None, sample_weight_val=None):
        self.seen_ = X, X_val, sample_weight_val
        return super().fit(X, y, sample_weight, X_val=X_val, y_val=y_val, sample_weight_val=sample_weight_val)


def test_copies_of_a_row_are_not_on_both_sides_of_early_stopping():
    X, proba, weight = noisy(3)
    model = SoftTargetClassifier(Seen(early_stopping=True, max_iter=20), random_state=0).fit(X, proba, weight)
    rows, held, weights = model.model_.seen_
    trained, stopped = ({tuple(row) for row in part} for part in (rows, held))
    assert len(trained) == 360
    assert len(stopped) == 40
    assert not trained & stopped
    where = [np.flatnonzero((X == row).all(axis=1))[0] for row in stopped]
    np.testing.assert_allclose(weights.sum(), weight[where].sum(), rtol=1e-3)
    given = SoftTargetClassifier(Seen(max_iter=20)).fit(X, proba, X_val=X[:5], y_val=proba[:5])
    assert {tuple(row) for row in given.model_.seen_[1]} == {tuple(row) for row in X[:5]}


def test_copies_do_not_switch_on_automatic_early_stopping():
    rng = np.random.default_rng(0)
    X, proba = rng.normal(size=(6000, 1)), rng.dirichlet([1, 1], 6000)  # 12,000 rows with their copies
    assert not SoftTargetClassifier(Seen(max_iter=2)).fit(X, proba).model_.do_early_stopping_


def test_an_estimator_that_holds_out_copies_by_itself_is_noted():
    X, proba, _ = noisy(2, 60)
    model = SoftTargetClassifier(GradientBoostingClassifier(n_iter_no_change=3)).fit(X, proba)
    assert "copies of a row are on both sides" in model.notes_[0]


def test_a_network_stops_on_soft_rows():
    """Where the targets are noise, the held-out loss grows with the weights; the network stops at once."""
    X, proba, _ = noisy(2)
    network = NetworkClassifier("fcn-16", epochs=40, patience=2, learning_rate=0.01, device="cpu")
    given = SoftTargetClassifier(network, random_state=0).fit(X[:300], proba[:300], X_val=X[300:], y_val=proba[300:])
    against = SoftTargetClassifier(network, random_state=0).fit(
        X[:300], proba[:300], X_val=X[300:], y_val=proba[300:, ::-1]
    )
    assert against.model_.epochs_ <= 3 < given.model_.epochs_


def test_score_is_the_expected_accuracy():
    X, proba, weight, _ = world(3)
    model = SoftTargetClassifier(LogisticRegression()).fit(X, proba)
    decided = model.predict(X)
    assert model.score(X, proba, weight) == pytest.approx(np.average(proba[np.arange(len(X)), decided], weights=weight))
    assert model.score(X, np.eye(3)[decided]) == 1 == model.score(X, decided)
    assert cross_val_score(model, X, proba, cv=3).shape == (3,)


def test_a_class_without_rows_keeps_its_column():
    X, proba, _, _ = world(2)
    wide = np.insert(proba, 1, 0.0, axis=1)
    for name in ("logistic", "LightGBM", "XGBoost", "CatBoost"):
        model = SoftTargetClassifier(EXACT[name]).fit(X, wide)
        assert model.predict_proba(X).shape == (len(X), 3)
        assert model.predict_proba(X)[:, 1].max() < 1e-3
    labels = SoftTargetClassifier(LogisticRegression(), classes=["a", "b", "c"]).fit(X, np.where(X[:, 0] > 0, "a", "c"))
    assert labels.predict_proba(X)[:, 1].tolist() == [0] * len(X)


def test_it_is_a_base_and_what_a_base_is_made_of():
    X, proba, _, _ = world(2)
    base = SoftTargetClassifier(EXACT["LightGBM"]).fit(X, proba)
    y = proba.argmax(axis=1)
    model = LowChurnClassifier(LGBMClassifier(n_jobs=1, verbose=-1), base=base, max_churn=0.5).fit(X, y)
    assert model.selection_.churn <= 0.5


def test_data_frames_steps_with_labels_and_lists_of_columns():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=90), "b": rng.normal(size=90), "kind": rng.choice(["u", "v"], 90)})
    p = 1 / (1 + np.exp(-3 * frame["a"]))
    proba = pd.DataFrame({"no": 1 - p, "yes": p})
    chosen = SoftTargetClassifier(make_pipeline(SelectKBest(k=1), LogisticRegression())).fit(frame[["a", "b"]], proba)
    assert chosen.preprocessing_[-1].get_support().tolist() == [True, False]
    assert chosen.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        chosen.predict(frame[["b", "a"]])
    lists = CatBoostClassifier(iterations=5, cat_features=["kind"], **CAT)
    model = clone(SoftTargetClassifier(lists)).fit(frame, proba)
    assert (model.predict(frame) == np.where(p > 0.5, "yes", "no")).mean() > 0.9


X4, P4 = np.arange(8.0).reshape(4, 2), np.array([[0.5, 0.5], [1, 0], [0, 1], [0.2, 0.8]])
BAD = {
    "sum": (P4 * 2, {}, "every row of y must sum to 1, row 0 sums to 2"),
    "negative": (P4 - [[0.2, -0.2]], {}, "y must not be negative, got -0.2"),
    "missing": (P4 * [[1, np.nan]], {}, "y must be finite"),
    "one column": (P4[:, 1], {}, r"one column per class.*continuous.*numpy.stack\(\[1 - p, p\], axis=1\)"),
    "rows": (P4[:3], {}, "inconsistent numbers of samples"),
    "classes": (P4, {"classes": ["a", "b", "c"]}, "one column for each of 3 classes, got 2"),
    "order": (P4, {"classes": ["b", "a"]}, r"sorted, as everywhere in scikit-learn, got \['b', 'a'\]"),
    "twice": (P4, {"classes": ["a", "a"]}, "each once"),
    "names": (pd.DataFrame(P4, columns=["x", "y"]), {"classes": ["a", "b"]}, r"must be the classes \['a', 'b'\]"),
    "label": (["a", "b", "a", "q"], {"classes": ["a", "b"]}, "the label .*'q'.*, which is not in classes"),
    "nothing to decide": (np.eye(2)[[0, 0, 0, 0]], {}, "at least two classes, got 1 class"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_targets_are_refused_with_the_rule_and_the_value(name):
    y, parameters, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        SoftTargetClassifier(LogisticRegression(), **parameters).fit(X4, y)


def test_other_bad_input():
    fit = SoftTargetClassifier(LogisticRegression()).fit
    with pytest.raises(ValueError, match="for an estimator that stops early on them, and LogisticRegression"):
        fit(X4, P4, X_val=X4, y_val=P4)
    with pytest.raises(ValueError, match="at least one non-zero number"):
        fit(X4, P4, [0, 0, 0, 0])
    with pytest.raises(ValueError, match="X_val and y_val must be given together"):
        SoftTargetClassifier(STOPPING["LightGBM"]).fit(X4, P4, X_val=X4)
    with pytest.raises(ValueError, match="SoftTargetClassifier: estimator must be a classifier with fit, got int"):
        SoftTargetClassifier(3).fit(X4, P4)
    with pytest.raises(ValueError, match="SoftTargetClassifier: estimator must give probabilities"):
        SoftTargetClassifier(LinearSVC()).fit(X4, P4)


@parametrize_with_checks(
    [
        SoftTargetClassifier(LogisticRegression()),
        SoftTargetClassifier(make_pipeline(StandardScaler(), LogisticRegression())),
        SoftTargetClassifier(HistGradientBoostingClassifier(max_iter=10)),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scikit_learn_contract(estimator, check):
    check(estimator)
