"""What was audited: names, checksums of the files, settings."""

import hashlib
import json
import os

import pandas as pd
import pytest

import lowchurn
from lowchurn.audit import _provenance as provenance
from lowchurn.audit._paths import files_of


@pytest.fixture
def rows():
    return pd.DataFrame({"id": [1, 2], "prediction": ["a", "b"]})


def test_files_are_named_with_their_checksum(tmp_path, rows):
    rows.to_csv(tmp_path / "old.csv", index=False)
    rows.to_parquet(tmp_path / "new.parquet")
    os.utime(tmp_path / "old.csv", (0, 86_400))
    made = lowchurn.audit.audit(tmp_path / "old.csv", str(tmp_path / "new.parquet"), old_name="v1").provenance
    assert made.old.sha256 == hashlib.sha256((tmp_path / "old.csv").read_bytes()).hexdigest()
    assert made.new.sha256 == hashlib.sha256((tmp_path / "new.parquet").read_bytes()).hexdigest()
    assert (made.old.name, made.old.path, made.old.rows) == ("v1", str(tmp_path / "old.csv"), 2)
    assert made.old.modified == "1970-01-02T00:00:00+00:00"
    assert (made.new.name, made.config, made.lowchurn) == (None, None, lowchurn.__version__)


def test_a_folder_is_the_sorted_list_of_its_files(tmp_path, rows):
    folder = tmp_path / "parts"
    (folder / "sub").mkdir(parents=True)
    rows[:1].to_parquet(folder / "b.parquet")
    rows[1:].to_parquet(folder / "sub" / "a.parquet")
    (folder / "note.txt").write_text("not read")
    lines = "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("b.parquet", "sub/a.parquet")
    )
    found = provenance.describe_source(str(folder), None)
    assert found.sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert provenance.describe_source(f"{folder}/**/*.parquet", None).sha256 == found.sha256


def test_a_name_that_looks_like_a_pattern_is_its_file(tmp_path, rows):
    rows.to_csv(tmp_path / "p[1].csv", index=False)
    (tmp_path / "p1.csv").write_text("other")
    assert files_of(str(tmp_path / "p[1].csv")) == [tmp_path / "p[1].csv"]
    assert files_of(str(tmp_path / "p[1].csv::t")) == [tmp_path / "p[1].csv"]


def test_what_is_remote_or_absent_has_no_files(tmp_path):
    for path in ("s3://bucket/rows.parquet", "s3://bucket/*.parquet", str(tmp_path / "no-such.csv"), "a\0*.csv"):
        assert files_of(path) == []


def test_large_files_pipes_and_tables_in_memory_are_not_hashed(tmp_path, rows, monkeypatch):
    rows.to_csv(tmp_path / "old.csv", index=False)
    monkeypatch.setattr(provenance, "MOST_BYTES", 3)
    large = provenance.describe_source(str(tmp_path / "old.csv"), None)
    assert large.sha256 is None
    assert large.modified
    os.mkfifo(tmp_path / "pipe.csv")
    assert provenance.describe_source(str(tmp_path / "pipe.csv"), None).sha256 is None
    assert lowchurn.audit.audit(rows, rows).provenance.old == provenance.Source(rows=2)


def test_settings_that_differ_from_the_default_are_kept(rows):
    made = lowchurn.audit.audit(rows, rows, "id", confidence=0.9, by=(), seed=0).provenance
    assert made.settings == {"confidence": 0.9}
    with pytest.raises(ValueError, match="old_name must be text"):
        lowchurn.audit.audit(rows, rows, old_name=3)


def test_json_holds_it(rows):
    read = json.loads(lowchurn.audit.audit(rows, rows, new_name="v2", threshold=(0.5, 0.6)).to_json())["provenance"]
    assert read["new"] == {"name": "v2", "path": None, "sha256": None, "rows": 2, "modified": None}
    assert read["settings"] == {"threshold": [0.5, 0.6]}
    assert set(read) == {"old", "new", "settings", "config", "from_config", "lowchurn"}
