"""``lowchurn bench`` on stores, data files and options that it was not made for."""

import functools
import gzip
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.stress.running import run_clean

SMALL = ("--network", "fcn-4", "--initial", "40", "--validation", "20", "--batch", "30", "--epochs", "2", "--trials",
         "1", "--device", "cpu", "--strategy", "cold", "--strategy", "warm")  # fmt: skip


def few(examples):
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


@functools.cache
def made_store():
    folder = Path(tempfile.mkdtemp(prefix="lowchurn-tests-"))
    ended = run_clean(
        folder, ["store"], "bench", "run", "wine", "--store", "store", *SMALL, "--trials", "2", "--block", "1"
    )
    assert ended.code == 0, ended.err
    return folder / "store"


STORE_DAMAGES = ("flip", "cut", "alien", "no columns", "wrong types", "out of range", "json", "deep", "folder", "bomb")


def renamed(content, number, ending):
    """A segment whose name fits its content: what somebody would write who wants to be believed."""
    return f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.{ending}"


def spoil(store, kind, at):
    segments = store / "segments"
    path = sorted(p for p in segments.iterdir() if not p.name.startswith("."))[at % 2]
    raw = path.read_bytes()
    if kind == "flip":
        spoiled = bytearray(raw)
        spoiled[at % len(raw)] ^= 1 << (at % 8)
        path.write_bytes(bytes(spoiled))
        return
    if kind == "cut":
        path.write_bytes(raw[: at % len(raw)])
        return
    if kind == "alien":
        (segments / "notes.txt").write_text("hello")
        return
    if kind == "folder":
        (segments / renamed(b"", 9, "parquet")).mkdir()
        return
    table = pyarrow.parquet.read_table(path)
    content, ending = raw, "parquet"
    sink = pa.BufferOutputStream()
    if kind == "no columns":
        pyarrow.parquet.write_table(table.drop_columns(["accuracy", "trial"]), sink)
    elif kind == "wrong types":
        texts = pa.array(["high"] * len(table))
        pyarrow.parquet.write_table(table.set_column(table.column_names.index("accuracy"), "accuracy", texts), sink)
    elif kind == "out of range":
        beyond = pa.array([7.0] * len(table))
        pyarrow.parquet.write_table(table.set_column(table.column_names.index("accuracy"), "accuracy", beyond), sink)
    else:
        ending = "json.gz"
        text = {
            "json": json.dumps({"rows": 3, "columns": []}),
            "deep": "[" * 100_000,
            "bomb": json.dumps({"rows": 10**12, "same": {"dataset": "wine"}, "columns": {}}),
        }[kind]
        content = gzip.compress(text.encode())
    if ending == "parquet":
        content = sink.getvalue().to_pybytes()
    path.unlink()
    (segments / renamed(content, 7, ending)).write_bytes(content)


def judge_store(kind, at, command):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copytree(made_store(), folder / "store")
        spoil(folder / "store", kind, at)
        extra = ["wine", *SMALL] if command == "run" else [] if command == "status" else ["--out", "made"]
        ended = run_clean(folder, ["made"], "bench", command, *extra, "--store", "store")
        assert ended.code == 2, (kind, ended.out)


stores = given(
    st.sampled_from(STORE_DAMAGES), st.integers(0, 10**6), st.sampled_from(["status", "tables", "report", "run"])
)


@few(12)
@stores
def test_a_damaged_store_is_refused(kind, at, command):
    judge_store(kind, at, command)


@pytest.mark.stress
@few(500)
@stores
def test_500_damaged_stores_are_refused(kind, at, command):
    judge_store(kind, at, command)


@functools.cache
def prepared():
    folder = Path(tempfile.mkdtemp(prefix="lowchurn-tests-"))
    assert run_clean(folder, ["wine.npz"], "bench", "prepare", "wine.npz", "wine").code == 0
    return folder / "wine.npz"


DATA_DAMAGES = ("flip", "cut", "rows beyond", "rows below", "labels beyond", "labels below", "label gaps", "short",
                "empty", "objects", "infinite", "words", "one class", "twice", "flat", "none")  # fmt: skip


def spoil_data(path, kind, at):
    raw = path.read_bytes()
    if kind in ("flip", "cut"):
        spoiled = bytearray(raw)
        spoiled[at % len(raw)] ^= 1 << (at % 8)
        path.write_bytes(bytes(spoiled) if kind == "flip" else raw[: at % len(raw)])
        return
    with np.load(path) as archive:
        arrays = {name: archive[name].copy() for name in archive.files}
    # Whole numbers are in the fewest bytes, into which some damages would not fit.
    arrays = {name: values.astype(np.int64) if values.dtype.kind == "u" else values for name, values in arrays.items()}
    part = {name.split("/")[-1]: name for name in arrays}
    X, y, train = (arrays[part[name]] for name in ("X", "y", "train"))
    row = at % len(train)
    changes = {
        "rows beyond": lambda: train.__setitem__(row, len(y) + at),
        "rows below": lambda: train.__setitem__(row, -1 - len(y)),
        "labels beyond": lambda: y.__setitem__(row, 99),
        "labels below": lambda: y.__setitem__(row, -1),
        "infinite": lambda: X.__setitem__((row, 0), np.inf),
        "twice": lambda: train.__setitem__(0, train[1]),
    }
    if kind in changes:
        changes[kind]()
    elif kind == "label gaps":
        arrays[part["y"]] = np.where(np.arange(len(y)) == row, np.nan, y)
    elif kind == "short":
        arrays[part["y"]] = y[:-1]
    elif kind == "empty":
        arrays[part["X"]] = X[:0]
    elif kind == "objects":
        arrays[part["y"]] = np.array([object()] * len(y))
    elif kind == "words":
        arrays[part["y"]] = np.array(["a"] * len(y))
    elif kind == "one class":
        arrays[part["y"]] = np.zeros_like(y)
    elif kind == "flat":
        arrays[part["X"]] = X.ravel()
    elif kind == "none":
        del arrays[part["train"]]
    if kind == "objects":
        arrays[part["y"]] = np.array([{"a": 1}] * len(y), dtype=object)
    np.savez(path, **arrays)


def judge_data(kind, at):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = folder / "wine.npz"
        shutil.copy(prepared(), path)
        spoil_data(path, kind, at)
        ended = run_clean(folder, ["store"], "bench", "run", "wine", "--data", "wine.npz", "--store", "store", *SMALL)
        if kind not in ("flip", "cut"):
            assert ended.code == 2, (kind, ended.out)


@few(16)
@given(st.sampled_from(DATA_DAMAGES), st.integers(0, 10**6))
def test_a_damaged_data_file_is_refused(kind, at):
    judge_data(kind, at)


@pytest.mark.stress
@few(500)
@given(st.sampled_from(DATA_DAMAGES), st.integers(0, 10**6))
def test_500_damaged_data_files_are_refused(kind, at):
    judge_data(kind, at)


OPTIONS = ("--network", "--strategy", "--start", "--trials", "--initial", "--validation", "--batch", "--patience",
           "--loss", "--epochs", "--seed", "--device", "--dtype", "--jobs", "--block", "--data")  # fmt: skip
TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
VALUES = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            "",
            "0",
            "-1",
            "1",
            "2",
            "nan",
            "1e9",
            "99999999999999999999",
            "fcn-0",
            "fcn--1",
            "fcn-99999999999",
            "cuda",
            "tpu",
        ]
    ),
)


def judge_options(options):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        ended = run_clean(
            folder, ["store"], "bench", "run", "wine", "--store", "store", *SMALL, *[f"{k}={v}" for k, v in options]
        )
        if ended.code == 0:
            assert "new rows" in ended.out


odd = given(st.lists(st.tuples(st.sampled_from(OPTIONS), VALUES), min_size=1, max_size=2))


@few(12)
@odd
def test_odd_values_of_options_are_refused_in_words(options):
    judge_options(options)


@pytest.mark.stress
@few(500)
@odd
def test_500_odd_values_of_options_are_refused_in_words(options):
    judge_options(options)
