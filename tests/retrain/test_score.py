"""Scoring files: the decisions of Python's predict, whatever the batches, with previous ones joined by id."""

import re
import shlex
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.naive_bayes import GaussianNB

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn.retrain import Previous, _score, score_file
from tests.retrain.conftest import FEATURES, make_rows

COLUMNS = ["decision", "probability", "changed", "margin"]


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
        ({"--id": "key"}, "unknown column of ids (--id) of 'rows.parquet' 'key'"),
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
