"""Audits of numbers: every figure against pandas and scipy, under weights and groups; coverage; invariances."""

import math

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from scipy import stats

from lowchurn._estimates import proportion
from lowchurn.audit import NumberAudit, audit
from lowchurn.audit._number_inference import FEW, FIGURES
from tests.audit.numbers import make_numbers, mean_interval, paired, root_change

DESIGNS = {
    "plain": {},
    "weighted": {"weight": "w"},
    "grouped": {"group": "customer"},
    "both": {"weight": "w", "group": "customer"},
}


def ends(estimate):
    return estimate.value, estimate.low, estimate.high


def check_means(found, rows, groups):
    """The means of an audit, or of a slice, against those of its rows."""
    known = rows[rows.y.notna()]
    inside = None if groups is None else known[groups]
    outside = None if groups is None else rows[groups]
    assert ends(found.mean_move) == pytest.approx(mean_interval(rows.move, rows.weight, outside))
    for name in ("loss_old", "loss_new", "loss_change"):
        assert ends(getattr(found, name)) == pytest.approx(mean_interval(known[name], known.weight, inside)), name
    assert ends(found.rmse_change) == pytest.approx(root_change(known, inside))
    mse = np.average((known.old - known.y) ** 2, weights=known.weight)
    assert found.rmse_old.value == pytest.approx(math.sqrt(mse))


@pytest.mark.parametrize("design", DESIGNS)
def test_figures_are_those_of_pandas_and_scipy(design):
    old, new = make_numbers(300, targets=0.8)
    how = DESIGNS[design]
    found = audit(old, new, value="yhat", target="y", tolerance=0.1, by=["country"], **how)
    assert isinstance(found, NumberAudit)
    rows = paired(old, new, weight=how.get("weight"))
    known = rows[rows.y.notna()]
    moved = rows.move.abs() > 0.1
    assert found.rows.paired == len(rows)
    assert found.moved.value == pytest.approx(np.average(moved, weights=rows.weight))
    assert found.worse.value == pytest.approx(np.average(known.loss_change > 0.1, weights=known.weight))
    assert found.better.value == pytest.approx(np.average(known.loss_change < -0.1, weights=known.weight))
    assert found.moved.n == len(rows)
    assert found.worse.n == found.loss_change.n == len(known)
    check_means(found, rows, how.get("group"))
    for s in found.slices:
        inside = rows[rows.country == s.value]
        assert s.rows == len(inside)
        assert s.moved.value == pytest.approx(np.average(inside.move.abs() > 0.1, weights=inside.weight))
        check_means(s, inside, how.get("group"))
        assert found.estimate("loss_change", 0.9, s.name).low > s.loss_change.low


def test_without_weights_they_are_the_paired_t_test_and_exact_shares():
    old, new = make_numbers(200, seed=1)
    found = audit(old, new, value="yhat", target="y", tolerance=0.3, by="country")
    rows = paired(old, new)
    test = stats.ttest_rel(rows.loss_new, rows.loss_old)
    assert (found.loss_change.low, found.loss_change.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert found.paired_test.p_value == pytest.approx(test.pvalue)
    assert ends(found.moved) == ends(proportion((rows.move.abs() > 0.3).mean(), 200))
    slices = {s.value: s for s in found.slices}
    p_values = [stats.ttest_rel(r.loss_new, r.loss_old).pvalue for _, r in rows.groupby("country")]
    assert [slices[value].p_value for value in sorted(slices)] == pytest.approx(p_values)
    q_values = stats.false_discovery_control(p_values)
    assert [slices[value].q_value for value in sorted(slices)] == pytest.approx(q_values)


@pytest.mark.parametrize("design", DESIGNS)
def test_quantiles_are_those_of_numpy(design):
    old, new = make_numbers(400, seed=2)
    how = DESIGNS[design]
    found = audit(old, new, value="yhat", by="country", **how)
    rows = paired(old, new, weight=how.get("weight"))
    parts = [(found.quantiles, rows)] + [(s.quantiles, rows[rows.country == s.value]) for s in found.slices]
    for quantiles, inside in parts:
        for level, estimate in quantiles.items():
            if "weight" in how:
                expected = np.quantile(inside.move, float(level), weights=inside.weight, method="inverted_cdf")
            else:
                expected = np.quantile(inside.move, float(level))
            assert estimate.value == pytest.approx(expected)
            assert estimate.low <= estimate.value <= estimate.high
    assert set(found.quantiles) == {"0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99"}


def test_the_interval_of_a_quantile_is_made_of_order_statistics():
    old, new = make_numbers(1000, seed=3)
    moves = np.sort(paired(old, new).move)
    median = audit(old, new, value="yhat").quantiles["0.5"]
    low, high = stats.binom.ppf([0.025, 0.975], 1000, 0.5).astype(int)  # the next one after the last is the bound
    assert (median.low, median.high) == pytest.approx((moves[low - 1], moves[high]))
    few = audit(old.iloc[:20], new[new.id.isin(old.id[:20])], value="yhat").quantiles
    assert few["0.99"].high == math.inf  # the largest of 20 rows is no bound for the last hundredth
    assert few["0.01"].low == -math.inf
    assert math.isfinite(few["0.5"].high)


numbers = st.floats(-1e6, 1e6).map(lambda v: round(v, 3))


@st.composite
def tables(draw):
    n = draw(st.integers(1, 30))
    column = st.lists(numbers, min_size=n, max_size=n)
    old, shift = draw(column), draw(st.lists(st.sampled_from([0.0, 0.1, -0.1, 5.0, 1e4]), min_size=n, max_size=n))
    y = draw(st.lists(st.one_of(numbers, st.just(math.nan)), min_size=n, max_size=n))
    w = draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=n, max_size=n))
    base = pd.DataFrame(
        {
            "id": range(n),
            "yhat": old,
            "y": y,
            "w": w,
            "customer": draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)),
        }
    )
    return base, base[["id"]].assign(yhat=base.yhat + shift)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(tables(), st.sampled_from(list(DESIGNS)), st.sampled_from([0.0, 0.05, 1.0]), st.booleans())
def test_any_table_has_the_counts_and_means_of_pandas(both, design, tolerance, relative):
    how = DESIGNS[design]
    found = audit(*both, value="yhat", target="y", tolerance=tolerance, relative=relative, **how)
    rows = paired(*both, weight=how.get("weight"))
    known = rows[rows.y.notna()]
    limit = tolerance * rows.old.abs() if relative else tolerance
    counts = found.whole.counts
    assert counts.n["changed"] == ((rows.new - rows.old).abs() > limit).sum()
    assert counts.n["broken"] == (rows.loss_change > limit).sum()
    assert counts.n["fixed"] == (-rows.loss_change > limit).sum()
    assert counts.n["labelled"] == len(known)
    assert found.mean_move.value == pytest.approx(np.average(rows.move, weights=rows.weight), abs=1e-6)
    if len(known):
        assert found.loss_new.value == pytest.approx(np.average(known.loss_new, weights=known.weight), abs=1e-6)
    else:
        assert not found.loss_new.defined
    for name in FIGURES:
        estimate = getattr(found, name)
        assert not estimate.defined or estimate.low <= estimate.value <= estimate.high, name
    assert found.histogram.rows.sum() == found.density.joint.sum() == len(rows)
    sizes = (rows.new - rows.old).abs()
    assert [abs(flip["move"]) for flip in found.flips] == sorted(sizes[sizes > limit], reverse=True)


@pytest.mark.parametrize("design", ["plain", "weighted", "grouped"])
def test_intervals_cover_the_truth(design):
    """Four hundred slices are as many draws from a world whose figures are known."""
    rng = np.random.default_rng(5)
    slices, size = 400, 60
    rows = slices * size
    place = np.repeat([f"s{i:03}" for i in range(slices)], size)
    group = np.arange(rows) // 3
    shared = rng.normal(0, 1, rows // 3)[group] if design == "grouped" else 0.0
    y = rng.normal(0, 10, rows)
    error = rng.normal(0, 1, rows)
    move = rng.normal(0, 0.5, rows) + 0.5 * shared + 0.1
    old = pd.DataFrame(
        {"id": range(rows), "yhat": y + error, "y": y, "s": place, "g": group, "w": rng.choice([1.0, 2.0, 5.0], rows)}
    )
    new = old[["id"]].assign(yhat=old.yhat + move)
    how = {"weighted": {"weight": "w"}, "grouped": {"group": "g"}}.get(design, {})
    found = audit(old, new, value="yhat", target="y", tolerance=0.5, by="s", **how)
    spread = math.sqrt(0.25 + (0.25 if design == "grouped" else 0))
    after = math.sqrt(1 + spread**2)
    folded = after * math.sqrt(2 / math.pi) * math.exp(-0.01 / (2 * after**2)) + 0.1 * math.erf(
        0.1 / (after * math.sqrt(2))
    )
    law = stats.norm(0.1, spread)
    truth = {
        "moved": law.sf(0.5) + law.cdf(-0.5),
        "mean_move": 0.1,
        "loss_old": math.sqrt(2 / math.pi),
        "loss_change": folded - math.sqrt(2 / math.pi),
        "rmse_change": math.sqrt(after**2 + 0.01) - 1,
    }
    least = stats.binom.ppf(0.001, slices, 0.94) / slices  # chance alone, and a little for so few rows
    for name, value in truth.items():
        covered = np.mean([getattr(s, name).low <= value <= getattr(s, name).high for s in found.slices])
        assert least <= covered <= 0.995, (name, covered)
    for level in ("0.05", "0.5", "0.95"):
        value = law.ppf(float(level))
        covered = np.mean([s.quantiles[level].low <= value <= s.quantiles[level].high for s in found.slices])
        assert covered >= least, (level, covered)


def test_a_loss_column_and_a_gain_are_each_others_mirror():
    old, new = make_numbers(150, seed=4)
    rows = paired(old, new)
    old = old.assign(loss=(old.yhat - old.y).abs()).drop(columns="y")
    losses = rows.set_index("id").loss_new
    new = new.assign(loss=losses[new.id].to_numpy())
    by_target = audit(make_numbers(150, seed=4)[0], new, value="yhat", target="y", tolerance=0.2)
    by_loss = audit(old, new, value="yhat", loss="loss", tolerance=0.2)
    by_gain = audit(old.assign(loss=-old.loss), new.assign(loss=-new.loss), value="yhat", gain="loss", tolerance=0.2)
    for name in ("moved", "worse", "better"):
        assert ends(getattr(by_loss, name)) == ends(getattr(by_target, name)) == ends(getattr(by_gain, name))
    assert ends(by_loss.loss_change) == pytest.approx(ends(by_target.loss_change))
    assert by_gain.loss_change.value == pytest.approx(-by_loss.loss_change.value)
    assert by_gain.loss_change.low == pytest.approx(-by_loss.loss_change.high)
    assert not by_loss.rmse_old.defined  # squares of losses are no squared errors
    margin = by_loss.loss_change.value / 2
    assert [a.gate(not_worse_than=abs(margin) + 1).outcome for a in (by_loss, by_gain)] == ["PASS", "PASS"]
    alone = audit(old, new, loss="loss", tolerance=0.2)  # the losses are the numbers too
    assert alone.moved.value == by_loss.worse.value + by_loss.better.value
    renamed = audit(old.rename(columns={"loss": "l1"}), new.rename(columns={"loss": "l2"}), loss=("l1", "l2"))
    assert ends(renamed.loss_change) == ends(by_loss.loss_change)


def test_relative_moves_are_shares_of_the_old_number():
    old = pd.DataFrame({"id": range(6), "v": [100.0, 100.0, -100.0, 0.0, 0.0, 1e-9]})
    new = old[["id"]].assign(v=[104.0, 106.0, -106.0, 0.0, 1e-12, 2e-9])
    found = audit(old, new, value="v", tolerance=0.05, relative=True)
    assert [flip["id"] for flip in found.flips] == [1, 2, 5, 4]  # from 0 any move counts, and none where there is none
    assert audit(old, new, value="v", tolerance=5.0).whole.counts.n["changed"] == 2


def test_the_order_of_rows_and_a_shift_of_all_numbers_change_nothing():
    old, new = make_numbers(120, seed=6)
    first = audit(old, new, value="yhat", target="y", tolerance=0.1, weight="w")
    again = audit(
        old.sample(frac=1, random_state=9), new.iloc[::-1], value="yhat", target="y", tolerance=0.1, weight="w"
    )
    moved = audit(
        old.assign(yhat=old.yhat + 1e6, y=old.y + 1e6), new.assign(yhat=new.yhat + 1e6),
        value="yhat", target="y", tolerance=0.1, weight="w",
    )  # fmt: skip
    for name in FIGURES:
        assert ends(getattr(again, name)) == pytest.approx(ends(getattr(first, name)), rel=1e-9), name
        assert ends(getattr(moved, name)) == pytest.approx(ends(getattr(first, name)), rel=1e-6), name


def test_weights_of_one_change_nothing_and_swapped_tables_mirror_the_change():
    old, new = make_numbers(120, seed=7)
    plain = audit(old, new, value="yhat", target="y", tolerance=0.1)
    ones = audit(old.assign(one=1.0), new, value="yhat", target="y", tolerance=0.1, weight="one")
    for name in ("mean_move", "loss_change", "rmse_change"):
        assert ends(getattr(ones, name)) == pytest.approx(ends(getattr(plain, name)))
    back = audit(new.merge(old[["id", "y"]], on="id"), old.drop(columns="y"), value="yhat", target="y", tolerance=0.1)
    for name in ("mean_move", "loss_change", "rmse_change"):
        value, low, high = ends(getattr(plain, name))
        assert ends(getattr(back, name)) == pytest.approx((-value, -high, -low))
    assert (back.worse.value, back.better.value) == (plain.better.value, plain.worse.value)


def test_nothing_that_moved_is_no_proof_that_nothing_will():
    """Of few rows that agree, t has an interval without any width; two more rows are allowed for."""
    scores = pd.DataFrame({"id": range(20), "score": [0.0, 1.0] * 10})
    found = audit(scores, scores, gain="score")
    assert found.identical
    assert found.loss_change.value == 0
    assert found.loss_change.low == -found.loss_change.high < -0.1
    assert "few" in found.loss_change.method
    assert math.isnan(found.paired_test.p_value)
    assert found.gate(not_worse_than=0.05).outcome == "INCONCLUSIVE"
    many = pd.DataFrame({"id": range(2000), "score": [0.0, 1.0] * 1000})
    assert audit(many, many, gain="score").gate(not_worse_than=0.05).outcome == "PASS"
    worse = scores.assign(score=scores.score * (scores.id > 3))
    assert FEW > audit(scores, worse, gain="score").whole.counts.n["stirred"] > 0


def test_without_a_target_only_moves_are_known():
    old, new = make_numbers(100)
    found = audit(old.drop(columns="y"), new, value="yhat", tolerance=0.1)
    assert found.moved.defined
    assert not any(getattr(found, name).defined for name in FIGURES if name.startswith(("worse", "loss", "rmse")))
    assert "so it is not known whether they got better" in str(found)
    verdict = found.gate(max_worse=0.1, not_worse_than=0.1)
    assert verdict.outcome == "INCONCLUSIVE"
    assert "Give target=, loss= or gain=" in verdict.checks[0].words
    assert "mean" not in found.flips[0]


def test_one_row_and_one_group_have_no_interval():
    old, new = make_numbers(40)
    single = audit(old.iloc[:1], new[new.id == old.id[0]], value="yhat", target="y")
    assert (single.loss_change.low, single.loss_change.high) == (-math.inf, math.inf)
    grouped = audit(old.assign(g=1), new, value="yhat", target="y", group="g")
    assert (grouped.mean_move.low, grouped.mean_move.high) == (-math.inf, math.inf)
    assert grouped.quantiles["0.5"].low == -math.inf
    assert grouped.gate(not_worse_than=100.0).outcome == "INCONCLUSIVE"


def test_large_and_tiny_numbers_keep_their_digits():
    """Squares of losses of 1e90 are no floats, and a small change of large losses is not lost among them."""
    rng = np.random.default_rng(0)
    loss = rng.random(500)
    change = rng.normal(1e-9, 1e-9, 500)
    for scale in (1e-80, 1.0, 1e90):
        old = pd.DataFrame({"id": range(500), "loss": scale * (1000 + loss)})
        new = pd.DataFrame({"id": range(500), "loss": scale * (1000 + loss + change)})
        found = audit(old, new, loss="loss").loss_change
        exact = mean_interval(new.loss - old.loss, np.ones(500))
        assert ends(found) == pytest.approx(exact, rel=1e-6)
