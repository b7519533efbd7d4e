"""The one pass over both tables against a slow twin: ids that are missing, repeated or on one side only."""

import io
import json
import math
import sys
import threading
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from sklearn.metrics import log_loss

import lowchurn
from lowchurn.audit import _cells as cells
from lowchurn.audit._audit import audit_tables
from lowchurn.audit._counts import LOSS_BAGS
from lowchurn.audit._history import history_of_tables
from lowchurn.audit._joins import BOTH
from lowchurn.audit._pairs import has_repeats
from lowchurn.audit._progress import shown_progress
from lowchurn.audit._settings import Settings
from lowchurn.cli import _printing
from tests.audit.conftest import make_tables

COUNTED = ("all", "changed", "labelled", "broken", "fixed", "lateral")
many = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])

small = st.one_of(st.none(), st.integers(0, 2))
decision = st.sampled_from(["a", "a", "b", "b", "c", None])
row = st.fixed_dictionaries(
    {
        "k": small,
        "j": st.one_of(st.none(), st.integers(0, 1)),
        "prediction": decision,
        "y": decision,
        "w": st.sampled_from([0.0, 0.5, 2.0]),
        "g": st.sampled_from(["x", "y", "z"]),
        "s": st.sampled_from(["north", "south", None]),
    }
)


def table(rows, names):
    types = {"k": pa.int64(), "j": pa.int64(), "w": pa.float64()}
    return pa.table({name: pa.array([r[name] for r in rows], types.get(name, pa.string())) for name in names})


def key(r):
    return None if r["k"] is None or r["j"] is None else (r["k"], r["j"])


def pairs_of(old, new):
    """The pairs that can be judged: known ids that come once in both tables, two decisions, a weight above 0."""
    times = [Counter(map(key, side)) for side in (old, new)]
    partner = {key(r): r for r in new}
    return [
        (r, partner[key(r)])
        for r in old
        if key(r) is not None
        and times[0][key(r)] == times[1][key(r)] == 1
        and r["prediction"] is not None
        and partner[key(r)]["prediction"] is not None
    ]


def tally(pairs):
    found = dict.fromkeys(COUNTED, 0.0)
    for a, b in pairs:
        before, after, truth, w = a["prediction"], b["prediction"], a["y"], a["w"]
        found["all"] += w
        found["changed"] += w * (before != after)
        if truth is not None:
            found["labelled"] += w
            found["broken"] += w * (before == truth != after)
            found["fixed"] += w * (before != truth == after)
            found["lateral"] += w * (before != truth != after != before)
    return found


@many
@given(st.lists(row, min_size=1, max_size=12), st.lists(row, min_size=1, max_size=12))
def test_whatever_the_ids_are_the_sound_pairs_are_counted(old, new):
    names = ("k", "j", "prediction")
    arguments = {"id": ["k", "j"], "label": "y", "by": "s", "weight": "w", "group": "g"}
    tables = table(old, (*names, "y", "w", "g", "s")), table(new, names)
    paired = pairs_of(old, new)
    heavy = [pair for pair in paired if pair[0]["w"] > 0]
    if not heavy:
        with pytest.raises(ValueError, match="in common|all zero|is 0 in every row"):
            lowchurn.audit.audit(*tables, **arguments, on_mismatch="inner")
        return
    audit = lowchurn.audit.audit(*tables, **arguments, on_mismatch="inner")
    expected = tally(heavy)
    assert {name: audit.whole.weight[name] for name in COUNTED} == pytest.approx(expected)
    rows = audit.rows
    assert (rows.old, rows.new, rows.paired) == (len(old), len(new), len(heavy))
    assert (rows.left_out_old, rows.left_out_new) == (len(old) - len(paired), len(new) - len(paired))
    for side, there in (("repeated_old", old), ("repeated_new", new)):
        times = Counter(key(r) for r in there if key(r) is not None)
        assert getattr(rows, side) == sum(n for n in times.values() if n > 1)
    by_slice = {s.value: s for s in audit.slices}
    for value in {a["s"] for a, _ in heavy}:
        inside = tally([pair for pair in heavy if pair[0]["s"] == value])
        found = by_slice["(missing)" if value is None and value not in by_slice else value]
        assert found.churn.value == pytest.approx(inside["changed"] / inside["all"])
    assert audit.design.groups == len({a["g"] for a, _ in heavy})
    flips = {(f["k"], f["j"]): (f["old"], f["new"]) for f in audit.flips}
    changed = [(a, b) for a, b in heavy if a["prediction"] != b["prediction"]]
    assert flips == {key(a): (a["prediction"], b["prediction"]) for a, b in changed}


@many
@given(st.lists(row, min_size=1, max_size=6), st.lists(row, min_size=1, max_size=6))
def test_every_unsound_id_is_refused_by_its_kind(old, new):
    names = ("k", "j", "prediction")
    tables = table(old, (*names, "y")), table(new, names)
    arguments = {"id": ["k", "j"], "label": "y"}
    reason = None
    for side, there in (("new", new), ("old", old)):  # what is said of the old table comes first
        if any(key(r) is None for r in there):
            reason = f"of the {side} table have no id"
        elif any(r["prediction"] is None for r in there):
            reason = f"of the {side} table have no decision"
    if reason is None:
        for side, there in (("new", new), ("old", old)):
            if repeated := sum(n > 1 for n in Counter(map(key, there)).values()):
                reason = f"{repeated} ids come more than once in the {side} table"
    if reason is None and {*map(key, old)} != {*map(key, new)}:
        side, lonely = max(("old", {*map(key, old)} - {*map(key, new)}), ("new", {*map(key, new)} - {*map(key, old)}),
                           key=lambda found: bool(found[1]))  # fmt: skip
        reason = f"{len(lonely)} ids are only in the {side} table, such as"
    if reason is None:
        assert lowchurn.audit.audit(*tables, **arguments).rows.paired == len(old)
    else:
        with pytest.raises(ValueError, match=reason):
            lowchurn.audit.audit(*tables, **arguments)


@given(st.lists(st.integers(0, 4), max_size=9), st.lists(st.integers(0, 4), max_size=9), st.integers(0, 3))
def test_sizes_alone_show_repeats(old, new, no_id):
    """The sums of ``a``, ``b`` and ``a b`` are equal only where all are 1; rows without an id hide nothing."""
    times = Counter(old), Counter(new)
    checks = {
        "matched": sum(times[0][k] * times[1][k] for k in times[0]),
        "only_old": sum(n for k, n in times[0].items() if k not in times[1]),
        "only_new": sum(n for k, n in times[1].items() if k not in times[0]),
        "repeated_alone": sum(n > 1 and k not in b for a, b in (times, times[::-1]) for k, n in a.items()),
    }
    found = {"old": {"rows": len(old) + no_id, "no_id": no_id}, "new": {"rows": len(new), "no_id": 0}}
    assert has_repeats(found, checks) == any(n > 1 for side in times for n in side.values())


score = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([math.nan, -0.5, 1.5]))


@many
@given(st.lists(st.tuples(score, score, st.sampled_from([0, 1, 2, None])), min_size=1, max_size=12))
def test_scores_that_are_no_probabilities_are_not_used_as_such(rows):
    before, after, labels = zip(*rows, strict=True)
    old = pd.DataFrame({"id": range(len(rows)), "score": before, "y": pd.array(labels, "Int64")})
    new = pd.DataFrame({"id": range(len(rows)), "score": after})
    kept = [(a, b, y) for a, b, y in rows if a == a and b == b]
    known = [y for _, _, y in kept if y is not None]
    arguments = {"label": "y", "classes": (0, 1), "on_mismatch": "inner", "bootstrap": 100}
    if not kept or (known and set(known) == {2}):
        with pytest.raises(ValueError, match="in common|none of the classes"):
            lowchurn.audit.audit(old, new, **arguments)
        return
    audit = lowchurn.audit.audit(old, new, **arguments)
    assert audit.whole.n["changed"] == sum((a >= 0.5) != (b >= 0.5) for a, b, _ in kept)
    if not all(0 <= p <= 1 for a, b, _ in rows for p in (a, b)):
        assert audit.soft == {}
        assert any("not taken for probabilities" in note for note in audit.notes)
        return
    p, q = (np.array([[1 - r[i], r[i]] for r in kept]) for i in (0, 1))
    logs = [np.log(np.maximum(x, 1e-7)) for x in (p, q)]
    assert audit.soft["soft_churn"].value == pytest.approx((p * (logs[0] - logs[1])).sum(axis=1).mean(), abs=1e-12)
    assert audit.moved == sum(a != b for a, b, _ in kept)
    at = [i for i, (_, _, y) in enumerate(kept) if y in (0, 1)]
    if at:
        truth = np.array([kept[i][2] for i in at])
        loss = -logs[1][at, truth].mean()
        assert audit.soft["log_loss_new"].value == pytest.approx(loss)
        assert audit.soft["brier_new"].value == pytest.approx(((q[at, 1] - truth) ** 2).mean())


def test_the_first_of_two_probabilities_is_read_once_where_the_second_leaves_it():
    rng = np.random.default_rng(0)
    p, q, y = rng.random(200), rng.random(200), rng.integers(0, 2, 200)
    p[:2] = 0.0, 1.0
    exact = [pd.DataFrame({"id": range(200), "proba_0": 1 - x, "proba_1": x}) for x in (p, q)]
    near = [table.assign(proba_0=table.proba_0.clip(1e-9)) for table in exact]
    found, other = (lowchurn.audit.audit(a.assign(y=y), b, label="y", bootstrap=100) for a, b in (exact, near))
    assert found.soft["log_loss_new"].value == pytest.approx(log_loss(y, q))
    assert found.soft["brier_old"].value == pytest.approx(((p - y) ** 2).mean())
    assert found.to_dict()["flip_matrix"] == other.to_dict()["flip_matrix"]
    for name, estimate in found.soft.items():
        assert estimate.value == pytest.approx(other.soft[name].value, rel=1e-6), name
        assert (estimate.low, estimate.high) == pytest.approx((other.soft[name].low, other.soft[name].high), rel=1e-6)


def test_probability_columns_with_gaps_are_refused():
    old, new = make_tables(30, 2)
    names = [name for name in old if name.startswith("proba_")]
    for bad, words in ((math.nan, "finite"), (-0.5, r"in \[0, 1\]"), (0.2, "sum to 1, 30 of 30")):
        with pytest.raises(ValueError, match=words):
            lowchurn.audit.audit(old, new.assign(prediction="class 0", **{names[0]: bad, names[1]: 0.5}), label="y",
                                 prediction="prediction")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("proba_0", math.nan),
        ("proba_1", -0.5),
        ("proba_0", 0.2),
        ("proba_0", 1e-9),
        ("score", 1.5),
        ("score", math.nan),
    ],
)
def test_what_the_first_rows_do_not_show_the_pass_does(name, value, monkeypatch):
    """Whether a row is among those that are looked at beforehand or not, the result or the refusal is the same."""
    rng = np.random.default_rng(5)
    p, q, y = rng.random(40), rng.random(40), rng.integers(0, 3, 40)  # 2 is none of the classes
    p[30] = 1.0
    tables = [pd.DataFrame({"id": range(40), "prediction": x > 0.5, "score": x}) for x in (p, q)]
    if name != "score":
        tables = [t.drop(columns="score").assign(proba_0=1 - t.score, proba_1=t.score) for t in tables]
    tables[0] = tables[0].assign(y=y)
    tables[0].loc[30, name] = value
    found = []
    for first in (1_000, 20):
        monkeypatch.setattr("lowchurn.audit._pairs.FIRST_ROWS", first)
        try:
            how = {"score": "score"} if name == "score" else {}
            audit = lowchurn.audit.audit(*tables, label="y", prediction="prediction", bootstrap=100, **how)
            found.append((audit.notes, audit.soft, audit.moved))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]
    if value == 1e-9:  # sound, and not what the other leaves
        assert found[0][1]["brier_old"].n == (y < 2).sum()
    elif name == "score":
        assert "not taken for probabilities" in found[0][0][0]
    else:
        assert "1 rows" in found[0] or "1 of 40 rows" in found[0]


def test_an_id_without_a_partner_that_comes_with_two_decisions_is_a_repeated_one():
    old = pd.DataFrame({"id": [1, 2, 2], "prediction": ["a", "a", "b"]})
    new = pd.DataFrame({"id": [1], "prediction": ["a"]})
    with pytest.raises(ValueError, match=r"1 ids come more than once in the old table \(2 rows\), such as 2"):
        lowchurn.audit.audit(old, new)
    assert lowchurn.audit.audit(old, new, on_mismatch="inner").rows.repeated_old == 2


def test_two_labels_of_one_row_are_shown_with_its_id():
    old = pd.DataFrame({"id": [1, 2, 3], "prediction": ["a", "a", "b"], "y": ["a", "b", None]})
    new = pd.DataFrame({"id": [3, 2, 1], "prediction": ["a", "a", "b"], "y": ["b", "a", "a"]})
    with pytest.raises(ValueError, match="different labels for 1 ids, such as 2"):
        lowchurn.audit.audit(old, new, label="y")


def test_one_query_reads_both_tables(monkeypatch, tmp_path):
    """Nothing but what was counted is stored: a few cells, and a row for each pair that differs."""
    old, new = make_tables(2_000, 2, seed=3)
    for name, frame in (("old", old), ("new", new)):
        frame[[c for c in frame if not c.startswith("proba_")]].to_parquet(tmp_path / f"{name}.parquet")
    kept = []
    keep = lowchurn.audit._sources.Engine.keep
    monkeypatch.setattr(
        lowchurn.audit._sources.Engine,
        "keep",
        lambda self, t, *how, **few: kept.append(keep(self, t, *how, **few)) or kept[-1],
    )
    paths = tmp_path / "old.parquet", tmp_path / "new.parquet"
    audit = lowchurn.audit.audit(*paths, label="y", by="country")
    assert len(kept) == 1
    singled = audit.engine.count(kept[0].filter(kept[0].part == cells.SINGLED))
    assert singled == audit.whole.n["changed"]
    assert audit.engine.count(kept[0]) < singled + 100
    assert set(audit.engine.fetch(kept[0].select("side").distinct())["side"]) == {BOTH, None}


def aggregates(plan):
    """Every group-by of a plan of DuckDB: its kind and what it adds up."""
    if "GROUP_BY" in plan["name"]:
        yield plan["name"], str(plan["extra_info"].get("Aggregates", ""))
    for child in plan["children"]:
        yield from aggregates(child)


def test_losses_are_added_up_without_a_hash_table(monkeypatch):
    """A bag and two bins are one key of 16 bits, which is a place in an array: half the time of a hash table."""
    plans = []

    def keep(self, table, *how, **few):
        found = self.backend.con.execute(f"EXPLAIN (FORMAT json) {self.backend.compile(table)}").fetchall()
        plans.extend(json.loads(found[0][1]))
        return kept(self, table, *how, **few)

    kept = lowchurn.audit._sources.Engine.keep
    monkeypatch.setattr(lowchurn.audit._sources.Engine, "keep", keep)
    audit = lowchurn.audit.audit(*make_tables(12_000, 2), label="y", bootstrap=100)
    assert audit.soft["brier_change"].effective == LOSS_BAGS
    assert {kind for plan in plans for kind, sums in aggregates(plan) if "sum" in sums} == {"PERFECT_HASH_GROUP_BY"}


def test_the_rows_that_were_read_are_shown():
    old, new = make_tables(500, 2)
    calls = []
    audit_tables(old, new, Settings(label="y"), show=lambda done, rows: calls.append((done, rows)))
    assert calls[-1] == (1000, 1000)
    assert calls == sorted(calls)
    history_of_tables({"a": old, "b": new, "c": old}, Settings(label="y"), show=lambda *call: calls.append(call))
    assert calls[-1] == (1500, 1500)


class SlowConnection:
    """A connection whose query has read more each time; its plan holds 100 rows beside the 100 of the tables."""

    def __init__(self, plan):
        self.plan, self.progress, self.settings = plan, iter((-1.0, 10.0, 25.0, 20.0, 50.0, 90.0)), []
        self.asked = threading.Event()

    def execute(self, query):
        self.settings.append(query)
        return self

    def fetchall(self):
        return [("physical_plan", self.plan)]

    def query_progress(self):
        try:
            return next(self.progress)
        except StopIteration:
            self.asked.set()
            return 100.0


@pytest.mark.parametrize(
    ("plan", "rows"),
    [
        ('[{"name": "HASH_GROUP_BY", "extra_info": {"Estimated Cardinality": "100"}, "children": ['
         '{"name": "PROJECTION", "extra_info": {"Estimated Cardinality": "7"}, "children": ['
         '{"name": "READ_PARQUET", "extra_info": {"Estimated Cardinality": "100"}, "children": []}]}]}]',
         [0, 20, 50, 50, 100, 100]),
        ("no plan", [0, 10, 25, 25, 50, 90]),
    ],
)  # fmt: skip
def test_rows_are_the_share_of_the_tables_in_what_the_database_expects(plan, rows, monkeypatch):
    monkeypatch.setattr("lowchurn.audit._progress.POLL", 0.001)
    con, calls = SlowConnection(plan), []
    with shown_progress(con, "CREATE TABLE ...", 100, lambda done, all: calls.append(done)):
        con.asked.wait(10)
    assert calls[: len(rows)] == rows
    assert calls[-1] == 100
    assert con.settings[-1] == "SET enable_progress_bar = false"


def test_the_bar_is_for_long_runs_on_terminals_only(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with _printing.rows_bar() as show:
        assert show is None
    written.isatty = lambda: True
    monkeypatch.setenv("TERM", "xterm")
    with _printing.rows_bar() as show:
        show(5, 2_000)
    assert written.getvalue() == ""
    monkeypatch.setattr(_printing, "QUIET", -1.0)
    with _printing.rows_bar() as show:
        show(1_000, 2_000)
    assert "1,000 of 2,000 rows" in written.getvalue()


@pytest.mark.parametrize("share", [1.0, 0.05], ids=["a wrong key column", "a row in twenty without a real id"])
def test_ids_that_repeat_in_both_tables_do_not_multiply(share):
    """Their pairs would be billions; they are found in a sample before the join."""
    rows = 300_000
    ids = np.where(np.arange(rows) < share * rows, -1, np.arange(rows))
    old, new = (pd.DataFrame({"id": ids, "prediction": (np.arange(rows) + i) % 2}) for i in range(2))
    with pytest.raises(ValueError, match=rf"1 ids come more than once in the old table \({share * rows:,.0f} rows\)"):
        lowchurn.audit.audit(old, new)
    if share < 1:
        old["size"] = np.arange(rows) % 1_000  # how it is cut depends on the rows that have a partner
        found = lowchurn.audit.audit(old, new, on_mismatch="inner", by="size").rows
        assert (found.paired, found.repeated_old, found.repeated_new) == (285_000, 15_000, 15_000)
