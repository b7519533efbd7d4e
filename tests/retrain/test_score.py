"""Scoring files: the decisions of Python's predict, whatever the batches, with previous ones joined by id."""

import re
import shlex
import sys
import tracemalloc
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import lowchurn
from lowchurn import LowChurnClassifier, cli
from lowchurn.retrain import Previous, _score, score_file

FEATURES = ["age", "size", "shop", "flag"]
COLUMNS = ["decision", "probability", "changed", "margin"]


def make_rows(n, seed):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame({"age": rng.normal(size=n), "size": rng.integers(0, 9, n).astype(float)})
    rows["shop"] = rng.choice(["007", "008", "9"], n)  # text that looks like numbers
    rows["flag"] = rng.uniform(size=n) > 0.5
    score = rows["age"] + 0.8 * (rows["shop"] == "007") + 0.1 * rows["size"] + rng.normal(size=n)
    return rows.assign(y=np.select([score < 0, score < 1], ["low", "mid"], "top"), id=np.arange(n) + 1000 * seed)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A base, a sticky model with it and one without it, rows to score and last week's decisions in another order."""
    folder = tmp_path_factory.mktemp("score")
    data, week = make_rows(900, 1), make_rows(300, 2)
    encode = make_column_transformer((OneHotEncoder(), ["shop"]), (StandardScaler(), ["age", "size", "flag"]))
    base = make_pipeline(encode, LogisticRegression()).fit(data[FEATURES][:80], data["y"][:80])
    (folder / "prod.skops").write_bytes(skops.io.dumps(base))
    sticky = LowChurnClassifier(base=base, max_churn=0.05, strategies="sticky", random_state=0)
    sticky.fit(data[FEATURES], data["y"], traffic=week[FEATURES]).save(folder / "sticky.skops", dial=True)
    table = LowChurnClassifier(base, max_churn=0.1, strategies="sticky", random_state=0)
    table.fit(data[FEATURES], data["y"], base_proba=base.predict(data[FEATURES])).save(folder / "without_base.skops")
    week.drop(columns="y").to_parquet(folder / "rows.parquet", index=False)
    week.drop(columns="y").to_csv(folder / "rows.csv", index=False)
    last = week[["id"]].assign(decision=base.predict(week[FEATURES]))
    last.sample(frac=1.0, random_state=0).to_parquet(folder / "last.parquet", index=False)
    last.sample(frac=1.0, random_state=1).to_csv(folder / "last.csv", index=False)
    data.to_parquet(folder / "data.parquet", index=False)
    return folder


@pytest.fixture
def week(folder):
    return pd.read_parquet(folder / "rows.parquet")


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def score(monkeypatch, capsys, folder, tmp_path):
    """The command, in a folder of its own."""

    def call(*arguments, command="score"):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["lowchurn", command, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        return Result(stopped.value.code or 0, *capsys.readouterr())

    return call


def read(path):
    return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)


def check(found, model, rows, previous=None):
    """A file against what Python answers, to the last digit."""
    more = {} if previous is None else {"previous": previous}
    proba = model.predict_proba(rows[FEATURES], **more)
    decided = model.predict(rows[FEATURES], **more)
    assert found.columns.tolist() == ["id", *COLUMNS]
    assert found["id"].astype(str).tolist() == rows["id"].astype(str).tolist()  # text where they come from CSV
    assert found["decision"].tolist() == decided.tolist()
    place = [model.classes_.tolist().index(label) for label in decided]
    assert found["probability"].tolist() == proba[np.arange(len(rows)), place].tolist()


@pytest.mark.parametrize("data", ["rows.csv", "rows.parquet"])
@pytest.mark.parametrize("last", ["last.csv", "last.parquet"])
@pytest.mark.parametrize("out", ["this.csv", "this.parquet"])
def test_every_format_gives_what_predict_returns(folder, week, tmp_path, score, data, last, out):
    """Previous decisions come in another order than the rows: they are joined by id."""
    result = score("--model", folder / "sticky.skops", "--data", folder / data, "--previous", folder / last,
                   "--out", out)  # fmt: skip
    assert result.returncode == 0, result.stderr
    model, base = (lowchurn.load(folder / name) for name in ("sticky.skops", "prod.skops"))
    found, before = read(tmp_path / out), base.predict(week[FEATURES])
    check(found, model, week, before)
    changed = found["decision"].to_numpy() != before
    assert found["changed"].tolist() == changed.tolist()
    assert 0 < changed.sum() < 30
    assert result.stdout == (
        f"{out}: 300 rows scored, {changed.sum()} of 300 decisions changed ({100 * changed.mean():.2f} %), 0 ids "
        "without a previous decision.\n"
    )
    assert found.loc[changed, "margin"].min() > found.loc[~changed, "margin"].max()


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_columns_that_are_kept_are_audited(folder, tmp_path, score, kind):
    """Labels and slices come along, categories as words; a kept column stays a feature where the model has it."""
    rows = make_rows(300, 2)
    rows = rows.assign(region=pd.Categorical(np.where(rows["age"] > 0, "north", "south")))
    name = f"labelled{kind}"
    write = rows.to_csv if kind == ".csv" else rows.to_parquet
    write(tmp_path / name, index=False)
    for model, out in (("prod.skops", "old"), ("sticky.skops", "new")):
        result = score("--model", folder / model, "--data", name, "--keep", "y", "--keep", "region", "--keep", "age",
                       "--out", f"{out}{kind}")  # fmt: skip
        assert result.returncode == 0, result.stderr
    found = read(tmp_path / f"new{kind}")
    assert found.columns.tolist() == ["id", *COLUMNS, "y", "region", "age"]
    assert found["y"].tolist() == rows["y"].tolist()
    assert found["region"].tolist() == rows["region"].tolist()
    check(found[["id", *COLUMNS]], lowchurn.load(folder / "sticky.skops"), rows)
    judged = score(f"old{kind}", f"new{kind}", "--label", "y", "--by", "region", "--not-worse-than", "0.1",
                   command="audit")  # fmt: skip
    assert judged.returncode == 0, judged.stderr + judged.stdout
    for wrong in ("id", "decision"):
        refused = score("--model", folder / "prod.skops", "--data", name, "--keep", wrong, "--out", f"x{kind}")
        assert refused.returncode == 2
        assert "--keep must name other columns than those that are written anyway" in refused.stderr


@pytest.mark.parametrize("data", ["rows.csv", "rows.parquet"])
@pytest.mark.parametrize("size", [1, 7, 299, 300, 1000])
def test_several_batches_equal_one(folder, tmp_path, monkeypatch, data, size):
    def scored(out):
        score_file(folder / "sticky.skops", folder / data, out, Previous(folder / "last.csv"))
        return pd.read_parquet(out)

    whole = scored(tmp_path / "whole.parquet")
    monkeypatch.setattr(_score, "BATCH_ROWS", size)
    # Libraries multiply one row and many in another order, which the last digit of a probability may show.
    parts = scored(tmp_path / "parts.parquet")
    pd.testing.assert_frame_equal(parts, whole, check_exact=False, rtol=1e-12, atol=1e-14)


def test_batches_whose_decisions_are_all_for_a_class_that_is_gone(folder, tmp_path, monkeypatch):
    last = pd.read_parquet(folder / "last.parquet").sort_values("id")
    last.loc[last["id"] < last["id"].iloc[150], "decision"] = "gone"
    last.to_parquet(tmp_path / "last.parquet", index=False)

    def scored(out):
        score_file(folder / "sticky.skops", folder / "rows.parquet", out, Previous(tmp_path / "last.parquet"))
        return pd.read_parquet(out)

    whole = scored(tmp_path / "whole.parquet")
    assert whole["changed"][:150].all()
    monkeypatch.setattr(_score, "BATCH_ROWS", 50)
    pd.testing.assert_frame_equal(scored(tmp_path / "parts.parquet"), whole, check_exact=False, rtol=1e-12, atol=1e-14)


def test_a_batch_is_read_in_the_types_of_the_whole_file(folder, tmp_path, monkeypatch):
    """A word, a fraction or a gap far down gives the column the same type in every batch."""
    rows = pd.DataFrame({"id": range(8), "a": ["1"] * 7 + ["x"], "b": ["1"] * 7 + ["0.5"], "c": [*"1111111", ""]})
    rows["d"] = ["True"] * 7 + [""]
    rows.to_csv(tmp_path / "rows.csv", index=False)
    numbers = rows.assign(
        a="u", b=1.5, c=pd.array([1] * 7 + [None], "Int64"), d=pd.array([True] * 7 + [None], "boolean")
    )
    numbers.to_parquet(tmp_path / "rows.parquet", index=False)
    seen = []

    class Spy:
        classes_ = np.array([0, 1])
        feature_names_in_ = np.array(["a", "b", "c", "d"], dtype=object)

        def predict_proba(self, X):
            seen.append((len(X), X.dtypes.astype(str).tolist()))
            return np.tile([0.75, 0.25], (len(X), 1))

        def predict(self, X):
            return np.zeros(len(X), dtype=int)

    monkeypatch.setattr(_score, "load", lambda path, trusted: Spy())
    for name in ("rows.csv", "rows.parquet"):
        for size in (8, 3):
            monkeypatch.setattr(_score, "BATCH_ROWS", size)
            score_file("model", tmp_path / name, tmp_path / "out.csv")
        kinds = {tuple(kind) for _, kind in seen}
        assert [n for n, _ in seen] == [8, 3, 3, 2]
        assert len(kinds) == 1
        assert kinds.pop()[1:] == ("float64", "float64", "object")
        seen.clear()


def test_memory_does_not_grow_with_the_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    base = GaussianNB().fit(rng.normal(size=(50, 2)), [0, 1] * 25)
    (tmp_path / "nb.skops").write_bytes(skops.io.dumps(base))
    monkeypatch.setattr(_score, "BATCH_ROWS", 500)

    def peak(n):
        rows = pa.table({"id": np.arange(n), "a": rng.normal(size=n), "b": rng.normal(size=n)})
        pq.write_table(rows, tmp_path / "rows.parquet")
        pq.write_table(pa.table({"id": np.arange(n)[::-1], "decision": np.arange(n) % 2}), tmp_path / "last.parquet")
        tracemalloc.start()
        score_file(tmp_path / "nb.skops", tmp_path / "rows.parquet", tmp_path / "out.csv",
                   Previous(tmp_path / "last.parquet"))  # fmt: skip
        try:
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1000)  # imports
    assert peak(40_000) < 1.3 * peak(4000)


def test_unknown_ids_ask_the_base_or_get_the_plain_decision(folder, week, tmp_path, score):
    last = pd.read_parquet(folder / "last.parquet")
    last[last["id"] >= 2100].assign(decision="top").to_csv(tmp_path / "last.csv", index=False)
    base = lowchurn.load(folder / "prod.skops")
    for name in ("sticky.skops", "without_base.skops"):
        result = score("--model", folder / name, "--data", folder / "rows.csv", "--previous", "last.csv",
                       "--out", "this.parquet")  # fmt: skip
        assert result.returncode == 0, result.stderr
        found, model = read(tmp_path / "this.parquet"), lowchurn.load(folder / name)
        previous = np.where(week["id"] >= 2100, "top", None)
        check(found, model, week, previous)
        assert result.stdout.endswith("100 ids without a previous decision.\n")
        unknown = found[week["id"] < 2100]
        if name == "sticky.skops":
            before = base.predict(week[FEATURES])[week["id"] < 2100]
            assert unknown["changed"].tolist() == (unknown["decision"].to_numpy() != before).tolist()
            assert "of 300 decisions changed" in result.stdout
        else:
            assert unknown[["changed", "margin"]].isna().all(axis=None)
            assert "of 200 decisions changed" in result.stdout
            plain = model.predict(week[FEATURES], previous=[None] * 300)
            assert unknown["decision"].tolist() == plain[week["id"] < 2100].tolist()


def test_without_previous_decisions(folder, week, tmp_path, score):
    result = score("--model", folder / "sticky.skops", "--data", folder / "rows.csv", "--out", "this.parquet")
    assert result.returncode == 0, result.stderr
    model, base = (lowchurn.load(folder / name) for name in ("sticky.skops", "prod.skops"))
    found = read(tmp_path / "this.parquet")
    check(found, model, week)
    assert found["changed"].tolist() == (found["decision"].to_numpy() != base.predict(week[FEATURES])).tolist()
    assert "unknown" not in result.stdout
    result = score("--model", folder / "prod.skops", "--data", folder / "rows.csv", "--out", "base.csv")
    assert result.stdout == "base.csv: 300 rows scored, none compared with a decision before.\n"
    check(read(tmp_path / "base.csv"), base, week)
    assert read(tmp_path / "base.csv")[["changed", "margin"]].isna().all(axis=None)
    result = score("--model", folder / "without_base.skops", "--data", folder / "rows.csv", "--out", "no.csv")
    assert result.returncode == 2
    assert "Give --previous, the decisions that these rows have now" in result.stderr
    assert not (tmp_path / "no.csv").exists()


def test_decisions_for_a_class_that_is_gone_change(folder, week, tmp_path, score):
    last = week[["id"]].assign(decision=["old"] * 299 + ["top"])
    last.to_parquet(tmp_path / "last.parquet")
    result = score("--model", folder / "prod.skops", "--data", folder / "rows.csv", "--previous", "last.parquet",
                   "--out", "this.parquet")  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = read(tmp_path / "this.parquet")
    assert found["changed"][:299].all()
    assert np.isinf(found["margin"][:299]).all()
    check(found, lowchurn.load(folder / "prod.skops"), week)


def test_ids_are_compared_as_they_are_written(folder, week, tmp_path, score):
    week.assign(id="00" + week["id"].astype(str)).to_csv(tmp_path / "rows.csv", index=False)
    for start, unknown in (("00", 0), ("", 300)):
        last = week[["id"]].assign(id=start + week["id"].astype(str), verdict="top").astype({"id": "category"})
        last.to_parquet(tmp_path / "last.parquet", index=False)
        result = score("--model", folder / "sticky.skops", "--data", "rows.csv", "--previous", "last.parquet",
                       "--previous-decision", "verdict", "--out", "this.csv")  # fmt: skip
        assert result.stdout.endswith(f"{unknown} ids without a previous decision.\n"), result.stderr
    assert (tmp_path / "this.csv").read_text().splitlines()[1].startswith("002000,")


@pytest.mark.parametrize("classes", [[0, 1], [False, True], [2.0, 5.0]], ids=str)
def test_classes_of_other_types(tmp_path, score, classes):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"customer": [f"c{k}" for k in range(60)], "a": rng.normal(size=60), "b": rng.normal(size=60)})
    base = LogisticRegression().fit(rows[["a", "b"]], np.take(classes, (rows["a"] > 0).astype(int)))
    (tmp_path / "m.skops").write_bytes(skops.io.dumps(base))
    rows.to_parquet(tmp_path / "rows.parquet", index=False)
    for out, previous in (("a.csv", None), ("b.parquet", "a.csv"), ("c.csv", "b.parquet")):
        more = [] if previous is None else ["--previous", previous]
        result = score("--model", "m.skops", "--data", "rows.parquet", "--id", "customer", "--out", out, *more)
        assert result.returncode == 0, result.stderr
        found = read(tmp_path / out)
        assert found["decision"].tolist() == base.predict(rows[["a", "b"]]).tolist()
        assert previous is None or "0 of 60 decisions changed (0.00 %), 0 ids without" in result.stdout


def test_a_model_without_names_of_columns(tmp_path, score):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    model = LowChurnClassifier(GaussianNB()).fit(X, X[:, 0] > 0)
    model.save(tmp_path / "m.skops")
    pd.DataFrame(X, columns=["a", "b"]).assign(id=range(60), more=1).to_csv(tmp_path / "rows.csv", index=False)
    result = score("--model", "m.skops", "--data", "rows.csv", "--out", "out.parquet")
    assert result.returncode == 2
    assert "the model was fitted on 2 columns without names, and the data have 3" in result.stderr
    assert "Leave 1 of them out with --drop." in result.stderr
    result = score("--model", "m.skops", "--data", "rows.csv", "--out", "out.parquet", "--drop", "more")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert read(tmp_path / "out.parquet")["probability"].tolist() == model.predict_proba(X).max(axis=1).tolist()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--model": "nowhere.skops"}, "nowhere.skops"),
        ({"--model": "rows.csv"}, "neither a saved lowchurn model nor a skops file"),
        ({"--model": "ridge.skops"}, "contains a RidgeClassifier without predict_proba"),
        ({"--data": "nowhere.csv"}, "--data must be a file that is there"),
        ({"--data": "rows.txt"}, "--data must be a .csv or .parquet file"),
        ({"--data": "empty.csv"}, "'empty.csv' has no rows"),
        ({"--data": "empty.parquet"}, "'empty.parquet' has no rows"),
        ({"--data": "nothing.csv"}, "'nothing.csv' is empty"),
        ({"--data": "lacks.csv"}, "score: the data lack 2 of 4 columns that the model was fitted on: 'shop', 'flag'."),
        ({"--data": "twice.csv"}, "the ids 'id' of 'twice.csv' must be different in every row, got 2 that repeat: "
         "'2000' (3 times), '2001' (2 times)."),
        ({"--data": "gap.csv"}, "the ids 'id' of 'gap.csv' must be there in every row, 1 row(s) have none."),
        ({"--data": "words.csv"}, "the model cannot predict these rows (ValueError: "),
        ({"--data": "broken.csv"}, "'broken.csv' cannot be read as csv"),
        ({"--id": "size"}, "the ids 'size' of 'rows.parquet' must be text or whole numbers, got double."),
        ({"--id": "key"}, "unknown column of 'rows.parquet' 'key'"),
        ({"--previous": "twice.parquet"}, "the ids 'id' of 'twice.parquet' must be different in every row, got 1 that"),
        ({"--previous": "rows.csv"}, "unknown column of 'rows.csv' 'decision'"),
        ({"--previous": "gaps.csv"}, "the decision 'decision' must not be missing, got 1 row(s)"),
        ({"--previous": "rows.csv", "--previous-decision": "shop"}, "none of the decisions 'shop' of 'rows.csv' is a "
         "class of the model ('low', 'mid', 'top'), such as '007'. Name their column with --previous-decision."),
        ({"--previous": "last.parquet", "--previous-decision": "id"}, "must be of the type of the classes of the m"),
        ({"--previous": "nowhere.csv"}, "--previous must be a file that is there"),
        ({"--out": "this.txt"}, "--out must be a .csv or .parquet file"),
        ({"--out": "no/such/this.csv"}, "there is no folder"),
        ({"--out": "rows.parquet"}, "--out must not overwrite --data"),
        ({"--out": "last.parquet"}, "--out must not overwrite --previous"),
    ],
    ids=lambda value: str(value)[:60],
)  # fmt: skip
def test_bad_input_is_one_line_and_no_output(folder, week, tmp_path, score, changes, words):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ridge = RidgeClassifier().fit([[0.0], [1.0]], [0, 1])
    (tmp_path / "ridge.skops").write_bytes(skops.io.dumps(ridge))
    week[:0].to_csv(tmp_path / "empty.csv", index=False)
    week[:0].to_parquet(tmp_path / "empty.parquet", index=False)
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "rows.txt").write_text("")
    (tmp_path / "broken.csv").write_text("id,age,size,shop,flag\n1,2\n")
    week[["id", "age", "size"]].to_csv(tmp_path / "lacks.csv", index=False)
    pd.concat([week, week[:2], week[:1]]).to_csv(tmp_path / "twice.csv", index=False)
    week.assign(id=week["id"].astype("Int64").mask(week.index == 7)).to_csv(tmp_path / "gap.csv", index=False)
    week.assign(age="old").to_csv(tmp_path / "words.csv", index=False)
    last = pd.read_parquet(tmp_path / "last.parquet")
    pd.concat([last, last[:1]]).to_parquet(tmp_path / "twice.parquet")
    last.assign(decision=last["decision"].mask(last.index == 7)).to_csv(tmp_path / "gaps.csv", index=False)
    options = {"--model": "sticky.skops", "--data": "rows.parquet", "--previous": "last.parquet",
               "--out": "this.parquet", **changes}  # fmt: skip
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = score(*[each for pair in options.items() for each in pair])
    assert result.returncode == 2
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_error_half_way_leaves_the_old_file(folder, tmp_path, monkeypatch):
    out = tmp_path / "this.parquet"
    out.write_text("old")
    monkeypatch.setattr(_score, "BATCH_ROWS", 100)
    decided = _score._decided
    calls = []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return decided(*arguments)

    monkeypatch.setattr(_score, "_decided", failing)
    with pytest.raises(KeyboardInterrupt):
        score_file(folder / "prod.skops", folder / "rows.csv", out)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["this.parquet"]


def test_no_previous_decisions_yet(folder, week, tmp_path, score):
    """A table without rows is one in which no id is known."""
    for name in ("none.csv", "none.parquet"):
        empty = pd.DataFrame({"id": pd.array([], "int64"), "decision": pd.array([], "str")})
        empty.to_csv(tmp_path / name, index=False) if name.endswith("csv") else empty.to_parquet(tmp_path / name)
        result = score("--model", folder / "without_base.skops", "--data", folder / "rows.csv", "--previous", name,
                       "--out", "this.csv")  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "none compared with a decision before, 300 ids without a previous decision." in result.stdout


# Files of other libraries


@pytest.fixture(scope="module")
def native(folder):
    """Models of other libraries with their own predictions, by the name of their file."""
    import catboost
    import lightgbm
    import xgboost
    from skl2onnx import to_onnx

    data = pd.read_parquet(folder / "data.parquet")
    X, y = data[["age", "size"]], data["y"].to_numpy()
    numbers = np.unique(y, return_inverse=True)[1]
    made = {
        "lgbm.txt": lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(X, numbers),
        "xgb.json": xgboost.XGBClassifier(n_estimators=8).fit(X, numbers),
        "xgb.ubj": xgboost.XGBClassifier(n_estimators=8).fit(X, numbers),
        "cat.cbm": catboost.CatBoostClassifier(iterations=8, verbose=0, allow_writing_files=False).fit(X, y),
    }
    made["lgbm.txt"].booster_.save_model(folder / "lgbm.txt")
    for name in list(made)[1:]:
        made[name].save_model(folder / name)
    linear = LogisticRegression().fit(X.to_numpy(), y)
    for name, options in (("zipped.onnx", {}), ("plain.onnx", {"zipmap": False})):
        raw = to_onnx(linear, X.to_numpy()[:1].astype(np.float32), options={id(linear): options})
        (folder / name).write_bytes(raw.SerializeToString())
        made[name] = linear
    return made


NATIVE = ["lgbm.txt", "xgb.json", "xgb.ubj", "cat.cbm", "zipped.onnx", "plain.onnx"]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("data", ["rows.csv", "rows.parquet"])
def test_a_native_file_decides_plainly_and_changes_are_counted(folder, week, native, tmp_path, score, name, data):
    classes = ["low", "mid", "top"]
    rows = week[["age", "size"]]
    more = ["--drop", "shop", "--drop", "flag"] if name.endswith("onnx") else []  # it has no names of columns
    if name in ("lgbm.txt", "xgb.json", "xgb.ubj", "plain.onnx"):  # these files have no names of classes
        more += [each for label in classes for each in ("--class", label)]
    result = score("--model", folder / name, "--data", folder / data, "--previous", folder / "last.csv", "--out",
                   "this.parquet", *more)  # fmt: skip
    assert result.returncode == 0, result.stderr
    found, model = read(tmp_path / "this.parquet"), native[name]
    rows = rows if hasattr(model, "feature_names_in_") or "cat" in name else rows.to_numpy()
    proba = model.predict_proba(rows)
    assert found["decision"].tolist() == [classes[k] for k in proba.argmax(axis=1)]
    np.testing.assert_allclose(found["probability"], proba.max(axis=1), atol=1e-5)
    last = pd.read_csv(folder / "last.csv").set_index("id")["decision"].loc[week["id"]].to_numpy()
    changed = found["decision"].to_numpy() != last
    assert found["changed"].tolist() == changed.tolist()
    assert f"{changed.sum()} of 300 decisions changed" in result.stdout
    assert (found["margin"][changed] > -1e-6).all()
    assert (found["margin"][~changed] < 1e-6).all()


def test_native_files_without_names_of_classes_have_numbers_or_ask_for_them(folder, native, tmp_path, score):
    result = score("--model", folder / "lgbm.txt", "--data", folder / "rows.csv", "--out", "this.csv")
    assert result.returncode == 0, result.stderr
    assert set(read(tmp_path / "this.csv")["decision"]) <= {0, 1, 2}
    drop = ["--drop", "shop", "--drop", "flag"]
    result = score("--model", folder / "plain.onnx", "--data", folder / "rows.csv", "--out", "no.csv", *drop)
    assert result.returncode == 2
    assert "has no names of its classes. Give them with --class, in the order of its outputs." in result.stderr
    assert not (tmp_path / "no.csv").exists()


@pytest.mark.parametrize(
    ("name", "classes", "words"),
    [
        ("lgbm.txt", ["low", "mid"], "--class must name each of the 3 classes"),
        ("cat.cbm", ["a", "b", "c"], "has the classes ['low', 'mid', 'top'], and classes are ['a', 'b', 'c']"),
        ("prod.skops", ["a", "b", "c"], "['low', 'mid', 'top'], got --class a --class b --class c. Leave them out."),
        ("plain.onnx", ["a", "b", "c"], "which is none of the classes ['a', 'b', 'c']. Give --class as it decides."),
        ("plain.onnx", ["low", "low", "mid"], "must be different, got --class low --class low --class mid"),
        ("plain.onnx", ["low", "mid"], "a probability for each of its 2 classes, got 3 columns"),
        ("nowhere.onnx", None, "nowhere.onnx"),
        ("nowhere.cbm", None, "nowhere.cbm"),
        ("broken.onnx", None, "must be a readable ONNX file"),
        ("broken.txt", None, "broken.txt"),
        ("broken.ubj", None, "broken.ubj"),
    ],
)  # fmt: skip
def test_bad_native_files_and_classes_are_one_line(folder, native, tmp_path, score, name, classes, words):
    for ending in ("onnx", "txt", "ubj"):
        (tmp_path / f"broken.{ending}").write_bytes(b"no model at all\n" * 9)
    path = folder / name if name in {*native, "prod.skops"} else tmp_path / name
    more = [each for label in classes or () for each in ("--class", label)]
    more += ["--drop", "shop", "--drop", "flag"] if name.endswith("onnx") else []
    result = score("--model", path, "--data", folder / "rows.csv", "--out", "this.csv", *more)
    assert result.returncode == 2
    assert words in result.stderr, result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "this.csv").exists()


# Traffic


@pytest.mark.parametrize("traffic", ["rows.csv", "rows.parquet"])
def test_churn_is_measured_on_traffic(folder, week, tmp_path, score, traffic):
    result = score(
        "--data", folder / "data.parquet", "--target", "y", "--drop", "id", "--base", folder / "prod.skops",
        "--max-churn", "0.05", "--strategies", "sticky", "--traffic", folder / traffic, "--out", "next.skops",
        "--report", "report.json", command="retrain",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "300 rows of traffic" in result.stdout
    model, base = lowchurn.load(tmp_path / "next.skops"), lowchurn.load(folder / "prod.skops")
    churn = (model.predict(week[FEATURES]) != base.predict(week[FEATURES])).mean()
    assert model.selection_.churn == pytest.approx(churn)
    assert f'"traffic": "{folder / traffic}"' in (tmp_path / "report.json").read_text()
    half = week[:150].assign(other=1)
    half.to_csv(tmp_path / "today.csv", index=False)
    result = score("next.skops", "--max-churn", "0.1", "--traffic", "today.csv", "--out", "today.skops", command="dial")
    assert result.returncode == 0, result.stderr
    assert "150 rows of traffic" in result.stdout
    today = lowchurn.load(tmp_path / "today.skops")
    expected = model.dial(0.1, traffic=half[FEATURES])
    np.testing.assert_array_equal(today.predict_proba(week[FEATURES]), expected.predict_proba(week[FEATURES]))


@pytest.mark.parametrize(
    ("command", "change", "words"),
    [
        (
            "retrain",
            {"--traffic": "lacks.csv"},
            "the rows of --traffic lack 2 of 4 columns of the data: 'shop', 'flag'",
        ),
        ("retrain", {"--traffic": "nowhere.csv"}, "--traffic must be a file that is there"),
        ("retrain", {"--out": "lacks.csv"}, "--out must not overwrite --traffic"),
        (
            "dial",
            {"--traffic": "lacks.csv"},
            "dial: the rows of --traffic lack 2 of 4 columns that the model was fitted",
        ),
        ("dial", {"--traffic": "empty.csv"}, "'empty.csv' has no rows"),
        ("dial", {"--out": "lacks.csv"}, "--out must not overwrite --traffic"),
    ],
    ids=str,
)
def test_traffic_that_is_none(folder, week, tmp_path, score, command, change, words):
    week[["id", "age", "size"]].to_csv(tmp_path / "lacks.csv", index=False)
    week[:0].to_csv(tmp_path / "empty.csv", index=False)
    options = {"--max-churn": "0.05", "--traffic": "lacks.csv", "--out": "next.skops", **change}
    if command == "retrain":
        options |= {"--data": folder / "data.parquet", "--target": "y", "--drop": "id", "--base": folder / "prod.skops"}
    model = [folder / "sticky.skops"] if command == "dial" else []
    result = score(*model, *[each for pair in options.items() for each in pair], command=command)
    assert result.returncode == 2
    assert words in result.stderr, result.stderr
    assert not (tmp_path / "next.skops").exists()


def test_one_model_takes_the_place_of_two(folder, week, tmp_path, score):
    asked = ["--data", folder / "data.parquet", "--target", "y", "--drop", "id", "--base", folder / "prod.skops"]
    asked += ["--max-churn", "0.1", "--strategies", "sticky", "--out", "next.skops"]
    result = score(*asked, "--compress", command="retrain")
    assert result.returncode == 0, result.stderr
    model = lowchurn.load(tmp_path / "next.skops")
    assert model.compress
    assert (model.selection_.models == 1) == ("Compressed from 2 models" in result.stdout)
    if model.selection_.models > 1:
        assert "--compress: no compressed model keeps --max-churn 0.1" in result.stderr


def test_digits_are_text_in_traffic_where_the_data_have_words(folder, tmp_path, score):
    """Nothing in the base tells it: boosted trees of a first training take words as categories."""
    data = make_rows(300, 1).assign(shop=lambda rows: rows["shop"].replace("9", "nine"))
    data.drop(columns="id").to_csv(tmp_path / "data.csv", index=False)
    data[data["shop"] != "nine"].drop(columns=["id", "y"]).to_csv(tmp_path / "recent.csv", index=False)
    first = ["--data", "data.csv", "--target", "y", "--estimator", "logistic"]
    assert score(*first, "--out", "first.skops", command="retrain").returncode == 0
    result = score(*first, "--base", "first.skops", "--max-churn", "0.1", "--traffic", "recent.csv", "--out",
                   "next.skops", command="retrain")  # fmt: skip
    assert result.returncode == 0, result.stderr


# The page


def test_the_example_of_the_page(folder, tmp_path, score):
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    example = re.search(r"## lowchurn score\n+```sh\n(.*?)```", page, flags=re.DOTALL)[1]
    for name, source in (
        ("prod.skops", "prod.skops"),
        ("new.parquet", "data.parquet"),
        ("rows.parquet", "rows.parquet"),
    ):
        (tmp_path / name).write_bytes((folder / source).read_bytes())
    rows = pd.read_parquet(folder / "rows.parquet")
    rows[:280].to_parquet(tmp_path / "last_rows.parquet", index=False)
    lines = [shlex.split(line)[1:] for line in example.splitlines()]
    assert len(lines) == 3
    for command, *arguments in lines:
        result = score(*arguments, command=command)
        assert result.returncode == 0, result.stderr
    assert re.fullmatch(
        r"this_week.parquet: 300 rows scored, \d+ of 300 decisions changed \([\d.]+ %\), 20 ids without a previous "
        r"decision.\n",
        result.stdout,
    )
