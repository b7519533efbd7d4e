"""The same numbers from Spark as from DuckDB, on a local session."""

import os
import sys

import pytest

import lowchurn
from tests.audit.conftest import make_tables
from tests.audit.numbers import make_numbers
from tests.audit.test_counts import flat
from tests.audit.test_history import make_releases

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    pyspark = pytest.importorskip("pyspark.sql")
    import ibis

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = (
        pyspark.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    yield ibis.pyspark.connect(session)
    session.stop()


@pytest.mark.parametrize("grouped", [False, True])
def test_spark_and_duckdb_give_the_same_numbers(spark, tmp_path, grouped):
    old, new = make_tables(300, 3, seed=7, labelled=0.8)
    arguments = {"label": "y", "by": ["country", "age"], "weight": "w", "bootstrap": 100}
    if grouped:
        arguments["group"] = "customer"
    here = lowchurn.audit.audit(old, new, **arguments)
    tables = []
    for name, frame in (("old", old), ("new", new)):
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
        tables.append(spark.read_parquet(str(tmp_path / f"{name}.parquet"), table_name=f"{name}_{grouped}"))
    there = lowchurn.audit.audit(*tables, **arguments)
    for part in ("rows", "estimates", "soft", "slices", "drivers", "flip_matrix", "classes"):
        assert flat(there.to_dict()[part]) == pytest.approx(flat(here.to_dict()[part])), part
    answers = there.disputed(5)
    assert len(answers) == 5
    review = there.with_labels(answers.assign(label=answers.answer_1))
    assert review.labels == 5


@pytest.mark.parametrize("how", [{}, {"weight": "w", "group": "customer"}], ids=["plain", "both"])
def test_numbers_on_spark_are_those_of_duckdb(spark, tmp_path, how):
    old, new = make_numbers(300, targets=0.8)
    arguments = {"value": "yhat", "target": "y", "tolerance": 0.1, "by": ["country", "age"], **how}
    here = lowchurn.audit.audit(old, new, **arguments)
    tables = []
    for name, frame in (("old", old), ("new", new)):
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
        tables.append(spark.read_parquet(str(tmp_path / f"{name}.parquet"), table_name=f"{name}_numbers_{len(how)}"))
    there = lowchurn.audit.audit(*tables, **arguments)
    for part in ("rows", "estimates", "quantiles", "slices", "drivers", "paired_test", "histogram", "density"):
        assert flat(there.to_dict()[part]) == pytest.approx(flat(here.to_dict()[part]), nan_ok=True), part
    assert [flip["id"] for flip in there.flips] == [flip["id"] for flip in here.flips]
    assert there.gate(never_break=["country=de"]).outcome == here.gate(never_break=["country=de"]).outcome
    with pytest.raises(ValueError, match="1 of 300 rows of the new table have no value"):
        lowchurn.audit.audit(
            tables[0], tables[1].mutate(yhat=(tables[1].id == int(old.id[0])).ifelse(None, tables[1].yhat)), **arguments
        )


def test_spark_refuses_what_duckdb_refuses(spark, tmp_path):
    old, new = make_tables(50, 2)
    tables = []
    for name, frame in (("o", old), ("n", new.iloc[:-2])):
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
        tables.append(spark.read_parquet(str(tmp_path / f"{name}.parquet"), table_name=f"short_{name}"))
    with pytest.raises(ValueError, match="2 ids are only in the old table"):
        lowchurn.audit.audit(*tables)
    assert lowchurn.audit.audit(*tables, on_mismatch="inner").rows.paired == 48


def test_a_history_on_spark_has_the_same_numbers(spark, tmp_path):
    releases = make_releases(4, seed=3)
    arguments = {"label": "y", "by": ["country", "age"], "weight": "w", "group": "customer"}
    tables = []
    for i, frame in enumerate(releases):
        frame.to_parquet(tmp_path / f"v{i}.parquet", index=False)
        tables.append(spark.read_parquet(str(tmp_path / f"v{i}.parquet"), table_name=f"release_{i}"))
    here, there = lowchurn.audit.history(releases, **arguments), lowchurn.audit.history(tables, **arguments)
    for part in ("rows", "pairs", "by_changes", "back", "restless", "slices"):
        assert flat(there.to_dict()[part]) == pytest.approx(flat(here.to_dict()[part]), nan_ok=True), part
    with pytest.raises(ValueError, match="1 ids are only in the 'release 1' table"):
        lowchurn.audit.history([*tables[:-1], tables[-1].filter(tables[-1].id != 2**60)])
