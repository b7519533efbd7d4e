"""``lowchurn score`` on rows, ids, previous decisions and model files that it was not made for."""

import csv
import datetime as dt
import functools
import math
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
import skops.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression

import lowchurn
from lowchurn import LowChurnClassifier
from tests.stress.running import run_clean
from tests.stress.test_fuzz_retrain import KINDS, features, rows

N = 60
CLASSES = {
    "words": ["no", "yes"],
    "numbers": [0, 1],
    "large": [2**53, 2**53 + 1],
    "booleans": [False, True],
    "digits": ["01", "1"],
    "fractions": [0.0, 2.0],
}
DAY = dt.date(2024, 2, 29)
IDS = {
    "integer": lambda n: pa.array(range(n)),
    "text": lambda n: pa.array([f"c{k}" for k in range(n)]),
    "zeros": lambda n: pa.array([f"{k:04d}" for k in range(n)]),
    "unsigned": lambda n: pa.array([2**63 + k for k in range(n)], type=pa.uint64()),
    "category": lambda n: pa.array([f"c{k}" for k in range(n)]).dictionary_encode(),
    "large text": lambda n: pa.array([f"c{k}" for k in range(n)], type=pa.large_string()),
    "odd text": lambda n: pa.array([f'a,"{k}\n\x1b[1m \u202e' for k in range(n)]),
    "spaces": lambda n: pa.array([" " * (k + 1) for k in range(n)]),
    "like numbers": lambda n: pa.array([f"{k}.0" for k in range(n)]),
    "repeated": lambda n: pa.array([k // 2 for k in range(n)]),
    "missing": lambda n: pa.array([None if k == 3 else k for k in range(n)]),
    "empty": lambda n: pa.array(["" if k == 3 else str(k) for k in range(n)]),
    "floats": lambda n: pa.array([float(k) for k in range(n)]),
    "dates": lambda n: pa.array([DAY + dt.timedelta(k) for k in range(n)]),
    "decimal": lambda n: pa.array([Decimal(k) for k in range(n)], type=pa.decimal128(9, 0)),
    "flags": lambda n: pa.array([k % 2 == 0 for k in range(n)]),
    "nothing": lambda n: pa.nulls(n),
    "list": lambda n: pa.array([[k] for k in range(n)]),
}
GOOD_IDS = {
    "integer", "text", "zeros", "unsigned", "category", "large text", "odd text", "spaces", "like numbers"
}  # fmt: skip
PREVIOUS = (
    "none",
    "all",
    "some",
    "no rows",
    "repeated",
    "gap",
    "other class",
    "only others",
    "wrong type",
    "no column",
)
TAKEN = {"none", "all", "some", "no rows", "other class"}


def few(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@functools.cache
def models():
    """For each type of classes: the base, and sticky models with and without it; a native file; in a folder."""
    folder = Path(tempfile.mkdtemp(prefix="lowchurn-tests-"))
    X, y = rows()
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    noise = np.random.default_rng(0).random(len(y))
    noisy, poor = (np.where(noise < share, 1 - y, y) for share in (0.1, 0.45))
    for name, classes in CLASSES.items():
        labels = np.array(classes)[noisy]
        base = LogisticRegression().fit(table[:40], np.array(classes)[poor[:40]])
        (folder / f"base-{name}.skops").write_bytes(skops.io.dumps(base))
        options = {"max_churn": 0.1, "strategies": "sticky", "random_state": 0}
        held_out = np.arange(60, 120)
        sticky = LowChurnClassifier(base=base, **options).fit(table, labels, held_out=held_out)
        sticky.save(folder / f"sticky-{name}.skops", dial=True)
        asked = LowChurnClassifier(LogisticRegression(), **options)
        asked.fit(table, labels, base_proba=base.predict(table), held_out=held_out)
        asked.save(folder / f"asked-{name}.skops")
        assert sticky._served.rule.margin > 0
        assert asked._served.rule.margin > 0
    LGBMClassifier(n_estimators=3, verbose=-1).fit(table, y).booster_.save_model(folder / "native-numbers.txt")
    return folder


def model_file(kind, classes):
    return models() / ("native-numbers.txt" if kind == "native" else f"{kind}-{classes}.skops")


@st.composite
def scorings(draw):
    kind = draw(st.sampled_from(["base", "sticky", "sticky", "asked", "native"]))
    sound = st.sampled_from(["float", "float32", "integer", "decimal", "gaps"])
    return {
        "model": kind,
        "classes": "numbers" if kind == "native" else draw(st.sampled_from(sorted(CLASSES))),
        "ids": draw(st.one_of(st.sampled_from(sorted(GOOD_IDS)), st.sampled_from(sorted(IDS)))),
        "a": draw(st.one_of(sound, sound, st.sampled_from(KINDS))),
        "extra": draw(st.lists(st.sampled_from(KINDS), max_size=2)),
        "previous": draw(st.sampled_from(PREVIOUS)),
        "endings": draw(st.tuples(*[st.sampled_from([".parquet", ".csv"])] * 3)),
        "option": draw(st.sampled_from([None, None, None, "drop b", "drop extra", "id y", "out txt", "class"])),
        "shuffled": draw(st.booleans()),
    }


def previous_table(case, ids, classes):
    """A table of previous decisions, for better or worse; None without one."""
    n = len(ids)
    decisions = [classes[k % 2] for k in range(n)]
    order = np.random.default_rng(0).permutation(n) if case["shuffled"] else np.arange(n)
    kind = case["previous"]
    if kind == "some":
        order = order[: n // 3]
    elif kind == "no rows":
        order = order[:0]
    elif kind == "repeated":
        order = np.append(order, order[0])
    elif kind == "gap":
        decisions[order[0]] = None
    elif kind in ("other class", "only others"):
        other = {"words": "gone", "digits": "gone", "booleans": False}.get(case["classes"], 7)
        decisions = [other if kind == "only others" or k == 5 else label for k, label in enumerate(decisions)]
    elif kind == "wrong type":
        decisions = [0.5] * n
    columns = {"id": ids, "was" if kind == "no column" else "decision": pa.array(decisions)}
    return None if kind == "none" else pa.table(columns).take(pa.array(order))


def write(table, path):
    """Write a table; False where the format cannot hold it."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path)
        return True
    flat = [c.cast(c.type.value_type) if pa.types.is_dictionary(c.type) else c for c in table.columns]
    flat = [c.cast(pa.string()) if pa.types.is_null(c.type) else c for c in flat]
    if any(pa.types.is_nested(c.type) or pa.types.is_binary(c.type) for c in flat):
        return False
    pyarrow.csv.write_csv(pa.table(flat, names=table.column_names), path)
    return True


def judge_scoring(case):
    """Every row is decided as Python decides it, beside the decision that its id has; or the input is refused."""
    X, _ = rows()
    classes, path = CLASSES[case["classes"]], model_file(case["model"], case["classes"])
    ids = IDS[case["ids"]](N)
    columns = {"id": ids, "a": features(case["a"], X[:N, 0]), "b": pa.array(X[:N, 1])}
    columns |= {f"extra{k}": features(kind, X[:N, 2]) for k, kind in enumerate(case["extra"])}
    before = previous_table(case, ids, classes)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(path, folder / path.name)
        data, last, out = (f"{name}{end}" for name, end in zip(("rows", "last", "out"), case["endings"], strict=True))
        if not write(pa.table(columns), folder / data) or not (before is None or write(before, folder / last)):
            return
        more = [] if before is None else ["--previous", last]
        more += {
            "drop b": ["--drop", "b"], "drop extra": ["--drop", "extra0"], "id y": ["--id", "y"],
            "class": ["--class", "x", "--class", "y"],
        }.get(case["option"], [])  # fmt: skip
        out = "out.txt" if case["option"] == "out txt" else out
        ended = run_clean(folder, [out], "score", "--model", path.name, "--data", data, "--out", out, *more)
        if ended.code == 0:
            check_scored(case, folder, path, pa.table(columns), before, out, ended)
        else:
            assert not (folder / out).exists()
        sound = (
            case["ids"] in GOOD_IDS
            and case["a"] in ("float", "float32", "integer", "decimal")
            and case["previous"] in TAKEN
            and case["option"] in (None, "drop extra" if case["extra"] else None)
            and (case["model"] != "asked" or case["previous"] != "none")
        )
        assert ended.code == 0 or not sound, ended.err


def check_scored(case, folder, path, table, before, out, ended):
    """The file that was written, against plain Python."""
    assert case["ids"] in GOOD_IDS or (case["endings"][0] == ".csv" and case["ids"] not in ("repeated", "missing"))
    assert case["previous"] in TAKEN or case["previous"] in ("other class", "only others", "wrong type")
    kept = {} if before is None else dict(zip(*(before[name].to_pylist() for name in before.column_names), strict=True))
    found = read(folder / out)
    keys = [str(key) for key in table["id"].to_pylist()]
    assert [str(key) for key in found["id"]] == keys or case["ids"] not in GOOD_IDS
    named = ["x", "y"] if case["option"] == "class" else None
    model = lowchurn.learners.native_model(path, named) if path.suffix == ".txt" else lowchurn.load(path)
    X = pd.DataFrame({name: [math.nan if v is None else float(v) for v in table[name].to_pylist()] for name in "ab"})
    given_ = [kept.get(key) for key in table["id"].to_pylist()]
    asked = {"previous": given_} if case["model"] in ("sticky", "asked") and before is not None else {}
    expected = model.predict(X, **asked).tolist()
    proba = model.predict_proba(X, **asked).max(axis=1)
    assert [str(label) for label in found["decision"]] == [str(label) for label in expected]
    np.testing.assert_allclose([float(p) for p in found["probability"]], proba, rtol=1e-6)
    base = lowchurn.load(model_file("base", case["classes"])) if case["model"] == "sticky" else None
    known = [label is not None for label in given_]
    if base is not None:
        given_ = [b if label is None else label for label, b in zip(given_, base.predict(X).tolist(), strict=True)]
        known = [True] * len(given_)
    changed = [(now != then) if k else None for now, then, k in zip(expected, given_, known, strict=True)]
    assert [read_flag(flag) for flag in found["changed"]] == changed
    compared = sum(known)
    words = f"{sum(map(bool, changed))} of {compared} decisions changed" if compared else "none compared"
    assert f"{N} rows scored, {words}" in ended.out


def read(path):
    """The columns of a file that was written, as lists."""
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pydict()
    with path.open(encoding="utf-8", newline="") as file:
        head, *lines = csv.reader(file)
    return {name: [line[k] for line in lines] for k, name in enumerate(head)}


def read_flag(flag):
    return {"True": True, "False": False, "": None}.get(flag, flag)


@few(15)
@given(scorings())
def test_rows_are_scored_rightly_or_refused(case):
    judge_scoring(case)


@pytest.mark.stress
@few(500)
@given(scorings())
def test_500_files_are_scored_rightly_or_refused(case):
    judge_scoring(case)


def judge_damaged(name, kind, at):
    """A damaged input is refused, or the answers are those of the whole file."""
    X, _ = rows()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(model_file("sticky", "words"), folder / "model.skops")
        shutil.copy(models() / "native-numbers.txt", folder / "model.txt")
        ids = pa.array(range(N))
        table = pa.table({"id": ids, "a": X[:N, 0], "b": X[:N, 1]})
        pyarrow.parquet.write_table(table, folder / "rows.parquet")
        pyarrow.csv.write_csv(table, folder / "rows.csv")
        last = pa.table({"id": ids, "decision": ["no"] * N})
        pyarrow.parquet.write_table(last, folder / "last.parquet")
        model = "model.txt" if name == "model.txt" else "model.skops"
        data = "rows.csv" if name == "rows.csv" else "rows.parquet"
        more = [] if model == "model.txt" else ["--previous", "last.parquet"]
        command = ["score", "--model", model, "--data", data, *more]
        whole = run_clean(folder, ["whole.csv"], *command, "--out", "whole.csv")
        assert whole.code == 0, whole.err
        raw = bytearray((folder / name).read_bytes())
        spot = at % len(raw)
        if kind == "flip":
            raw[spot] ^= 1 << (at % 8)
        elif kind == "cut":
            del raw[spot:]
        elif kind == "hole":
            raw[spot : spot + 40] = bytes(len(raw[spot : spot + 40]))
        elif kind == "longer":
            raw += np.random.default_rng(at).bytes(at % 500)
        (folder / name).write_bytes(bytes(raw))
        ended = run_clean(folder, ["out.csv"], *command, "--out", "out.csv")
        if ended.code == 0 and name == "model.skops":
            assert (folder / "out.csv").read_bytes() == (folder / "whole.csv").read_bytes()
        assert (folder / "out.csv").exists() == (ended.code == 0)


damaged = given(
    st.sampled_from(["model.skops", "model.txt", "rows.parquet", "rows.csv", "last.parquet"]),
    st.sampled_from(["flip", "flip", "cut", "hole", "longer"]),
    st.integers(0, 10**7),
)


@few(15)
@damaged
def test_damaged_files_are_refused_or_the_same(name, kind, at):
    judge_damaged(name, kind, at)


@pytest.mark.stress
@few(500)
@damaged
def test_500_damaged_files_are_refused_or_the_same(name, kind, at):
    judge_damaged(name, kind, at)
