"""Threads at prediction, the same bits with any number of them, and the latency of one row."""

import statistics
import time

import numpy as np
import pytest
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from xgboost import XGBClassifier

from lowchurn.estimator._archive import model_from_files, model_to_files
from lowchurn.learners import Job, learner_for
from lowchurn.strategies import Distill, WarmStart

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 6))
Y = np.digitize(X[:, 0] + 0.5 * RNG.normal(size=300), [-0.4, 0.4])
LGBM = {"n_estimators": 30, "verbose": -1, "num_leaves": 7}
XGB = {"n_estimators": 30, "max_depth": 3}
CAT = {"iterations": 30, "depth": 3, "verbose": 0, "allow_writing_files": False}


def boosters(threads):
    return [
        LGBMClassifier(n_jobs=threads, **LGBM),
        XGBClassifier(n_jobs=threads, **XGB),
        CatBoostClassifier(thread_count=threads, **CAT),
    ]


@pytest.mark.parametrize("estimator", boosters(1), ids=lambda e: type(e).__name__)
def test_the_number_of_threads_is_kept_at_prediction(estimator):
    targets = 0.8 * np.eye(3)[Y] + 0.2 / 3
    learner = learner_for(estimator, range(3))
    base = learner.unfitted(estimator).fit(X, Y)
    models = [
        learner.fit(X, Job(np.eye(3)[Y])),
        learner.fit(X, Job(targets, Distill())),
        learner.fit(X, Job(targets, WarmStart()), base),
        type(learner).as_served(base),
    ]
    for model in [*models, *(model_from_files(*model_to_files(model)) for model in models)]:
        assert model.threads == model.thread_count == 1
        if "XGB" in type(estimator).__name__:
            for booster in model.boosters:
                assert '"nthread":"1"' in booster.save_config().replace(" ", "")


def test_threads_reach_the_calls_of_the_libraries(monkeypatch):
    import catboost
    import lightgbm

    seen = []
    for owner, name in ((lightgbm.Booster, "num_threads"), (catboost.CatBoost, "thread_count")):
        own = owner.predict

        def spied(self, *given, _own=own, _name=name, **named):
            seen.append(named.get(_name))
            return _own(self, *given, **named)

        monkeypatch.setattr(owner, "predict", spied)
    for estimator in (boosters(1)[0], boosters(1)[2]):
        learner_for(estimator, range(3)).fit(X, Job(0.8 * np.eye(3)[Y] + 0.2 / 3, Distill())).predict_proba(X[:1])
    assert seen == [1, 1]


@pytest.mark.stress
@pytest.mark.parametrize("k", range(3), ids=["LightGBM", "XGBoost", "CatBoost"])
@pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
def test_the_same_bits_with_one_thread_and_two(k, soft):
    targets = 0.8 * np.eye(3)[Y] + 0.2 / 3 if soft else np.eye(3)[Y]
    one, two = (
        learner_for(boosters(threads)[k], range(3)).fit(X, Job(targets, seed=0)).predict_proba(X) for threads in (1, 2)
    )
    assert (one == two).all()


def one_row_seconds(asked, rows, repeats):
    """Median seconds of one row, of several callables in turn, so that a busy machine slows all of them."""
    seconds = [[] for _ in asked]
    for row in np.resize(np.arange(len(rows)), repeats):
        for ask, times in zip(asked, seconds, strict=True):
            start = time.perf_counter()
            ask(rows[row : row + 1])
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


@pytest.mark.stress
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("k", range(3), ids=["LightGBM", "XGBoost", "CatBoost"])
@pytest.mark.parametrize("kind", ["hard", "soft", "base"])
def test_one_row_takes_at_most_half_as_long_again_as_the_wrapped_model(k, m, kind):
    estimator = boosters(1)[k]
    y = np.minimum(Y, m - 1)
    learner = learner_for(estimator, range(m))
    wrapped = learner.unfitted(estimator).fit(X, y)
    targets = np.eye(m)[y] if kind == "hard" else 0.8 * np.eye(m)[y] + 0.2 / m
    model = type(learner).as_served(wrapped) if kind == "base" else learner.fit(X, Job(targets))
    for _ in range(3):  # a spike of a shared machine is no finding
        own, ours = one_row_seconds([wrapped.predict_proba, model.predict_proba], X, 300)
        if ours <= 1.5 * own:
            return
    pytest.fail(f"one row takes {ours * 1e6:.0f} us, and {own * 1e6:.0f} us by the library")


def test_other_learners_keep_their_own_threads():
    for estimator in (RandomForestClassifier(3, n_jobs=2), LogisticRegression()):
        model = learner_for(estimator, range(3)).fit(X, Job(np.eye(3)[Y], seed=0))
        assert getattr(model, "n_jobs", None) == getattr(estimator, "n_jobs", None)
