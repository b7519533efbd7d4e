"""Rows from files: every column as what it is, or a refusal that names it."""

import datetime
import os
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowchurn.retrain._tables import read_rows


@pytest.fixture
def csv(tmp_path):
    def write(text):
        path = tmp_path / "rows.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_rows(path)

    return write


@pytest.fixture
def parquet(tmp_path):
    def write(**columns):
        pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
        return read_rows(tmp_path / "rows.parquet")

    return write


# CSV


def test_types_come_from_all_rows(csv):
    """A fraction, a word or a missing value far down changes the type of the whole column, as it should."""
    n = 30_000
    lines = ["1,1,1,1"] * n + ["2.5,word,,1"]
    with pytest.warns(UserWarning, match="1 of 30001 values are not numbers, such as 'word' in row 30001"):
        table = csv("late,mixed,gap,whole\n" + "\n".join(lines)).features(["late", "mixed", "gap", "whole"])
    assert table["late"].iloc[-1] == 2.5
    assert table["mixed"].iloc[0] == "1"
    assert table["gap"].isna().sum() == 1
    assert table["whole"].dtype == np.int64
    assert len(table) == n + 1


def test_no_row_is_dropped_and_quotes_hold_line_breaks(csv):
    rows = csv('#a,"b\nb",y\n#1,"x,\n""y""",no\n 2 ,#,yes\n')
    assert rows.names == ["#a", "b\nb", "y"]
    assert rows.features(["#a", "b\nb"]).to_numpy().tolist() == [["#1", 'x,\n"y"'], [" 2 ", "#"]]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (["1", "2"], [1, 2]),
        (["+1", "-2"], [1, -2]),
        ([" 1", "2 "], [1, 2]),
        (["1.5", "1e3"], [1.5, 1000.0]),
        (["inf", "-inf"], [np.inf, -np.inf]),
        (["0.1", "123456789.123456789"], [0.1, 123456789.123456789]),
        (["True", "FALSE"], [True, False]),
        (["a", "2"], ["a", "2"]),
        (["1,5", "2"], ["1,5", "2"]),
        (["9" * 30, "1"], [1e30, 1.0]),
        (["0x10", "1_000"], ["0x10", "1_000"]),
    ],
)
def test_values_of_a_csv_column(csv, values, read):
    lines = "".join(f'"{value}",1\n' for value in values)
    assert csv("a,b\n" + lines).features(["a"])["a"].tolist() == read


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_numbers_are_read_to_the_last_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_text("a,b\n" + "".join(f"{value!r},1\n" for value in values))
    assert read_rows(path).features(["a"])["a"].astype(float).tolist() == values


def test_missing_values_are_those_of_pandas(csv, tmp_path):
    text = "n,w,b\n1,a,True\nNA,None,\n,null,False\nnan,b,NaN\n"
    ours = csv(text).features(["n", "w", "b"])
    theirs = pd.read_csv(tmp_path / "rows.csv")
    pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)


def test_a_column_of_text_stays_text_where_the_base_has_text(csv):
    rows = csv("shop,size\n007,1\n008,2\nNA,3\n")
    assert rows.features(["shop"])["shop"].tolist()[:2] == [7.0, 8.0]
    assert rows.features(["shop"], text={"shop"})["shop"].tolist()[:2] == ["007", "008"]


def test_a_typo_in_a_column_of_numbers_is_told(csv):
    rows = csv("a,b\n" + "1,x\n" * 50 + "O.5,y\n")
    with pytest.warns(UserWarning, match=r"the column 'a' is taken for text: 1 of 51 .* such as 'O.5' in row 51"):
        rows.features(["a", "b"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,4,5\n", "Expected 2 columns, got 3"),
        ("a,b\n1,2,3\n4,5,6\n", "Expected 2 columns, got 3"),  # pandas takes the first one for an index
        ("a,a,b\n1,2,3\n", "more than one column called 'a'"),
        ("a,b\n1,\xe9\n".encode("latin-1"), "cannot be read as csv"),
        ("a,b\n1,2\n".encode("utf-16"), "cannot be read as csv"),
        (b"\x00\x01\x02", "cannot be read as csv"),
        (("a,b\n" + 99999 * "1,2\n" + "1,\xe9\n").encode("latin-1"), "must be text in UTF-8"),
        ("a;b\n1;2\n", "separated by commas, got ';'"),
        ("a\tb\n1\t2\n", r"separated by commas, got '\\t'"),
        ('"a,b\n1,2\n', "cannot be read"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_csv_files_that_are_none(csv, text, words):
    with pytest.raises(ValueError, match=f"retrain: .*rows.csv.*{words}"):
        csv(text)


def test_a_column_without_a_name_is_called_as_pandas_calls_it(csv):
    rows = csv(",a\n0,1\n")
    assert (rows.names, rows.index) == (["Unnamed: 0", "a"], ("Unnamed: 0",))


def test_ten_thousand_columns(csv):
    names = [f"c{k}" for k in range(10_000)]
    rows = csv(",".join(names) + "\n" + ",".join(["1.5"] * 10_000) + "\n")
    assert rows.features(names[::10]).shape == (1, 1_000)
    with pytest.raises(ValueError, match="unknown column .* 'c10000'. Did you mean ") as stopped:
        rows.check_known(["c10000"])
    assert len(str(stopped.value)) < 1000


@given(st.binary(max_size=200))
def test_any_bytes_are_rows_or_a_clear_error(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any")
    for name in ("rows.csv", "rows.parquet"):
        (folder / name).write_bytes(data)
        try:
            rows = read_rows(folder / name)
            rows.features(rows.names)
        except ValueError as error:
            assert str(error).startswith("retrain: ")  # noqa: PT017


# Parquet


def test_decimals_are_numbers_and_nothing_else_changes_its_kind(parquet):
    rows = parquet(
        d=[Decimal("1.50"), None],
        e=pa.array([Decimal("2.25"), Decimal("3")], pa.decimal256(50, 2)),
        f=pa.array([Decimal("1.50"), None]).dictionary_encode(),
        i=[2**60, None],
        b=[True, None],
        s=pa.array(["a", None], pa.large_string()),
        c=pa.array(["a", None]).dictionary_encode(),
        k=pa.array([3, None]).dictionary_encode(),
        n=pa.nulls(2),
        h=np.array([1, 2], np.float16),
    )
    table = rows.features(rows.names)
    for name in "defin":
        assert table[name].dtype == np.float64
    assert table["d"].tolist()[0] == 1.5
    assert table["b"].tolist() == [True, None]
    assert table["s"].tolist()[0] == "a"
    assert isinstance(table["c"].dtype, pd.CategoricalDtype)
    assert table["k"].tolist()[0] == 3
    assert table["n"].isna().all()


def test_nullable_types_of_pandas_are_plain_ones(tmp_path):
    pd.DataFrame(
        {
            "i": pd.array([1, None], dtype="Int64"),
            "b": pd.array([True, False], dtype="boolean"),
            "s": pd.array(["a", None], dtype="string"),
        }
    ).to_parquet(tmp_path / "rows.parquet")
    table = read_rows(tmp_path / "rows.parquet").features(["i", "b", "s"])
    assert [kind.kind for kind in table.dtypes] == ["f", "b", "O"]


@pytest.mark.parametrize(
    "column",
    [pa.array([[1], [2]]), pa.array([{"a": 1}, None]), pa.array([b"a", b"b"]), pa.array([[("a", 1)]] * 2,
     pa.map_(pa.string(), pa.int64()))],
    ids=["list", "struct", "bytes", "map"],
)  # fmt: skip
def test_columns_that_are_no_features_are_named(parquet, column):
    rows = parquet(a=[1, 2], odd=column)
    with pytest.raises(ValueError, match=r"lists, structures and bytes cannot be features, got 'odd'\. .* drop="):
        rows.features(["a", "odd"])
    rows.features(["a"])


def test_numbers_where_the_base_has_text_are_refused(parquet):
    with pytest.raises(ValueError, match="fitted with text in 'shop', and .* contains int64 there"):
        parquet(shop=[7, 8]).features(["shop"], text={"shop"})


def test_a_folder_named_like_a_column_changes_nothing(tmp_path):
    (tmp_path / "y=1").mkdir()
    pq.write_table(pa.table({"y": [5, 6]}), tmp_path / "y=1" / "p[1].parquet")
    assert read_rows(tmp_path / "y=1" / "p[1].parquet").classes("y").tolist() == [5, 6]


def test_the_index_of_pandas_is_known(tmp_path):
    pd.DataFrame({"a": [1, 2]}, index=pd.Index([7, 8], name="id")).to_parquet(tmp_path / "rows.parquet")
    rows = read_rows(tmp_path / "rows.parquet")
    assert (rows.names, rows.index) == (["a", "id"], ("id",))


def test_parquet_files_that_are_none(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    whole = path.read_bytes()
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="cannot be read as parquet"):
            read_rows(path)
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with pytest.raises(ValueError, match="more than one column called 'a'"):
        read_rows(path)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), path)
    with pytest.raises(ValueError, match="has no rows"):
        read_rows(path)
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(ValueError, match="file that is there"):
        read_rows(path)


# New rows and weights


@pytest.mark.parametrize(
    "values",
    [["yes", "no"], ["Yes", "NO"], ["True", "False"], ["true", "FALSE"], ["1", "0"], ["1.0", "0.0"], [1, 0],
     [1.0, 0.0], [True, False], [Decimal("1"), Decimal("0")], ["yes", "yes"]],
    ids=str,
)  # fmt: skip
def test_flags(parquet, csv, values):
    wanted = [True, values[0] == values[1]]
    for rows in (parquet(new=values), csv("new,a\n" + "".join(f"{v},1\n" for v in values))):
        flags = rows.flags("new")
        assert flags.dtype == bool
        assert flags.tolist() == wanted


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["yes", "0"], "must contain true and false, yes and no, or 1 and 0, got '0', 'yes'"),
        (["y", "n"], "got 'n', 'y'"),
        ([2, 1], "got '1', '2'"),
        ([0.5, 1.0], "got '0.5', '1.0'"),
        ([" yes", "no"], "got ' yes', 'no'"),
        (["yes", None], "1 row.s. have none"),
        ([1.0, float("nan")], "1 row.s. have none"),
        ([True, None], "1 row.s. have none"),
        (["\x1b[31m", "no"], r"got '\\x1b\[31m', 'no'"),
        ([[1], [0]], r"got '\[0\]'"),
    ],
    ids=str,
)
def test_flags_that_are_none(parquet, values, words):
    with pytest.raises(ValueError, match=f"retrain: the column 'new' .*{words}"):
        parquet(new=values).flags("new")


def test_weights(parquet, csv):
    assert parquet(w=[Decimal("0.5"), Decimal("2")]).weights("w").tolist() == [0.5, 2.0]
    assert csv("w,a\n0.5,1\n0,1\n").weights("w").tolist() == [0.5, 0.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, -1.0], "must be finite and not negative, got -1 in 1 row"),
        ([1.0, np.inf], "must be finite and not negative, got inf"),
        ([1.0, None], "1 row.s. have none"),
        ([1.0, np.nan], "1 row.s. have none"),
        (["1", "heavy"], "must be numbers, got 'heavy'"),
        ([0.0, 0.0], "are 0 in every row"),
        ([1e-300, 1.0], "must be 0 or from 1e-09 to 1e.09, got 1e-300. Divide them by their mean"),
        ([1e300, 1.0], "got 1e.300"),
        ([datetime.date(2024, 1, 1)] * 2, "must be numbers"),
    ],
    ids=str,
)
def test_weights_that_are_none(parquet, values, words):
    with pytest.raises(ValueError, match=f"retrain: the (weights|column) 'w' .*{words}"):
        parquet(w=values).weights("w")
