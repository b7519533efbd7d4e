"""The store: nothing is lost, nothing is doubled, damage is named."""

import errno
import gzip
import os
import sys
import threading

import pytest

from lowchurn.bench import _store as store_module
from lowchurn.bench._segments import COLUMNS, checked, decode, encode
from lowchurn.bench._store import Store


def row(trial=0, status="finished", created="now", **more):
    base = {name: kind() for name, kind in COLUMNS.items()}
    return base | {"dataset": "wine", "trial": trial, "status": status, "created": created, "accuracy": 0.5} | more


def trials(store):
    return sorted(r["trial"] for r in store.rows())


@pytest.fixture(params=["parquet", "json.gz"])
def store(request, tmp_path, monkeypatch):
    if request.param == "json.gz":
        monkeypatch.setitem(sys.modules, "pyarrow", None)
    return Store(tmp_path / "store")


def test_rows_come_back_as_they_went(store):
    rows = [
        row(0, accuracy=1 / 3, parameters={"lam": 0.1, "start": "cold"}),
        row(1, accuracy=None, status="failed: why"),
    ]
    assert store.append(rows) == 2
    again = Store(store.folder).rows()
    assert again == rows


def test_a_key_is_written_once(store):
    store.append([row(0), row(1)])
    assert store.append([row(1, created="later"), row(2)]) == 1
    assert Store(store.folder).append([row(0)]) == 0
    assert trials(Store(store.folder)) == [0, 1, 2]


def test_rows_of_two_versions_of_a_data_set_do_not_mix(store):
    store.append([row(0, data="one")])
    with pytest.raises(ValueError, match="contains rows of wine made from other data .one, now two."):
        store.append([row(1, data="two"), row(1, dataset="other", data="two")])
    assert trials(Store(store.folder)) == [0]
    assert store.append([row(1, data="one"), row(1, dataset="other", data="two")]) == 2


def test_a_failure_may_be_tried_again(store):
    store.append([row(0, status="failed: memory")])
    assert store.done() == store.done(retry_failed=False) != set()
    assert store.done(retry_failed=True) == set()
    assert store.append([row(0, created="later")]) == 1
    assert [r["status"] for r in Store(store.folder).rows()] == ["finished"]


def test_undefined_numbers_are_null(store):
    store.append([row(0, broken=float("nan"))])
    assert Store(store.folder).rows()[0]["broken"] is None


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_damage_is_detected_and_named(store, damage):
    store.append([row(0)])
    store.append([row(1)])
    path = sorted(store.segments.iterdir())[0]
    content = bytearray(path.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[:-5], "flip": content, "empty": b""}[damage])
    with pytest.raises(ValueError, match=f"{path.name} is damaged"):
        Store(store.folder).rows()
    path.unlink()
    assert trials(Store(store.folder)) == [1]
    assert Store(store.folder).append([row(0)]) == 1


def test_strange_files_are_named(store):
    store.append([row(0)])
    (store.segments / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="notes.txt is not a segment"):
        Store(store.folder).rows()


def test_what_a_killed_writer_left_is_ignored_and_swept(store):
    store.append([row(0)])
    left = store.segments / ".writing-1-2"
    left.write_bytes(b"half")
    fresh = Store(store.folder)
    assert trials(fresh) == [0]
    fresh.append([row(1)])
    assert not left.exists()
    assert trials(fresh) == [0, 1]


def test_a_full_disk_leaves_the_store_readable(store, monkeypatch):
    store.append([row(0)])

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.os, "fsync", full)
    with pytest.raises(OSError, match="cannot write to .*No space left.*unharmed"):
        store.append([row(1)])
    monkeypatch.undo()
    assert trials(Store(store.folder)) == [0]
    assert [p.name for p in store.segments.iterdir() if p.name.startswith(".")] == []
    assert store.append([row(1)]) == 1


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="store: cannot write to"):
        Store(tmp_path / "file" / "store").append([row(0)])


def test_one_process_writes_at_a_time(tmp_path):
    one, other = Store(tmp_path), Store(tmp_path)
    with one.writing():
        one.append([row(0)])
        with pytest.raises(ValueError, match="another process is writing"):
            other.append([row(1)])
        assert trials(other) == [0]  # reading is free
    assert other.append([row(1)]) == 1


def test_threads_share_a_store(tmp_path):
    store = Store(tmp_path)
    with store.writing():
        workers = [threading.Thread(target=store.append, args=([row(i), row(i + 100)],)) for i in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert trials(Store(tmp_path)) == [*range(8), *range(100, 108)]


def test_rows_with_other_columns_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"wrong or missing: \['colour'\]"):
        Store(tmp_path).append([row(0) | {"colour": "red"}])
    with pytest.raises(ValueError, match=r"wrong or missing: \['accuracy'\]"):
        checked([{k: v for k, v in row(0).items() if k != "accuracy"}])


def test_both_forms_hold_the_same(monkeypatch):
    rows = checked(row(i, accuracy=i / 7) for i in range(5))
    content, ending = encode(rows)
    assert ending == "parquet"
    assert decode(content, parquet=True) == rows
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    content, ending = encode(rows)
    assert ending == "json.gz"
    assert gzip.decompress(content).count(b"wine") == 1  # what is the same everywhere is written once
    assert decode(content, parquet=False) == rows


def test_another_program_can_read_it(tmp_path):
    duckdb = pytest.importorskip("duckdb")
    store = Store(tmp_path)
    store.append([row(0, accuracy=0.25), row(1, accuracy=0.75)])
    found = duckdb.sql(f"select avg(accuracy), count(*) from '{tmp_path}/segments/*.parquet'").fetchall()
    assert found == [(0.5, 2)]
