"""Bad input is refused with a message that says what to do, before anything is counted wrong."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lowchurn


@pytest.fixture
def old():
    return pd.DataFrame(
        {"id": [1, 2, 3, 4], "prediction": ["a", "b", "a", "b"], "y": ["a", "b", "b", "b"], "country": "de"}
    )


@pytest.fixture
def new():
    return pd.DataFrame({"id": [4, 3, 2, 1], "prediction": ["b", "b", "b", "a"]})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"id": "ids"}, r"unknown id column in the old table 'ids'. Did you mean 'id'"),
        ({"label": "yy"}, r"unknown label column 'yy'. Did you mean 'y'|unknown label column 'yy'"),
        ({"by": ["contry"]}, "Did you mean 'country'"),
        ({"by": ["country", "country"]}, "each column once"),
        ({"weight": "country"}, "weight column 'country' must hold numbers"),
        ({"group": "customer"}, "unknown group column 'customer'"),
        ({"prediction": "predictoin"}, "Did you mean 'prediction'"),
        ({"prediction": ("prediction",)}, r"one for each of old, new"),
        ({"score": "prediction"}, "score column 'prediction' must hold numbers"),
        ({"proba": ["prediction"]}, "at least two classes"),
        ({"proba": {"a": "p1", "b": "p2"}}, "unknown proba column"),
        ({"id": []}, "id must name the key"),
        ({"id": 3}, "id must be column names"),
        ({"label": ["y"]}, r"label must be one column name, got \['y'\]"),
        ({"on_mismatch": "outer"}, "on_mismatch must be one of"),
        ({"confidence": 95}, r"confidence must be in \(0, 1\)"),
        ({"threshold": "high"}, "threshold must be in"),
        ({"memory_limit": "lots"}, "refused its settings"),
        ({"temp_directory": "no-such-folder"}, "temp_directory must be an existing folder"),
        ({"threads": 0}, "threads must be in"),
    ],
)
def test_wrong_arguments(old, new, arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        lowchurn.audit.audit(old, new, **arguments)


def test_missing_ids_are_refused_with_counts_and_examples(old, new):
    with pytest.raises(
        ValueError, match=r"1 ids are only in the old table, such as 4; 2 ids are only in the new table, such as 9, 10"
    ):
        lowchurn.audit.audit(old, pd.DataFrame({"id": [1, 2, 3, 9, 10], "prediction": "a"}))
    audit = lowchurn.audit.audit(old, pd.DataFrame({"id": [1, 2, 3, 9, 10], "prediction": "a"}), on_mismatch="inner")
    assert (audit.rows.paired, audit.rows.left_out_old, audit.rows.left_out_new) == (3, 1, 2)
    assert "left out 1 of 4 old and 2 of 5 new rows" in audit.notes[0]
    with pytest.raises(ValueError, match="no id of id in common"):
        lowchurn.audit.audit(old, new.assign(id=new.id + 100), on_mismatch="inner")


def test_repeated_ids_are_refused_with_counts_and_examples(old, new):
    double = pd.concat([new, new.iloc[:1]])
    with pytest.raises(ValueError, match=r"1 ids come more than once in the new table \(2 rows\), such as 4"):
        lowchurn.audit.audit(old, double)
    audit = lowchurn.audit.audit(old, double, on_mismatch="inner")
    assert (audit.rows.paired, audit.rows.repeated_new) == (3, 2)
    # The same number of rows on both sides hides nothing.
    with pytest.raises(ValueError, match="more than once in the old table"):
        lowchurn.audit.audit(old.assign(id=[1, 1, 2, 3]), new.assign(id=[1, 2, 2, 3]))


def test_missing_values(old, new):
    with pytest.raises(ValueError, match="1 of 4 rows of the new table have no decision"):
        lowchurn.audit.audit(old, new.assign(prediction=[None, "a", "a", "b"]))
    with pytest.raises(ValueError, match="2 of 4 rows of the old table have no id"):
        lowchurn.audit.audit(old.assign(id=pd.array([1, 2, None, None], "Int64")), new)
    assert lowchurn.audit.audit(old, new.assign(prediction=[None, "a", "a", "b"]), on_mismatch="inner").rows.paired == 3
    with pytest.raises(ValueError, match="rows of the old table have no decision"):
        lowchurn.audit.audit(old.assign(score=[0.1, np.nan, 0.2, 0.3]), new.assign(score=0.5), score="score")


def test_other_types_on_the_two_sides(old, new):
    with pytest.raises(
        ValueError, match="id column 'id' must have the same type in all tables, got integer in the old and text"
    ):
        lowchurn.audit.audit(old, new.assign(id=new.id.astype(str)))
    with pytest.raises(ValueError, match="got integer in the old and float"):
        lowchurn.audit.audit(old, new.assign(id=new.id.astype(float)))
    with pytest.raises(
        ValueError, match="must be of one type, but the old decision is text, the new decision is integer"
    ):
        lowchurn.audit.audit(old, new.assign(prediction=[0, 1, 0, 1]))
    with pytest.raises(ValueError, match="the label is integer"):
        lowchurn.audit.audit(old.assign(y=[0, 1, 0, 1]), new, label="y")
    assert lowchurn.audit.audit(old.assign(id=old.id.astype("int32")), new).rows.paired == 4


def test_empty_tables_and_one_row(old, new):
    with pytest.raises(ValueError, match="the old table must have at least one row"):
        lowchurn.audit.audit(old.iloc[:0].astype({"prediction": str}), new)
    with pytest.raises(ValueError, match="must have columns|found no prediction|unknown id"):
        lowchurn.audit.audit(pd.DataFrame(), new)
    one = lowchurn.audit.audit(old.iloc[:1], new[new.id == 1], label="y", by="country")
    assert one.rows.paired == 1
    assert one.churn.high > 0.9
    assert one.identical


def test_all_rows_agree_and_no_labels_at_all(old, tmp_path):
    audit = lowchurn.audit.audit(old, old, label="y", by="country")
    assert audit.identical
    assert "identical to the base" in repr(audit)
    assert audit.churn.value == 0
    assert audit.flips == []
    assert len(audit.disputed()) == 0
    assert np.isnan(audit.mcnemar.p_value)
    blank = old.assign(y=pd.Series([None] * 4, dtype="object"))
    blank.to_parquet(tmp_path / "blank.parquet")
    blank.to_csv(tmp_path / "blank.csv", index=False)
    text = pa.Table.from_pandas(blank.astype({"y": "string"}))
    for table in (blank, text, tmp_path / "blank.parquet", tmp_path / "blank.csv"):
        nothing = lowchurn.audit.audit(table, old.drop(columns="y"), label="y")
        assert not nothing.accuracy_change.defined
        assert nothing.rows.labelled == 0


def test_the_same_decisions_with_other_probabilities_are_not_identical():
    old = pd.DataFrame({"id": [1, 2], "score": [0.2, 0.9]})
    assert lowchurn.audit.audit(old, old).identical
    moved = lowchurn.audit.audit(old, old.assign(score=[0.3, 0.9]))
    assert not moved.identical
    assert moved.moved == 1


def proba(a, b):
    return pd.DataFrame({"id": range(len(a)), "proba_x": a, "proba_y": b})


def test_probabilities_that_are_none():
    good = proba([0.5, 0.2], [0.5, 0.8])
    with pytest.raises(
        ValueError, match=r"must sum to 1, 1 of 2 rows of the new table are off by more than 1e-06 \(at most 0.1\)"
    ):
        lowchurn.audit.audit(good, proba([0.5, 0.2], [0.5, 0.9]))
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], 1 rows"):
        lowchurn.audit.audit(good, proba([1.5, 0.2], [-0.5, 0.8]))
    with pytest.raises(ValueError, match="no decision|must be finite"):
        lowchurn.audit.audit(good, proba([np.nan, 0.2], [0.5, 0.8]))
    single = good.astype({"proba_x": "float32", "proba_y": "float32"})
    assert lowchurn.audit.audit(single, single).identical


def test_weights_and_groups(old, new):
    for weights, words in (
        ([1, 1, 1, -1], "not negative"),
        ([1.0, np.nan, 1, 1], "finite"),
        ([0, 0, 0, 0], "all zero"),
    ):
        with pytest.raises(ValueError, match=words):
            lowchurn.audit.audit(old.assign(w=weights), new, weight="w")
    with pytest.raises(ValueError, match="group 'g' must be known, 1 rows"):
        lowchurn.audit.audit(old.assign(g=["a", None, "b", "b"]), new, group="g")
    one = lowchurn.audit.audit(old.assign(g="only"), new, label="y", group="g")
    assert (one.churn.low, one.churn.high) == (0, 1)


def test_labels_that_contradict_each_other(old, new):
    with pytest.raises(ValueError, match="different labels for 1 ids, such as 3"):
        lowchurn.audit.audit(old, new.assign(y=["b", "a", "b", "a"]), label="y")


def test_too_many_slices_and_many_numbers(new):
    n = 1200
    rows = pd.DataFrame({"id": range(n), "prediction": 0, "name": [f"n{i}" for i in range(n)], "number": range(n)})
    with pytest.raises(ValueError, match="slice column 'name' has 1,200 values"):
        lowchurn.audit.audit(rows, rows, by="name")
    audit = lowchurn.audit.audit(rows, rows, by="number")
    assert len(audit.slices) == 10
    assert {s.rows for s in audit.slices} == {120}


def test_files_that_are_no_tables(tmp_path, old):
    good = tmp_path / "good.parquet"
    old.to_parquet(good)
    for name, content, words in (
        ("text.parquet", b"not parquet at all", "cannot read .* as Parquet"),
        ("short.parquet", b"PAR1", "cannot read .* as Parquet"),
        ("cut.parquet", good.read_bytes()[:-40], "cannot read .* as Parquet"),
        ("nothing.parquet", b"", "is empty"),
        ("nothing.csv", b"", "is empty"),
        ("table.xlsx", b"PK\x03\x04", "the format of .* is not known"),
        ("base.duckdb", b"hello", "name the table"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ValueError, match=words):
            lowchurn.audit.audit(path, good)
    (tmp_path / "bad.duckdb").write_bytes(b"hello" * 1000)
    with pytest.raises(ValueError, match="as a DuckDB database"):
        lowchurn.audit.audit(f"{tmp_path}/bad.duckdb::t", good)
    with pytest.raises(ValueError, match=r"no file .* That folder holds"):
        lowchurn.audit.audit(tmp_path / "god.parquet", good)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="cannot read"):
        lowchurn.audit.audit(tmp_path / "folder", good)
    with pytest.raises(ValueError, match="must be a path, a pandas"):
        lowchurn.audit.audit([1, 2], good)
    for binary in (b"\x00\xff\xfe" * 50, b"id,prediction\n1,a,b,c\n2\n", b"id;prediction\n1;a\n"):
        (tmp_path / "odd.csv").write_bytes(binary)
        with pytest.raises(ValueError):
            lowchurn.audit.audit(tmp_path / "odd.csv", good)


def test_odd_columns(old, new):
    with pytest.raises(ValueError, match="more than once"):
        lowchurn.audit.audit(pd.concat([old, old[["id"]]], axis=1), new)
    with pytest.raises(ValueError, match="found no prediction in the new table"):
        lowchurn.audit.audit(old, new.rename(columns={"prediction": "x"}).assign(z=1))
    assert lowchurn.audit.audit(old, new.rename(columns={"prediction": "whatever"})).rows.paired == 4
    nested = pa.table({"id": [1, 2, 3, 4], "prediction": [[1], [2], [3], [4]]})
    with pytest.raises(ValueError, match="must hold labels"):
        lowchurn.audit.audit(nested, nested)


def test_scores_given_for_labels_are_noticed():
    rows = pd.DataFrame({"id": np.arange(20_000), "prediction": np.random.default_rng(0).random(20_000)})
    with pytest.raises(ValueError, match="If they are scores, name them: score= with threshold="):
        lowchurn.audit.audit(rows, rows)
