"""Parquet files on an S3-compatible store, read by Arrow: a small server on this machine stands in for the store."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from unittest.mock import Mock
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lowchurn
from lowchurn.audit import _object_stores as object_stores
from lowchurn.audit._sources import Engine
from lowchurn.cli import main
from tests.audit.conftest import make_tables
from tests.audit.test_counts import flat


class Store(BaseHTTPRequestHandler):
    """What Arrow asks of S3: whether an object is there, a part of it, and the objects below a prefix."""

    objects: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def _answer(self, code, body=b"", **headers):
        self.send_response(code)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_GET(self):
        parts = urlsplit(unquote(self.path))
        self.asked.append(f"{self.command} {parts.path}")
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if "Credential=auditor/" not in self.headers.get("Authorization", ""):
            return self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>")
        if "list-type" in query:
            return self._answer(200, self._listed(parts.path.strip("/"), query.get("prefix", "")))
        body = self.objects.get(parts.path.strip("/"))
        if body is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if wanted is None:
            return self._answer(200, body)
        first, last = int(wanted[1]), min(int(wanted[2]), len(body) - 1)
        return self._answer(206, body[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(body)}")

    do_HEAD = do_GET

    def _listed(self, bucket, prefix):
        keys = [key.removeprefix(f"{bucket}/") for key in self.objects if key.startswith(f"{bucket}/{prefix}")]
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(self.objects[f'{bucket}/{key}'])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        count = f"<KeyCount>{len(keys)}</KeyCount><IsTruncated>false</IsTruncated>"
        return f"<ListBucketResult><Name>{bucket}</Name>{count}{found}</ListBucketResult>".encode()

    def log_message(self, *_):
        pass


@pytest.fixture
def store(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    Store.objects, Store.asked = {}, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name, value in {
        "ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "REGION": "eu-central-1",
        "ACCESS_KEY_ID": "auditor",
        "SECRET_ACCESS_KEY": "hunter2",
        "EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield Store
    server.shutdown()
    server.server_close()


def put(store, key, table):
    out = pa.BufferOutputStream()
    pq.write_table(table if isinstance(table, pa.Table) else pa.Table.from_pandas(table, preserve_index=False), out)
    store.objects[key] = out.getvalue().to_pybytes()


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["lowchurn", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, capsys.readouterr().err

    return call


def test_files_and_folders_of_a_store_are_read_where_they_lie(store, command, tmp_path):
    old, new = make_tables(300, 3, seed=7)
    put(store, "lake/old.parquet", old)
    for i in range(3):
        put(store, f"lake/new/day={i}/part.parquet", new.iloc[i * 100 : (i + 1) * 100])
    store.objects["lake/new/_SUCCESS"] = b""
    here = lowchurn.audit.audit(old, new, label="y", by="country")
    there = lowchurn.audit.audit("s3://lake/old.parquet", "s3://lake/new", label="y", by="country")
    for part in ("rows", "estimates", "slices", "soft"):
        assert flat(there.to_dict()[part]) == pytest.approx(flat(here.to_dict()[part]), nan_ok=True), part
    assert there.sources == ("s3://lake/old.parquet", "s3://lake/new")
    sliced = lowchurn.audit.audit("s3://lake/old.parquet", "s3://lake/new", by="day", partitions=True)
    assert [s.name for s in sliced.slices] == ["day=0", "day=1", "day=2"]
    with pytest.raises(ValueError, match="unknown by column 'day'"):
        lowchurn.audit.audit("s3://lake/old.parquet", "s3://lake/new", by="day")
    releases = lowchurn.audit.history(["s3://lake/old.parquet", "s3://lake/new", "s3://lake/old.parquet"], label="y")
    assert releases.rows == 300
    assert command("audit", "s3://lake/old.parquet", "s3://lake/new", "--max-churn", "0.9")[0] == 0


def test_files_of_different_types_are_refused_where_the_column_is_used(store):
    table = pa.table({"id": [1, 2], "prediction": [0, 1], "note": ["a", "b"]})
    put(store, "lake/old/1.parquet", table)
    put(store, "lake/old/2.parquet", pa.table({"id": [3], "prediction": [0], "note": [1.5]}))
    whole = pa.table({"id": [1, 2, 3], "prediction": [0, 1, 0]})
    assert lowchurn.audit.audit("s3://lake/old", whole).rows.paired == 3
    with pytest.raises(ValueError, match="column 'note' is string in 'lake/old/1.parquet' and double in"):
        lowchurn.audit.audit("s3://lake/old", whole, by="note")


def test_without_credentials_the_error_says_where_they_come_from(store, command, monkeypatch, tmp_path):
    put(store, "lake/old.parquet", pa.table({"id": [1], "prediction": [0]}))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    code, said = command("audit", "s3://lake/old.parquet", "s3://lake/old.parquet")
    assert code == 2
    assert "cannot read 's3://lake/old.parquet' for the old table" in said.replace("\n", " ")
    assert "AWS_ACCESS_KEY_ID" in said
    assert "Traceback" not in said


def test_what_is_not_there_is_named(store, command):
    put(store, "lake/old/notes.txt", pa.table({"id": [1]}))
    for address in ("s3://lake/old.parquet", "s3://lake/old"):
        with pytest.raises(ValueError, match=f"cannot read '{address}' for the old table: there is no such Parquet"):
            lowchurn.audit.audit(address, address)


def test_a_key_in_an_address_is_refused():
    with pytest.raises(ValueError, match="must not contain a password.*AWS_SECRET_ACCESS_KEY") as error:
        lowchurn.audit.audit("s3://me:hunter2@lake/old.parquet", "new.parquet")
    assert "hunter2" not in str(error.value)


def test_nothing_is_asked_of_a_store_that_nobody_named(store, tmp_path, command):
    for name in ("old", "new"):
        pq.write_table(pa.table({"id": [1], "prediction": [0]}), tmp_path / f"{name}.parquet")
    assert command("audit", tmp_path / "old.parquet", tmp_path / "new.parquet")[0] == 0
    assert store.asked == []


def test_google_is_not_asked_for_minutes(monkeypatch):
    opened = []

    class Refuses:
        FileSystem = type("FileSystem", (), {"from_uri": staticmethod(opened.append)})

    monkeypatch.setattr(object_stores, "pa_fs", Refuses)
    for address in ("gs://lake/old", "gs://lake/old?retry_limit_seconds=3"):
        with pytest.raises(ValueError, match="cannot read 'gs://lake/old.*GOOGLE_APPLICATION_CREDENTIALS"):
            object_stores.open_dataset("old", address, False)
    assert opened == ["gs://lake/old?retry_limit_seconds=30", "gs://lake/old?retry_limit_seconds=3"]


def test_a_missing_extension_of_duckdb_is_explained(command, monkeypatch, tmp_path):
    """DuckDB downloads httpfs where it may; here nothing may be downloaded, as on a machine without a network."""
    pq.write_table(pa.table({"id": [1], "prediction": [0]}), tmp_path / "new.parquet")
    reason = 'IO Error: Failed to download extension "httpfs"'
    monkeypatch.setattr(Engine, "_open_parquet", Mock(side_effect=duckdb.IOException(reason)))
    code, said = command("audit", "https://host/old.parquet", tmp_path / "new.parquet", "--remote")
    said = " ".join(said.split())
    assert code == 2
    assert f"cannot read 'https://host/old.parquet' as Parquet: {reason}. DuckDB reads it with this extension" in said
