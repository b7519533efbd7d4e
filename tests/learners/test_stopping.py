"""Bases and estimators that stop early, members that differ by seed, blueprints, and boosting that diverges."""

import pickle

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.datasets import make_classification
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from xgboost import XGBClassifier

from lowchurn.learners import Job, learner_for
from lowchurn.learners._all import blueprint
from lowchurn.learners._boosting import cross_entropy, stopping_rows
from lowchurn.learners._learner import _attempt
from lowchurn.strategies import ColdStart, Distill, WarmStart

RNG = np.random.default_rng(0)
N = 400
X = RNG.normal(size=(N, 4))
Y = {2: (X[:, 0] + RNG.normal(size=N) > 0).astype(int), 3: np.digitize(X[:, 0] + RNG.normal(size=N), [-0.5, 0.5])}
LGBM = {"n_estimators": 300, "learning_rate": 0.3, "n_jobs": 1, "verbose": -1, "num_leaves": 7}
XGB = {"n_estimators": 300, "n_jobs": 1, "max_depth": 3}
CAT = {"iterations": 300, "depth": 3, "thread_count": 1, "verbose": 0, "allow_writing_files": False}
STOPPING = {
    "LightGBM round": LGBMClassifier(early_stopping_round=4, **LGBM),
    "LightGBM rounds": LGBMClassifier(early_stopping_rounds=4, **LGBM),
    "LightGBM n_iter_no_change": LGBMClassifier(n_iter_no_change=4, **LGBM),
    "XGBoost": XGBClassifier(early_stopping_rounds=4, **XGB),
    "XGBoost callback": XGBClassifier(callbacks=[xgboost.callback.EarlyStopping(rounds=4)], **XGB),
    "CatBoost": CatBoostClassifier(early_stopping_rounds=4, learning_rate=0.3, **CAT),
    "CatBoost detector": CatBoostClassifier(od_type="Iter", od_wait=4, learning_rate=0.3, **CAT),
    "CatBoost best": CatBoostClassifier(use_best_model=True, od_wait=4, learning_rate=0.3, **CAT),
}


def trees(booster):
    """Rounds of a booster of any library."""
    if isinstance(booster, lightgbm.Booster):
        return booster.current_iteration()
    return booster.num_boosted_rounds() if isinstance(booster, xgboost.Booster) else booster.tree_count_


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("name", STOPPING)
def test_an_estimator_that_stops_early_finds_its_number_of_rounds(name, m):
    onehot = np.eye(m)[Y[m]]
    learner = learner_for(STOPPING[name], np.arange(m))
    jobs = [Job(onehot, seed=1), Job(0.8 * onehot + 0.2 / m, Distill(), seed=1, labels=Y[m])]  # the same labels
    hard, soft = learner.fit_many(X, jobs)
    rounds = trees(hard.boosters[0])
    assert 1 <= rounds < 150
    assert trees(soft.boosters[0]) == rounds
    (note,) = learner.notes
    assert f"trained {rounds} rounds on all rows, the number at which it stopped early" in note


def fitted(name, m=2):
    model = learner_for(STOPPING[name], np.arange(m)).prepared(Job(np.eye(m)[Y[m]]))
    quiet = {} if "LightGBM" in name else {"verbose": False}
    return model.fit(X[:300], Y[m][:300], eval_set=[(X[300:], Y[m][300:])], **quiet)


def stopped_elsewhere(library):
    """Bases whose parameters do not show that they stopped early."""
    if library == "LightGBM":
        stop = lightgbm.early_stopping(4, verbose=False)
        return LGBMClassifier(**LGBM).fit(X[:300], Y[2][:300], eval_set=[(X[300:], Y[2][300:])], callbacks=[stop])
    return CatBoostClassifier(**CAT).fit(X[:300], Y[2][:300], eval_set=(X[300:], Y[2][300:]))


BASES = {name: lambda name=name: fitted(name) for name in STOPPING} | {
    "LightGBM in fit": lambda: stopped_elsewhere("LightGBM"),
    "CatBoost in fit": lambda: stopped_elsewhere("CatBoost"),
}


@pytest.mark.parametrize("name", BASES)
def test_a_retrain_takes_the_rounds_of_a_base_that_stopped_early(name):
    base = BASES[name]()
    best = getattr(base, "best_iteration_", None)  # LightGBM counts rounds, XGBoost and CatBoost from zero
    rounds = best if "LightGBM" in name else (base.best_iteration if "XGBoost" in name else base.tree_count_ - 1) + 1
    assert rounds < 300
    job = Job(np.eye(2)[Y[2]])
    for estimator in (blueprint(base), learner_for(base, [0, 1]).unfitted(base)):
        learner = learner_for(estimator, [0, 1], base)
        assert trees(learner.fit(X, job).boosters[0]) == rounds
        assert f"trained {rounds} rounds, the number at which the base stopped early." in learner.notes[0]
    alone = learner_for(blueprint(base), [0, 1])  # without the base at hand
    assert trees(alone.fit(X, job).boosters[0]) == rounds
    onward = learner.fit(X, Job(np.eye(2)[Y[2]], WarmStart()), base)
    assert len(onward.boosters) == 2


def test_other_settings_than_the_bases_are_kept():
    base = stopped_elsewhere("LightGBM")
    for changed in ({"n_estimators": 12}, {"n_estimators": 300, "learning_rate": 0.01}):
        learner = learner_for(LGBMClassifier(**LGBM | changed), [0, 1], base)
        assert trees(learner.fit(X, Job(np.eye(2)[Y[2]])).boosters[0]) == changed["n_estimators"]
        assert learner.notes == []


def test_catboost_keeps_the_rate_that_went_with_its_rounds():
    base = stopped_elsewhere("CatBoost")
    made = blueprint(base)
    assert made.get_params()["learning_rate"] == pytest.approx(base.learning_rate_)
    assert "learning_rate" not in base.get_params()


def test_rows_to_stop_on_keep_every_class_in_training():
    y = np.r_[np.zeros(57, int), np.ones(5, int), [2], [3, 3]]
    train, held_out = stopping_rows(y, 3)
    assert sorted([*train, *held_out]) == list(range(len(y)))
    assert set(y[train]) == {0, 1, 2, 3}
    assert len(held_out) in (5, 6)
    few = learner_for(STOPPING["XGBoost"].set_params(n_estimators=5), [0, 1])
    assert trees(few.fit(X[:6], Job(np.eye(2)[[0, 1, 0, 1, 0, 1]])).boosters[0]) == 5
    assert "too few rows" in few.notes[0]


def test_notes_come_back_from_worker_processes(monkeypatch):
    learner = learner_for(STOPPING["XGBoost"].set_params(n_estimators=300), [0, 1])

    # A worker has a copy of the learner and of the job.
    def in_worker(*given):
        return _attempt(*pickle.loads(pickle.dumps(given)))

    monkeypatch.setattr("lowchurn.learners._learner._attempt", in_worker)
    one, two = learner.fit_many(X, [Job(np.eye(2)[Y[2]], seed=k) for k in range(2)])
    assert len(learner.notes) == 1
    assert trees(one.boosters[0]) == trees(two.boosters[0])


# Members


RANDOM = [
    LGBMClassifier(n_estimators=5, subsample=0.5, subsample_freq=1, n_jobs=1, verbose=-1),
    XGBClassifier(n_estimators=5, subsample=0.5, n_jobs=1),
    CatBoostClassifier(iterations=5, thread_count=1, verbose=0, allow_writing_files=False),
    RandomForestClassifier(5),
    GradientBoostingClassifier(n_estimators=3, subsample=0.5),
    HistGradientBoostingClassifier(max_iter=3, max_features=0.5, max_leaf_nodes=4),
    MLPClassifier((4,), max_iter=3),
    SGDClassifier(loss="log_loss", max_iter=3, tol=None),
]


@pytest.mark.parametrize("estimator", RANDOM, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("seed", [None, 0], ids=["no seed", "seed 0"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_members_differ_and_the_same_member_is_the_same(estimator, seed, soft):
    learner = learner_for(estimator, [0, 1, 2])
    if seed is not None:
        learner.estimator = learner.unfitted(estimator).set_params(**{learner.seeds[0]: seed})
    targets = np.eye(3)[Y[3][:200]]
    targets = 0.7 * targets + 0.1 if soft else targets
    jobs = [Job(targets, Distill() if soft else ColdStart(), seed=10 + k, member=k) for k in (0, 1, 2, 1)]
    zero, one, two, again = (learner.fit(X[:200], job).predict_proba(X) for job in jobs)
    assert (one == again).all()
    assert all((a != b).any() for a, b in ((zero, one), (one, two), (zero, two)))


def test_other_names_of_the_seed():
    for estimator, name in (
        (LGBMClassifier(seed=0, **LGBM), "seed"),
        (XGBClassifier(seed=0, **XGB), "seed"),
        (CatBoostClassifier(random_state=0, **CAT), "random_state"),
    ):
        learner = learner_for(estimator, [0, 1])
        assert learner.prepared(Job(np.eye(2)[Y[2]], seed=5)).get_params()[name] == 0
        assert learner.prepared(Job(np.eye(2)[Y[2]], seed=5, member=1)).get_params()[name] != 0


# What a blueprint keeps


def test_categorical_features_given_to_fit_are_kept():
    words = pd.DataFrame({"a": X[:, 0], "word": np.where(Y[2] == 1, "yes", "no"), "b": X[:, 1]})
    base = CatBoostClassifier(**CAT | {"iterations": 10}).fit(words, Y[2], cat_features=["word"])
    made = blueprint(base)
    assert not made.is_fitted()
    assert made.get_params()["cat_features"] == ["word"]
    learner = learner_for(made, [0, 1], base)
    for job in (Job(np.eye(2)[Y[2]]), Job(0.8 * np.eye(2)[Y[2]] + 0.1, Distill(start="warm"))):
        model = learner.fit(words, job, base)
        assert (model.predict(words) == Y[2]).all()
    array = words.to_numpy(dtype=object)
    base = CatBoostClassifier(**CAT | {"iterations": 10}).fit(array, Y[2], cat_features=[1])
    assert blueprint(base).get_params()["cat_features"] == [1]
    assert (learner_for(blueprint(base), [0, 1]).fit(array, Job(np.eye(2)[Y[2]])).predict(array) == Y[2]).all()


def test_a_blueprint_of_xgboost_fits_another_number_of_classes():
    base = XGBClassifier(**XGB | {"n_estimators": 3}).fit(X, Y[3])
    model = learner_for(blueprint(base), [0, 1]).fit(X, Job(np.eye(2)[Y[2]]))
    assert model.predict_proba(X).shape == (N, 2)


def test_what_has_no_blueprint_is_refused():
    with pytest.raises(ValueError, match="blueprint: base must be a classifier with fit, got function"):
        blueprint(lambda X: X)


# Boosting that diverges


def letters(m=26, n=700):
    return make_classification(
        n, 16, n_informative=12, n_redundant=0, n_classes=m, n_clusters_per_class=1, class_sep=3.0, random_state=0
    )


def test_continued_boosting_with_many_classes_does_not_diverge():
    rows, y = letters()
    settings = {"n_estimators": 40, "num_leaves": 7, "learning_rate": 0.3, "n_jobs": 1, "verbose": -1}
    base = LGBMClassifier(**settings).fit(rows[:350], y[:350])
    onehot, given = np.eye(26)[y], base.predict_proba(rows)
    for strategy in (WarmStart(), Distill(lam=0.5, start="warm")):
        targets = strategy.targets(onehot, given)
        model = learner_for(LGBMClassifier(**settings), np.arange(26)).fit(rows, Job(targets, strategy), base)
        before, after = (cross_entropy(np.log(p), targets, None) for p in (given, model.predict_proba(rows)))
        assert after < before
        assert (model.predict(rows) == y).mean() > (base.predict(rows) == y).mean()


def test_boosting_that_diverges_is_not_served():
    rows, y = letters(6, 300)
    base = LGBMClassifier(n_estimators=20, n_jobs=1, verbose=-1, num_leaves=7).fit(rows[:150], y[:150])
    wild = LGBMClassifier(n_estimators=30, learning_rate=30.0, n_jobs=1, verbose=-1, min_child_samples=1)
    job = Job(np.eye(6)[y], WarmStart())
    (error,) = learner_for(wild, np.arange(6)).fit_many(rows, [job], base)
    assert "continued boosting diverged: the log-loss of its own training rows went from" in str(error)


def test_cross_entropy_is_the_mean_log_loss():
    raw = RNG.normal(size=(5, 3))
    targets = RNG.dirichlet(np.ones(3), 5)
    weight = RNG.uniform(size=5)
    p = np.exp(raw) / np.exp(raw).sum(axis=1, keepdims=True)
    expected = -(weight * (targets * np.log(p)).sum(axis=1)).sum() / weight.sum()
    assert cross_entropy(raw, targets, weight) == pytest.approx(expected)
    positive = 1 / (1 + np.exp(-raw[:, 0]))
    two = np.stack([1 - targets[:, 0], targets[:, 0]], axis=1)
    expected = -(two[:, 0] * np.log(1 - positive) + two[:, 1] * np.log(positive)).mean()
    assert cross_entropy(raw[:, :1], two, None) == pytest.approx(expected)
    assert not np.isfinite(cross_entropy(np.full((5, 1), np.nan), two, None))
