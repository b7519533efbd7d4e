"""Model files are untrusted: they never run code, and what is wrong with one is a ValueError of one line."""

import contextlib
import copy
import datetime
import decimal
import functools
import io
import json
import operator
import subprocess
import sys
import textwrap
import warnings
import zipfile

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import skops.io
from catboost import CatBoostClassifier
from hypothesis import given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.feature_selection import SelectKBest, mutual_info_classif
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import fbeta_score, make_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, SplineTransformer, StandardScaler
from sklearn.svm import SVC
from xgboost import XGBClassifier

import lowchurn
from lowchurn import LowChurnClassifier, _model_files
from lowchurn._model_files import labels_from_plain, labels_to_plain, read_zip
from lowchurn.estimator._archive import FORMAT
from lowchurn.learners._skops import dump_skops, load_skops
from lowchurn.learners._torch import NetworkClassifier
from lowchurn.retrain import dial_file, retrain_files
from lowchurn.strategies import Distill

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 3))
Y = (X[:, 0] + 0.3 * RNG.normal(size=240) > 0).astype(int)
LEARNERS = {
    "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
    "forest": RandomForestClassifier(3, max_depth=2, random_state=0),
    "hist": HistGradientBoostingClassifier(max_iter=2),
    "neighbors": KNeighborsClassifier(),
    "lightgbm": LGBMClassifier(n_estimators=2, num_leaves=3, verbosity=-1, n_jobs=1),
    "xgboost": XGBClassifier(n_estimators=2, max_depth=2, n_jobs=1),
    "catboost": CatBoostClassifier(iterations=2, depth=2, verbose=0, allow_writing_files=False, thread_count=1),
    "network": NetworkClassifier("fcn-3", epochs=2, device="cpu", random_state=0),
}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@functools.cache
def saved(kind):
    """The content of a model file, and what the model predicts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = LogisticRegression(C=0.01).fit(X[:60], Y[:60])
        if kind == "dial":
            model = LowChurnClassifier(
                LogisticRegression(), base=base, max_churn=0.2, confidence=0.5, strategies="dial", random_state=0
            )
        elif kind == "mixture":
            options = {"max_churn": 0.02, "select": "mixture", "random_state": 0}
            first = LowChurnClassifier(LogisticRegression(), base=base, **options).fit(X, Y)
            model = LowChurnClassifier(LogisticRegression(), base=first, **options)
        else:
            model = LowChurnClassifier(LEARNERS[kind], random_state=0)
        model.fit(X, Y)
    return written(model, dial=kind == "dial"), model.predict_proba(X)


def written(model, **options):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/m.skops", **options)
        with open(f"{folder}/m.skops", "rb") as file:
            return file.read()


def unpacked(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tampered(data, parts=None, about=None):
    """A model file with other parts, or with a description that a function has changed; its checksums are gone."""
    found = unpacked(data) | (parts or {})
    description = json.loads(found["lowchurn.json"])
    del description["sha256"]
    description = (about or (lambda d: d))(description) or description
    return packed(found | {"lowchurn.json": json.dumps(description).encode()})


def outcome(data, tmp_path, trusted=()):
    """The loaded model, or the one line that says why there is none; anything else fails the test."""
    path = tmp_path / "m.skops"
    path.write_bytes(data)
    try:
        return lowchurn.load(path, trusted)
    except ValueError as error:
        line = str(error)
    assert line.isprintable()
    assert "m.skops" in line
    assert len(line) < 2000
    return line


def refused(data, tmp_path, words="", trusted=()):
    found = outcome(data, tmp_path, trusted)
    assert isinstance(found, str), "it was read"
    assert words in found
    return found


# --- code


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """A module that leaves a file when it is imported or called; its name, and whether anything ran."""
    (tmp_path / "lowchurn_spy.py").write_text(
        textwrap.dedent(
            f"""
            import pathlib, torch
            def leave():
                pathlib.Path({str(tmp_path / "ran")!r}).touch()
            leave()
            def network():
                leave()
                return torch.nn.Linear(3, 2)
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "lowchurn_spy:network", (tmp_path / "ran").exists
    sys.modules.pop("lowchurn_spy", None)


def bait(name):
    return NetworkClassifier(name, epochs=1, device="cpu")


def bagging_that_sets(**attributes):
    """Bagging hands attributes of its own to the estimators inside it, those that ``estimator_params`` names."""
    model = BaggingClassifier(attributes.pop("inner"), n_estimators=1)
    model.estimator_params = tuple(attributes)
    for name, value in attributes.items():
        setattr(model, name, value)
    return model


HIDDEN = {
    "itself": bait,
    "pipeline": lambda name: make_pipeline(StandardScaler(), bait(name)),
    "voting": lambda name: VotingClassifier([("a", LogisticRegression()), ("b", bait(name))]),
    "stacking": lambda name: StackingClassifier([("a", bait(name))]),
    "calibrated": lambda name: CalibratedClassifierCV(bait(name)),
    "bagging": lambda name: BaggingClassifier(make_pipeline(bait(name)), n_estimators=1),
    "one-vs-rest": lambda name: OneVsRestClassifier(bait(name)),
    "union": lambda name: make_pipeline(FeatureUnion([("a", bait(name))]), LogisticRegression()),
    "low-churn": lambda name: make_pipeline(VotingClassifier([("a", make_pipeline(bait(name)))])),
    # Here the name is only a string among strings until somebody sets it as a parameter.
    "grid": lambda name: GridSearchCV(bait("fcn-3"), {"network": [name]}, cv=2),
    "deep grid": lambda name: GridSearchCV(
        BaggingClassifier(bait("fcn-3"), n_estimators=1), {"estimator__network": [name]}, cv=2
    ),
    "set by bagging": lambda name: bagging_that_sets(inner=bait("fcn-3"), network=name),
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_an_estimator_to_train_never_imports_a_network_by_name(kind, spy, tmp_path):
    name, ran = spy
    data = tampered(saved("logistic")[0], {"estimator.skops": skops.io.dumps(HIDDEN[kind](name))})
    found = outcome(data, tmp_path)
    if isinstance(found, str):
        assert "names code, 'lowchurn_spy:network'" in found
        assert "trusted=['lowchurn_spy:network']" in found
    else:  # trained, it is refused at the latest
        for train in (found.estimator.fit, LowChurnClassifier(base=found, max_churn=0.5).fit):
            with contextlib.suppress(ValueError):
                train(X, Y)
    assert not ran()


def test_a_trusted_network_is_imported_and_trained(spy, tmp_path):
    name, ran = spy
    data = tampered(saved("logistic")[0], {"estimator.skops": skops.io.dumps(make_pipeline(bait(name)))})
    found = outcome(data, tmp_path, trusted=[name])
    assert ran()
    model = LowChurnClassifier(base=found, max_churn=0.9, strategies=[Distill(0.5)]).fit(X, Y)
    again = outcome(written(model), tmp_path, trusted=[name])
    assert (again.predict_proba(X) == model.predict_proba(X)).all()
    refused(written(model), tmp_path, "names code")


def network_part(name):
    """The files of a network, with another one named."""
    parts = {k.removeprefix("model0/"): v for k, v in unpacked(saved("network")[0]).items() if k.startswith("model0/")}
    about = json.loads(parts["network.json"])
    about["parameters"]["network"] = name
    return parts | {"network.json": json.dumps(about).encode()}


@pytest.mark.parametrize("where", ["member", "preprocessing", "base", "mixture", "dial", "dial base"])
def test_no_part_of_a_file_imports_a_network_by_name(where, spy, tmp_path):
    name, ran = spy
    source = {"mixture": "mixture", "dial": "dial", "dial base": "dial"}.get(where, "logistic")

    def about(found):
        member = found["members"][0]
        if where == "preprocessing":
            member["preprocessing"] = "torch"
            folders.append(member["folder"] + "preprocessing/")
            return
        if where == "base":
            member["base"] = True
        entry = member
        if where == "mixture":
            entry = next(m for m in found["members"] if "mixture" in m)["mixture"][0]
        elif where == "dial":
            entry = next(e for _, e in found["dial"]["models"] if "mean" not in e)
        elif where == "dial base":
            entry = found["dial"]["base"]
        entry.update(learner="torch")
        entry.pop("preprocessing", None)
        folders.append(entry["folder"])

    folders = []
    tampered(saved(source)[0], about=about)
    parts = {folders[0] + k: v for k, v in network_part(name).items()}
    refused(tampered(saved(source)[0], parts, about), tmp_path, "names code, 'lowchurn_spy:network'")
    assert not ran()


def test_the_commands_refuse_what_names_code(spy, tmp_path):
    name, ran = spy
    pd.DataFrame(X, columns=list("abc")).assign(y=Y).to_csv(tmp_path / "rows.csv", index=False)
    for source in ("logistic", "dial"):
        evil = tampered(saved(source)[0], {"estimator.skops": skops.io.dumps(bait(name))})
        (tmp_path / f"{source}.skops").write_bytes(evil)
    with pytest.raises(ValueError, match="names code"):
        retrain_files(
            tmp_path / "rows.csv", "y", tmp_path / "out.skops", base=tmp_path / "logistic.skops", max_churn=0.1
        )
    with pytest.raises(ValueError, match="names code"):
        dial_file(tmp_path / "dial.skops", 0.1, tmp_path / "out.skops")
    arguments = ["retrain", "--data", "rows.csv", "--target", "y", "--base", "logistic.skops", "--out", "out.skops"]
    command = [sys.executable, "-m", "lowchurn", *arguments, "--max-churn", "0.1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert not ran()
    assert not (tmp_path / "out.skops").exists()


def test_a_name_is_never_code_not_even_from_python():
    with pytest.raises(ValueError, match="Import it and give the function"):
        NetworkClassifier("os:abort", device="cpu").fit(X, Y)


def test_a_network_that_could_not_be_read_again_is_not_written(tmp_path):
    import torch

    def local():
        return torch.nn.Linear(3, 2)

    for network, words in [
        (local, "can be imported"),
        (torch.nn.Sequential(torch.nn.Linear(3, 2)), "make the network again"),
    ]:
        model = LowChurnClassifier(NetworkClassifier(network, epochs=1, device="cpu")).fit(X, Y)
        with pytest.raises(ValueError, match=words):
            model.save(tmp_path / "m.skops")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("9" * 12, "must fit into memory"),
        ("9" * 18, "must fit into memory"),
        ("9" * 40, "size must be at most 9223372036854775807"),
    ],
)
def test_a_network_too_large_for_memory_is_refused_before_it_is_made(size, words, tmp_path):
    bait = skops.io.dumps(NetworkClassifier(f"fcn-{size}", device="cpu"))
    found = outcome(tampered(saved("logistic")[0], {"estimator.skops": bait}), tmp_path)
    with pytest.raises(ValueError, match=words):
        found.estimator.fit(X, Y)


class Refuses:
    def __reduce__(self):
        return (print, ("a pickle ran",))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (FunctionTransformer(textwrap.dedent), "textwrap.dedent"),
        (FunctionTransformer(functools.partial(subprocess.run, "true")), "subprocess.run"),
        (FunctionTransformer(operator.methodcaller("clear")), "operator.methodcaller"),
        (FunctionTransformer(kw_args={"a": np.array([NetworkClassifier()], dtype=object)}), "NetworkClassifier"),
        (LGBMClassifier(), "LGBMClassifier"),
    ],
)
def test_types_and_functions_that_are_not_trusted_are_named(model, words, tmp_path, capsys):
    assert words in refused(skops.io.dumps(model), tmp_path, "not trusted")
    refused(tampered(saved("logistic")[0], {"model0/model.skops": skops.io.dumps(model)}), tmp_path, "not trusted")


def test_pickles_inside_are_refused(tmp_path, capsys):
    buffer = io.BytesIO()
    np.save(buffer, np.array([Refuses()], dtype=object), allow_pickle=True)
    refused(tampered(saved("dial")[0], {"dial/changes.npy": buffer.getvalue()}), tmp_path, "dial/changes.npy")
    parts = unpacked(skops.io.dumps(LogisticRegression().fit(X, Y)))
    first = next(name for name in parts if name.endswith(".npy"))
    refused(packed(parts | {first: buffer.getvalue()}), tmp_path, "allow_pickle=False")
    assert "a pickle ran" not in capsys.readouterr().out
    (tmp_path / "old.pkl").write_bytes(b"\x80\x04]\x94.")
    with pytest.raises(ValueError, match="Pickles can run any code"):
        lowchurn.load(tmp_path / "old.pkl", trusted="a name that contains old.pkl")
    assert lowchurn.load(tmp_path / "old.pkl", trusted="old.pkl") == []
    (tmp_path / "old.pkl").write_bytes(b"\x80\x04]\x94")
    with pytest.raises(ValueError, match="'old.pkl'|old.pkl"):
        lowchurn.load(tmp_path / "old.pkl", trusted=["old.pkl"])


def test_folders_that_a_file_names_are_neither_read_nor_written(tmp_path, monkeypatch):
    """joblib would read pickles from ``memory``; CatBoost writes to ``train_dir``."""
    monkeypatch.chdir(tmp_path)
    bad = str(tmp_path / "bad")
    plain = Pipeline([("a", StandardScaler()), ("b", LogisticRegression())])
    tries = [
        Pipeline(plain.steps, memory=bad),
        GridSearchCV(plain, {"memory": [bad], "b__C": [1.0]}, cv=2),
        bagging_that_sets(inner=plain, memory=bad),
        CatBoostClassifier(iterations=1, verbose=0, train_dir=bad),
        LGBMClassifier(n_estimators=1, verbosity=-1, forcedsplits_filename=bad, machines="nowhere:1"),
    ]
    for estimator in tries:
        data = tampered(saved("logistic")[0], {"estimator.skops": skops.io.dumps(estimator)})
        outcome(data, tmp_path).estimator.fit(X, Y)
        assert not (tmp_path / "bad").exists()
    handed_on = FunctionTransformer(kw_args={"memory": "a", "machines": ["b"]})
    assert load_skops(dump_skops(handed_on)).kw_args == handed_on.kw_args
    words = CountVectorizer().fit(["memory and machines"])
    assert load_skops(dump_skops(words)).vocabulary_ == words.vocabulary_


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "catboost"])
def test_more_threads_than_any_machine_has_are_refused(kind, tmp_path):
    data, _ = saved(kind)
    about = json.loads(unpacked(data)["model0/about.json"])
    for threads in (5000, 2**31 - 1, -(10**9), 0):
        part = json.dumps({**about, "threads": threads}).encode()
        refused(tampered(data, {"model0/about.json": part}), tmp_path, "threads must be")
    name = "thread_count" if kind == "catboost" else "n_jobs"
    estimator = type(LEARNERS[kind])(**{name: 10**6})
    refused(tampered(data, {"estimator.skops": skops.io.dumps(estimator)}), tmp_path, f"{name} must be at most")


def test_a_file_does_not_decide_that_files_are_opened(tmp_path):
    words = CountVectorizer(input="filename", vocabulary=["a"])
    refused(skops.io.dumps(words), tmp_path, "opens the files")
    found = outcome(skops.io.dumps(words), tmp_path, trusted=["sklearn.feature_extraction.text.CountVectorizer"])
    assert found.input == "filename"


def test_a_fitted_model_is_no_estimator_to_train(tmp_path):
    fitted = LEARNERS["catboost"].copy().fit(X, Y)
    refused(tampered(saved("logistic")[0], {"estimator.skops": skops.io.dumps(fitted)}), tmp_path, "fitted model")


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


# --- archives


def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**20)
    zeros = bytes(40 * 2**20)
    bomb = packed({"schema.json": b"{}", "zeros": zeros}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < len(zeros) / 500
    refused(bomb, tmp_path, "would unpack")
    parts = unpacked(saved("logistic")[0])
    refused(packed(parts | {"zeros": zeros}, zipfile.ZIP_DEFLATED), tmp_path, "would unpack")
    refused(tampered(packed(parts), {"model0/model.skops": bomb}), tmp_path, "would unpack")
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing was opened
    refused(bomb, tmp_path, "would unpack")


def test_sizes_that_lie_are_found_out(tmp_path):
    data = bytearray(saved("logistic")[0])
    start = data.index(b"PK\x01\x02")
    for size in (0, 1, 2**31):
        other = data.copy()
        other[start + 24 : start + 28] = size.to_bytes(4, "little")
        refused(bytes(other), tmp_path)


def test_one_entry_cannot_be_read_a_thousand_times(tmp_path, monkeypatch):
    monkeypatch.setattr(_model_files, "ALWAYS_ALLOWED", 2**20)
    monkeypatch.setattr(_model_files, "RATIO", 2)
    model = FunctionTransformer(kw_args={"a": [np.zeros(60_000) for _ in range(3)]})
    parts = unpacked(skops.io.dumps(model))
    schema = json.loads(parts["schema.json"])
    load_skops(packed(parts))
    arrays = schema["content"]["content"]["kw_args"]["content"]["a"]["content"]
    for k in range(40):
        arrays.append({**arrays[0], "__id__": -k - 1})
    refused(packed(parts | {"schema.json": json.dumps(schema).encode()}), tmp_path, "so often")


@pytest.mark.parametrize("name", ["../up", "/abs", "a/../../up", "C:\\x", "..\\up", "\\\\host\\share\\x"])
def test_names_that_lead_out_are_refused(name, tmp_path):
    refused(packed(unpacked(saved("logistic")[0]) | {name: b"x"}), tmp_path, "outside of itself")


def test_odd_archives_are_refused(tmp_path, monkeypatch):
    parts = unpacked(saved("logistic")[0])
    buffer = io.BytesIO(packed(parts))
    with zipfile.ZipFile(buffer, "a") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        archive.writestr("lowchurn.json", b"{}")
    refused(buffer.getvalue(), tmp_path, "two entries called 'lowchurn.json'")
    refused(packed(parts, zipfile.ZIP_LZMA), tmp_path, "ZIP_DEFLATED")
    encrypted = bytearray(packed(parts, zipfile.ZIP_DEFLATED))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(mark) + offset] |= 1
    refused(bytes(encrypted), tmp_path, "encrypted")
    refused(packed({}), tmp_path)
    refused(b"", tmp_path, "neither")
    refused(bytes(3 * 2**20), tmp_path, "neither")
    refused(b"PK" + bytes(3 * 2**20), tmp_path, "not a zip file")
    refused(packed({"lowchurn.json": b"{}"}), tmp_path, "format")
    monkeypatch.setattr(_model_files, "MOST_ENTRIES", 2)
    refused(packed(parts), tmp_path, "entries")
    with pytest.raises(ValueError, match="file that is there"):
        lowchurn.load(tmp_path)


def test_parts_have_checksums(tmp_path):
    data, _ = saved("logistic")
    parts = unpacked(data)
    refused(packed(parts | {"model0/model.skops": b"other"}), tmp_path, "damaged, in its part 'model0/model.skops'")
    refused(packed(parts | {"more": b""}), tmp_path, "'more' is not one that was saved")
    refused(
        packed({k: v for k, v in parts.items() if k != "estimator.skops"}), tmp_path, "'estimator.skops' is missing"
    )


def in_words(about, version):
    """A description as formats 1 and 2 have it: candidates have a sentence for their parameters."""

    def row(found):
        setting = ", ".join(f"{name}={value}" for name, value in found["parameters"].items())
        return {k: v for k, v in found.items() if k not in ("parameters", "dial_parameter")} | {"setting": setting}

    made = {**about, "format": version, "frontier": [row(found) for found in about["frontier"]]}
    if about["dial"] is not None:
        offers = [one | {"candidate": row(one["candidate"])} for one in about["dial"]["offers"]]
        made["dial"] = about["dial"] | {"offers": offers}
    return made


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["logistic", "dial", "mixture", "network"])
def test_files_of_older_formats_are_still_read(kind, version, tmp_path):
    data, proba = saved(kind)
    now, older = (
        outcome(data, tmp_path),
        outcome(tampered(data, about=lambda found: in_words(found, version)), tmp_path),
    )
    assert (older.predict_proba(X) == proba).all()
    assert repr(older.frontier_.records()) == repr(now.frontier_.records())
    assert older.selection_ == now.selection_
    if now.has_dial:
        for budget in (0.02, 0.1, 0.5):
            assert older.dial(budget).selection_ == now.dial(budget).selection_
            assert (older.dial(budget).predict_proba(X) == now.dial(budget).predict_proba(X)).all()
    refused(tampered(data, about=lambda found: {**found, "format": FORMAT + 1}), tmp_path, "Upgrade lowchurn")


# --- structure


def spots(value, path=()):
    """Every place in plain data."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from spots(inner, (*path, key))


DELETED = object()
OTHERS = [DELETED, None, "x", "", -1, 0.5, 10**30, float("nan"), [], {}, ["a"], {"a": 1}, True, "\x1b[31m\n"]


def changed(about, path, value):
    about = copy.deepcopy(about)
    if not path:
        return value
    inside = about
    for key in path[:-1]:
        inside = inside[key]
    if value is DELETED:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return about


def structure_cases(kind, share, seed=0):
    data, _ = saved(kind)
    about = json.loads(unpacked(data)["lowchurn.json"])
    del about["sha256"]
    for rows in (about["frontier"], (about.get("dial") or {}).get("offers", [])):
        del rows[2:-1]
    if about.get("dial"):
        del about["dial"]["models"][3:]
    every = [(path, value) for path in spots(about) if path for value in OTHERS]
    chosen = np.random.default_rng(seed).permutation(len(every))[: int(share * len(every))]
    return [every[k] for k in sorted(chosen)]


def check_structure_case(kind, path, value, tmp_path):
    data, proba = saved(kind)
    found = outcome(tampered(data, about=lambda about: changed(about, path, value)), tmp_path)
    if not isinstance(found, str):  # a field that predictions do not need
        assert found.predict_proba(X).shape == proba.shape
        str(found.selection_), repr(found.frontier_), str(found.certificate_), found.get_params()
        if found.has_dial:
            found.dial(0.1)
    else:
        assert "\x1b" not in found


@pytest.mark.parametrize(("kind", "share"), [("logistic", 0.1), ("dial", 0.03), ("mixture", 0.05)])
def test_a_field_of_another_kind_is_one_line(kind, share, tmp_path):
    for path, value in structure_cases(kind, share):
        check_structure_case(kind, path, value, tmp_path)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["logistic", "dial", "mixture"])
def test_every_field_of_every_other_kind_is_one_line(kind, tmp_path):
    for path, value in structure_cases(kind, 1.0):
        check_structure_case(kind, path, value, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("format",), "2", "format"),
        (("n_features_in",), 0, "n_features_in must be in"),
        (("n_features_in",), 5, "3 features"),
        (("classes",), [0, 0], "different"),
        (("classes",), [0, 7], "other classes"),
        (("dtype",), "<U99999999", "dtype"),
        (("dtype",), "O8,O8", "dtype"),
        (("members",), [], "weights"),
        (("members", 0, "weight"), (0.5).hex(), "sum to 1"),
        (("members", 0, "weight"), "nan", "finite"),
        (("members", 0, "weight"), "0x1p99999", "finite"),
        (("members", 0, "learner"), "row", "unknown learner 'row'"),
        (("members", 0, "learner"), "torch", "member 0 is damaged"),
        (("members", 0, "folder"), "elsewhere/", "no files"),
        (("parameters", "churn"), "harsh", "churn"),
        (("parameters", "base"), "x.onnx", "unknown parameter 'base'"),
        (("selection", "rows"), {}, "number of rows"),
    ],
)
def test_what_is_wrong_is_said(path, value, words, tmp_path):
    refused(tampered(saved("logistic")[0], about=lambda about: changed(about, path, value)), tmp_path, words)


def test_texts_that_are_no_description_are_refused(tmp_path):
    parts = unpacked(saved("logistic")[0])
    deep = b"[" * 100_000
    for text in (
        b"",
        b"{",
        deep,
        b'{"format": ' + deep,
        b"\xff\xfe",
        b"null",
        b"\x00",
        b'{"format": 1e999}',
        b"9" * 5000,
    ):
        refused(packed(parts | {"lowchurn.json": text}), tmp_path)
    nested = functools.reduce(lambda inner, _: {"a": inner}, range(500), 1)
    refused(tampered(packed(parts), about=lambda about: {**about, "members": nested}), tmp_path, "nested too deeply")


def test_skops_of_odd_nodes_are_refused(tmp_path):
    parts = unpacked(skops.io.dumps(LogisticRegression().fit(X, Y)))
    schema = json.loads(parts["schema.json"])
    deep = b"[" * 100_000
    for text in (b"", b"{}", b"[]", b"null", deep, b"\xff"):
        refused(packed(parts | {"schema.json": text}), tmp_path)
    rng = np.random.default_rng(0)
    every = [(path, value) for path in spots(schema) if path for value in OTHERS]
    for k in rng.permutation(len(every))[:120]:
        other = json.dumps(changed(schema, *every[k])).encode()
        outcome(packed(parts | {"schema.json": other}), tmp_path)
    refused(packed({k: v for k, v in parts.items() if k == "schema.json"}), tmp_path)


def test_a_network_that_its_weights_do_not_fit_takes_no_memory(tmp_path):
    for name in ("fcn-4", "fcn-999999999999", "rnn-3", "convnet-1", "fcn-0"):
        parts = {f"model0/{k}": v for k, v in network_part(name).items()}
        refused(tampered(saved("network")[0], parts), tmp_path)
    about = json.loads(network_part("fcn-3")["network.json"])
    for path, value in [(p, v) for p in spots(about) if p for v in OTHERS][::4]:
        part = json.dumps(changed(about, path, value)).encode()
        found = outcome(tampered(saved("network")[0], {"model0/network.json": part}), tmp_path)
        assert isinstance(found, str) or found.predict_proba(X).shape == (240, 2)


def test_a_model_of_another_kind_is_refused(tmp_path):
    data, _ = saved("logistic")
    for model, words in [
        (StandardScaler().fit(X), "fitted classifier"),
        (LogisticRegression(), "fitted classifier"),
        (LogisticRegression().fit(X, Y + 5), "other classes"),
    ]:
        refused(tampered(data, {"model0/model.skops": skops.io.dumps(model)}), tmp_path, words)
    other = LogisticRegression().fit(X, Y)
    part = {"model0/preprocessing/model.skops": skops.io.dumps(other)}
    refused(tampered(data, part), tmp_path, "must transform rows")
    refused(tampered(data, {"estimator.skops": skops.io.dumps([1])}), tmp_path, "must be an estimator")


# --- damage


def damages(data, flips, cuts, seed):
    rng = np.random.default_rng(seed)
    for place in rng.integers(8 * len(data), size=flips):
        other = bytearray(data)
        other[place // 8] ^= 1 << (place % 8)
        yield bytes(other)
    for place in rng.integers(len(data), size=cuts):
        yield data[:place]


@pytest.mark.parametrize("kind", ["logistic", "lightgbm", "network"])
def test_damage_is_noticed_or_harmless(kind, tmp_path):
    data, proba = saved(kind)
    for other in damages(data, flips=60, cuts=20, seed=1):
        found = outcome(other, tmp_path)
        assert isinstance(found, str) or (found.predict_proba(X) == proba).all()


def test_damage_to_plain_skops_files_is_noticed_or_harmless(tmp_path):
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    for other in damages(skops.io.dumps(model), flips=60, cuts=20, seed=2):
        found = outcome(other, tmp_path)
        assert isinstance(found, str) or (found.predict_proba(X) == model.predict_proba(X)).all()


@pytest.mark.stress
@pytest.mark.parametrize("kind", [*LEARNERS, "dial", "mixture"])
def test_damage_anywhere(kind, tmp_path_factory):
    data, proba = saved(kind)
    folder = tmp_path_factory.mktemp("damage")

    @settings(max_examples=500, deadline=None)
    @given(st.integers(0, 8 * len(data) - 1), st.integers(1, 255), st.sampled_from(["bit", "byte", "cut", "insert"]))
    def check(place, value, how):
        other, at = bytearray(data), place // 8
        if how == "cut":
            del other[at:]
        elif how == "insert":
            other[at:at] = bytes([value])
        else:
            other[at] ^= value if how == "byte" else 1 << (place % 8)
        found = outcome(bytes(other), folder)
        assert isinstance(found, str) or (found.predict_proba(X) == proba).all()

    check()


# --- files of older versions


def test_a_network_of_version_0_1_names_a_module_that_has_moved():
    inner = unpacked(dump_skops(NetworkClassifier("fcn-3", epochs=7)))
    old = inner["schema.json"].replace(b"lowchurn.learners._torch", b"lowchurn.learners.torch")
    assert old != inner["schema.json"]
    assert load_skops(packed(inner | {"schema.json": old}), unfitted=True).epochs == 7


# --- the same bits


@pytest.mark.parametrize("kind", [*LEARNERS, "dial", "mixture"])
def test_a_loaded_model_predicts_bit_for_bit(kind, tmp_path):
    data, proba = saved(kind)
    again = outcome(data, tmp_path)
    assert (again.predict_proba(X) == proba).all()
    assert (outcome(written(again, dial=kind == "dial"), tmp_path).predict_proba(X) == proba).all()


EARLY = {
    "xgboost": (XGBClassifier(n_estimators=40, max_depth=5, early_stopping_rounds=2, learning_rate=1.0), {}),
    "catboost": (
        CatBoostClassifier(
            iterations=40, early_stopping_rounds=2, learning_rate=1.0, verbose=0, allow_writing_files=False
        ),
        {},
    ),
    "lightgbm": (LGBMClassifier(n_estimators=40, early_stopping_round=2, learning_rate=1.0, verbosity=-1), {}),
}


@pytest.mark.parametrize("kind", EARLY)
def test_an_early_stopped_base_is_saved_as_production_asks_it(kind, tmp_path):
    estimator, options = EARLY[kind]
    base = copy.deepcopy(estimator).fit(X[:120], Y[:120], eval_set=[(X[120:180], Y[120:180])], **options)
    model = LowChurnClassifier(LogisticRegression(C=1e-6), base=base, max_churn=1e-9, random_state=0).fit(X, Y)
    assert list(model.selection_.served) == ["base"]
    again = outcome(written(model), tmp_path)
    assert (again.predict(X) == base.predict(X).ravel()).all()
    np.testing.assert_allclose(again.predict_proba(X), base.predict_proba(X), rtol=0, atol=1e-6)
    assert (again.predict_proba(X) == model.predict_proba(X)).all()


LABELS = [
    np.array([False, True]),
    np.array([2**53, 2**53 + 1, -(2**63)]),
    np.array([0, 2**64 - 1], dtype=np.uint64),
    np.array([-3, 4], dtype=np.int8),
    np.array([0.1, 1e-300, -np.inf]),
    np.array([0.1, 0.2], dtype=np.float32),
    np.array(["", "ja", "nein\n\x1b\udc80", "💡"]),
    np.array(["2020-01-01", "1969-01-01"], dtype="M8[D]"),
    np.array(["2020-01-01T00:00:00.000000001", "2020-01-01"], dtype="M8[ns]"),
    np.array(["a", "b"], dtype=object),
    np.array([1, 2.5, np.int64(2**60)], dtype=object),
]


@pytest.mark.parametrize("labels", LABELS, ids=lambda labels: str(labels.dtype))
def test_labels_come_back_exactly(labels):
    plain = json.loads(json.dumps(labels_to_plain(labels)))
    again = labels_from_plain("the file", plain["classes"], plain["dtype"])
    assert again.dtype == labels.dtype
    assert again.tolist() == labels.tolist()


@pytest.mark.parametrize(
    "labels",
    [
        [decimal.Decimal("0.1"), decimal.Decimal("0.2")],
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)],
        [b"a", b"b"],
        [1 + 2j, 3j],
        [float("nan"), 1.0],
    ],
    ids=str,
)
def test_labels_that_a_file_cannot_hold_are_refused_at_saving(labels):
    dtype = object if isinstance(labels[0], decimal.Decimal | datetime.date) else None
    with pytest.raises(ValueError, match="save: labels must be"):
        labels_to_plain(np.array(labels, dtype=dtype))


@pytest.mark.parametrize(
    ("labels", "dtype"),
    [
        ([0, 300], "|u1"),
        ([0, -1], "<u8"),
        ([0, 2**64], "<i8"),
        (["aa", "ab"], "<U1"),
        (["a", "b"], "<U999999999"),
        ([0, 1], "|b1"),
        ([True, False], "<i8"),
        ([0.5, 1], "<i8"),
        (["0", "1"], "<f8"),
        ([1.0, 1.0], "<f8"),
        ([1e300, 1e301], "<f4"),
        ([1, 2], "<M8[zz]"),
        ([1, 2**70], "<M8[D]"),
        (["a"], "O"),
        ([], "O"),
        ([0, 1], "O,O"),
        ([0, 1], "V0"),
    ],
)
def test_labels_that_do_not_fit_their_dtype_are_refused(labels, dtype):
    with pytest.raises(ValueError, match="^load: the (list of )?classes"):
        labels_from_plain("the file", labels, dtype)


@pytest.mark.parametrize("labels", [np.array([2**60, 2**60 + 1]), np.array([True, False]), np.array(["n", "y"])])
@pytest.mark.parametrize("kind", ["logistic", "lightgbm"])
def test_models_of_all_kinds_of_labels(labels, kind, tmp_path):
    model = LowChurnClassifier(LEARNERS[kind]).fit(X, labels[Y])
    again = outcome(written(model), tmp_path)
    assert again.predict(X).tolist() == model.predict(X).tolist()
    assert again.classes_.dtype == model.classes_.dtype


def test_an_onnx_file_of_garbage_is_one_line(tmp_path):
    path = tmp_path / "m.onnx"
    for data in (b"", b"\x00" * 40, b"\x08\x07garbage\n" * 30):
        path.write_bytes(data)
        with pytest.raises(ValueError, match="readable ONNX file") as found:
            LowChurnClassifier(base=str(path), max_churn=0.1).fit(X, Y)
        assert "\n" not in str(found.value)


@pytest.mark.parametrize("location", ["../secret.bin", "ABSOLUTE"])
def test_an_onnx_file_reads_nothing_outside_of_its_folder(location, tmp_path):
    onnx = pytest.importorskip("onnx")
    (tmp_path / "secret.bin").write_bytes(np.arange(6, dtype=np.float32).tobytes())
    (tmp_path / "model").mkdir()
    weights = onnx.TensorProto(name="w", data_type=1, dims=[3, 2], data_location=onnx.TensorProto.EXTERNAL)
    location = str(tmp_path / "secret.bin") if location == "ABSOLUTE" else location
    weights.external_data.add(key="location", value=location)
    ends = [onnx.helper.make_tensor_value_info(name, 1, [None, n]) for name, n in (("x", 3), ("y", 2))]
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([product], "g", ends[:1], ends[1:], [weights])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    (tmp_path / "model" / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ValueError, match="readable ONNX file"):
        LowChurnClassifier(base=str(tmp_path / "model" / "m.onnx"), max_churn=0.1).fit(X, Y)


def test_an_archive_is_unpacked_whole():
    parts = {"a": b"1" * 3_000_000, "b/c": b""}
    assert read_zip("'m'", packed(parts, zipfile.ZIP_DEFLATED)) == parts
    with pytest.raises(ValueError, match="would unpack"):
        read_zip("'m'", packed(parts, zipfile.ZIP_DEFLATED), nested=True)
    assert read_zip("'m'", packed(parts), nested=True) == parts
