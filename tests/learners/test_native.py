"""Model files of the libraries: the probabilities of the model that wrote them, and one clear line for damaged ones."""

import contextlib
import json
import random

import numpy as np
import pandas as pd
import pytest
from catboost import CatBoostClassifier, CatBoostRegressor
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier, LGBMRegressor
from xgboost import XGBClassifier, XGBRegressor

import lowchurn.learners._catboost as catboost
from lowchurn.learners import Job, learner_for, native_model
from lowchurn.learners._all import blueprint
from lowchurn.learners._boosted import Stage
from lowchurn.learners._native import NATIVE_ENDINGS
from lowchurn.learners._trees import check_lightgbm, check_xgboost
from lowchurn.strategies import Distill, WarmStart

RNG = np.random.default_rng(0)
N = 200
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=list("abc"))
CODED = X.assign(word=pd.Categorical(RNG.choice(list("uvwxyz"), N)))
WORDS = CODED.assign(word=CODED["word"].astype(str))
SCORE = X["a"].to_numpy() + 0.5 * RNG.normal(size=N) + (WORDS["word"] > "w").to_numpy()
Y = {2: (SCORE > 0).astype(int), 3: np.digitize(SCORE, [-0.3, 0.8])}
LGBM = {"n_estimators": 8, "min_child_samples": 3, "n_jobs": 1, "verbose": -1}
XGB = {"n_estimators": 8, "n_jobs": 1, "max_depth": 3}
CAT = {"iterations": 8, "depth": 3, "thread_count": 1, "verbose": 0, "allow_writing_files": False}


def rare(X):
    """Hardly any splits: some trees are single leaves."""
    return X.round(0).clip(0, 1)


KINDS = {
    "lightgbm": (LGBMClassifier(**LGBM), X),
    "lightgbm categories": (LGBMClassifier(min_data_per_group=3, cat_smooth=1, **LGBM), CODED),
    "lightgbm dart": (LGBMClassifier(boosting_type="dart", **LGBM), X),
    "lightgbm linear": (LGBMClassifier(linear_tree=True, **LGBM), X),
    "lightgbm stumps": (LGBMClassifier(**LGBM | {"n_estimators": 40, "min_split_gain": 1.0}), rare(X)),
    "xgboost": (XGBClassifier(**XGB), X),
    "xgboost categories": (XGBClassifier(enable_categorical=True, max_cat_to_onehot=2, **XGB), CODED),
    "xgboost dart": (XGBClassifier(booster="dart", rate_drop=0.2, **XGB), X),
    "xgboost linear": (XGBClassifier(booster="gblinear", n_estimators=4, n_jobs=1), X),
    "xgboost vectors": (XGBClassifier(multi_strategy="multi_output_tree", **XGB), X),
    "xgboost pruned": (XGBClassifier(gamma=1.0, **XGB | {"max_depth": 6}), X),
}


def written(model, path):
    (model.booster_ if hasattr(model, "booster_") else model).save_model(path)
    return path


@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_has_the_probabilities_of_the_model_that_wrote_it(tmp_path, name, m):
    estimator, rows = KINDS[name]
    model = learner_for(estimator, range(m)).unfitted(estimator).fit(rows, Y[m])
    for ending in [".txt"] if "lightgbm" in name else [".json", ".ubj"]:
        path = written(model, tmp_path / f"model{ending}")
        read = native_model(str(path))
        np.testing.assert_allclose(read.predict_proba(rows), model.predict_proba(rows), atol=1e-6)
        assert read.classes_.tolist() == list(range(m))
        assert (read.predict(rows) == model.predict(rows)).all()
        named = native_model(path, classes=list("pqr")[:m])
        assert named.predict(rows).tolist() == np.array(list("pqr"))[model.predict(rows)].tolist()
        learner = learner_for(estimator, range(m))
        assert learner.cannot(WarmStart(), read) is None
        given = model.predict_proba(rows).astype(float)
        given /= given.sum(axis=1, keepdims=True)
        onward = learner.fit(rows, Job(given, Distill(lam=0, start="warm")), read)
        np.testing.assert_allclose(onward.predict_proba(rows), given, atol=0.01)


def test_files_of_catboost_have_labels_and_parameters(tmp_path, monkeypatch):
    labels = np.array(["no", "yes"])
    model = CatBoostClassifier(random_seed=3, **CAT).fit(WORDS, labels[Y[2]], cat_features=["word"])
    read = native_model(written(model, tmp_path / "model.cbm"))
    assert (read.predict_proba(WORDS) == model.predict_proba(WORDS)).all()
    assert read.classes_.tolist() == ["no", "yes"]
    made = blueprint(read)
    assert not made.is_fitted()
    expected = {"iterations": 8, "depth": 3, "random_seed": 3, "cat_features": ["word"]}
    assert {k: v for k, v in made.get_params().items() if k in expected} == expected
    assert learner_for(made, labels, read).cannot(WarmStart(), read) is None
    monkeypatch.setattr(catboost, "TRIAL", "a file is tried once")
    assert native_model(tmp_path / "model.cbm", classes=["no", "yes"]).classes_.tolist() == ["no", "yes"]
    with pytest.raises(ValueError, match=r"has the classes \['no', 'yes'\], and classes are \['a', 'b'\]"):
        native_model(tmp_path / "model.cbm", classes=["a", "b"])


def test_early_stopping_of_a_written_xgboost_is_kept(tmp_path):
    model = XGBClassifier(early_stopping_rounds=3, **XGB | {"n_estimators": 100})
    model.fit(X[:120], Y[2][:120], eval_set=[(X[120:], Y[2][120:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    read = native_model(written(model, tmp_path / "model.ubj"))
    np.testing.assert_allclose(read.predict_proba(X), model.predict_proba(X), atol=1e-6)


def test_a_blueprint_of_a_file(tmp_path):
    given = {"learning_rate": 0.07, "num_leaves": 9, "colsample_bytree": 0.7, "reg_lambda": 0.5, "max_depth": 4}
    model = LGBMClassifier(random_state=4, **LGBM, **given).fit(X, Y[2])
    made = blueprint(native_model(written(model, tmp_path / "model.txt")))
    assert {k: made.get_params()[k] for k in given} == given
    assert made.n_estimators == 8
    again = made.fit(X, Y[2])
    np.testing.assert_allclose(again.predict_proba(X), model.predict_proba(X), atol=1e-9)
    written(XGBClassifier(**XGB).fit(X, Y[2]), tmp_path / "model.json")
    with pytest.raises(ValueError, match=r"xgboost does not contain the parameters.*Give estimator="):
        blueprint(native_model(tmp_path / "model.json"))


@pytest.mark.parametrize(
    ("model", "ending"),
    [(LGBMRegressor(**LGBM), ".txt"), (XGBRegressor(**XGB), ".json"), (CatBoostRegressor(**CAT), ".cbm")],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_regressors_are_refused(tmp_path, model, ending):
    path = written(model.fit(X, SCORE), tmp_path / f"model{ending}")
    with pytest.raises(ValueError, match=f"native_model: .*model{ending}"):
        native_model(path)


@pytest.mark.parametrize("ending", NATIVE_ENDINGS)
@pytest.mark.parametrize("content", [b"", b"hello", b"{}", b"CBM1\xff\xff\xff\xff", b'{"learner": 1}', b"[" * 100_000])
def test_garbage_is_one_clear_line(tmp_path, ending, content):
    path = tmp_path / f"model{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"native_model: .*model{ending}") as caught:
        native_model(path)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


def test_other_paths_and_labels_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in one of .txt, .json, .ubj, .cbm, got 'a.bin'"):
        native_model("a.bin")
    with pytest.raises(ValueError, match="cannot read '.*nowhere.txt': No such file"):
        native_model(tmp_path / "nowhere.txt")
    written(LGBMClassifier(**LGBM).fit(X, Y[2]), tmp_path / "model.txt")
    with pytest.raises(ValueError, match="classes must name each of the 2 classes"):
        native_model(tmp_path / "model.txt", classes=[1, 2, 3])


def test_a_file_that_crashes_catboost_does_not_crash_this_process(tmp_path, monkeypatch):
    path = written(CatBoostClassifier(**CAT).fit(X, Y[2]), tmp_path / "model.cbm")
    monkeypatch.setattr(catboost, "TRIED", set())
    monkeypatch.setattr(catboost, "TRIAL", "import os; os.abort()")
    with pytest.raises(ValueError, match="native_model: .* is damaged, or no model file of CatBoost"):
        native_model(path)
    stages = catboost.CatBoostModel([Stage(CatBoostClassifier().load_model(path))], [0, 1]).to_files()
    again = catboost.CatBoostModel.from_files(stages)  # this process has written it
    assert (again.predict_proba(X) == CatBoostClassifier().load_model(path).predict_proba(X)).all()
    catboost.TRIED.clear()
    with pytest.raises(ValueError, match="load: a stage of the model is damaged"):
        catboost.CatBoostModel.from_files(stages)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="it is cut short, or no file of CatBoost"):
        native_model(path)


def test_a_file_of_catboost_is_not_tried_with_code_of_the_current_folder(tmp_path, monkeypatch):
    path = written(CatBoostClassifier(random_seed=7, **CAT).fit(X, Y[2]), tmp_path / "model.cbm")
    (tmp_path / "catboost.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    assert native_model(path).classes_.tolist() == [0, 1]
    assert not (tmp_path / "ran").exists()


def damaged(data, seed):
    """Cut, bits flipped, or a part replaced."""
    rnd = random.Random(seed)
    data = bytearray(data)
    kind = rnd.random()
    if kind < 0.2:
        return bytes(data[: rnd.randrange(len(data))])
    if kind < 0.8:
        for _ in range(rnd.choice([1, 1, 2, 5])):
            data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)
    else:
        place = rnd.randrange(len(data))
        data[place : place + rnd.randrange(1, 40)] = rnd.randbytes(rnd.randrange(40))
    return bytes(data)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    found = {}
    for name, (estimator, rows) in KINDS.items():
        model = learner_for(estimator, range(3)).unfitted(estimator).fit(rows, Y[3])
        for ending in [".txt"] if "lightgbm" in name else [".json", ".ubj"]:
            found[name + ending] = written(model, folder / f"{name.replace(' ', '-')}{ending}"), rows
    return found


def reads_or_refuses(path, rows, data):
    path = path.with_name(f"damaged{path.suffix}")
    path.write_bytes(data)
    with contextlib.suppress(ValueError, TypeError):  # refused, or it asks for columns of other names
        assert len(native_model(path).predict_proba(rows)) == len(rows)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_damaged_files_are_read_or_refused(files, seed):
    path, rows = random.Random(seed).choice(list(files.values()))
    reads_or_refuses(path, rows, damaged(path.read_bytes(), seed))


@pytest.mark.stress
def test_many_damaged_files_are_read_or_refused(files):
    for path, rows in files.values():
        data = path.read_bytes()
        for seed in range(500):
            reads_or_refuses(path, rows, damaged(data, seed))


def test_trees_that_are_no_trees(files):
    text = files["lightgbm.txt"][0].read_bytes()
    for old, new, words in (
        (b"left_child=", b"left_child=0 ", "tree 0 is not where|a tree lacks nodes"),
        (b"max_feature_idx=2", b"max_feature_idx=0", "feature_names has not one entry"),
        (b"split_feature=", b"split_feature=7", "feature that is not there|not where"),
        (b"num_leaves=", b"num_leaves=9", "leaves without value|not where"),
    ):
        with pytest.raises(ValueError, match=words):
            check_lightgbm(text.replace(old, new))
    data = files["xgboost.json"][0].read_bytes()
    for old, new, words in (
        (b'"left_children":[1', b'"left_children":[0', "children that are not there|two parents"),
        (b'"left_children":[1', b'"left_children":[999', "children that are not there"),
        (b'"num_feature":"3"', b'"num_feature":"0"', "a tree is damaged|feature that is not there"),
        (b'"tree_info":[0', b'"tree_info":[8', "belongs to a class that is not there"),
        (b'"id":1,', b'"id":2,', "a tree is not where it should be"),  # XGBoost would end the process
    ):
        assert old in data
        with pytest.raises(ValueError, match=words):
            check_xgboost(data.replace(old, new))
    model = json.loads(files["xgboost categories.json"][0].read_bytes())
    tree = model["learner"]["gradient_booster"]["model"]["trees"][0]
    tree["split_type"][tree["left_children"].index(-1)] = 1  # a leaf that asks for a category
    with pytest.raises(ValueError, match="a node is of an unknown kind"):
        check_xgboost(json.dumps(model).encode())
