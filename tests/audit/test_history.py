"""Releases against each other: every pair as an audit of the two has it, and slow twins for what only a history has."""

import json
import math
from dataclasses import asdict
from itertools import combinations

import duckdb
import hypothesis.strategies as st
import ibis
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from lowchurn.audit import _releases as expressions
from lowchurn.audit import audit, history
from lowchurn.audit._columns import resolve
from lowchurn.audit._exact import Schema
from lowchurn.audit._inference import KINDS, Design, Tally
from lowchurn.audit._joins import project
from lowchurn.audit._settings import Settings
from lowchurn.audit._statistics import difference
from tests.audit.test_counts import SparkOptions, flat

FIGURES = ("churn", "broken", "fixed", "accuracy_change")


def make_releases(count=4, rows=300, classes=3, seed=0, labelled=0.8):
    """Predictions of several releases in different orders; the first has everything but the decisions as well."""
    rng = np.random.default_rng(seed)
    names = np.array([f"class {c}" for c in range(classes)])
    truth = rng.integers(0, classes, rows)
    answer = np.where(rng.random(rows) < 0.2, rng.integers(0, classes, rows), truth)
    found = []
    for i in range(count):
        answer = np.where(rng.random(rows) < 0.15, rng.integers(0, classes, rows), answer)
        table = pd.DataFrame({"id": np.arange(rows) + 2**60, "prediction": names[answer]})
        if i == 0:
            table["y"] = pd.Series(names[truth]).where(rng.random(rows) < labelled, None)
            table["country"] = rng.choice(["de", "fr", "ünï", ""], rows)
            table["age"] = rng.integers(18, 80, rows)
            table["w"] = rng.integers(0, 4, rows).astype(float)
            table["customer"] = rng.integers(0, rows // 5, rows)
        found.append(table.sample(frac=1, random_state=i))
    return found


def audited(releases, i, j, **arguments):
    """The audit of two releases, with what only the first table has."""
    extra = releases[0][["id", "y", "country", "age", "w", "customer"]]
    old = releases[i][["id", "prediction"]].merge(extra, on="id")
    return audit(old, releases[j][["id", "prediction"]], label="y", **arguments)


DESIGNS = {
    "plain": {},
    "weighted": {"weight": "w"},
    "grouped": {"group": "customer"},
    "both": {"weight": "w", "group": "customer"},
}


@pytest.mark.parametrize("design", DESIGNS)
def test_every_pair_is_the_audit_of_the_two(design):
    releases = make_releases()
    found = history(releases, label="y", **DESIGNS[design])
    for i, j in combinations(range(4), 2):
        pair = audited(releases, i, j, **DESIGNS[design])
        for name in FIGURES:
            assert asdict(getattr(found.between(i, j), name)) == pytest.approx(asdict(getattr(pair, name))), (
                i,
                j,
                name,
            )
        assert found.between(i, j).p_value == pytest.approx(pair.mcnemar.p_value)
        assert asdict(found.releases[i].accuracy) == pytest.approx(asdict(pair.accuracy_old))
        assert asdict(found.releases[j].accuracy) == pytest.approx(asdict(pair.accuracy_new))
    assert (found.rows, found.labelled) == (pair.rows.paired, pair.accuracy_new.n)


@pytest.mark.parametrize("design", DESIGNS)
def test_slices_are_those_of_the_audits(design):
    releases = make_releases()
    by = {"by": ["country", "age"], **DESIGNS[design]}
    found = history(releases, label="y", **by)
    whole = audited(releases, 0, 3, **by)
    expected = {s.name: s for s in whole.slices}
    assert [drift.change.name for drift in found.slices] == list(expected)
    for drift in found.slices:
        assert flat(asdict(drift.change)) == pytest.approx(flat(asdict(expected[drift.change.name])), nan_ok=True)
    for i in range(1, 4):
        step, since = audited(releases, i - 1, i, **by), audited(releases, 0, i, **by)
        for drift, a, b in zip(found.slices, step.slices, since.slices, strict=True):
            assert asdict(drift.churn[i]) == pytest.approx(asdict(a.churn))
            assert asdict(drift.since_first[i]) == pytest.approx(asdict(b.churn))
            assert asdict(drift.accuracy[i]) == pytest.approx(asdict(a.accuracy_new))
    assert found.notes == whole.notes


def twin(releases):
    """Of each row its decisions, how often they changed and how often to one that it had before; slowly."""
    decisions = {}
    for table in releases:
        for row in table.itertuples():
            decisions.setdefault(row.id, []).append(row.prediction)
    found = {}
    for id, row in decisions.items():
        changes = [k for k in range(1, len(row)) if row[k] != row[k - 1]]
        found[id] = row, len(changes), [k for k in changes if row[k] in row[:k]]
    return found


@pytest.mark.parametrize("count", [2, 3, 9, 20])
def test_changes_and_returns_agree_with_the_twin(count, monkeypatch):
    """Also where the releases are joined in batches."""
    monkeypatch.setattr(expressions, "BATCH", 4)
    releases = make_releases(count, classes=2 + count % 3)
    found, expected = history(releases, sample=50), twin(releases)
    changes = [n for _, n, _ in expected.values()]
    assert found.by_changes == {n: changes.count(n) for n in sorted(set(changes))}
    returned = sum(bool(back) for *_, back in expected.values())
    assert found.back.value == pytest.approx(returned / 300) if count > 2 else math.isnan(found.back.value)
    for k, release in enumerate(found.releases):
        there = sum(k in back for *_, back in expected.values())
        assert release.back.value == pytest.approx(there / 300) if k > 1 else math.isnan(release.back.value)
    assert len(found.restless) == min(50, sum(n > 0 for n in changes))
    assert [row.changes for row in found.restless] == sorted((n for n in changes if n), reverse=True)[:50]
    for row in found.restless:
        decisions, n, back = expected[row.id["id"]]
        assert (list(row.decisions), row.changes, row.back) == (decisions, n, len(back))


answers = st.lists(st.sampled_from(["a", "b", "c", ""]), min_size=4, max_size=4)
labels = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "", "never decided"]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(answers, labels), min_size=1, max_size=20))
def test_all_pairs_of_any_rows_agree_with_the_twin(rows):
    """Right, wrong and equal are known from positions alone, whatever the decisions are."""
    ids = list(range(len(rows)))
    tables = [pa.table({"id": ids, "prediction": [row[k] for row, _ in rows]}) for k in range(4)]
    tables[2] = tables[2].append_column("y", pa.array([label for _, label in rows], pa.string()))
    found = history(tables, label="y")
    known = [(row, label) for row, label in rows if label is not None]
    for i, j in combinations(range(4), 2):
        change = found.between(i, j)
        assert change.churn.value == pytest.approx(np.mean([row[i] != row[j] for row, _ in rows]))
        if known:
            assert change.broken.value == pytest.approx(np.mean([row[i] == y != row[j] for row, y in known]))
            assert change.fixed.value == pytest.approx(np.mean([row[i] != y == row[j] for row, y in known]))
        else:
            assert math.isnan(change.broken.value)


def test_the_triangle():
    releases = make_releases(5)
    found = history(releases, label="y", names=list("abcde"))
    churn = found.triangle()
    for i, j in combinations(range(5), 2):
        assert churn[i, j] == found.between("abcde"[i], "abcde"[j]).churn.value
        for k in range(i + 1, j):  # what differs between two releases changed on the way
            assert churn[i, j] <= churn[i, k] + churn[k, j] + 1e-12
    assert np.isnan(churn[np.tril_indices(5, -1)]).all()
    assert found.steps == [found.between(i, i + 1) for i in range(4)]
    assert found.since_first == [found.between(0, i) for i in range(1, 5)]
    assert found.between(-2, -1) is found.between("d", "e")
    with pytest.raises(ValueError, match="unknown figure 'chrun'"):
        found.triangle("chrun")
    with pytest.raises(ValueError, match="unknown release 'z'"):
        found.between("a", "z")
    with pytest.raises(ValueError, match="older release first"):
        found.between("b", "a")
    with pytest.raises(ValueError, match=r"position must be in \[-5, 4\]"):
        found.between(0, 5)


def test_a_slice_that_drifts_is_found():
    rng = np.random.default_rng(1)
    rows = 4000
    country = rng.choice(["de", "fr", "it", "es"], rows)
    truth = rng.integers(0, 2, rows)
    wrong = rng.random(rows)
    tables = []
    for i in range(6):
        limit = np.where(country == "it", 0.1 + 0.02 * i, 0.1)
        tables.append(
            pd.DataFrame({"id": range(rows), "y": truth, "prediction": np.where(wrong < limit, 1 - truth, truth)})
        )
    tables[-1]["country"] = country
    found = history(tables, label="y", by="country")
    assert [drift.change.name for drift in found.drifting] == ["country=it"]
    series = [estimate.value for estimate in found.drifting[0].accuracy]
    assert series == sorted(series, reverse=True)
    (drift,) = found.drifting
    outside = audit(*(table[country != "it"] for table in (tables[0], tables[-1])), label="y").accuracy_change
    inside = audit(*(table[country == "it"] for table in (tables[0], tables[-1])), label="y").accuracy_change
    assert drift.beyond.value == pytest.approx(inside.value - outside.value)
    assert drift.beyond.high == pytest.approx(
        drift.beyond.value + math.hypot(inside.high - inside.value, outside.value - outside.low)
    )
    unlabelled = history([table.drop(columns="y") for table in tables], by="country")
    assert [drift.change.name for drift in unlabelled.drifting] == ["country=it"]


def test_a_change_of_all_rows_is_no_drift_of_a_slice():
    """Of 200 histories whose slices mean nothing, at most about 5 % have one that drifts, though accuracy falls."""
    rng = np.random.default_rng(2)
    design = Design(False, False, 0, 0.95)
    alarms = 0
    for _ in range(200):
        kinds = rng.choice(3, 3000, p=[0.9, 0.07, 0.03])  # same, broken, fixed
        slices = rng.choice(6, 3000, p=[0.4, 0.3, 0.2, 0.08, 0.015, 0.005])
        tallies = [tally_of(kinds)] + [tally_of(kinds[slices == k]) for k in range(6)]
        wide = [
            difference(*(design.change(t, 1 - 0.05 / 6) for t in (inside, tallies[0].without(inside))))
            for inside in tallies[1:]
        ]
        alarms += any(e.low > 0 or e.high < 0 for e in wide)
    assert alarms <= 20


def tally_of(kinds):
    tally = Tally()
    for kind, words in enumerate(("right", "broken", "fixed")):
        n = int((kinds == kind).sum())
        tally.add(KINDS[words], n, n, n)
    return tally


def test_q_values_are_over_the_steps():
    found = history(make_releases(6), label="y")
    p = [step.p_value for step in found.steps]
    order = np.argsort(p)
    adjusted = np.minimum.accumulate((np.sort(p) * 5 / np.arange(1, 6))[::-1])[::-1]
    assert [found.steps[k].q_value for k in order] == pytest.approx(list(np.minimum(adjusted, 1)))
    assert math.isnan(found.between(0, 5).q_value)


def test_any_table_and_any_name(tmp_path):
    releases = make_releases(6)
    first, second, third, fourth, fifth, sixth = releases
    (tmp_path / "july").mkdir()
    second.to_parquet(tmp_path / "july" / "v2.model.parquet")
    third.to_csv(tmp_path / "v3.csv.gz", index=False)
    with duckdb.connect(str(tmp_path / "all.duckdb")) as con:
        con.register("frame", pa.Table.from_pandas(fourth, preserve_index=False))
        con.execute("CREATE TABLE v4 AS SELECT * FROM frame")
    given = [
        first,
        tmp_path / "july" / "v2.model.parquet",
        str(tmp_path / "v3.csv.gz"),
        f"{tmp_path}/all.duckdb::v4",
        pl.from_pandas(fifth).lazy(),
        duckdb.from_arrow(pa.Table.from_pandas(sixth, preserve_index=False)),
    ]
    found = history(given, label="y")
    assert found.names == ["release 1", "v2.model", "v3", "v4", "release 5", "release 6"]
    assert np.array_equal(found.triangle("broken"), history(releases, label="y").triangle("broken"), equal_nan=True)
    assert [bool(release.source.sha256) for release in found.releases] == [False, True, True, True, False, False]
    con = ibis.duckdb.connect()
    for i, table in enumerate(releases):
        con.con.register(f"t{i}", pa.Table.from_pandas(table, preserve_index=False))
    there = history([con.table(f"t{i}") for i in range(6)], label="y")
    assert np.array_equal(there.triangle(), found.triangle(), equal_nan=True)


def test_names_of_files_that_are_the_same_are_paths(tmp_path):
    table = make_releases(1)[0]
    for folder in ("v1", "v2"):
        (tmp_path / folder).mkdir()
        table.to_parquet(tmp_path / folder / "rows.parquet")
    paths = [str(tmp_path / folder / "rows.parquet") for folder in ("v1", "v2")]
    assert history(paths).names == paths
    assert history([paths[0], paths[0]]).names == [f"1: {paths[0]}", f"2: {paths[0]}"]
    named = history(dict(zip("ab", paths, strict=True)))
    assert named.names == ["a", "b"]


def test_columns_of_other_names_scores_and_probabilities():
    ids = [1, 2, 3, 4]
    tables = [
        pd.DataFrame({"id": ids, "v1": [0, 0, 1, 1], "y": [0, 1, 1, 1]}),
        pd.DataFrame({"id": ids, "v2": [0, 1, 1, 1]}),
        pd.DataFrame({"id": ids, "v3": [0, 1, 0, 1]}),
    ]
    found = history(tables, label="y", prediction=["v1", "v2", "v3"])
    assert [release.accuracy.value for release in found.releases] == [0.75, 1.0, 0.75]
    scores = [
        pd.DataFrame({"id": ids, "score": s, "y": [0, 1, 1, 1]}) for s in ([0.1, 0.4, 0.9, 0.9], [0.1, 0.6, 0.9, 0.2])
    ]
    assert history(scores, label="y").triangle().tolist()[0] == [0.0, 0.5]
    assert history(scores, label="y", threshold=[0.3, 0.5]).triangle().tolist()[0] == [0.0, 0.25]
    probabilities = [t.assign(proba_0=1 - t.score, proba_1=t.score).drop(columns="score") for t in scores]
    assert history(probabilities, label="y").triangle().tolist()[0] == [0.0, 0.5]
    with pytest.raises(ValueError, match="one for each of 'release 1', 'release 2', 'release 3', got"):
        history(tables, prediction=["v1", "v2"])


def test_a_column_is_that_of_the_newest_release_that_has_it():
    tables = [pd.DataFrame({"id": [1, 2], "prediction": [0, i % 2], "country": [f"c{i}", "same"]}) for i in range(3)]
    tables[2] = tables[2].drop(columns="country")
    assert [drift.change.name for drift in history(tables, by="country").slices] == ["country=c1", "country=same"]


def test_rows_that_not_all_releases_have_are_refused_or_left_out():
    releases = make_releases(3, rows=100)
    first, second, third = releases
    short = third[third.id != 2**60 + 7]
    with pytest.raises(ValueError) as refused:
        history([first, second, short])
    assert str(refused.value) == (
        "audit: all releases must hold the same ids (100 rows in 'release 1' and 99 in 'release 3'), but 1 ids are "
        f"only in the 'release 1' table, such as {2**60 + 7}. Use on_mismatch='inner' to judge the common ones only."
    )
    found = history([first, second, short], on_mismatch="inner", label="y")
    assert found.rows == 99
    assert [release.left_out for release in found.releases] == [1, 1, 0]
    assert "left out up to 1 rows of a release" in found.notes[0]
    kept = [table[table.id != 2**60 + 7] for table in releases]
    assert np.array_equal(found.triangle("broken"), history(kept, label="y").triangle("broken"), equal_nan=True)

    other = third.assign(id=third.id.where(third.id != 2**60 + 7, 5))
    with pytest.raises(ValueError, match=r"only in the 'release 1' .* only in the 'release 3' table, such as 5"):
        history([first, second, other])
    twice = pd.concat([second, second[second.id <= 2**60 + 1]])
    with pytest.raises(ValueError, match=r"2 ids come more than once in the 'release 2' table \(4 rows\), such as"):
        history([first, twice, third])
    # As many rows as there should be, though one id is there twice and another is not: never an answer.
    swapped = second.assign(id=second.id.where(second.id != 2**60 + 7, 2**60 + 8))
    with pytest.raises(ValueError, match="1 ids come more than once in the 'release 2' table"):
        history([first, swapped, third])
    with pytest.raises(ValueError, match="1 ids come more than once"):
        history([swapped, swapped, swapped])
    assert history([first, twice, third], on_mismatch="inner").rows == 98
    empty = second.assign(prediction=second.prediction.where(second.id != 2**60, None))
    with pytest.raises(ValueError, match="1 of 100 rows of the 'release 2' table have no decision"):
        history([first, empty, third])
    assert history([first, empty, third], on_mismatch="inner").rows == 99
    missing = second.assign(id=second.id.astype("Int64").where(second.id != 2**60))
    with pytest.raises(ValueError, match="1 of 100 rows of the 'release 2' table have no id"):
        history([first, missing, third])
    with pytest.raises(ValueError, match="no id of id is in all 3 tables"):
        history([first, second, third.assign(id=range(100))], on_mismatch="inner")


def test_ids_that_repeat_do_not_multiply():
    """A wrong key column in all releases would be a product of millions of rows in a plain join."""
    tables = [pd.DataFrame({"id": 1, "prediction": np.arange(100_000) % 2}) for _ in range(4)]
    with pytest.raises(ValueError, match=r"1 ids come more than once in the 'release 1' table \(100,000 rows\)"):
        history(tables)


def test_other_bad_input(tmp_path):
    releases = make_releases(3, rows=60)
    first, second, third = releases
    path = str(tmp_path / "a.parquet")
    for wrong, words in (
        ([first], "releases must be 2 to 100, got 1"),
        ([first] * 101, "releases must be 2 to 100, got 101"),
        (first, "must be a list of tables or paths, got DataFrame"),
        (path, "must be a list of tables or paths, got str"),
        ([first, path], "no file"),
        ([first, 3], "the 'release 2' table must be a path"),
        ([first, second.iloc[:0]], "the 'release 2' table must have at least one row"),
    ):
        with pytest.raises(ValueError, match=words):
            history(wrong)
    for arguments, words in (
        ({"names": ["a", "b"]}, "one text for each of 3 releases"),
        ({"names": ["a", "b", "a"]}, r"must differ, got \['a'\] more than once"),
        ({"names": ["a", "", "b"]}, "one text for each of 3 releases"),
        ({"id": "nope"}, "unknown id column in the 'release 1' table 'nope'"),
        ({"label": "z"}, "unknown label column 'z'"),
        ({"on_mismatch": "left"}, "on_mismatch"),
        ({"confidence": 2}, "confidence"),
        ({"weight": "w2"}, "weight 'w2' must be finite and not negative, 1 rows"),
        ({"group": "g2"}, "group 'g2' must be known, 1 rows"),
    ):
        bad = first.assign(w2=np.where(first.id == 2**60, -1.0, 1.0), g2=first.customer.where(first.id != 2**60))
        with pytest.raises(ValueError, match=words):
            history([bad, second, third], **arguments)
    with pytest.raises(ValueError, match="must not be given beside a mapping"):
        history({"a": first, "b": second}, names=["c", "d"])
    with pytest.raises(ValueError, match=r"different labels for 60 ids, such as"):
        history([first.assign(y="a"), second.assign(y="b"), third], label="y")
    with pytest.raises(ValueError, match="'release 2' decision is integer"):
        history([first, second.assign(prediction=1), third])
    scores = [pd.DataFrame({"id": range(8000), "prediction": np.random.default_rng(i).random(8000)}) for i in range(3)]
    with pytest.raises(ValueError, match=r"the 'release 1' table has about .* If they are scores, name them"):
        history(scores)


def test_nothing_is_left_behind(tmp_path):
    history(make_releases(3), label="y", temp_directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError):
        history(make_releases(3), id="nope", temp_directory=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_as_json_and_as_words():
    found = history(make_releases(3), label="y", by="country", names=["v1", "v2", "v3"])
    read = json.loads(found.to_json())
    assert read == found.to_dict()
    assert [(pair["old"], pair["new"]) for pair in read["pairs"]] == [(0, 1), (0, 2), (1, 2)]
    assert read["releases"][0]["back"]["value"] is None
    said = str(found)
    assert said.startswith("3 releases on 300 rows, v1 to v3: ")
    assert "changed back to a decision of an earlier release" in said
    assert found.restless[0].changes == 2
    assert "<table>" in found._repr_html_()
    same = history([make_releases(1)[0]] * 2)
    assert "0.00 %" in str(same)
    assert "There are no labels" in str(same)
    assert same.restless == ()


def chained():
    """Everything that a history asks of an engine, on tables that exist only by name."""
    schema = {"id": "int64", "y": "string", "prediction": "string", "w": "float64", "g": "int64", "country": "string"}
    tables = {f"'v{i}'": ibis.table(schema, name=f"v{i}") for i in range(3)}
    types = {side: Schema.of(dict(table.schema().items())) for side, table in tables.items()}
    columns = resolve(types, Settings(label="y", by="country", weight="w", group="g"))
    sides = [project(t, columns, side, schema if side != "'v2'" else ()) for side, t in tables.items()]
    parts = [expressions.numbered(expressions.once_each(rows), i) for i, rows in enumerate(sides)]
    rows = expressions.compared(expressions.join(parts), 3)
    conditions = expressions.totals(rows, 3) | expressions.moves(rows, [(0, 1), (1, 2)]) | expressions.returns(rows, 3)
    return {
        "rows": rows,
        "checks": expressions.join_checks(rows),
        "sums": expressions.sums(rows, conditions, {}),
        "sums by slice and unit": expressions.sums(rows, conditions, {"value": rows.b0, "unit": rows.g}),
        "by changes": expressions.by_changes(rows),
        "most changed": expressions.most_changed(rows, 10),
    }


@pytest.mark.parametrize("dialect", ["duckdb", "pyspark"])
@pytest.mark.parametrize("name", list(chained()))
def test_the_same_expression_compiles_for_both_engines(dialect, name, monkeypatch):
    if ibis.options.pyspark is None:  # known only once a Spark is connected
        monkeypatch.setattr(ibis.options, "pyspark", SparkOptions())
    assert "SELECT" in str(ibis.to_sql(chained()[name], dialect=dialect))


def test_rows_whose_id_comes_once_are_found_in_two_ways():
    """By groups, and by a window in databases that have no first value of a group."""
    rows = ibis.memtable(pd.DataFrame({"k0": [1, 2, 2, None, 3, None], "d": list("abcdef")}))
    found = [ibis.duckdb.connect().execute(expressions.once_each(rows, quick)) for quick in (True, False)]
    assert [sorted(zip(table.k0, table.d, strict=True)) for table in found] == [[(1, "a"), (3, "e")]] * 2
