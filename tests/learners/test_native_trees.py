"""Native files of LightGBM and XGBoost: what the libraries write passes, what would crash them is refused."""

import functools
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from lightgbm import LGBMClassifier
from xgboost import XGBClassifier

from lowchurn.estimator._archive import model_from_files, model_to_files
from lowchurn.learners._boosted import BoostedModel, Stage
from lowchurn.learners._lightgbm import LightGBMModel
from lowchurn.learners._trees import Damaged, check_lightgbm, check_xgboost, read_ubjson
from lowchurn.learners._xgboost import XGBoostModel

RNG = np.random.default_rng(0)
N = 300
TABLE = pd.DataFrame(
    {"a b": RNG.normal(size=N), "word": pd.Categorical(RNG.choice(list("uvwxyz"), N)), "n": RNG.integers(0, 9, N)}
)
Y = (TABLE["n"] % 3).to_numpy()
NUMBERS = TABLE[["a b", "n"]]


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"linear_tree": True},
        {"boosting_type": "dart"},
        {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
        {"max_cat_to_onehot": 1, "min_data_per_group": 1, "cat_smooth": 0, "min_child_samples": 1},
        {"min_child_samples": 1000},  # no split at all
    ],
    ids=str,
)
def test_what_lightgbm_writes_passes(settings, classes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = NUMBERS if "linear_tree" in settings else TABLE
        model = LGBMClassifier(n_estimators=3, verbosity=-1, n_jobs=1, **settings).fit(rows, np.minimum(Y, classes - 1))
    check_lightgbm(model.booster_.model_to_string().encode())


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"booster": "dart", "rate_drop": 0.5},
        {"booster": "gblinear"},
        {"max_cat_to_onehot": 1},
        {"gamma": 1000},  # no split at all
        {"num_parallel_tree": 3},
        {"tree_method": "exact", "gamma": 0.5},  # pruned
    ],
    ids=str,
)
def test_what_xgboost_writes_passes(settings, classes):
    plain = settings.get("booster") == "gblinear" or "tree_method" in settings
    model = XGBClassifier(n_estimators=3, enable_categorical=not plain, n_jobs=1, **settings)
    model.fit(NUMBERS if plain else TABLE, np.minimum(Y, classes - 1))
    for form in ("ubj", "json"):
        check_xgboost(bytes(model.get_booster().save_raw(form)))


@functools.cache
def small(library) -> BoostedModel:
    if library == "lightgbm":
        model = LGBMClassifier(n_estimators=2, num_leaves=4, verbosity=-1, n_jobs=1).fit(NUMBERS, Y)
        return LightGBMModel([Stage(model.booster_)], model.classes_)
    model = XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1).fit(NUMBERS, Y)
    return XGBoostModel([Stage(model.get_booster())], model.classes_)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"left_child=", b"left_child=77 ", "not where it should be|lacks nodes"),
        (b"left_child=1", b"left_child=9", "lacks a child"),
        (b"left_child=1", b"left_child=0", "lacks a child"),  # a cycle
        (b"split_feature=1", b"split_feature=8", "feature that is not there"),
        (b"num_leaves=4", b"num_leaves=5", "leaves without value"),
        (b"leaf_value=-0.", b"leaf_value=-x.", "leaf_value must be numbers"),
        (b"tree_sizes=", b"tree_sizes=9", "not where it should be"),
        (b"max_feature_idx=1", b"max_feature_idx=0", "one entry for each feature"),
        (b"end of parameters", b"end of para", "its end is missing"),
    ],
)
def test_lightgbm_trees_that_would_crash_are_refused(old, new, words):
    files = model_to_files(small("lightgbm"))[1]
    assert old in files["stage0"]
    with pytest.raises(ValueError, match=words):
        model_from_files("lightgbm", {**files, "stage0": files["stage0"].replace(old, new, 1)})


def test_xgboost_trees_that_would_crash_are_refused():
    files = model_to_files(small("xgboost"))[1]
    data = files["stage0"]
    for name, kind in ((b"left_children", b"l"), (b"parents", b"l"), (b"split_indices", b"l")):
        head = name + b"[$" + kind + b"#L"
        at = data.index(head) + len(head) + 8
        for value in (10**6, -7):
            other = data[:at] + value.to_bytes(4, "big", signed=True) + data[at + 4 :]
            if name == b"parents":  # the root has none, its child has
                other = data[: at + 4] + value.to_bytes(4, "big", signed=True) + data[at + 8 :]
            with pytest.raises(ValueError, match="load: "):
                model_from_files("xgboost", {**files, "stage0": other})
    for cut in (0, 1, 10, len(data) // 2, len(data) - 1):
        with pytest.raises(ValueError, match="load: "):
            model_from_files("xgboost", {**files, "stage0": data[:cut]})


def test_a_leaf_that_lacks_one_of_its_values_is_refused():
    """XGBoost reads as many values per leaf as there are classes, and past the end of the list for the last one."""
    model = XGBClassifier(n_estimators=1, max_depth=2, n_jobs=1, multi_strategy="multi_output_tree").fit(NUMBERS, Y)
    found = json.loads(bytes(model.get_booster().save_raw("json")))
    check_xgboost(json.dumps(found).encode())
    del found["learner"]["gradient_booster"]["model"]["trees"][0]["leaf_weights"][-1]
    with pytest.raises(Damaged, match="leaves without value"):
        check_xgboost(json.dumps(found).encode())


def test_a_key_that_is_there_twice_is_refused():
    """XGBoost would follow the first one, and the check would have read the last."""
    pair = b"i\x01ai\x05"
    assert read_ubjson(b"{" + pair + b"}") == {"a": 5}
    with pytest.raises(Damaged, match="twice"):
        read_ubjson(b"{" + 2 * pair + b"}")
    with pytest.raises(Damaged, match="twice"):
        check_xgboost(b'{"learner": {}, "learner": {}}')


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_descriptions_of_another_kind_are_refused(library):
    files = model_to_files(small(library))[1]
    for about in (b"", b"{}", b"[]", b'{"classes": [0, 1], "dtype": "<i8", "start": ["0x1p0"], "stages": 10000000000}'):
        with pytest.raises(ValueError, match="load: "):
            model_from_files(library, {**files, "about.json": about})
    with pytest.raises(ValueError, match="stages"):
        model_from_files(library, {**files, "stage7": b""})
