"""Files are read as they are, and nothing in them is run."""

import datetime
import gc
import gzip
import math
import os
import signal
import subprocess
import sys
import textwrap
from decimal import Decimal

import duckdb
import ibis
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest

import lowchurn
from lowchurn.audit._settings import Settings
from lowchurn.audit._sources import Engine


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def csv(values, name="prediction", ids=None):
    ids = range(len(values)) if ids is None else ids
    return f"id,{name}\n" + "".join(f"{i},{v}\n" for i, v in zip(ids, values, strict=True))


def test_late_fractions_are_not_rounded(write):
    late = ["0"] * 25_000
    old, new = write("old.csv", csv(late)), write("new.csv", csv([*late[:-1], "0.4"]))
    assert lowchurn.audit.audit(old, new).whole.n["changed"] == 1
    words = write("words.csv", csv([*late[:-1], "other"]))
    assert lowchurn.audit.audit(old, words).whole.n["changed"] == 1


def test_every_line_is_a_row(write):
    lines = csv(["a", "b", "c"], ids=["#1", "2", "# 3"])
    assert lowchurn.audit.audit(write("o.csv", lines), write("n.csv", lines)).rows.paired == 3
    # The first line has the names, also where all of it is text.
    words = "id,prediction\nx,y\nid,z\n"
    assert lowchurn.audit.audit(write("o.csv", words), write("n.csv", words)).rows.paired == 2
    quoted = 'id,prediction\n1,"a,b"\n2,"say ""hi""\nthere"\n'
    result = lowchurn.audit.audit(write("o.csv", quoted), write("n.csv", quoted))
    assert result.classes == ["a,b", 'say "hi"\nthere']


@pytest.mark.parametrize(
    "content",
    [
        "id,prediction\n1,a\n2\n",
        "id,prediction\n1,a\n2,b,c\n",
        "id,prediction\n1,a\n2,\"b\n",
        "id,prediction\n1,a\n2,\"b\"c\n",
        b"id,prediction\n1,\xe9\n",
        b"\xff\xfei\x00d\x00",
        "id,id,prediction\n1,1,a\n",
        "id,prediction\n",
        "\n",
        "id\n1\n",
        "1,a\n2,b\n",
    ],
)  # fmt: skip
def test_broken_text_files_are_refused(write, content):
    path = write("broken.csv", content)
    with pytest.raises(ValueError, match="^audit: "):
        lowchurn.audit.audit(path, path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,prediction\r\n1,a\r\n2,b\r\n"),
        ("a.csv", "\ufeffid,prediction\n1,a\n2,b"),
        ("a.csv", "id;prediction\n1;a\n2;b\n"),
        ("a.csv", '"id"|"prediction"\n1|a\n2|b\n'),
        ("a.csv", ",id,prediction\n0,1,a\n1,2,b\n"),
        ("a.tsv", "id\tprediction\n1\ta\n2\tb\n"),
        ("a.txt", "id\tprediction\n1\ta\n2\tb\n"),
        ("a.csv.gz", gzip.compress(b"id,prediction\n1,a\n2,b\n", mtime=0)),
        ("a.tsv.gz", gzip.compress(b"id\tprediction\n1\ta\n2\tb\n", mtime=0)),
    ],
)
def test_dialects(write, name, content):
    path = write(name, content)
    result = lowchurn.audit.audit(path, pa.table({"id": [1, 2], "prediction": ["a", "a"]}))
    assert (result.rows.paired, result.churn.value) == (2, 0.5)


@pytest.mark.parametrize(
    ("old", "new", "churn"),
    [
        (["1", "2"], ["1.0", "2.5"], 0.5),
        (["1", "2"], ["1e0", "2"], 0.0),
        (["0.1", "2.50"], ["0.10", "2.5"], 0.0),
        (["0.1", "0.30000000000000004"], ["0.1", "0.3"], 0.5),
        (["007", "008"], ["007", "08"], 0.5),
        (["9007199254740993", "1"], ["9007199254740992", "1"], 0.5),
        (["9007199254740993", "0.5"], ["9007199254740995", "0.5"], 0.5),
        (["12345678901234567890123", "1"], ["12345678901234567890124", "1"], 0.5),
        (["1234567890123456.71", "1.0"], ["1234567890123456.81", "1.0"], 0.5),
        (["True", "FALSE"], ["true", "true"], 0.5),
        (["True", "False"], ["1", "1"], 0.5),
        (["a", "1"], ["1", "1"], 0.5),
        (["2024-01-01", "2024-01-02"], ["2024-01-01", "2024-01-03"], 0.5),
        (["2024-01-01T00:00", "2024-01-02 00:00:00.5"], ["2024-01-01 00:00:00", "2024-01-02T00:00:00.500"], 0.0),
        (["2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z"], ["2024-01-01 01:00:00+01", "2024-01-02 01:00:00Z"], 0.5),
        ([" a", "b"], ["a", "b"], 0.5),
        (["inf", "1.5"], ["inf", "-inf"], 0.5),
        (["NA", "b"], ["a", "b"], 0.5),
    ],
)
def test_values_of_text_files(write, old, new, churn):
    result = lowchurn.audit.audit(write("old.csv", csv(old)), write("new.csv", csv(new)))
    assert result.churn.value == churn


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["007", "008"], ["7", "8"]),
        (["007", "a"], ["7", "8"]),
        (["1.0", "a"], ["1", "2"]),
        (["+1", "2"], ["1", "2"]),
        ([" 1", "2"], ["1", "2"]),
        (["1_000", "2"], ["1000", "2"]),
        (["1.0", "2.0"], ["1", "a"]),
        (["True", "False"], ["True", "maybe"]),
        (["2024-01-01", "2024-01-02"], ["2024-01-01 00:00", "2024-01-02 00:00"]),
        (["2024-01-01 00:00", "2024-01-02 00:00"], ["2024-01-01 00:00Z", "2024-01-02 00:00Z"]),
        (["9007199254740993", "1"], ["9007199254740992.0", "1.5"]),
        (["0.1234567890123456789012345678901234567890", "1"], ["0.5", "1"]),
        (["1234567890123456.7", "1.0"], ["1234567890123456.8", "1.0"]),
        (["", "1"], ["1", "1"]),
        (["nan", "1"], ["1", "1"]),
        (["", ""], ["", ""]),
    ],
)
def test_text_files_whose_values_can_be_read_in_two_ways_are_refused(write, old, new):
    a, b = write("old.csv", csv(old)), write("new.csv", csv(new))
    for first, second in ((a, b), (b, a)):
        with pytest.raises(ValueError, match="^audit: "):
            lowchurn.audit.audit(first, second)


@pytest.mark.parametrize(
    ("typed", "written", "churn"),
    [
        (["1", "2"], ["1", "1"], 0.5),
        (["01", "2"], ["1", "2"], None),
        ([1, 2], ["1", "3"], 0.5),
        ([1, 2], ["01", "2"], None),
        ([2**60, 2**60 + 1], [str(2**60), str(2**60)], 0.5),
        ([0.1, 0.2], ["0.1", "0.3"], 0.5),
        (pa.array([0.1, 0.2], pa.float32()), ["0.1", "0.2"], None),
        (pa.array([0.5, 2], pa.float32()), ["0.5", "2"], 0.0),
        ([True, False], ["True", "True"], 0.5),
        (["yes", "no"], ["yes", "yes"], 0.5),
        (["true", "false"], ["true", "false"], None),
    ],
)
def test_a_text_file_beside_a_typed_one(write, typed, written, churn):
    old = write("old.parquet", pa.table({"id": [0, 1], "prediction": typed}))
    new = write("new.csv", csv(written))
    if churn is None:
        with pytest.raises(ValueError, match="^audit: "):
            lowchurn.audit.audit(old, new)
    else:
        assert lowchurn.audit.audit(old, new).churn.value == churn


@pytest.mark.parametrize(
    ("old", "new", "fine"),
    [
        (["007", "08"], ["08", "007"], True),
        (["007", "08"], ["7", "8"], False),
        (["1e5", "2"], ["2", "1e5"], True),
        (["1e5", "2"], ["100000", "2"], False),
        (["9007199254740993", "9007199254740992"], ["9007199254740992", "9007199254740993"], True),
        (["A1", "2"], ["2", "A1"], True),
        (["1", "2"], ["1.0", "2.0"], False),
        (["", "2"], ["", "2"], False),
    ],
)
def test_ids_of_text_files(write, old, new, fine):
    a, b = write("old.csv", csv(["a", "b"], ids=old)), write("new.csv", csv(["a", "b"], ids=new))
    if fine:
        assert lowchurn.audit.audit(a, b).rows.paired == 2
        assert lowchurn.audit.audit(a, b).churn.value == (1.0 if old[0] == new[1] else 0.0)
    else:
        with pytest.raises(ValueError, match="^audit: "):
            lowchurn.audit.audit(a, b)


def test_probabilities_and_weights_of_text_files_may_have_any_digits(write):
    rows = "id,proba_a,proba_b,w,y\n0,1.000000000000000055e-01,9.000000000000000222e-01,1e-1,a\n1,nan,0.5,2,b\n"
    with pytest.raises(ValueError, match="no decision|must be finite"):
        lowchurn.audit.audit(write("a.csv", rows), write("a.csv", rows))
    rows = rows.replace("nan", ".5")
    result = lowchurn.audit.audit(write("a.csv", rows), write("a.csv", rows), weight="w", label="y")
    assert result.accuracy_old.value == 0
    assert result.soft["log_loss_old"].value == pytest.approx((-0.1 * math.log(0.1) - 2 * math.log(0.5)) / 2.1)


ROWS = pa.table({"id": [1, 2], "prediction": [1, 0], "y": [1, 0]})


def test_a_folder_called_like_a_column_does_not_override_it(write):
    write("data/y=1/part.parquet", ROWS)
    result = lowchurn.audit.audit(write("x.parquet", ROWS).parent / "data", ROWS.drop_columns("y"), label="y")
    assert result.accuracy_old.value == 1
    literal = write("y=1/x.csv", "id,prediction,y\n1,1,1\n2,0,0\n")
    assert lowchurn.audit.audit(literal, ROWS.drop_columns("y"), label="y").accuracy_old.value == 1
    folder = write("asked/y=1/part.parquet", ROWS.drop_columns("y")).parent.parent
    with pytest.raises(ValueError, match="unknown label column"):
        lowchurn.audit.audit(folder, ROWS.drop_columns("y"), label="y")
    asked = lowchurn.audit.audit(folder, ROWS.drop_columns("y"), label="y", partitions=True)
    assert asked.accuracy_old.value == 0.5


@pytest.mark.parametrize("name", ["p[1]", "p*", "p?", "p[!a]", "[", "p::t", "s3:::x", "it's"])
def test_existing_paths_are_read_literally(write, name):
    for other in ("p1", "p2", "px"):
        write(f"{other}.parquet", pa.table({"id": [1, 2], "prediction": [0, 1]}))
        write(f"{other}.csv", "id,prediction\n1,0\n2,1\n")
    parquet, text = write(f"{name}.parquet", ROWS), write(f"{name}.csv", "id,prediction\n1,1\n2,0\n")
    folder = write(f"{name} dir/part.parquet", ROWS).parent
    for path in (parquet, text, folder):
        assert lowchurn.audit.audit(str(path), ROWS).churn.value == 0


def test_a_pattern_is_one_where_no_such_file_exists(write):
    first = write("p1.csv", "id,prediction\n1,1\n")
    write("p2.csv", "prediction,id\n0,2\n")
    assert lowchurn.audit.audit(str(first.parent / "p[12].csv"), ROWS).churn.value == 0
    write("p2.csv", "prediction,ids\n0,2\n")
    with pytest.raises(ValueError, match="must have the same columns"):
        lowchurn.audit.audit(str(first.parent / "p?.csv"), ROWS)
    with pytest.raises(ValueError, match="no file"):
        lowchurn.audit.audit(str(first.parent / "q*.csv"), ROWS)


def test_files_of_a_folder_are_read_by_name_and_in_one_type(write):
    folder = write("parts/1.parquet", ROWS.slice(0, 1)).parent
    write("parts/2.parquet", ROWS.slice(1, 1).select(["y", "prediction", "id"]))
    assert lowchurn.audit.audit(folder, ROWS, label="y").accuracy_old.value == 1
    fractions = pa.table({"id": [2], "prediction": [0.4], "y": [0]})
    write("parts/2.parquet", fractions)
    with pytest.raises(ValueError, match=r"column 'prediction' is int64 in .*1.parquet.* and double in"):
        lowchurn.audit.audit(folder, ROWS)
    write("parts/2.parquet", fractions.drop_columns("prediction"))
    with pytest.raises(ValueError, match="column 'prediction' is not in all files"):
        lowchurn.audit.audit(folder, ROWS)
    # What has no role may differ.
    write("parts/2.parquet", ROWS.slice(1, 1).append_column("age", pa.array([1.5])))
    assert lowchurn.audit.audit(folder, ROWS).rows.paired == 2


@pytest.fixture
def database(tmp_path):
    (tmp_path / "secret.csv").write_text("prediction\n1\n0\n")
    with duckdb.connect(str(tmp_path / "data.duckdb")) as con:
        con.execute("CREATE TABLE plain AS SELECT * FROM (VALUES (1, 1), (2, 0)) AS t(id, prediction)").fetchall()
        secret = str(tmp_path / "secret.csv").replace("'", "''")
        con.execute(
            f"CREATE VIEW peek AS SELECT row_number() OVER () AS id, prediction FROM read_csv('{secret}')"
        ).fetchall()
        con.execute("CREATE TABLE computed(id INT, prediction INT GENERATED ALWAYS AS (id % 2))").fetchall()
        con.execute("INSERT INTO computed VALUES (1), (2)").fetchall()
    return tmp_path / "data.duckdb"


def test_a_view_is_not_run_unless_asked_for(database):
    assert lowchurn.audit.audit(f"{database}::plain", ROWS).identical
    for table, words in (("peek", "is a view"), ("computed", "has computed columns")):
        with pytest.raises(ValueError, match=f"{words}.*views=True"):
            lowchurn.audit.audit(f"{database}::{table}", ROWS)
        assert lowchurn.audit.audit(f"{database}::{table}", ROWS, views=True).rows.paired == 2
    with pytest.raises(ValueError, match="unknown table"):
        lowchurn.audit.audit(f"{database}::plan", ROWS)


@pytest.mark.parametrize(
    "path", ["s3://bucket/a.csv", "https://example.invalid/a.parquet", "ftp://host/a.parquet", "gs://b/a.duckdb::t"]
)
def test_remote_paths_are_refused_unless_asked_for(path, monkeypatch):
    opened = []
    monkeypatch.setattr(Engine, "_open_parquet", lambda self, files: opened.append(files))
    monkeypatch.setattr(Engine, "_open_csv", lambda self, files: opened.append(files))
    with pytest.raises(ValueError, match="is remote.*remote=True"):
        lowchurn.audit.audit(path, ROWS)
    assert opened == []


def test_the_database_does_not_download_extensions():
    engine = Engine(Settings())
    found = engine.backend.con.execute(
        "SELECT name, value FROM duckdb_settings() WHERE name LIKE 'auto%known_extensions' ORDER BY name"
    ).fetchall()
    engine.close()
    assert found == [("autoinstall_known_extensions", "false"), ("autoload_known_extensions", "false")]


def test_the_folder_of_the_database_goes_on_every_way_out(tmp_path):
    where = {"temp_directory": str(tmp_path)}
    with pytest.raises(ValueError, match="unknown id column") as error:
        lowchurn.audit.audit(ROWS, ROWS, id="nope", **where)
    assert error is not None  # the error is still known, and with it the frames of the audit
    assert os.listdir(tmp_path) == []
    with pytest.raises(ValueError, match="refused its settings"):
        lowchurn.audit.audit(ROWS, ROWS, memory_limit="lots", **where)
    assert os.listdir(tmp_path) == []
    result = lowchurn.audit.audit(ROWS, ROWS, **where)
    assert len(os.listdir(tmp_path)) == 1
    del result
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_audit_leaves_is_cleared_by_the_next(tmp_path):
    script = textwrap.dedent(
        """
        import os, signal, sys
        import pyarrow as pa
        import lowchurn
        rows = pa.table({"id": [1, 2], "prediction": [1, 0]})
        audit = lowchurn.audit.audit(rows, rows, temp_directory=sys.argv[1])
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    result = lowchurn.audit.audit(ROWS, ROWS, temp_directory=str(tmp_path))
    assert len(os.listdir(tmp_path)) == 1
    result.engine.close()
    assert os.listdir(tmp_path) == []


def test_text_files_beside_a_connection_of_the_caller(write):
    import ibis

    con = ibis.duckdb.connect()
    con.con.register("there", ROWS)
    there = con.table("there")
    result = lowchurn.audit.audit(there, write("new.csv", "id,prediction\n1,1\n2,1\n"))
    assert result.churn.value == 0.5
    assert isinstance(result.disputed(), pd.DataFrame)


@pytest.mark.parametrize(
    ("word", "values"),
    [
        *((word, ("0", "1")) for word in ("NA", "n/a", "#N/A", "<NA>", "nan", "NaT", "NULL", "None", r"\N", ".")),
        *(("NA", values) for values in (("0.5", "1.5"), ("True", "False"), ("2024-01-01", "2024-01-02"))),
    ],
)
def test_words_for_missing_values_are_missing_among_values_that_are_no_text(write, word, values):
    a, b = values
    old = write("old.csv", f"id,prediction,y\n1,{a},{a}\n2,{b},{a}\n3,{a},{word}\n")
    result = lowchurn.audit.audit(old, write("new.csv", f"id,prediction\n1,{a}\n2,{a}\n3,{b}\n"), label="y")
    assert (result.rows.labelled, result.accuracy_old.value, result.accuracy_new.value) == (2, 0.5, 1.0)


def test_words_for_missing_labels_among_text_are_told(write):
    old = write("old.csv", "id,prediction,y\n1,a,a\n2,b,NA\n")
    result = lowchurn.audit.audit(old, old, label="y")
    assert result.accuracy_old.value == 0.5
    assert "1 labels are 'NA', which neither model decides for" in result.notes[0]
    decided = write("decided.csv", "id,prediction,y\n1,a,a\n2,NA,NA\n")
    assert lowchurn.audit.audit(decided, decided, label="y").notes == ()


def test_two_spellings_of_one_decision_are_told(write):
    result = lowchurn.audit.audit(write("old.csv", csv(["Yes", "no"])), write("new.csv", csv(["yes ", "no"])))
    assert result.churn.value == 0.5
    assert result.notes == (
        "The old decision 'Yes' and the new one 'yes ' are two classes: they differ in spaces or case.",
    )


def test_decimal_commas_between_semicolons_are_numbers(write):
    old = write("old.csv", "id;score;w\n1;0,7;1,5\n2;0,2;0,5\n3;0,55;0\n")
    new = write("new.csv", "id;score\n1;0,75\n2;0,6\n3;0,1\n")
    assert lowchurn.audit.audit(old, new, weight="w").churn.value == 0.25
    classes = write("classes.csv", "id;prediction\n1;1,0\n2;0,0\n")
    assert lowchurn.audit.audit(classes, write("plain.csv", csv(["1", "1"], ids=[1, 2]))).churn.value == 0.5
    # With both, neither is known to be the decimal point; with commas between the fields it is a thousand or not.
    for text in ("id;score\n1;0,7\n2;0.2\n", 'id,score\n1,"0,7"\n2,"0,2"\n'):
        unclear = write("unclear.csv", text)
        with pytest.raises(ValueError, match="'score' of the old table must hold numbers, got text"):
            lowchurn.audit.audit(unclear, unclear)
    with pytest.raises(ValueError, match="not the number that they spell"):
        lowchurn.audit.audit(write("o.csv", 'id,prediction\n"1,000",a\n'), write("n.csv", "id,prediction\n1000,a\n"))


@pytest.mark.parametrize("above", ["\n", "\r\n\r\n", "\ufeff", "\ufeffsep=;\r\n", "sep=;\n"])
def test_lines_above_the_names(write, above):
    end = "\r\n" if "\r" in above else "\n"
    old = write("old.csv", above + "id;prediction\n1;a\n2;b\n".replace("\n", end))
    result = lowchurn.audit.audit(old, write("new.csv", csv(["a", "a"], ids=[1, 2])))
    assert (result.rows.paired, result.churn.value) == (2, 0.5)


@pytest.mark.parametrize(
    "text", ["\r\nid,prediction\n1,a\n", "sep=,\nid,prediction\r\n", "id,prediction\r\n1,a\n2,b\n"]
)
def test_lines_that_end_in_different_ways_are_refused(write, text):
    path = write("old.csv", text)
    with pytest.raises(ValueError, match="its lines end in different ways"):
        lowchurn.audit.audit(path, path)


def test_packed_files_are_known_by_their_content(write):
    plain = csv(["a", "b"])
    names = {
        "OLD.CSV.GZ": gzip.compress(plain.encode(), mtime=0),
        "plain.csv.gz": plain,
        "packed.csv": gzip.compress(plain.encode(), mtime=0),
    }
    for name, content in names.items():
        path = write(name, content)
        assert lowchurn.audit.audit(path, path).rows.paired == 2


@pytest.mark.parametrize("raw", ["id,prediction\n1,a\n".encode("utf-16"), "id,prediction\n1,é\n".encode("latin-1")])
def test_other_encodings_are_refused_with_the_remedy(write, raw):
    path = write("old.csv", raw)
    with pytest.raises(ValueError, match="not text in UTF-8. Save it as CSV in UTF-8"):
        lowchurn.audit.audit(path, path)


def test_columns_that_nobody_asks_for_may_be_anything(write):
    old = pd.DataFrame({"id": [1, 2], "prediction": ["a", "b"], "junk": [{1}, "x"], "z": [1j, 2j]})
    assert lowchurn.audit.audit(old, old[["id", "prediction"]]).rows.paired == 2
    with pytest.raises(ValueError, match="by column 'junk' must hold plain values, got unknown ones"):
        lowchurn.audit.audit(old, old, by="junk")


def test_tables_in_memory_of_every_type():
    ids = [1, 2]
    for values, type in (
        ([1.0, 0.5], pa.float16()),
        ([Decimal("1.1"), Decimal("1.2")], pa.decimal256(5, 2)),
        ([datetime.time(1), datetime.time(2)], pa.time64("ns")),
    ):
        old = pa.table({"id": ids, "prediction": pa.array(values, type=type)})
        new = pa.table({"id": ids, "prediction": pa.array([values[0]] * 2, type=type)})
        assert lowchurn.audit.audit(old, new).churn.value == 0.5
    frame = pd.DataFrame({"id": ids, "prediction": ["a", "b"]})
    assert lowchurn.audit.audit(frame.set_index("id"), frame).rows.paired == 2  # as in a Parquet file of it
    for no_table in (frame["id"], frame.groupby("id"), pa.array(ids), pa.chunked_array([ids])):
        with pytest.raises(ValueError, match="the old table must be a path, a pandas"):
            lowchurn.audit.audit(no_table, frame)


class Stream:
    """What any library may hand over: nothing but the Arrow stream of its rows."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def hugging_face(table):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict(table.to_pydict())
    return datasets.concatenate_datasets([whole, whole]).select([3, 0, 2, 1])  # some rows, in another order


HOLDERS = {
    "pyarrow": lambda t: t,
    "batch": lambda t: t.to_batches()[0],
    "reader": lambda t: t.to_reader(),
    "dataset": lambda t: pa_dataset.dataset(t),
    "scanner": lambda t: pa_dataset.dataset(t).scanner(),
    "stream": Stream,
    "pandas": lambda t: t.to_pandas(),
    "polars": pl.from_arrow,
    "lazy polars": lambda t: pl.from_arrow(t).lazy(),
    "relation": lambda t: duckdb.from_arrow(t).filter("id < 9"),
    "ibis": ibis.memtable,
    "hugging face": hugging_face,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_whatever_holds_rows_is_a_table(kind):
    old = pa.table({"id": [1, 2, 3, 4], "prediction": ["a", "b", "b", "a"], "y": ["a", "a", "b", None]})
    new = pa.table({"id": [4, 2, 3, 1], "prediction": ["b", "a", "b", "a"]})
    found = lowchurn.audit.audit(HOLDERS[kind](old), HOLDERS[kind](new), label="y")
    assert (found.rows.paired, found.churn.value, found.accuracy_change.value) == (4, 0.5, 1 / 3)
    releases = lowchurn.audit.history([HOLDERS[kind](table) for table in (old, new, old)], label="y")
    assert [step.churn.value for step in releases.steps] == [0.5, 0.5]
    assert releases.back.value == 0.5


def test_a_dataset_of_files_is_read_where_it_lies(tmp_path, monkeypatch):
    for name, answers in (("old", ["a", "b"]), ("new", ["a", "a"])):
        pq.write_table(pa.table({"id": [1, 2], "prediction": answers, "unused": ["x", "y"]}), tmp_path / name)
    monkeypatch.setattr("lowchurn.audit._sources._loaded", None)
    found = lowchurn.audit.audit(pa_dataset.dataset(tmp_path / "old"), pa_dataset.dataset(tmp_path / "new"))
    assert found.churn.value == 0.5


def test_all_splits_of_a_hugging_face_dataset_are_no_table():
    datasets = pytest.importorskip("datasets")
    split = datasets.Dataset.from_dict({"id": [1], "prediction": [1]})
    for wrong in (datasets.DatasetDict({"test": split}), split.to_iterable_dataset()):
        with pytest.raises(ValueError, match=r"a Hugging Face dataset \(one split, not streamed\)"):
            lowchurn.audit.audit(wrong, split)


def test_times_with_a_zone_are_not_compared_without_it(tmp_path):
    with duckdb.connect(str(tmp_path / "x.duckdb")) as con:
        for name, hour in (("o", 1), ("n", 2)):
            con.execute(f"CREATE TABLE {name} AS SELECT 1 AS id, TIMETZ '10:00:00+0{hour}' AS prediction")
    with pytest.raises(ValueError, match="a time of day with a zone"):
        lowchurn.audit.audit(f"{tmp_path}/x.duckdb::o", f"{tmp_path}/x.duckdb::n")


def test_decimals_beside_floats():
    whole = pa.table({"id": [1, 2], "prediction": pa.array([Decimal("1.00"), Decimal("2.00")])})
    floats = pa.table({"id": [1, 2], "prediction": [1.0, 3.0]})
    assert lowchurn.audit.audit(whole, floats).churn.value == 0.5
    parts = pa.table({"id": [1, 2], "prediction": pa.array([Decimal("1.10"), Decimal("2.00")])})
    with pytest.raises(ValueError, match="not exact as floats"):
        lowchurn.audit.audit(parts, floats)


def test_files_of_a_folder_may_store_the_same_values_in_other_types(write):
    parts = [
        pa.table({"id": pa.array([1], pa.int32()), "prediction": ["a"], "y": pa.nulls(1)}),
        pa.table({"id": [2], "prediction": pa.array(["b"]).dictionary_encode(), "y": ["b"]}),
        pa.table({"id": [3], "prediction": pa.array(["b"], pa.large_string()), "y": pa.nulls(1)}),
    ]
    for i, part in enumerate(parts):
        folder = write(f"parts/{i}.parquet", part).parent
    new = pa.table({"id": [1, 2, 3], "prediction": ["a", "a", "b"]})
    result = lowchurn.audit.audit(folder, new, label="y")
    assert (result.rows.labelled, result.churn.value, result.accuracy_old.value) == (1, 1 / 3, 1.0)


def test_pipes_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="is not a file. Tables are read twice"):
        lowchurn.audit.audit(tmp_path / "rows.csv", pa.table({"id": [1], "prediction": [1]}))
