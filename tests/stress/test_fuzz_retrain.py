"""``lowchurn retrain`` and ``lowchurn dial`` on rows and files that they were not made for."""

import datetime as dt
import functools
import json
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_classification

import lowchurn
from lowchurn.retrain._tables import read_rows
from tests.stress.oracle import count
from tests.stress.running import run_clean

N = 120
OUTPUTS = ("next.skops", "next.json")
DAY = dt.datetime(2024, 2, 29)


@functools.cache
def rows():
    X, y = make_classification(N, 4, n_informative=3, n_redundant=0, class_sep=3.0, flip_y=0, random_state=0)
    return X, y


@functools.cache
def base_file():
    """A model in production, trained on the two number columns by the command itself; a folder that is kept."""
    folder = Path(tempfile.mkdtemp(prefix="lowchurn-tests-"))
    X, y = rows()
    table = pa.table({"a": X[:60, 0], "b": X[:60, 1], "y": y[:60]})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    common = ("retrain", "--data", "rows.parquet", "--target", "y", "--estimator", "logistic")
    assert run_clean(folder, ["base.skops"], *common, "--out", "base.skops").code == 0
    dial = run_clean(
        folder, ["dial.skops"], *common, "--base", "base.skops", "--strategies", "dial", "--max-churn", "0.2",
        "--out", "dial.skops",
    )  # fmt: skip
    assert dial.code == 0, dial.err
    return folder


def features(kind, column):
    """A column of one kind that holds the same information as the numbers it is made of."""
    makers = {
        "float": lambda v: pa.array(v),
        "float32": lambda v: pa.array(v.astype(np.float32)),
        "integer": lambda v: pa.array((v * 1000).astype(int)),
        "decimal": lambda v: pa.array([Decimal(f"{x:.4f}") for x in v], type=pa.decimal128(12, 4)),
        "words": lambda v: pa.array(["high" if x > 0 else "low" for x in v]),
        "category": lambda v: pa.array(["high" if x > 0 else "low" for x in v]).dictionary_encode(),
        "flag": lambda v: pa.array(v > 0),
        "gaps": lambda v: pa.array([None if i % 7 == 0 else float(x) for i, x in enumerate(v)]),
        "integer gaps": lambda v: pa.array([None if i % 7 == 0 else int(x * 1000) for i, x in enumerate(v)]),
        "date": lambda v: pa.array([DAY.date() + dt.timedelta(int(x * 10)) for x in v]),
        "time": lambda v: pa.array([DAY + dt.timedelta(float(x)) for x in v]),
        "list": lambda v: pa.array([[float(x)] for x in v]),
        "struct": lambda v: pa.array([{"x": float(x)} for x in v]),
        "nothing": lambda v: pa.nulls(len(v)),
        "bytes": lambda v: pa.array([b"\xff\x00" for _ in v]),
        "infinite": lambda v: pa.array(np.where(np.arange(len(v)) == 3, np.inf, v)),
        "extreme": lambda v: pa.array(np.where(np.arange(len(v)) == 3, 1e300, v)),
    }
    return makers[kind](column)


KINDS = ("float", "float32", "integer", "decimal", "words", "category", "flag", "gaps", "integer gaps", "date", "time",
         "list", "struct", "nothing", "bytes", "infinite", "extreme")  # fmt: skip
PLAIN = {"float", "float32", "integer", "decimal", "flag", "words", "category", "gaps", "integer gaps"}
TARGETS = {
    "integer": lambda y: pa.array(y),
    "large": lambda y: pa.array([2**53 + int(v) for v in y]),
    "bool": lambda y: pa.array(y == 1),
    "float": lambda y: pa.array(y.astype(float)),
    "text": lambda y: pa.array(["no" if v else "yes" for v in y]),
    "digits": lambda y: pa.array(["01" if v else "1" for v in y]),
    "category": lambda y: pa.array(["no" if v else "yes" for v in y]).dictionary_encode(),
    "decimal": lambda y: pa.array([Decimal(int(v)) for v in y], type=pa.decimal128(5, 0)),
    "date": lambda y: pa.array([DAY.date() + dt.timedelta(int(v)) for v in y]),
    "gap": lambda y: pa.array([None if i == 5 else int(v) for i, v in enumerate(y)]),
    "nan": lambda y: pa.array([np.nan if i == 5 else float(v) for i, v in enumerate(y)]),
    "one": lambda y: pa.array([1] * len(y)),
    "lonely": lambda y: pa.array([2 if i == 5 else int(v) for i, v in enumerate(y)]),
    "list": lambda y: pa.array([[int(v)] for v in y]),
    "numbers": lambda y: pa.array(np.linspace(0, 1, len(y))),
}
MARKS = {
    "bool": lambda n: pa.array([i >= 60 for i in range(n)]),
    "text": lambda n: pa.array(["yes" if i >= 60 else "no" for i in range(n)]),
    "True": lambda n: pa.array(["True" if i >= 60 else "False" for i in range(n)]),
    "1": lambda n: pa.array(["1" if i >= 60 else "0" for i in range(n)]),
    "number": lambda n: pa.array([int(i >= 60) for i in range(n)]),
    "gaps": lambda n: pa.array([None if i == 3 else i >= 60 for i in range(n)]),
    "words": lambda n: pa.array(["neu" if i >= 60 else "alt" for i in range(n)]),
    "fraction": lambda n: pa.array([0.5] * n),
}
UNDERSTOOD = {"bool", "text", "True", "1", "number"}
WEIGHTS = {
    "none": None,
    "ones": lambda n: pa.array(np.ones(n)),
    "tiny": lambda n: pa.array(np.full(n, 1e-300)),
    "huge": lambda n: pa.array(np.full(n, 1e300)),
    "wide": lambda n: pa.array(np.where(np.arange(n) % 2, 1e-300, 1e300)),
    "negative": lambda n: pa.array(np.where(np.arange(n) == 3, -1.0, 1.0)),
    "nan": lambda n: pa.array(np.where(np.arange(n) == 3, np.nan, 1.0)),
    "zero": lambda n: pa.array(np.zeros(n)),
    "text": lambda n: pa.array(["heavy"] * n),
    "decimal": lambda n: pa.array([Decimal("1.5")] * n, type=pa.decimal128(5, 1)),
}


def few(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@st.composite
def first_trainings(draw):
    return {
        "features": draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4)),
        "target": draw(st.sampled_from(sorted(TARGETS))),
        "weight": draw(st.sampled_from(sorted(WEIGHTS))),
        "estimator": draw(st.sampled_from(["boosting", "logistic"])),
        "ending": draw(st.sampled_from([".parquet", ".parquet", ".csv"])),
    }


def judge_first_training(case):
    """Separable rows are learned, whatever the type of their columns, or the columns are refused by name."""
    X, y = rows()
    columns = {f"f{i}": features(kind, X[:, i]) for i, kind in enumerate(case["features"])}
    if all(kind in PLAIN for kind in case["features"]):
        columns["sure"] = features(case["features"][0], np.where(y == 1, 1.0, -1.0))
    columns["y"] = TARGETS[case["target"]](y)
    extra = []
    if WEIGHTS[case["weight"]] is not None:
        columns["w"] = WEIGHTS[case["weight"]](N)
        extra = ["--weight", "w"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        data = folder / f"rows{case['ending']}"
        table = pa.table(columns)
        if case["ending"] == ".csv":
            assume(not {"list", "struct", "bytes"} & set(case["features"]) and case["target"] != "list")
            flat = [
                c.cast(pa.string()) if pa.types.is_dictionary(c.type) or pa.types.is_null(c.type) else c for c in table
            ]
            pyarrow.csv.write_csv(pa.table(flat, names=table.column_names), data)
        else:
            pyarrow.parquet.write_table(table, data)
        ended = run_clean(
            folder, OUTPUTS, "retrain", "--data", data.name, "--target", "y", "--out", "next.skops", "--report",
            "next.json", "--estimator", case["estimator"], *extra,
        )  # fmt: skip
        if ended.code != 0:
            assert ended.code == 2, ended.err
            return
        assert case["target"] not in ("gap", "nan", "one", "list"), ended.out
        assert case["weight"] not in ("negative", "nan", "zero", "text"), ended.out
        assert not {"list", "struct"} & set(case["features"]), ended.out
        model = lowchurn.load(folder / "next.skops")
        json.loads((folder / "next.json").read_text())
        if "sure" in columns and case["weight"] != "wide" and case["target"] not in ("lonely", "numbers"):
            assert len(model.classes_) == 2
            told = model.predict_proba(read_rows(data).features(list(model.feature_names_in_))).argmax(axis=1)
            assert np.mean(told == y) > 0.9 or np.mean(told != y) > 0.9, "one column alone separates the classes"


@few(12)
@given(first_trainings())
def test_columns_of_any_type_are_learned_or_refused(case):
    judge_first_training(case)


@pytest.mark.stress
@few(500)
@given(first_trainings())
def test_500_tables_are_learned_or_refused(case):
    judge_first_training(case)


@st.composite
def retrains(draw):
    return {
        "mark": draw(st.sampled_from(sorted(MARKS))),
        "extra": draw(st.lists(st.sampled_from(KINDS), max_size=2)),
        "drop_base_column": draw(st.booleans()),
        "max_churn": draw(st.sampled_from(["0.05", "0.5", "2", "-1", "nan", "0", "1", "1e-9"])),
        "confidence": draw(st.sampled_from([None, None, "0.9", "1", "nan"])),
        "held_out": draw(st.booleans()),
    }


def judge_retrain(case):
    X, y = rows()
    columns = {"a": X[:, 0], "b": X[:, 1], "y": y, "fresh": MARKS[case["mark"]](N)}
    late = np.arange(N) >= 80
    columns["late"] = late
    columns |= {f"extra{i}": features(kind, X[:, 2 + i]) for i, kind in enumerate(case["extra"])}
    if case["drop_base_column"]:
        del columns["b"]
    more = [] if case["confidence"] is None else ["--confidence", case["confidence"]]
    more += ["--held-out", "late"] if case["held_out"] else []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pyarrow.parquet.write_table(pa.table(columns), folder / "rows.parquet")
        shutil.copy(base_file() / "base.skops", folder / "base.skops")
        ended = run_clean(
            folder, OUTPUTS, "retrain", "--data", "rows.parquet", "--target", "y", "--base", "base.skops", "--new",
            "fresh", "--out", "next.skops", "--report", "next.json", f"--max-churn={case['max_churn']}", *more,
        )  # fmt: skip
        sound = (
            case["mark"] in UNDERSTOOD
            and not case["drop_base_column"]
            and case["max_churn"] in ("0.05", "0.5", "1e-9")
            and case["confidence"] in (None, "0.9")
        )
        if not sound:
            assert ended.code == 2 or case["max_churn"] in ("0", "1"), ended.out + ended.err
        if ended.code == 0:
            assert sound or case["max_churn"] in ("0", "1")
            told = json.loads((folder / "next.json").read_text())
            held_out = told["selection"]["rows"]["choose"] + told["selection"]["rows"]["certify"]
            assert held_out <= 60, "rows are held out among the new ones only"
            served = lowchurn.load(folder / "next.skops")
            assert list(served.feature_names_in_) == ["a", "b"]
            if case["held_out"] and case["confidence"] is None:
                check_measured(told["selection"], served, X[late, :2], y[late])


def check_measured(told, served, X, y):
    """Churn, broken and accuracy on the held-out rows, counted in a plain loop."""
    table = pd.DataFrame(X, columns=["a", "b"])
    base = lowchurn.load(base_file() / "base.skops").predict(table)
    rows = range(len(y))
    now = served.predict(table)
    expected = count(
        dict(zip(rows, base, strict=True)), dict(zip(rows, now, strict=True)), dict(zip(rows, y, strict=True))
    )
    for name, other in (("churn", "churn"), ("broken", "broken"), ("accuracy", "accuracy_new")):
        assert told[name] == pytest.approx(expected[other], abs=1e-12), name


@few(12)
@given(retrains())
def test_a_retrain_is_right_or_refused(case):
    judge_retrain(case)


@pytest.mark.stress
@few(500)
@given(retrains())
def test_500_retrains_are_right_or_refused(case):
    judge_retrain(case)


def judge_damaged_model(name, kind, at):
    """A damaged model file is refused, or it is the model that it was."""
    original = base_file() / name
    X, _ = rows()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        raw = bytearray(original.read_bytes())
        place_ = at % len(raw)
        if kind == "flip":
            raw[place_] ^= 1 << (at % 8)
        elif kind == "cut":
            del raw[place_:]
        elif kind == "hole":
            raw[place_ : place_ + 40] = bytes(len(raw[place_ : place_ + 40]))
        elif kind == "longer":
            raw += np.random.default_rng(at).bytes(at % 500)
        (folder / "dial.skops").write_bytes(bytes(raw))
        ended = run_clean(
            folder, OUTPUTS, "dial", "dial.skops", "--max-churn", "0.1", "--out", "next.skops", "--report", "next.json"
        )  # fmt: skip
        if ended.code == 0:
            whole = lowchurn.load(original).dial(max_churn=0.1)
            table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
            assert (lowchurn.load(folder / "next.skops").predict_proba(table) == whole.predict_proba(table)).all()


damaged = given(
    st.just("dial.skops"), st.sampled_from(["flip", "flip", "cut", "hole", "longer"]), st.integers(0, 10**7)
)


@few(12)
@damaged
def test_a_damaged_model_file_is_refused_or_the_same(name, kind, at):
    judge_damaged_model(name, kind, at)


@pytest.mark.stress
@few(500)
@damaged
def test_500_damaged_model_files_are_refused_or_the_same(name, kind, at):
    judge_damaged_model(name, kind, at)
