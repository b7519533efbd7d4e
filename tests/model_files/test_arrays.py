"""Arrays of scikit-learn that do not belong together are refused; everyday models are read without trust."""

import copy
import json

import numpy as np
import pytest
import scipy.sparse
import skops.io
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest, mutual_info_classif
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score, make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, TunedThresholdClassifierCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, SplineTransformer
from sklearn.svm import SVC

from lowchurn import LowChurnClassifier, _model_files
from lowchurn.learners._skops import dump_skops, load_skops
from tests.model_files.files import LEARNERS, X, Y, outcome, packed, refused, unpacked, written


def damaged_forest(**changes):
    model = copy.deepcopy(LEARNERS["forest"]).fit(X, Y)
    tree = model.estimators_[0].tree_
    state = tree.__getstate__()
    nodes = state["nodes"].copy()
    for name, value in changes.items():
        nodes[name][0] = value
    tree.__setstate__({**state, "nodes": nodes})
    return model


def damaged_boosting(**changes):
    model = HistGradientBoostingClassifier(max_iter=1).fit(X, Y)
    for name, value in changes.items():
        model._predictors[0][0].nodes[name][0] = value
    return model


def without_nodes():
    predictor = damaged_boosting()._predictors[0][0]
    predictor.nodes = predictor.nodes[:0]
    return predictor


MANY = np.digitize(X[:, 0], [-0.5, 0.5])
VECTORS = SVC().fit(X, MANY)
NEAR = KNeighborsClassifier(algorithm="brute").fit(X, Y)
BOOSTED = GradientBoostingClassifier(n_estimators=2, max_depth=1).fit(X, Y)
SPLINES = SplineTransformer().fit(X)
TREE = BOOSTED.estimators_[0, 0].tree_


def with_attributes(model, **attributes):
    model = copy.deepcopy(model)
    vars(model).update(attributes)
    return model


def damaged_sparse():
    model = LogisticRegression().fit(X, Y).sparsify()
    model.coef_.indices = model.coef_.indices + 10**8
    return model


@pytest.mark.parametrize(
    "model",
    [
        lambda: with_attributes(VECTORS, support_=np.arange(10**5, dtype=np.int32)),
        lambda: with_attributes(VECTORS, support_vectors_=np.zeros((0, 3))),
        lambda: with_attributes(VECTORS, _dual_coef_=VECTORS._dual_coef_[:, :2].copy()),
        lambda: with_attributes(VECTORS, _intercept_=np.zeros(0)),
        lambda: with_attributes(VECTORS, kernel="precomputed", support_=np.full_like(VECTORS.support_, 10**8)),
        lambda: with_attributes(VECTORS, _impl="epsilon_svr"),
        lambda: with_attributes(NEAR, _y=np.full_like(NEAR._y, 10**8)),
        lambda: with_attributes(NEAR, _y=NEAR._y[:2].copy()),
        lambda: with_attributes(NEAR, _fit_X=NEAR._fit_X[:, :1].copy()),
        lambda: with_attributes(BOOSTED, estimators_=np.repeat(BOOSTED.estimators_, 500, axis=1)),
        lambda: with_attributes(SPLINES, bsplines_=[with_attributes(SPLINES.bsplines_[0], k=10**6)]),
        damaged_sparse,
        # An attribute of another model does not hide what is checked.
        lambda: with_attributes(VECTORS, support_vectors_=np.zeros((0, 3)), tree_=TREE),
        lambda: with_attributes(NEAR, _y=NEAR._y[:2].copy(), tree_=TREE),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(model, tmp_path):
    refused(skops.io.dumps(model()), tmp_path)


def nodes_of(value, loader):
    """Every node of a kind in the schema of a skops file."""
    if isinstance(value, dict) and value.get("__loader__") == loader:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from nodes_of(inner, loader)


def of_json(content):
    return {"__class__": "str", "__module__": "builtins", "__loader__": "JsonNode", "content": content}


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["content"]["content"]["node_count"].update(of_json("1000000000")),
        lambda tree: tree["content"]["content"].update(nodes=tree["__reduce__"]["args"]["content"][1]),
        lambda tree: tree["__reduce__"]["args"]["content"][2].update(of_json("100000000")),
        lambda tree: tree.update(__class__="dtype", __module__="numpy", content=of_json("{}")),
        lambda tree: tree["content"].update(__loader__="\x1b[31m\n"),
        lambda tree: tree.update(__loader__="ConstructorFromReduceNode", content=tree["__reduce__"]["args"]),
    ],
)
def test_a_tree_without_its_whole_state_is_refused(change, tmp_path):
    parts = unpacked(skops.io.dumps(copy.deepcopy(LEARNERS["forest"]).fit(X, Y)))
    schema = json.loads(parts["schema.json"])
    change(next(nodes_of(schema, "TreeNode")))
    refused(packed(parts | {"schema.json": json.dumps(schema).encode()}), tmp_path)


def test_another_node_of_the_same_id_is_not_taken_for_a_part_of_a_tree(tmp_path):
    model = copy.deepcopy(LEARNERS["forest"]).fit(X, Y)
    parts = unpacked(skops.io.dumps(model))
    schema = json.loads(parts["schema.json"])
    next(nodes_of(schema, "TreeNode"))["content"]["content"]["node_count"]["__id__"] = -1
    attributes = schema["content"]
    attributes["content"] = {"first": of_json("1000000000") | {"__id__": -1}, **attributes["content"]}
    attributes["key_types"]["content"].append(attributes["key_types"]["content"][0])
    found = outcome(packed(parts | {"schema.json": json.dumps(schema).encode()}), tmp_path)
    assert (found.predict_proba(X) == model.predict_proba(X)).all()


def test_neighbours_and_distances_without_their_whole_state_are_refused(tmp_path):
    parts = unpacked(skops.io.dumps(KNeighborsClassifier(algorithm="kd_tree").fit(X, Y)))
    for kind in ("KDTree", "EuclideanDistance64"):
        for content in (of_json("[]"), {"__class__": "tuple", "__module__": "builtins", "__loader__": "TupleNode"}):
            schema = json.loads(parts["schema.json"])
            (node,) = [node for node in nodes_of(schema, "ObjectNode") if node["__class__"] == kind]
            node["content"] = content | ({} if "content" in content else {"content": []})
            refused(packed(parts | {"schema.json": json.dumps(schema).encode()}), tmp_path)


EVERYDAY = {
    "search": lambda: GridSearchCV(LogisticRegression(), {"C": [1.0]}, scoring="f1", cv=StratifiedKFold(2)),
    "scorer": lambda: GridSearchCV(LogisticRegression(), {"C": [1.0]}, scoring=make_scorer(fbeta_score, beta=2), cv=2),
    "threshold": lambda: TunedThresholdClassifierCV(LogisticRegression(), cv=2),
    "voting": lambda: VotingClassifier([("a", LogisticRegression())], voting="soft"),
    "temperature": lambda: CalibratedClassifierCV(LogisticRegression(), method="temperature", cv=2),
    "ball tree": lambda: KNeighborsClassifier(algorithm="ball_tree", metric="manhattan"),
    "minkowski": lambda: KNeighborsClassifier(algorithm="kd_tree", p=3),
    "process": lambda: GaussianProcessClassifier(1.0 * RBF() + WhiteKernel()),
    "splines": lambda: make_pipeline(SplineTransformer(), LogisticRegression()),
    "chosen": lambda: make_pipeline(SelectKBest(mutual_info_classif, k=2), LogisticRegression()),
    "clipped": lambda: make_pipeline(FunctionTransformer(np.clip, kw_args={"a_min": 0, "a_max": 1}), GaussianNB()),
    "vectors": lambda: SVC(),
    "boosting": lambda: GradientBoostingClassifier(n_estimators=2, init=LogisticRegression()),
}


@pytest.mark.parametrize("kind", EVERYDAY)
def test_everyday_models_of_scikit_learn_are_read_without_trust(kind):
    model = EVERYDAY[kind]().fit(X, Y)
    again = load_skops(dump_skops(model))
    ask = "predict_proba" if hasattr(model, "predict_proba") else "predict"
    assert (getattr(again, ask)(X) == getattr(model, ask)(X)).all()


def test_models_of_sparse_rows_are_read_without_trust():
    rows = scipy.sparse.csr_matrix(np.where(X > 0, X, 0))
    for model in (
        SVC().fit(rows, Y),
        KNeighborsClassifier().fit(rows, Y),
        LogisticRegression().fit(rows, Y).sparsify(),
    ):
        assert (load_skops(dump_skops(model)).predict(rows) == model.predict(rows)).all()


def test_a_sparse_matrix_that_is_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**20)
    empty = scipy.sparse.csr_matrix((10**6, 3))  # a million zeros, in a few kilobytes
    refused(skops.io.dumps(with_attributes(NEAR, _fit_X=empty)), tmp_path, "fill the memory")


def test_a_model_of_zeros_is_no_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**16)
    rows = scipy.sparse.csr_matrix((240, 20_000))
    rows[:, 0] = X[:, 0]
    model = LowChurnClassifier(LogisticRegression()).fit(rows, Y)
    again = outcome(written(model), tmp_path)
    assert (again.predict_proba(rows) == model.predict_proba(rows)).all()


def test_a_model_that_skops_cannot_write_is_one_line():
    around: list = []
    around.append(around)
    with pytest.raises(ValueError, match="^save: a FunctionTransformer cannot be written"):
        dump_skops(FunctionTransformer(kw_args={"a": around}))


@pytest.mark.parametrize(
    "model",
    [
        lambda: damaged_forest(left_child=10**9),
        lambda: damaged_forest(right_child=0),
        lambda: damaged_forest(feature=77),
        lambda: damaged_boosting(left=2**31),
        lambda: with_attributes(damaged_boosting(), _predictors=[[without_nodes()]]),
        lambda: damaged_boosting(right=0),
        lambda: damaged_boosting(feature_idx=10**6),
        lambda: damaged_boosting(is_categorical=1, bitset_idx=5),
    ],
)
def test_trees_that_lead_out_of_their_arrays_are_refused(model, tmp_path):
    refused(skops.io.dumps(model()), tmp_path, "a tree")
