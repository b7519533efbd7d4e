"""Model files never run code, and they do not choose what is opened or how much memory is taken."""

import contextlib
import functools
import io
import json
import operator
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import skops.io
from catboost import CatBoostClassifier
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import (
    BaggingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.learners._skops import dump_skops, load_skops
from lowchurn.learners._torch import NetworkClassifier
from lowchurn.retrain import dial_file, retrain_files
from lowchurn.strategies import Distill
from tests.model_files.files import (
    LEARNERS,
    X,
    Y,
    network_part,
    outcome,
    packed,
    refused,
    saved,
    tampered,
    unpacked,
    written,
)


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
