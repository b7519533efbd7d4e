"""``lowchurn retrain`` under stress: odd tables, and two runs at once."""

import datetime
import decimal
import json
import os
import subprocess
import sys
import unicodedata

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import skops.io
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import lowchurn
from tests.stress.running import run

pytestmark = pytest.mark.stress

CASES = 500
DAY = datetime.date(2024, 1, 1)
WORDS = ["", "a", "b", "NA", "None", "1", "01", " 1", "1.0", "1e0", "\u0661", "yes", "True", "\x1b[2J", "x\ny", "[b]"]
BIG = 2**53
VALUES = {
    "int": st.integers(-5, 5),
    "two": st.integers(0, 1),
    "big": st.sampled_from([BIG, BIG + 1, -BIG - 1, 2**62]),
    "float": st.floats(-3, 3),
    "wild": st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 1e-300, 0.0, 1.5]),
    "bool": st.booleans(),
    "word": st.sampled_from(WORDS),
    "yes": st.sampled_from(["yes", "no"]),
    "decimal": st.sampled_from([decimal.Decimal("1.50"), decimal.Decimal("2.00"), decimal.Decimal("-3.25")]),
    "date": st.sampled_from([DAY, DAY + datetime.timedelta(1)]),
    "time": st.sampled_from([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
    "list": st.just([1, 2]),
    "struct": st.just({"a": 1}),
    "bytes": st.just(b"\xff"),
    "null": st.none(),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(80, 2)), columns=["f", "g"])
    for name, classes in {"two": [0, 1], "yes": ["no", "yes"], "bool": [False, True]}.items():
        y = np.array(classes)[(rows["f"] > 0).astype(int)]
        base = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows, y)
        (folder / f"{name}.skops").write_bytes(skops.io.dumps(base))
    return folder


@st.composite
def cases(draw):
    """A table and options that are right, and up to three things that are odd about them."""
    rows = draw(st.sampled_from([40, 60]))
    numbers = np.random.default_rng(draw(st.integers(0, 1000))).normal(size=(rows, 2))
    kind = draw(st.sampled_from(["two", "yes", "bool", "words", "big", "decimal"]))
    labels = {
        "two": [0, 1], "yes": ["no", "yes"], "bool": [False, True], "words": ["1", "01", "b"], "big": [BIG, BIG + 1],
        "decimal": [decimal.Decimal("1.00"), decimal.Decimal("2.00")],
    }[kind]  # fmt: skip
    columns = {"f": numbers[:, 0].tolist(), "g": numbers[:, 1].tolist()}
    columns["y"] = [labels[k % len(labels) if kind == "words" else int(f > 0)] for k, f in enumerate(columns["f"])]
    base = draw(st.sampled_from([None, kind])) if kind in ("two", "yes", "bool") else None
    options = [] if base is None else ["--max-churn", draw(st.sampled_from(["0.1", "0.3"]))]
    if base is None or draw(st.booleans()):
        options += ["--estimator", "logistic"]
    for oddity in draw(st.lists(st.sampled_from(["column", "column", "gap", "value", "option", "role"]), max_size=3)):
        name = draw(st.sampled_from(["f", "g", "y", "w", "old", "label", "x\x1b[1m"]))
        if oddity == "column":
            some = draw(st.lists(VALUES[draw(st.sampled_from(list(VALUES)))], min_size=1, max_size=12))
            columns[name if name != "y" else "w"] = [some[k % len(some)] for k in range(rows)]
        elif oddity == "gap" and name in columns:
            columns[name] = [None, *columns[name][1:]]
        elif oddity == "value" and name in columns:
            columns[name] = [*columns[name][:-1], draw(VALUES["word"]) if isinstance(columns[name][0], str) else 7]
        elif oddity == "option":
            options += draw(st.sampled_from([["--max-churn", "2"], ["--all-columns"], ["--estimator", "base"]]))
        elif oddity == "role":
            columns["w"] = draw(st.sampled_from([[1, 0], ["yes", "no"], [1.0, 0.5], ["x", "y"], [True, False]])) * rows
            columns["w"] = columns["w"][:rows]
            options += [draw(st.sampled_from(["--new", "--weight", "--drop"])), "w"]
    return columns, draw(st.sampled_from(["csv", "parquet"])), base, options


def write(path, columns):
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    else:
        pd.DataFrame(columns).to_csv(path, index=False)


@settings(
    max_examples=CASES, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(case=cases())
def test_odd_tables_give_a_model_or_one_clear_line(tmp_path_factory, bases, case):
    columns, kind, base, options = case
    folder = tmp_path_factory.mktemp("odd")
    data, out, report = folder / f"rows.{kind}", folder / "m.skops", folder / "report.json"
    try:
        write(data, columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # of mixed types: it cannot be written to Parquet
        return
    before = data.read_bytes()
    if base is not None:
        options = [*options, "--base", bases / f"{base}.skops"]
    ended = run("retrain", "--data", data, "--target", "y", "--out", out, "--report", report, *options)
    code, stdout, stderr = ended.code, ended.out, ended.err
    assert code in (0, 2), (code, stderr)
    assert data.read_bytes() == before
    for text in (stdout, stderr):
        assert all(unicodedata.category(c) != "Cc" for c in text.replace("\n", ""))
    lines = stderr.splitlines()
    assert all(line.startswith(("error: ", "warning: ")) for line in lines), stderr
    if code == 2:
        assert sum(line.startswith("error: ") for line in lines) == 1
        assert os.listdir(folder) == [data.name]
        return
    assert sorted(os.listdir(folder)) == ["m.skops", "report.json", data.name]
    told = json.loads(report.read_text())
    classes = lowchurn.load(out).classes_
    if "--weight" not in options:  # rows of weight 0 are no rows
        assert set(classes.tolist()) == {str(y) if classes.dtype.kind == "U" else y for y in columns["y"]}
    dropped = {options[k + 1] for k, option in enumerate(options) if option in ("--new", "--weight", "--drop")}
    free = [name for name in columns if name not in {"y", *dropped}]
    wanted = free if base is None else ["f", "g"] + [n for n in free if n not in "fg" and "--all-columns" in options]
    assert told["features"] == wanted
    assert told["left_out"] == [name for name in free if name not in wanted]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(600, 4)), columns=list("abcd"))
    y = np.where(rows["a"] + 0.5 * rng.normal(size=600) > 0, "yes", "no")
    base = make_pipeline(StandardScaler(), LogisticRegression()).fit(rows[:200], y[:200])
    (folder / "prod.skops").write_bytes(skops.io.dumps(base))
    rows.assign(y=y).to_parquet(folder / "rows.parquet")
    return folder


def command(folder, out, *more):
    return [
        sys.executable, "-m", "lowchurn", "retrain", "--data", str(folder / "rows.parquet"), "--target", "y", "--base",
        str(folder / "prod.skops"), "--max-churn", "0.05", "--out", str(out), *more,
    ]  # fmt: skip


def decisions(path, folder):
    return lowchurn.load(path).predict_proba(pd.read_parquet(folder / "rows.parquet").drop(columns="y"))


def test_two_retrains_to_one_file_leave_one_of_them_whole(folder, tmp_path):
    out = tmp_path / "next.skops"
    wanted = {}
    for seed in "12":
        subprocess.run(command(folder, out, "--seed", seed), check=True, capture_output=True)
        wanted[seed] = decisions(out, folder)
    for _ in range(5):
        running = [subprocess.Popen(command(folder, out, "--seed", seed), stdout=subprocess.PIPE) for seed in "12"]
        for process in running:
            process.communicate()
            assert process.returncode == 0
        found = decisions(out, folder)
        assert any(np.array_equal(found, each) for each in wanted.values())
    assert os.listdir(tmp_path) == ["next.skops"]
