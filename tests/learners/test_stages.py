"""A fitted model of a library as stages has its own probabilities, or is refused: every kind of base."""

import copy
import datetime
import functools
import json
import pickle
import warnings
from decimal import Decimal

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from xgboost import XGBClassifier

from lowchurn.estimator._archive import model_from_files, model_to_files
from lowchurn.learners import Job, learner_for
from lowchurn.learners._all import ALL, blueprint
from lowchurn.strategies import Distill, WarmStart

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 4)).round(3)
X[RNG.uniform(size=X.shape) < 0.1] = np.nan
FILLED = np.where(np.isnan(X), -999.0, X)
TABLE = pd.DataFrame(np.nan_to_num(X), columns=list("abcd")).assign(word=RNG.choice(list("uvwxyz"), N))
CODED = TABLE.assign(word=pd.Categorical(TABLE["word"]))
SCORE = np.nan_to_num(X[:, 0]) + 0.5 * RNG.normal(size=N) + (TABLE["word"] > "w")
Y = {2: (SCORE > 0).astype(int), 3: np.digitize(SCORE, [-0.3, 0.8])}
EARLY = slice(0, 160)
LATE = slice(160, N)


def lgbm(**given):
    return LGBMClassifier(**({"n_estimators": 30, "min_child_samples": 5, "n_jobs": 1, "verbose": -1} | given))


def xgb(**given):
    return XGBClassifier(**({"n_estimators": 30, "n_jobs": 1, "max_depth": 3} | given))


def cat(**given):
    quiet = {"thread_count": 1, "verbose": 0, "allow_writing_files": False}
    return CatBoostClassifier(**({"iterations": 30, "depth": 3, "learning_rate": 0.3} | quiet | given))


def plain(model, rows=X, **fit):
    return lambda y: (copy.deepcopy(model).fit(rows, y, **fit), rows)


def stopped(model, **fit):
    """Fitted with rows to stop on."""
    return lambda y: (copy.deepcopy(model).fit(X[EARLY], y[EARLY], eval_set=[(X[LATE], y[LATE])], **fit), X)


BASES = {
    "lightgbm": plain(lgbm()),
    "lightgbm stopped by constructor": stopped(lgbm(early_stopping_round=3, learning_rate=0.3)),
    "lightgbm stopped by callback": stopped(
        lgbm(learning_rate=0.3), callbacks=[lightgbm.early_stopping(3, verbose=False)]
    ),
    "lightgbm dart": plain(lgbm(boosting_type="dart", n_estimators=15)),
    "lightgbm random forest": plain(lgbm(boosting_type="rf", subsample=0.7, subsample_freq=1, n_estimators=15)),
    "lightgbm categories": plain(lgbm(), CODED),
    "lightgbm start scores": lambda y: (
        lgbm().fit(X, y, init_score=np.full(N if y.max() == 1 else (N, 3), 0.5)),
        X,
    ),
    "lightgbm linear trees": plain(lgbm(linear_tree=True, n_estimators=10), np.nan_to_num(X)),
    "lightgbm one against all": plain(lgbm(objective="multiclassova", n_estimators=10)),
    "lightgbm scaled sigmoid": plain(lgbm(objective="binary", sigmoid=2.0)),
    "xgboost": plain(xgb()),
    "xgboost stopped by constructor": stopped(xgb(early_stopping_rounds=3), verbose=False),
    "xgboost stopped by callback": stopped(xgb(callbacks=[xgboost.callback.EarlyStopping(3)]), verbose=False),
    "xgboost stopped, best kept": stopped(
        xgb(callbacks=[xgboost.callback.EarlyStopping(3, save_best=True)]), verbose=False
    ),
    "xgboost missing": plain(xgb(missing=-999.0), FILLED),
    "xgboost dart": plain(xgb(booster="dart", rate_drop=0.3, n_estimators=15)),
    "xgboost dart stopped": stopped(xgb(booster="dart", rate_drop=0.3, early_stopping_rounds=3), verbose=False),
    "xgboost linear": plain(xgb(booster="gblinear", n_estimators=5)),
    "xgboost categories": plain(xgb(enable_categorical=True), CODED),
    "xgboost margins": lambda y: (
        xgb().fit(X, y, base_margin=np.full(N if y.max() == 1 else (N, 3), 0.5)),
        X,
    ),
    "xgboost softmax": plain(xgb(objective="multi:softmax")),
    "xgboost hinge": plain(xgb(objective="binary:hinge")),
    "xgboost forest rounds": stopped(xgb(num_parallel_tree=3, early_stopping_rounds=3), verbose=False),
    "catboost": plain(cat()),
    "catboost stopped by constructor": stopped(cat(early_stopping_rounds=3)),
    "catboost best model": stopped(cat()),
    "catboost detector": stopped(cat(od_type="Iter", od_wait=3, use_best_model=False)),
    "catboost categories in fit": plain(cat(), TABLE, cat_features=["word"]),
    "catboost categories": plain(cat(cat_features=["word"]), TABLE),
    "catboost softmax of two": plain(cat(loss_function="MultiClass")),
    "catboost one against all": plain(cat(loss_function="MultiClassOneVsAll")),
}
ONLY = {
    "lightgbm one against all": 3,
    "lightgbm scaled sigmoid": 2,
    "xgboost hinge": 2,
    "xgboost softmax": 3,
    "catboost softmax of two": 2,
    "catboost one against all": 3,
}
REFUSED = {
    "lightgbm random forest",
    "lightgbm one against all",
    "lightgbm scaled sigmoid",
    "xgboost hinge",
    "catboost one against all",
}
CASES = [(name, m) for name in BASES for m in (2, 3) if ONLY.get(name, m) == m]


@functools.cache
def fitted(name, m):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BASES[name](Y[m])


@pytest.mark.parametrize(("name", "m"), CASES, ids=[f"{name}, {m}" for name, m in CASES])
def test_stages_have_the_probabilities_of_the_base_or_are_refused(name, m):
    base, rows = fitted(name, m)
    learner = next(cls for cls in ALL if cls.handles(base))
    if name in REFUSED:
        with pytest.raises(ValueError, match="its probabilities are not those of its scores"):
            learner.as_served(base)
        return
    served = learner.as_served(base)
    np.testing.assert_allclose(served.predict_proba(rows), base.predict_proba(rows), atol=1e-6)
    assert served.predict(rows).tolist() == np.ravel(base.predict(rows)).tolist()
    loaded = model_from_files(*model_to_files(served))
    assert (loaded.predict_proba(rows) == served.predict_proba(rows)).all()


@pytest.mark.parametrize(("name", "m"), CASES, ids=[f"{name}, {m}" for name, m in CASES])
def test_continued_boosting_starts_at_the_probabilities_of_the_base(name, m):
    base, rows = fitted(name, m)
    learner = learner_for(blueprint(base), np.arange(m))
    learner.estimator = learner.with_rounds(learner.estimator, 3)
    if name in REFUSED:
        assert "its probabilities are not those of its scores" in learner.cannot(WarmStart(), base)
        return
    given = base.predict_proba(rows).astype(float)
    given /= given.sum(axis=1, keepdims=True)
    model = learner.fit(rows, Job(given, Distill(lam=0.0, start="warm")), base)
    np.testing.assert_allclose(model.predict_proba(rows), given, atol=0.02)  # nothing to learn: it stays


def test_the_base_keeps_its_own_marker_of_missing_values():
    base = xgb(missing=-999.0).fit(FILLED, Y[2])
    rows = np.where(np.isnan(X), -999.0, X)
    learner = learner_for(xgb(), [0, 1])  # another marker: NaN
    given = base.predict_proba(rows)
    model = learner.fit(rows, Job(given.astype(float), Distill(lam=0.0, start="warm")), base)
    np.testing.assert_allclose(model.predict_proba(rows), given, atol=5e-3)
    assert [stage.settings["missing"] for stage in model.stages] == [-999.0, None]
    assert (model_from_files(*model_to_files(model)).predict_proba(rows) == model.predict_proba(rows)).all()


def test_a_threshold_of_catboost_is_not_lost_in_silence():
    base = cat().fit(X, Y[2])
    base.set_probability_threshold(0.3)
    with pytest.raises(ValueError, match="it decides at a threshold of its own"):
        learner_for(cat(), [0, 1]).stages(base)


def test_the_booster_of_the_base_is_not_changed():
    base = xgb(n_jobs=2).fit(X, Y[2])
    before = base.get_booster().save_config()
    learner = learner_for(xgb(n_jobs=1), [0, 1])
    learner.fit(X, Job(np.eye(2)[Y[2]], WarmStart()), base).predict_proba(X)
    assert base.get_booster().save_config() == before


@pytest.mark.parametrize("weights", [{"no": 1.0, "yes": 9.0}, "balanced"], ids=["by label", "balanced"])
@pytest.mark.parametrize("library", ["lightgbm", "catboost"])
def test_class_weights_by_label_reach_the_plain_training(library, weights):
    labels = np.array(["no", "yes"])
    if library == "lightgbm":
        estimator = lgbm(class_weight=weights)
    else:
        estimator = cat(auto_class_weights="Balanced") if weights == "balanced" else cat(class_weights=weights)
    model = learner_for(estimator, labels).fit(X, Job(np.eye(2)[Y[2]]))
    own = blueprint(estimator).fit(X, labels[Y[2]])
    np.testing.assert_allclose(model.predict_proba(X), own.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("estimator", [lgbm(scale_pos_weight=5.0), xgb(scale_pos_weight=5.0)], ids=["lgbm", "xgb"])
def test_the_weight_of_the_positive_class_counts_for_soft_targets(estimator):
    rows = np.zeros((200, 1))
    targets = np.tile([0.6, 0.4], (200, 1))
    model = learner_for(estimator, [0, 1]).fit(rows, Job(targets, Distill()))
    assert model.predict_proba(rows[:1])[0, 1] == pytest.approx(0.4 * 5 / (0.4 * 5 + 0.6), abs=1e-3)


def test_damaged_files_of_a_model_are_one_clear_line():
    learner, files = model_to_files(learner_for(xgb(), [0, 1]).fit(X, Job(np.eye(2)[Y[2]] * 0.8 + 0.1, Distill())))
    about = json.loads(files["about.json"])
    for changed in (
        {"stages": 2},
        {"stages": 0},
        {"stages": 10**12},
        {"stages": "one"},
        {"classes": "ab"},
        {"classes": [0]},
        {"classes": [[0], [1]]},
        {"dtype": "nonsense"},
        {"dtype": "V1000000000000"},
        {"start": ["x"]},
        {"start": ["0x1p+1", "0x1p+1"]},
        {"settings": []},
        {"settings": 3},
        {"settings": [{"missing": "x"}]},
        {"threads": "many"},
        {"threads": 0},
    ):
        with pytest.raises(ValueError, match="^load: ") as caught:
            model_from_files(learner, files | {"about.json": json.dumps(about | changed).encode()})
        assert len(str(caught.value).splitlines()) == 1, changed
    for lost in files:
        with pytest.raises(ValueError, match="^load: "):
            model_from_files(learner, {name: data for name, data in files.items() if name != lost})
    with pytest.raises(ValueError, match="^load: a stage of the model cannot be read as a model"):
        model_from_files(learner, files | {"stage0": files["stage0"][:-50]})


def test_files_of_an_earlier_version_are_read():
    model = learner_for(xgb(missing=-1.0), [0, 1]).fit(X, Job(np.eye(2)[Y[2]] * 0.8 + 0.1, Distill()))
    learner, files = model_to_files(model)
    about = json.loads(files["about.json"])
    old = {k: v for k, v in about.items() if k != "threads"} | {
        "settings": {"missing": -1.0, "enable_categorical": False}
    }
    read = model_from_files(learner, files | {"about.json": json.dumps(old).encode()})
    np.testing.assert_allclose(read.predict_proba(X), model.predict_proba(X), atol=1e-7)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([False, True]),
        np.array([2**60, 2**60 + 1]),
        np.array([0.5, 1.5]),
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[ns]"),
        np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]"),
        np.array(["a", "b"], dtype=object),
        np.array([datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)], dtype=object),
        np.array([Decimal("1.1"), Decimal("2.2")], dtype=object),
    ],
    ids=lambda labels: f"{labels.dtype} {type(labels[0]).__name__}",
)
def test_labels_of_every_type_come_back(labels):
    model = learner_for(lgbm(), labels).fit(X, Job(np.eye(2)[Y[2]]))
    assert model.predict(X).tolist() == labels[model.predict_proba(X).argmax(axis=1)].tolist()
    again = pickle.loads(pickle.dumps(model))
    assert again.classes_.dtype == labels.dtype
    assert again.classes_.tolist() == labels.tolist()
    if isinstance(labels[0], Decimal | datetime.date):
        with pytest.raises(ValueError, match="save: labels must be numbers, text or dates of numpy"):
            model_to_files(model)
    else:
        read = model_from_files(*model_to_files(model))
        assert read.classes_.dtype == labels.dtype
        assert read.classes_.tolist() == labels.tolist()
