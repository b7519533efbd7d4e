"""Stores of formats 1 and 2 are read and continued: parameters in words, and no column for one order of the rows."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lowchurn.bench._protocol import Protocol, settings_of
from lowchurn.bench._report import all_tables
from lowchurn.bench._run import run
from lowchurn.bench._segments import COLUMNS, FORMAT, encode, setting_of
from lowchurn.bench._store import Store, copy_rows
from tests.bench import test_store
from tests.bench.test_store_untrusted import put

TINY = Protocol(network="fcn-4", initial=40, validation=20, batch=30, epochs=3)
# The columns of each format, in its order.
SECOND = [name for name in COLUMNS if name != "one_order"]
NAMES = {1: ["setting" if name == "parameters" else name for name in SECOND], 2: SECOND}


def old_row(row, version=1):
    words = ", ".join(f"{name}={value}" for name, value in row["parameters"].items())
    old = row | {"setting": words, "parameters": json.dumps(row["parameters"])}
    return {name: old[name] for name in NAMES[version]}


def old_segment(rows, ending, version=1):
    rows = [old_row(row, version) for row in rows]
    if ending == "parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(rows), buffer, compression="zstd")
        return buffer.getvalue()
    columns = {name: [row[name] for row in rows] for name in NAMES[version]}
    same = {name: values[0] for name, values in columns.items() if len(set(values)) == 1}
    rest = {name: values for name, values in columns.items() if name not in same}
    return gzip.compress(json.dumps({"rows": len(rows), "same": same, "columns": rest}).encode(), mtime=0)


@pytest.mark.parametrize("version", NAMES)
@pytest.mark.parametrize("ending", ["parquet", "json.gz"])
def test_an_old_store_is_read_continued_and_tabled_as_before(tmp_path, ending, version):
    settings = settings_of(["cold", "anchor", "distill", "soup", "two-teachers", "served-mix"], "both")
    new, old = Store(tmp_path / "new"), Store(tmp_path / "old")
    run(new, ["wine"], [TINY], settings, 1, device="cpu", tell=lambda line: None)
    put(old, old_segment(new.rows(), ending, version), ending)
    assert old.rows() == new.rows()
    assert {name for name, value in old.rows()[5]["parameters"].items() if isinstance(value, float)} >= {"alpha", "eta"}
    tables = [[table.markdown() for _, table in all_tables(store.rows())] for store in (new, old)]
    assert tables[0] == tables[1]
    assert any("soup" in table for table in tables[0])
    counts = run(Store(old.folder), ["wine"], [TINY], [*settings, *settings_of(["warm"])], 1, device="cpu")
    assert counts == {"there": len(settings), "new": 1, "failed": 0}
    assert len(Store(old.folder)) == len(settings) + 1
    assert copy_rows(Store(old.folder), new) == 1


def test_words_become_data(tmp_path):
    row = test_store.row(0) | {"strategy": "soup", "parameters": {"members": 8, "toward_base": 1e-05}}
    put(Store(tmp_path), old_segment([row], "parquet"), "parquet")
    (found,) = Store(tmp_path).rows()
    assert found == row
    assert [type(value) for value in found["parameters"].values()] == [int, float]
    assert setting_of(found).words == "members=8, toward_base=1e-05"


@pytest.mark.parametrize("words", ["lam", "lam=1, ", "lam=1,start=warm=", "lam=1, lam=2", "=1", "lam=nan", "lam=1e999"])
def test_words_that_no_run_wrote_are_refused(tmp_path, words):
    row = old_row(test_store.row(0)) | {"setting": words}
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([row]), buffer)
    path = put(Store(tmp_path), buffer.getvalue(), "parquet")
    with pytest.raises(ValueError, match=rf"{path.name} is damaged: store: (setting|parameters) must be .*got"):
        Store(tmp_path).rows()


@pytest.mark.parametrize("ending", ["parquet", "json.gz"])
def test_segments_of_a_later_version_ask_for_an_update(tmp_path, ending):
    if ending == "parquet":
        table = pq.read_table(io.BytesIO(encode([test_store.row(0)])[0]))
        assert table.schema.metadata[b"lowchurn_format"] == str(FORMAT).encode()
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({"lowchurn_format": str(FORMAT + 1)}), buffer)
        content = buffer.getvalue()
    else:
        content = gzip.compress(json.dumps({"format": FORMAT + 1, "rows": 1, "same": {}, "columns": {}}).encode())
    path = put(Store(tmp_path), content, ending)
    newer = rf"{path.name} is of format {FORMAT + 1}, but .* reads up to {FORMAT}. Update lowchurn"
    with pytest.raises(ValueError, match=newer):
        Store(tmp_path).rows()
