"""Tables of any database that Ibis connects to: the numbers and the errors are those of tables in memory.

Everything that an audit asks is asked of DuckDB, of PostgreSQL and, with the marker ``spark``, of Spark.
"""

import datetime
import decimal
import itertools
import json

import ibis
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lowchurn
from lowchurn.audit import _counts as counts
from lowchurn.cli import main
from tests.audit.conftest import make_tables
from tests.audit.databases import connection, postgres_server, spark_session
from tests.audit.numbers import make_numbers
from tests.audit.test_counts import flat
from tests.audit.test_history import make_releases

KINDS = ["duckdb", "postgres", pytest.param("spark", marks=pytest.mark.spark)]
numbers = itertools.count()


@pytest.fixture(scope="module")
def postgres():
    with postgres_server() as place:
        yield place


@pytest.fixture(scope="module")
def spark():
    with spark_session() as session:
        yield session


@pytest.fixture(scope="module", params=KINDS)
def database(request):
    place = None if request.param == "duckdb" else request.getfixturevalue(request.param)
    return connection(request.param, place)


@pytest.fixture
def put(database, tmp_path):
    """Stores a table in the database and returns it as Ibis knows it."""

    def store(table):
        name = f"t{next(numbers)}"
        if database.name != "pyspark":
            return database.create_table(name, table)
        path = str(tmp_path / f"{name}.parquet")
        ibis.memtable(table).to_parquet(path)
        return database.read_parquet(path, table_name=name)

    return store


@pytest.fixture
def crossing(database, monkeypatch):
    """The sizes of all results that came from the database, whatever they were asked through."""
    sizes = []

    def count(owner, name):
        real = getattr(owner, name)

        def counted(*args, **kwargs):
            result = real(*args, **kwargs)
            sizes.append(len(result))
            return result

        monkeypatch.setattr(owner, name, counted)

    if database.name == "pyspark":
        from pyspark.sql.classic.dataframe import DataFrame

        for name in ("collect", "toArrow", "toPandas"):
            count(DataFrame, name)
        monkeypatch.setattr(DataFrame, "toLocalIterator", None)
    elif database.name == "postgres":
        import psycopg

        for cursor in (psycopg.Cursor, psycopg.ServerCursor):
            for name in ("fetchall", "fetchmany"):
                count(cursor, name)
            monkeypatch.setattr(cursor, "__iter__", None)
    else:
        count(type(database), "to_pyarrow")
    return sizes


def same(there, here, parts):
    for part in parts:
        assert flat(there.to_dict()[part]) == pytest.approx(flat(here.to_dict()[part]), nan_ok=True), part


@pytest.mark.parametrize("grouped", [False, True])
def test_an_audit_has_the_numbers_of_tables_in_memory(put, grouped):
    old, new = make_tables(300, 3, seed=7, labelled=0.8)
    arguments = {"label": "y", "by": ["country", "age"], "weight": "w", "bootstrap": 100}
    if grouped:
        arguments["group"] = "customer"
    here, there = lowchurn.audit.audit(old, new, **arguments), lowchurn.audit.audit(put(old), put(new), **arguments)
    same(there, here, ("rows", "estimates", "soft", "slices", "drivers", "flip_matrix", "classes"))
    limits = {"max_churn": 0.5, "never_break": ["country=de"]}
    assert there.gate(**limits).outcome == here.gate(**limits).outcome
    answers = there.disputed(5)
    assert len(answers) == 5
    assert there.with_labels(answers.assign(label=answers.answer_1)).labels == 5


@pytest.mark.parametrize("how", [{}, {"weight": "w", "group": "customer"}], ids=["plain", "both"])
def test_numbers_are_those_of_tables_in_memory(put, how):
    old, new = make_numbers(300, targets=0.8)
    arguments = {"value": "yhat", "target": "y", "tolerance": 0.1, "by": ["country", "age"], **how}
    tables = [put(old), put(new)]
    here, there = lowchurn.audit.audit(old, new, **arguments), lowchurn.audit.audit(*tables, **arguments)
    same(there, here, ("rows", "estimates", "quantiles", "slices", "drivers", "paired_test", "histogram", "density"))
    assert [flip["id"] for flip in there.flips] == [flip["id"] for flip in here.flips]
    assert there.gate(never_break=["country=de"]).outcome == here.gate(never_break=["country=de"]).outcome
    lost = tables[1].mutate(yhat=(tables[1].id == int(old.id[0])).ifelse(None, tables[1].yhat))
    with pytest.raises(ValueError, match="1 of 300 rows of the new table have no value"):
        lowchurn.audit.audit(tables[0], lost, **arguments)


def test_a_history_has_the_numbers_of_tables_in_memory(put):
    releases = make_releases(4, seed=3)
    arguments = {"label": "y", "by": ["country", "age"], "weight": "w", "group": "customer"}
    tables = [put(release) for release in releases]
    here, there = lowchurn.audit.history(releases, **arguments), lowchurn.audit.history(tables, **arguments)
    same(there, here, ("rows", "pairs", "by_changes", "back", "restless", "slices"))
    with pytest.raises(ValueError, match="1 ids are only in the 'release 1' table"):
        lowchurn.audit.history([*tables[:-1], tables[-1].filter(tables[-1].id != 2**60)])


def test_what_is_refused_in_memory_is_refused_there(put):
    old, new = make_tables(50, 2)
    tables = [put(old), put(new.iloc[:-2])]
    with pytest.raises(ValueError, match="2 ids are only in the old table"):
        lowchurn.audit.audit(*tables)
    assert lowchurn.audit.audit(*tables, on_mismatch="inner").rows.paired == 48


def test_many_rows_are_put_into_bags(put):
    """More than 10,000 units are hashed, each database in its own way: the figures are close, and the counts equal."""
    rng = np.random.default_rng(0)
    size = 12_000
    chance = rng.random(size)
    old = pd.DataFrame({"id": range(size), "proba_a": 1 - chance, "proba_b": chance, "g": range(size)})
    old["y"] = np.where(rng.random(size) < chance, "b", "a")
    chance = np.clip(chance + rng.normal(0, 0.1, size), 0, 1)
    new = pd.DataFrame({"id": range(size), "proba_a": 1 - chance, "proba_b": chance})
    tables = put(old), put(new)
    for how in ({}, {"group": "g"}):
        here, there = (lowchurn.audit.audit(*t, label="y", bootstrap=100, **how) for t in ((old, new), tables))
        same(there, here, ("rows", "flip_matrix"))
        assert there.churn.value == here.churn.value
        assert there.churn.high == pytest.approx(here.churn.high, rel=0.02)
        for name, figure in here.soft.items():
            assert there.soft[name].value == pytest.approx(figure.value, rel=1e-6, abs=1e-9), name


ROWS = 60
IDS = np.random.default_rng(1).permutation(ROWS)
OLD, NEW = IDS % 3, np.where(IDS % 7 == 0, 0, IDS % 3)
DAY = datetime.date(2024, 1, 1)
TYPES = {
    "booleans": (OLD > 1, NEW > 1),
    "a boolean and an integer": (OLD > 1, (NEW > 1).astype(int)),
    "floats": (OLD * 1.5, NEW * 1.5),
    "a float and an integer": (OLD * 1.0, NEW),
    "floats of 32 and 64 bits": ((OLD * 0.5).astype("f4"), NEW * 0.5),
    "floats that 32 bits round": ((OLD * 0.1).astype("f4"), NEW * 0.1),
    "decimals": ([decimal.Decimal(int(x)) / 2 for x in OLD], [decimal.Decimal(int(x)) / 2 for x in NEW]),
    "a decimal and a float": ([decimal.Decimal(int(x)) for x in OLD], NEW * 1.0),
    "dates": ([DAY + datetime.timedelta(int(x)) for x in OLD], [DAY + datetime.timedelta(int(x)) for x in NEW]),
    "text and numbers": ([str(x) for x in OLD], NEW),
    "some missing": ([None if x == 3 else int(y) for x, y in zip(IDS, OLD, strict=True)], NEW),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_are_compared_as_in_memory(put, name):
    tables = [pa.table({"id": IDS, "prediction": pa.array(column)}) for column in TYPES[name]]
    found = []
    for sides in (tables, [put(table) for table in tables]):
        try:
            found.append(flat(lowchurn.audit.audit(*sides).to_dict()["estimates"]))
        except ValueError as error:
            found.append(str(error))
    assert found[1] == (pytest.approx(found[0], nan_ok=True) if isinstance(found[0], dict) else found[0])


@pytest.mark.parametrize("soft", [False, True], ids=["decisions", "probabilities"])
def test_no_more_than_counts_and_a_sample_leave_the_database(put, crossing, soft, monkeypatch):
    """Of many rows too: what crosses the connection grows with slices, bins and bags, and with the sample."""
    monkeypatch.setattr(counts, "MOST_UNITS", 100)
    monkeypatch.setattr(counts, "LOSS_BAGS", 16)
    sides, sample = 2, 40
    most = sides * counts.LOSS_BAGS * counts.CALIBRATION_BINS if soft else 100
    rows = 4_000
    old, new = make_tables(rows, 3, seed=2, churn=0.3)
    if not soft:
        old, new = (table.drop(columns=[c for c in table if c.startswith("proba")]) for table in (old, new))
    tables = put(old), put(new)
    crossing.clear()
    found = lowchurn.audit.audit(*tables, label="y", by="country", sample=sample)
    assert len(found.flips) == sample < found.churn.value * rows
    assert sample <= max(crossing) <= most
    if not soft:
        crossing.clear()
        lowchurn.audit.history([*tables, tables[0]], label="y", sample=sample)
        assert sample <= max(crossing) <= most


def test_large_numbers_beside_gaps_stay_exact(put):
    """A driver that makes floats of integers with gaps would lose their last digits."""
    large = 2**60 + np.arange(8)
    old = pd.DataFrame({"id": large, "prediction": large})
    old["y"] = pd.array([int(x) if i % 2 else None for i, x in enumerate(large)], dtype="Int64")
    new = pd.DataFrame({"id": large, "prediction": large + 1})
    found = lowchurn.audit.audit(put(old), put(new), label="y")
    assert found.rows.labelled == 4
    assert {flip["label"] for flip in found.flips} == {None, *map(int, large[1::2])}
    assert found.broken.value == 1


@pytest.fixture
def named(put):
    """Two tables of 300 rows and their names in the database."""
    old, new = make_tables(300, 3, seed=7)
    return (old, new), [put(table).get_name() for table in (old, new)]


@pytest.fixture
def command(monkeypatch):
    """Runs the command line and returns its exit code."""

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["lowchurn", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0

    return call


def engine_of(database, request):
    if database.name == "postgres":
        return f"postgres://auditor@/postgres?host={request.getfixturevalue('postgres')}"
    return "spark"


def test_the_command_counts_in_a_database(command, named, database, request, tmp_path, capsys):
    if database.name == "duckdb":
        pytest.skip("its tables have paths of their own: file.duckdb::table")
    (old, new), names = named
    engine = engine_of(database, request)
    how = ["--label", "y", "--by", "country", "--max-churn", "0.9"]
    assert command("audit", *names, "--engine", engine, *how, "--json", tmp_path / "a.json") == 0
    there = json.loads((tmp_path / "a.json").read_text())
    here = lowchurn.audit.audit(old, new, label="y", by="country").to_dict()
    for part in ("rows", "estimates", "slices"):
        assert flat(there[part]) == pytest.approx(flat(here[part]), nan_ok=True), part
    assert there["provenance"]["old"]["path"] == names[0]
    assert command("history", *names, names[0], "--engine", engine, "--json", tmp_path / "h.json") == 0
    assert json.loads((tmp_path / "h.json").read_text())["rows"]["judged"] == 300
    capsys.readouterr()
    assert command("audit", names[0], "no_such_table", "--engine", engine) == 2
    assert "unknown new table 'no_such_table'. Known: " in capsys.readouterr().err


@pytest.mark.spark
def test_spark_reads_folders_of_parquet_files(command, spark, tmp_path, capsys):
    """All files below the folder, and no columns made of the names of folders unless they are asked for."""
    old, new = make_tables(300, 3, seed=7)
    for name, table in (("old", old), ("new", new)):
        for i, part in enumerate(np.array_split(np.arange(300), 3)):
            (tmp_path / name / f"day={i}").mkdir(parents=True)
            table.iloc[part].to_parquet(tmp_path / name / f"day={i}" / "x.parquet", index=False)
        (tmp_path / name / "README").write_text("no table")
    here = lowchurn.audit.audit(old, new, label="y")
    how = ["--engine", "spark", "--spark-master", "local[2]", "--spark-conf", "spark.ui.enabled=false"]
    paths = tmp_path / "old", tmp_path / "new"
    assert command("audit", *paths, *how, "--label", "y", "--json", tmp_path / "a.json") == 0
    assert flat(json.loads((tmp_path / "a.json").read_text())["rows"]) == flat(here.to_dict()["rows"])
    sliced = lowchurn.audit.audit(*map(str, paths), by="day", engine="spark", partitions=True)
    assert [s.name for s in sliced.slices] == ["day=0", "day=1", "day=2"]
    capsys.readouterr()
    assert command("audit", *paths, "--by", "day", *how) == 2
    assert "unknown by column 'day'" in capsys.readouterr().err
    assert command("audit", tmp_path / "odl", paths[1], *how) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": "sparc"}, "engine must be 'spark' or an address such as .*, got 'sparc'"),
        ({"engine": 3}, "engine must be text, got 3"),
        ({"engine": "nosuch://host/x"}, "cannot connect to engine='nosuch://host/x'"),
        ({"engine": "postgres://me:hunter2@host/x"}, "must not contain a password"),
        ({"engine": "postgres://host/x?password=hunter2"}, "must not contain a password"),
        ({"spark_master": "local"}, "are settings of engine='spark'"),
        ({"spark_conf": ["spark.x=1"], "engine": "postgres://host/x"}, "are settings of engine='spark'"),
    ],
)
def test_an_engine_that_cannot_be_meant_is_refused(settings, words):
    with pytest.raises(ValueError, match=words) as error:
        lowchurn.audit.audit("old", "new", **settings)
    assert "hunter2" not in str(error.value)


def test_an_engine_is_for_tables_by_name():
    table = ibis.duckdb.connect().create_table("t", pa.table({"id": [1], "prediction": [1]}))
    with pytest.raises(ValueError, match="an Ibis table brings its own connection"):
        lowchurn.audit.audit(table, table, engine="postgres://host/x")


def test_a_server_has_tables_and_no_files(postgres, tmp_path):
    engine = f"postgres://auditor@/postgres?host={postgres}"
    with pytest.raises(ValueError, match="must be the name of a table of postgres, got the path"):
        lowchurn.audit.audit(str(tmp_path / "old.parquet"), "new", engine=engine)
    with pytest.raises(ValueError, match="cannot connect to engine="):
        lowchurn.audit.audit("old", "new", engine=f"postgres://auditor@/postgres?host={tmp_path}")


def test_an_error_of_the_server_is_one_sentence(postgres):
    """Not a traceback of its driver: here a table that went away after it was opened."""
    database = connection("postgres", postgres)
    tables = [database.create_table(name, pa.table({"id": [1], "prediction": [1]})) for name in ("gone", "stays")]
    database.drop_table("gone")
    with pytest.raises(ValueError, match='postgres could not read or compare the tables: relation "gone" does not'):
        lowchurn.audit.audit(*tables)
    assert lowchurn.audit.audit(tables[1], tables[1]).identical  # the connection is still good


def test_a_database_that_lacks_something_is_named():
    database = ibis.sqlite.connect()
    tables = [database.create_table(name, pa.table({"id": [1.0], "prediction": [1]})) for name in ("old", "new")]
    with pytest.raises(ValueError, match="sqlite lacks something that the audit needs.*Copy the tables to Parquet"):
        lowchurn.audit.audit(*tables)
