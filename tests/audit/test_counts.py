"""The database's counts against a slow twin, from every kind of source; one expression for two engines."""

import gc
import math
from functools import cache

import duckdb
import hypothesis.strategies as st
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from sklearn.metrics import log_loss

import lowchurn
from lowchurn.audit import _cells as cells
from lowchurn.audit import _counts as counts
from lowchurn.audit import _joins as joins
from lowchurn.audit._columns import resolve
from lowchurn.audit._exact import Schema
from lowchurn.audit._settings import Settings
from lowchurn.metrics import flips, soft_churn
from tests.audit.conftest import make_tables


def twin(old, new, label=None, weight=None, by=None):
    """The same figures, slowly: one Python loop over joined rows."""
    partner = {row.id: row for row in new.itertuples()}
    sums = {}
    for row in old.itertuples():
        w = 1.0 if weight is None else getattr(row, weight)
        if w == 0:
            continue
        before, after = row.prediction, partner[row.id].prediction
        truth = None if label is None else getattr(row, label)
        truth = None if truth is None or truth != truth else truth
        for key in {None, getattr(row, by) if by else None}:
            s = sums.setdefault(
                key, dict.fromkeys(("all", "changed", "labelled", "broken", "fixed", "lateral"), 0.0) | {"n": 0}
            )
            s["n"] += 1
            s["all"] += w
            s["changed"] += w * (before != after)
            if truth is not None:
                s["labelled"] += w
                s["broken"] += w * (before == truth and after != truth)
                s["fixed"] += w * (before != truth and after == truth)
                s["lateral"] += w * (before != truth and after != truth and before != after)
    return sums


def same(audit, expected):
    tally = audit.whole
    for kind in ("all", "changed", "labelled", "broken", "fixed", "lateral"):
        assert tally.weight[kind] == pytest.approx(expected[kind]), kind
    assert tally.n["all"] == expected["n"]
    if expected["labelled"]:
        assert audit.broken.value == pytest.approx(expected["broken"] / expected["labelled"])
    else:
        assert math.isnan(audit.broken.value)
        assert audit.broken.n == 0


@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("labelled", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("classes", [2, 4])
def test_counts_agree_with_the_twin(weight, labelled, classes):
    old, new = make_tables(300, classes, seed=classes, labelled=labelled)
    audit = lowchurn.audit.audit(old, new, label="y", weight=weight, by="country")
    expected = twin(old, new, "y", weight, "country")
    same(audit, expected[None])
    for s in audit.slices:
        there = expected[s.value]
        assert s.rows == there["n"]
        assert s.churn.value == pytest.approx(there["changed"] / there["all"])


def test_the_library_agrees_with_its_own_metrics(tables):
    old, new = tables
    both = old.merge(new, on="id", suffixes=("", "_new"))
    audit = lowchurn.audit.audit(old, new, label="y")
    counted = flips(both.y.to_numpy(str), both.prediction.to_numpy(str), both.prediction_new.to_numpy(str))
    assert audit.broken.value == counted.broken_rate
    assert audit.churn.value == counted.changed_rate
    names = [c for c in old if c.startswith("proba_")]
    before, after = both[names].to_numpy(), both[[f"{n}_new" for n in names]].to_numpy()
    assert audit.soft["soft_churn"].value == pytest.approx(soft_churn(before, after).mean())
    assert audit.soft["log_loss_new"].value == pytest.approx(log_loss(both.y, after))
    assert audit.moved == int((before != after).any(axis=1).sum())
    onehot = np.array([[f"proba_{y}" == n for n in names] for y in both.y], dtype=float)
    brier = ((after - onehot) ** 2).sum(axis=1) - ((before - onehot) ** 2).sum(axis=1)
    assert audit.soft["brier_change"].value == pytest.approx(brier.mean())
    error = 0.0
    top, right = after.max(axis=1), onehot[np.arange(len(after)), after.argmax(axis=1)]
    for b in range(counts.CALIBRATION_BINS):
        inside = np.minimum((top * counts.CALIBRATION_BINS).astype(int), counts.CALIBRATION_BINS - 1) == b
        error += abs((top[inside] - right[inside]).sum()) / len(top)
    assert audit.soft["calibration_error_new"].value == pytest.approx(error)


labels = st.one_of(st.none(), st.sampled_from(["a", "b", "é", "<i>", "", " a"]))
row = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from(["a", "b", "é", "<i>", "", " a"]),
    st.sampled_from(["a", "b", "é", "<i>", "", " a"]),
    labels,
    st.sampled_from([0.0, 0.5, 1.0, 1e6]),
    st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=3)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(row, min_size=1, max_size=30, unique_by=lambda r: r[0]), st.randoms())
def test_counts_agree_with_the_twin_on_any_table(rows, random):
    columns = list(zip(*rows, strict=True))
    old = pa.table(
        {"id": pa.array(columns[0], pa.int64()), "prediction": list(columns[1]), "y": pa.array(columns[3], pa.string()),
         "w": list(columns[4]), "country": pa.array(columns[5], pa.string())}
    )  # fmt: skip
    order = list(range(len(rows)))
    random.shuffle(order)
    new = pa.table({"id": pa.array(columns[0], pa.int64()), "prediction": list(columns[2])}).take(order)
    if not any(columns[4]):
        with pytest.raises(ValueError, match="all zero"):
            lowchurn.audit.audit(old, new, label="y", weight="w")
        return
    audit = lowchurn.audit.audit(old, new, label="y", weight="w", by="country")
    frames = [pd.DataFrame(t.to_pydict(), dtype=object) for t in (old, new)]
    expected = twin(*frames, "y", "w", None)
    same(audit, expected[None])
    assert sum(s.rows for s in audit.slices) == audit.rows.paired


def sources(old, new, folder):
    for name, frame in (("old", old), ("new", new)):
        frame.to_parquet(folder / f"{name}.parquet")
        frame.to_csv(folder / f"{name}.csv", index=False)
        (folder / f"{name}_parts").mkdir()
        frame.iloc[:150].to_parquet(folder / f"{name}_parts" / "0.parquet")
        frame.iloc[150:].to_parquet(folder / f"{name}_parts" / "1.parquet")
    with duckdb.connect(str(folder / "tables.duckdb")) as con:
        for name, frame in (("old", old), ("new", new)):
            arrow = pa.Table.from_pandas(frame, preserve_index=False)
            con.register("frame", arrow)
            con.execute(f"CREATE TABLE {name} AS SELECT * FROM frame")
    yield "parquet", folder / "old.parquet", str(folder / "new.parquet")
    yield "csv", folder / "old.csv", folder / "new.csv"
    yield "folder", folder / "old_parts", folder / "new_parts"
    yield "pattern", str(folder / "old_parts" / "*.parquet"), folder / "new.parquet"
    yield "duckdb file", f"{folder}/tables.duckdb::old", f"{folder}/tables.duckdb::new"
    yield "polars", pl.from_pandas(old), pl.from_pandas(new).lazy()
    yield "pyarrow", pa.Table.from_pandas(old), pa.Table.from_pandas(new, preserve_index=False)
    yield "relation", duckdb.from_arrow(pa.Table.from_pandas(old)), duckdb.from_arrow(pa.Table.from_pandas(new))
    con = ibis.duckdb.connect()
    there = [con.read_parquet(folder / f"{name}.parquet") for name in ("old", "new")]
    yield "ibis", *there
    yield "mixed", there[0], new
    yield "memtable", ibis.memtable(pa.Table.from_pandas(old)), ibis.memtable(pa.Table.from_pandas(new))


def test_every_source_gives_the_same_numbers(tables, tmp_path):
    old, new = tables
    arguments = {"label": "y", "by": ["age"], "weight": "w", "group": "customer", "bootstrap": 100}
    reference = lowchurn.audit.audit(old, new, **arguments).to_dict()
    for name, before, after in sources(old, new, tmp_path):
        found = lowchurn.audit.audit(before, after, **arguments).to_dict()
        for part in ("rows", "estimates", "soft", "slices", "flip_matrix", "classes"):
            assert flat(found[part]) == pytest.approx(flat(reference[part])), (name, part)


def flat(value, path=""):
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for key, item in items for k, v in flat(item, f"{path}/{key}").items()}
    return {path: value if isinstance(value, int | float) else hash(value)}


def test_a_score_with_thresholds_and_columns_of_different_names():
    old = pd.DataFrame({"id": [1, 2, 3, 4], "risk": [0.1, 0.4, 0.6, 0.9], "y": [0, 1, 1, 1]})
    new = pd.DataFrame({"id": [4, 3, 2, 1], "risk2": [0.9, 0.4, 0.4, 0.1]})
    audit = lowchurn.audit.audit(old, new, label="y", score=("risk", "risk2"), threshold=(0.5, 0.35))
    assert audit.flip_matrix.tolist() == [[1, 1], [0, 2]]
    assert audit.fixed.value == 0.25
    assert audit.soft["soft_churn"].value > 0
    named = lowchurn.audit.audit(
        old.assign(y=["n", "y", "y", "y"]), new, label="y", score=("risk", "risk2"), classes=("n", "y")
    )
    assert named.classes == ["n", "y"]
    wild = lowchurn.audit.audit(
        old.assign(risk=old.risk * 7), new.assign(risk2=-3.0), label="y", score=("risk", "risk2")
    )
    assert wild.soft == {}
    assert "not taken for probabilities" in wild.notes[0]


def test_one_table_with_both_predictions():
    rows = pd.DataFrame({"id": [1, 2], "a": ["x", "y"], "b": ["x", "x"]})
    assert lowchurn.audit.audit(rows, rows, prediction=("a", "b")).churn.value == 0.5


def test_several_key_columns():
    old = pd.DataFrame({"day": [1, 1, 2], "user": ["a", "b", "a"], "prediction": [0, 1, 0]})
    new = old.iloc[::-1].assign(prediction=[1, 1, 0])
    audit = lowchurn.audit.audit(old, new, id=["day", "user"])
    assert audit.whole.n["changed"] == 1
    assert audit.flips == [{"day": 2, "user": "a", "old": 0, "new": 1}]


def test_labels_of_another_number_type_are_compared_as_numbers():
    old = pd.DataFrame({"id": [1, 2, 3], "prediction": pd.array([0, 1, 1], "int8"), "y": [0.0, 1.0, np.nan]})
    new = pd.DataFrame({"id": [1, 2, 3], "prediction": [0, 0, 1]})
    audit = lowchurn.audit.audit(old, new, label="y")
    assert (audit.broken.value, audit.broken.n) == (0.5, 2)
    booleans = new.assign(prediction=[True, False, True])
    assert lowchurn.audit.audit(booleans, booleans.assign(prediction=True)).whole.n["changed"] == 1


def test_the_order_of_rows_does_not_matter(tables):
    old, new = tables
    a = lowchurn.audit.audit(old, new, label="y", by="country", bootstrap=100).to_dict()
    b = lowchurn.audit.audit(old.sample(frac=1, random_state=5), new, label="y", by="country", bootstrap=100).to_dict()
    for part in ("estimates", "soft", "slices"):
        assert flat(a[part]) == pytest.approx(flat(b[part]))


def test_many_units_are_put_into_bags_that_give_nearly_the_same_interval():
    rows = 30_000
    old, new = make_tables(rows, 2, seed=1)
    bags = lowchurn.audit.audit(old, new, label="y").soft["log_loss_change"]
    assert bags.effective == counts.LOSS_BAGS
    both = old.merge(new, on="id", suffixes=("", "_new"))
    loss = [-np.log(np.clip(both[[f"proba_class 0{s}", f"proba_class 1{s}"]].to_numpy()[np.arange(rows), (both.y == "class 1").astype(int)], 1e-7, None)) for s in ("", "_new")]  # fmt: skip  # noqa: E501
    change = loss[1] - loss[0]
    assert bags.value == pytest.approx(change.mean())
    half = 1.96 * change.std() / math.sqrt(rows)
    assert (bags.high - bags.low) / 2 == pytest.approx(half, rel=0.1)


def test_groups_widen_the_interval():
    rng = np.random.default_rng(0)
    flip = np.repeat(rng.random(100) < 0.2, 10)
    old = pd.DataFrame({"id": np.arange(1000), "prediction": 0, "y": 0, "customer": np.arange(1000) // 10})
    new = old[["id"]].assign(prediction=flip.astype(int))
    plain = lowchurn.audit.audit(old, new, label="y")
    grouped = lowchurn.audit.audit(old, new, label="y", group="customer")
    ratio = (grouped.churn.high - grouped.churn.low) / (plain.churn.high - plain.churn.low)
    assert ratio == pytest.approx(math.sqrt(10), rel=0.1)
    assert grouped.churn.effective == pytest.approx(100, rel=0.1)
    assert grouped.mcnemar.p_value > plain.mcnemar.p_value


class SparkOptions(ibis.config.Config):
    treat_nan_as_null: bool = False


@cache
def expressions():
    """Everything that the audit asks of an engine, on tables that exist only by name."""
    schema = {"id": "int64", "y": "string", "p_a": "float64", "p_b": "float64", "p_c": "float64", "w": "float64",
              "g": "int64", "country": "string", "age": "float64"}  # fmt: skip
    old, new = ibis.table(schema, name="old"), ibis.table(schema, name="new")
    types = Schema.of(dict(old.schema().items()))
    columns = resolve({"old": types, "new": types}, Settings(label="y", by=["country", "age"], weight="w", group="g"))
    sides = [joins.project(t, columns, side, t.columns) for t, side in ((old, "old"), (new, "new"))]
    sound = [joins.sound_proba(t, 1e-6, False) for t in sides]
    pairs = joins.compared_pair(joins.pair(*map(joins.known_ids, sound)), columns, soft=True)
    inner = joins.compared_pair(joins.pair(*sides, how="inner"), columns)
    cuts = [counts.Cut("country", "b0"), counts.Cut("age", "b1", (20.0, 40.0))]
    unit, bag = (counts.unit_of(pairs, columns, 10**6, bags=bags) for bags in (counts.BAGS, counts.LOSS_BAGS))
    found = counts.cells(pairs, cuts, unit, bag)
    return {
        "some value": joins.some_value(old, "y"),
        "odd numbers": joins.unfit_values(old, "y", "no numbers", 0, 5),
        "not exact in 32 bits": joins.unfit_values(old, "w", "float32", 0, 5),
        "large floats": joins.unfit_values(old, "w", "small", 2**53, 5),
        "large integers": joins.unfit_values(old, "id", "whole", 2**53, 5),
        "row checks": joins.row_checks(sides[0]),
        "values": joins.values(sides[0], "decision", 1000),
        "probabilities": joins.proba_bounds(sides[0], 1000),
        "bad probabilities": joins.proba_checks(sides[0], 1e-6),
        "key checks": joins.key_checks(sides[0]),
        "without repeats": joins.without_repeats(sides[0]),
        "one pass": found,
        "pair checks": cells.pair_checks(found, counts.pair_conditions(found), counts.sound(found)),
        "repeated alone": cells.repeated_alone(found),
        "only in": cells.only_in(found, "old"),
        "contradicting": counts.contradicting(found),
        "labels": counts.class_checks(counts.answers(found), "label", columns),
        "count": counts.count(found, cuts),
        "classes": counts.distinct_answers(counts.answers(found)),
        "units": counts.count_units(found),
        "soft": counts.soft_sums(found),
        "calibration": counts.calibration_sums(found),
        "shift": counts.shift(found),
        "flipped": counts.shuffled(counts.changed(found), 0, 10),
        "rows by label": counts.rows_by_label(found, ["NA"]),
        "known labels": counts.labels(found),
        "rows by id": counts.rows_by_id(inner, ["7", "8"]),
        "quantiles": counts.quantiles(inner, "b1", [0.5], 10**8),
    }


@pytest.mark.parametrize("dialect", ["duckdb", "pyspark"])
@pytest.mark.parametrize("name", list(expressions()))
def test_the_same_expression_compiles_for_both_engines(dialect, name, monkeypatch):
    if ibis.options.pyspark is None:  # known only once a Spark is connected
        monkeypatch.setattr(ibis.options, "pyspark", SparkOptions())
    assert "SELECT" in str(ibis.to_sql(expressions()[name], dialect=dialect))


def test_the_database_leaves_nothing_behind(tables, tmp_path):
    audit = lowchurn.audit.audit(*tables, temp_directory=str(tmp_path), memory_limit="200MB", threads=1)
    assert len(list(tmp_path.iterdir())) == 1
    assert len(audit.disputed(3)) == 3  # it lives as long as the audit does
    del audit
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="unknown id column"):
        lowchurn.audit.audit(*tables, id="nope", temp_directory=str(tmp_path))
    gc.collect()
    assert list(tmp_path.iterdir()) == []
