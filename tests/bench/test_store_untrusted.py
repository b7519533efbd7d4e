"""Stores from other machines, damaged or made by somebody else: one line that names the file, nothing lost."""

import gzip
import hashlib
import io
import json
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowchurn.bench import _segments as segments_module
from lowchurn.bench import _store as store_module
from lowchurn.bench._segments import COLUMNS, checked, encode
from lowchurn.bench._store import Store, copy_rows
from tests.bench import test_store


def row(*values, **more):
    """A row as a file contains it, with its parameters as text."""
    return test_store.row(*values, **{"parameters": "{}"} | more)


def put(store, content, ending, number=1):
    """Write a segment whose checksum is right, whatever it contains."""
    store.segments.mkdir(parents=True, exist_ok=True)
    path = store.segments / f"{number:06d}-{hashlib.sha256(content).hexdigest()[:16]}.{ending}"
    path.write_bytes(content)
    return path


def packed(rows=1, same=None, columns=None, **more):
    return gzip.compress(
        json.dumps({"rows": rows, "same": same or {}, "columns": columns or {}} | more).encode(), mtime=0
    )


def without(name):
    return {key: value for key, value in row(0).items() if key != name}


def as_parquet(table):
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def table(**changes):
    return pa.Table.from_pylist([row(0) | changes])


BAD_VALUES = {
    "accuracy": (7.0, -0.1, "high", True),
    "churn": (1.0001,),
    "trial": (-1, 0.5, "0", None, True),
    "run_seed": (2**63,),
    "scale": ("false", 1, None),
    "dataset": (None, 3, "x" * 20000),
    "status": (None,),
    "seconds": (-1.0,),
    "parameters": (
        None,
        3,
        "lam=0.5",
        "[0.5]",
        "[" * 9000,
        '{"lam": NaN}',
        '{"lam": [1]}',
        '{"lam": true}',
        '{"a": 1e99}',
    ),
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD_VALUES.items() for v in values])
@pytest.mark.parametrize("ending", ["json.gz", "parquet"])
def test_values_out_of_range_or_of_another_type_are_refused(tmp_path, name, value, ending):
    store = Store(tmp_path)
    store.append([test_store.row(5)])
    if ending == "parquet" and value == 2**63:
        return  # such a number does not fit into the column
    content = packed(same=row(0) | {name: value}) if ending == "json.gz" else as_parquet(table(**{name: value}))
    path = put(store, content, ending, number=2)
    with pytest.raises(ValueError, match=rf"store: .*{path.name} is damaged: .*{name}.* Move it away"):
        Store(tmp_path).rows()
    path.unlink()
    assert [r["trial"] for r in Store(tmp_path).rows()] == [5]


def test_what_is_appended_is_checked_alike(tmp_path):
    with pytest.raises(ValueError, match=r"store: accuracy must be in \[0, 1\], got 7.0"):
        Store(tmp_path).append([test_store.row(0, accuracy=7)])
    with pytest.raises(ValueError, match="store: trial must be at least 0, got -1"):
        checked([test_store.row(-1)])


def bomb():
    return gzip.compress(b"[" + b"0," * 2**20 + b"0]", mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be unpacked|not valid JSON"),
        (b"no gzip", "cannot be unpacked"),
        (packed()[:-9], "cannot be unpacked"),
        (gzip.compress(b"{", mtime=0), "not valid JSON"),
        (gzip.compress(b"\xff\xff", mtime=0), "not valid JSON"),
        (gzip.compress(b"[" * 100000), "nested too deeply"),
        (gzip.compress(b"[1, 2]", mtime=0), "wrong structure"),
        (packed(rows="3"), "wrong structure"),
        (packed(columns={"accuracy": [[1]]}), "wrong structure"),
        (packed(), "columns of the store; wrong or missing"),
        (packed(same=row(0) | {"colour": 1}), r"wrong or missing: \['colour'\]"),
        (packed(rows=10**12, same=row(0)), "values for 1000000000000 rows"),
        (packed(rows=2, same=without("trial"), columns={"trial": [0, 1, 2]}), "values for 2 rows"),
        (packed(rows=2, same=row(0) | {"trial": 0}, columns={"trial": [0, 1]}), "each column once"),
        (packed(rows=0, columns={name: [] for name in row(0)}), "values for 0 rows"),
        (packed(rows=2, same=without("trial"), columns={"trial": [1, 1]}), "contains a key twice"),
        (bomb(), "unpacks to more than 1,048,576 bytes"),
    ],
)
def test_json_segments_that_cannot_be_are_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(segments_module, "MOST_BYTES", 2**20)
    path = put(Store(tmp_path), content, "json.gz")
    with pytest.raises(ValueError, match=message) as caught:
        Store(tmp_path).rows()
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as Parquet"),
        (b"PAR1 nothing PAR1", "cannot be read as Parquet"),
        (as_parquet(table(accuracy=0.5))[:-20], "cannot be read as Parquet"),
        (as_parquet(table(colour="red")), r"wrong or missing: \['colour'\]"),
        (as_parquet(table().drop_columns(["churn"])), r"wrong or missing: \['churn'\]"),
        (as_parquet(table().append_column("churn", pa.array([0.0]))), "each column once"),
        (as_parquet(table(trial=[1, 2])), "trial must be of type int"),
        (as_parquet(table(churn=float("nan"))), "churn must be finite, got nan"),
        (as_parquet(table(seconds=float("inf"))), "seconds must be finite, got inf"),
        (as_parquet(table(status="finished", churn=None)), "a finished row must have an accuracy and a churn"),
        (as_parquet(table(dataset="a\x1b[2J")), "dataset must have no control characters"),
        (as_parquet(pa.concat_tables([table(), table(trial=1, data="other")])), "made from other data"),
        (as_parquet(pa.concat_tables([table(), table()])), "contains a key twice"),
        (as_parquet(pa.concat_tables([table()] * 20)), "contains 20 rows .* too many to read"),
    ],
)
def test_parquet_segments_that_cannot_be_are_one_line(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(segments_module, "MOST_ROWS", 10)
    path = put(Store(tmp_path), content, "parquet")
    with pytest.raises(ValueError, match=message) as caught:
        Store(tmp_path).rows()
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_results_for_one_row_are_not_chosen_from_in_silence(tmp_path):
    store = Store(tmp_path)
    put(store, encode([test_store.row(0, created="then")])[0], "parquet", 1)
    same = put(store, encode([test_store.row(0, created="now")])[0], "parquet", 2)
    assert len(Store(tmp_path)) == 1  # the same result, copied: no harm
    other = put(store, encode([test_store.row(0, accuracy=0.25)])[0], "parquet", 3)
    with pytest.raises(ValueError, match=f"{other.name} contains another result of a row .*wine.*trial 0"):
        Store(tmp_path).rows()
    other.unlink()
    assert len(Store(tmp_path)) == 1
    assert same.exists()


def test_folders_that_are_not_stores(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "segments").write_text("mine")
    (tmp_path / "full" / "segments").mkdir(parents=True)
    (tmp_path / "full" / "segments" / "notes.txt").write_text("mine")
    (tmp_path / "pipes" / "segments").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipes" / "segments" / "000001-0123456789abcdef.parquet")
    for name in ("file", "odd", "full", "pipes"):
        store = Store(tmp_path / name)
        for use in (store.rows, lambda store=store: store.append([test_store.row(0)])):
            with pytest.raises(ValueError, match="is not a (store|segment)"):
                use()
        assert not (tmp_path / name / "lock").exists()


def test_more_than_a_million_segments_can_be_read(tmp_path):
    store = Store(tmp_path)
    put(store, encode([test_store.row(0)])[0], "parquet", 999999)
    for trial in (1, 2):
        assert store.append([test_store.row(trial)]) == 1
    assert sorted(int(p.name.split("-")[0]) for p in store.segments.iterdir()) == [999999, 1000000, 1000001]
    assert [r["trial"] for r in Store(tmp_path).rows()] == [0, 1, 2]


def test_drafts_of_any_killed_writer_are_removed_by_the_next_one(tmp_path):
    store = Store(tmp_path)
    store.append([test_store.row(0)])
    for name in (".writing-7-2", f".000002-x.parquet.deadbeef-{os.getpid()}-00000000.lowchurn"):
        (store.segments / name).write_bytes(b"half")
    assert len(Store(tmp_path)) == 1
    Store(tmp_path).append([test_store.row(1)])
    assert [p.name for p in store.segments.iterdir() if p.name.startswith(".")] == []


GOOD = {ending: encode(checked(test_store.row(i, accuracy=i / 7) for i in range(3)))[0] for ending in ("parquet",)}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_damage_with_a_matching_checksum_is_one_line_or_harmless(tmp_path_factory, data):
    """Bytes changed, cut or added, under a name that fits them: rows within the rules, or a ValueError."""
    content = bytearray(GOOD["parquet"])
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(1, len(content)))])
    store = Store(tmp_path_factory.mktemp("store"))
    put(store, content, "parquet")
    try:
        rows = store.rows()
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - damage may be harmless, so nothing needs to be raised
        return
    for one in rows:
        assert set(one) == set(COLUMNS)
        assert checked([one]) == [one]


def test_reading_json_says_what_it_needs(tmp_path, monkeypatch):
    put(Store(tmp_path), packed(same=row(0)), "json.gz")
    assert len(Store(tmp_path)) == 1
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(ImportError, match="pip install"):
        Store(tmp_path).rows()


def test_a_small_file_that_unpacks_to_much_is_refused_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(segments_module, "MOST_BYTES", 2**20)
    monkeypatch.setattr(segments_module, "ROWS_AT_ONCE", 100)
    long = table(version="x" * 9000)
    rows = pa.concat_tables([long] * 1000).set_column(long.column_names.index("trial"), "trial", pa.array(range(1000)))
    content = as_parquet(rows)
    assert len(content) < 2**17
    put(Store(tmp_path), content, "parquet")
    with pytest.raises(ValueError, match="unpacks to more than 1,048,576 bytes"):
        Store(tmp_path).rows()


def test_a_large_store_is_imported_in_segments_that_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "ROWS_AT_ONCE", 3)
    source, target = Store(tmp_path / "a"), Store(tmp_path / "b")
    source.append([test_store.row(trial) for trial in range(8)])
    assert copy_rows(source, target) == 8
    assert len(list(target.segments.iterdir())) == 3
    assert Store(target.folder).rows() == source.rows()
