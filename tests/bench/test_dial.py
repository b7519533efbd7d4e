"""The evidence for the dial from rows made by hand, whose answers are known."""

import math

import pytest

from lowchurn.bench._against import against_table, noise_table, paired_table, resampled_table, trial_rows
from lowchurn.bench._budgets import budget_tables
from lowchurn.bench._columns import BEST, column_of, in_order, served
from lowchurn.bench._past_paper import (
    along_the_dial,
    dial_table,
    dial_tables,
    dial_variants,
    proportion_table,
    ratio_table,
    that_serve,
)
from lowchurn.bench._report import write_report, write_tables
from lowchurn.bench._segments import setting_of
from lowchurn.bench._store import Store
from lowchurn.bench._tables import averages, variants, win_counts
from tests.bench import parameters
from tests.bench.test_tables import BASE


def row(dataset, strategy, setting, accuracy, churn, **more):
    start = parameters(setting).get("start", "warm")
    values = {"dataset": dataset, "strategy": strategy, "parameters": parameters(setting)}
    return BASE | values | {"accuracy": accuracy, "churn": churn, "start": start, "data": dataset} | more


TEACHERS = "members=8, lam=0.5, students={}, start=warm"
# adult: distillation is better from its cold start (6 %) than from its warm one (8 %); the soup needs half of that.
ADULT = [
    row("adult", "cold", "", 0.80, 0.12),
    row("adult", "distill", "lam=0.3, start=cold", 0.80, 0.06),
    row("adult", "distill", "lam=0.3, start=warm", 0.81, 0.08),
    row("adult", "distill", "lam=0.1, start=warm", 0.79, 0.01),
    row("adult", "warm", "", 0.79, 0.05),
    row("adult", "soup", "members=8, toward_base=0.0", 0.82, 0.05),
    row("adult", "soup", "members=8, toward_base=0.5", 0.80, 0.03),
    row("adult", "soup", "members=8, toward_base=0.9", 0.78, 0.01),
    row("adult", "two-teachers", TEACHERS.format(1), 0.80, 0.12),
    row("adult", "two-teachers", TEACHERS.format(4), 0.80, 0.02),
    row("adult", "focal", "lam=0.5, focus=5.0, start=warm", 0.80, 0.0),
]
# bank: from one start only, and nowhere as accurate as the cold start; the soup is.
BANK = [
    row("bank", "cold", "", 0.90, 0.10),
    row("bank", "distill", "lam=0.3, start=warm", 0.85, 0.02),
    row("bank", "warm", "", 0.90, 0.09),
    row("bank", "soup", "members=8, toward_base=0.5", 0.91, 0.04),
    row("bank", "two-teachers", TEACHERS.format(1), 0.80, 0.01),
]
# wilt: distillation is better than the soup.
WILT = [
    row("wilt", "cold", "", 0.90, 0.10),
    row("wilt", "distill", "lam=0.3, start=warm", 0.90, 0.02),
    row("wilt", "distill", "lam=0.3, start=cold", 0.90, 0.04),
    row("wilt", "soup", "members=8, toward_base=0.5", 0.90, 0.04),
    row("wilt", "two-teachers", TEACHERS.format(1), 0.80, 0.01),
]
# Nothing past the paper was run here, or it was with another network or scale.
OTHERS = [
    row("pollen", "cold", "", 0.90, 0.10),
    row("pollen", "distill", "lam=0.3, start=warm", 0.90, 0.02),
    row("adult", "cold", "", 0.80, 0.12, network="fcn-10"),
    row("adult", "soup", "members=8, toward_base=0.5", 0.80, 0.11, network="fcn-10"),
    row("adult", "cold", "", 0.80, 0.12, scale=True),
    row("adult", "distill", "lam=0.3, start=cold", 0.80, 0.06, scale=True),
]
ROWS = [*ADULT, *BANK, *WILT, *OTHERS]


def test_a_table_of_all_methods_beside_the_better_start():
    (raw,) = dial_variants(ROWS)  # nothing past the paper was run on scaled features
    assert (raw["scale"], raw["start"]) == (False, "both")
    table = dial_table(ROWS, raw, "fcn-1000")
    assert table.columns == ("cold", "warm", "distill", "soup", "two-teachers", "two-teachers soup", "focal")
    shown = {labels[0]: [table.cell(cell) for cell in cells] for labels, cells in table.rows}
    assert shown == {
        "adult": ["12.00", "N/A", "6.00", "3.00", "12.00", "2.00", "0.00"],
        "bank": ["10.00", "9.00", "N/A", "4.00", "N/A", "missing", "missing"],
        "wilt": ["10.00", "missing", "2.00", "4.00", "N/A", "missing", "missing"],
    }
    assert "In 1 of 3 rows distillation was run from one start only." in table.notes
    assert len(dial_table(ROWS, raw).rows) == 4
    wins = dict(zip(table.columns, win_counts(table).rows[0][1], strict=True))
    assert [round(wins[name].value) for name in ("distill", "soup", "focal")] == [33, 33, 33]


def test_ratios_to_distillation_are_geometric_means_over_what_both_define():
    (raw,) = dial_variants(ROWS)
    table = ratio_table(dial_table(ROWS, raw, "fcn-1000"))
    found = {labels[0]: (labels[2:], cells[0].value) for labels, cells in table.rows}
    counts, ratio = found["soup"]
    assert counts == ("2", "1", "1", "0", "0")  # compared, lower in, only this, only distillation, neither
    assert ratio == pytest.approx(math.sqrt(0.5 * 2.0))
    assert found["two-teachers"] == (("1", "0", "0", "1", "1"), pytest.approx(2.0))
    assert found["two-teachers soup"] == (("1", "1", "0", "0", "0"), pytest.approx(1 / 3))
    assert found["warm"][0] == ("0", "0", "1", "1", "0")
    assert math.isnan(found["warm"][1])
    assert found["focal"][0] == ("0", "1", "0", "0", "0")
    assert "1 comparisons with a churn of zero are left out of mean and median." in table.notes


def test_ratios_to_the_best_of_the_paper_take_it_row_by_row():
    (raw,) = dial_variants(ROWS)
    table = ratio_table(dial_table(ROWS, raw, "fcn-1000"), BEST)
    assert table.name == "dial-fcn-1000-best-ratio"
    found = {labels[0]: (labels[2:], cells) for labels, cells in table.rows}
    # The best of the paper: 6 % (distillation), 9 % (warm start, where distillation is N/A), 2 % (distillation).
    counts, (mean, median) = found["soup"]
    assert counts == ("3", "2", "0", "0", "0")
    assert mean.value == pytest.approx((3 / 6 * 4 / 9 * 4 / 2) ** (1 / 3))
    assert median.value == pytest.approx(3 / 6)
    assert found["distill"][0] == ("2", "0", "0", "1", "0")
    assert found["distill"][1][0].value == pytest.approx(1)


def test_methods_that_serve_several_models_can_be_left_out():
    (raw,) = dial_variants(ROWS)
    mixed = row("adult", "served-mix", "members=8, lam=0.5, start=warm", 0.85, 0.001)
    table = dial_table([*ROWS, mixed], raw, "fcn-1000")
    assert "served-mix" in table.columns
    kept = that_serve(table, "1")
    assert kept.columns == tuple(name for name in table.columns if name != "served-mix")
    shown = [dict(zip(t.columns, map(t.cell, t.rows[0][1]), strict=True)) for t in (table, kept)]
    assert shown[0].pop("served-mix") == "0.10"
    assert shown[0] == shown[1]


# Four trials: distillation's lam=0.5 and the soup at 0.5 are chosen, and the soup has 1, 2, 3 and 2 points less.
NOISY = [
    row("adult", strategy, setting, accuracy, churn, trial=trial)
    for strategy, setting, accuracy, churns in (
        ("cold", "", 0.80, (0.12, 0.12, 0.12, 0.12)),
        ("distill", "lam=0.5, start=cold", 0.80, (0.06, 0.07, 0.08, 0.07)),
        ("distill", "lam=0.1, start=warm", 0.79, (0.01, 0.01, 0.01, 0.01)),
        ("soup", "members=8, toward_base=0.0", 0.82, (0.10, 0.10, 0.10, 0.10)),
        ("soup", "members=8, toward_base=0.5", 0.80, (0.05, 0.05, 0.05, 0.05)),
        ("soup", "members=8, toward_base=0.9", 0.78, (0.02, 0.02, 0.02, 0.02)),
    )
    for trial, churn in enumerate(churns)
]


def paired(rows, variant, network):
    return paired_table(averages(rows), trial_rows(rows, variant), variant, network)


def resampled(rows, variant, network):
    return resampled_table(trial_rows(rows, variant), variant, network)


def proportion(rows, variant, network):
    return proportion_table(averages(rows), variant, network)


def test_differences_are_taken_trial_by_trial():
    (raw,) = dial_variants(NOISY)
    ((labels, cells),) = paired(NOISY, raw, "fcn-1000").rows
    assert labels == ("adult", "lam=0.5, start=cold", "toward_base=0.5")
    expected = [7, 5, -2, math.sqrt(2 / 3) / 2]  # the deviation of 1, 2, 3, 2 over the root of 4
    assert [cell.value for cell in cells] == pytest.approx(expected)
    bad = [model for model in NOISY if model["parameters"].get("toward_base") not in (0.0, 0.5)]
    ((labels, cells),) = paired(bad, raw, "fcn-1000").rows
    assert labels[2] == "none"
    assert [math.isnan(cell.value) for cell in cells] == [False, True, True, True]
    # A trial that one of the two lacks is in its average and in no difference.
    some = [model for model in NOISY if not (model["strategy"] == "distill" and model["trial"] == 2)]
    ((_, cells),) = paired(some, raw, "fcn-1000").rows
    assert cells[2].value == pytest.approx(-5 / 3)


def test_drawing_the_trials_again_chooses_the_settings_again():
    (raw,) = dial_variants(NOISY)
    table = resampled(NOISY, raw, "fcn-1000")
    ((labels, cells),) = table.rows
    assert (labels, [table.cell(cell) for cell in cells]) == (("adult",), ["100", "0", "0", "0"])
    # Of four trials only the first makes distillation accurate enough: it is so where this one is drawn at all.
    lucky = [
        model | {"accuracy": 0.9 if model["trial"] == 0 else 0.8 - 1e-9} if model["strategy"] == "distill" else model
        for model in NOISY
    ]
    ((_, cells),) = resampled(lucky, raw, "fcn-1000").rows
    assert cells[3].value == pytest.approx(100 * 0.75**4, abs=3)
    # lam=0.1 with its 1 % is then accurate enough, too, and beats the soup's 5 %.
    assert cells[1].value == pytest.approx(100 - cells[3].value)
    again = resampled(lucky, raw, "fcn-1000").rows[0][1]
    assert [cell.value for cell in again] == [cell.value for cell in cells]


STICKY = "members={}, margin={}, start={}, average={}, toward_base={}"
# Beside them: the estimate of 8 and 8 is as accurate as the cold start up to margin 0.4, one cold retrain nowhere.
STUCK = [
    row("adult", "sticky", STICKY.format(*setting), accuracy, churn, trial=trial)
    for setting, accuracy, churns in (
        ((8, 0.0, "both", "proba", 0.0), 0.83, (0.11, 0.11, 0.11, 0.11)),
        ((8, 0.4, "both", "proba", 0.0), 0.80, (0.02, 0.04, 0.03, 0.03)),
        ((8, 0.8, "both", "proba", 0.0), 0.79, (0.01, 0.01, 0.01, 0.01)),
        ((8, 0.5, "both", "proba", 0.2), 0.80, (0.02, 0.02, 0.02, 0.02)),
        ((8, 0.5, "warm", "weights", 0.0), 0.80, (0.04, 0.04, 0.04, 0.04)),
        ((1, 0.5, "cold", "proba", 0.0), 0.79, (0.02, 0.02, 0.02, 0.02)),
    )
    for trial, churn in enumerate(churns)
]
ESTIMATES = ("sticky 1 cold", "sticky soup", "sticky 8+8", "sticky 8+8 + base")


def test_estimates_of_sticky_are_columns_that_know_what_they_serve():
    assert in_order({column_of(setting_of(r)) for r in STUCK}) == ESTIMATES
    assert [served(name) for name in ESTIMATES] == ["2", "2", "many", "many"]
    names = ("sticky 1 cold + base", "sticky 1 warm", "sticky 8 warm", "soup", "served-mix")
    assert [served(name) for name in names] == ["2", "2", "many", "1", "many"]
    (raw,) = dial_variants(STUCK)
    table = dial_table([*NOISY, *STUCK], raw, "fcn-1000")
    assert table.columns == ("cold", "distill", "soup", *ESTIMATES)
    assert [table.cell(cell) for cell in table.rows[0][1]] == ["12.00", "7.00", "5.00", "N/A", "4.00", "3.00", "2.00"]
    assert that_serve(table, "1").columns == ("cold", "distill", "soup")
    assert that_serve(table, "2").columns == ("cold", "distill", "soup", "sticky 1 cold", "sticky soup")
    ratios = {labels[0]: (labels[1], cells[0].value) for labels, cells in ratio_table(table, "soup").rows}
    assert ratios["sticky soup"] == ("2", pytest.approx(0.8))
    assert ratios["sticky 8+8"] == ("many", pytest.approx(0.6))
    assert "soup" not in ratios
    best = ratio_table(table, BEST)
    assert "Of the paper's methods only these were run: cold, distill." in best.notes


def test_sticky_against_a_reference_trial_by_trial_and_drawn_again():
    rows = [*NOISY, *STUCK]
    (raw,) = dial_variants(rows)
    found, trials = averages(rows), trial_rows(rows, raw)
    table = against_table(found, trials, raw, "fcn-1000", "distill")
    lines = {labels[0]: (labels[1:], [cell.value for cell in cells]) for labels, cells in table.rows}
    labels, values = lines["sticky 8+8"]
    assert labels == ("many", "adult", "lam=0.5, start=cold", "margin=0.4")
    # Churns of 2, 4, 3, 3 less 6, 7, 8, 7.
    assert values[:4] == pytest.approx([7, 3, -4, math.sqrt(2 / 3) / 2])
    assert values[4:] == [100, 0, 0, 0]
    labels, values = lines["sticky 8+8 + base"]
    assert labels[-1] == "margin=0.5, toward_base=0.2"
    labels, values = lines["sticky 1 cold"]
    assert labels[-1] == "none"
    assert values[4:] == [0, 100, 100, 0]
    best = against_table(found, trials, raw, "fcn-1000", BEST)
    assert best.rows[-1][0][3] == "distill lam=0.5, start=cold"
    soup = {labels[0]: cells[2].value for labels, cells in against_table(found, trials, raw, "fcn-1000", "soup").rows}
    assert soup["sticky soup"] == pytest.approx(-1)


def test_ratios_have_intervals_over_draws_of_the_trials():
    rows = [*NOISY, *STUCK]
    (raw,) = dial_variants(rows)
    table = noise_table(trial_rows(rows, raw), raw, "fcn-1000")
    found = {(labels[0], labels[2]): [cell.value for cell in cells] for labels, cells in table.rows}
    low, middle, high, below, compared = found["sticky 8+8", "distillation"]
    assert 0.25 < low < middle < high < 0.6
    assert middle == pytest.approx(3 / 7, rel=0.05)
    assert (below, compared) == (100, 1)
    assert found["sticky soup", "the soup"][:4] == pytest.approx([0.8, 0.8, 0.8, 100])
    assert math.isnan(found["sticky 1 cold", "the soup"][1])
    assert ("soup", "the soup") not in found
    # A trial that one setting lacks is in no draw of it, and does not matter to others.
    fewer = [model for model in rows if not (model["strategy"] == "sticky" and model["trial"] == 3)]
    kept = resampled(fewer, raw, "fcn-1000").rows[0][1]
    assert [cell.value for cell in kept] == [cell.value for cell in resampled(NOISY, raw, "fcn-1000").rows[0][1]]


def test_sticky_rows_make_no_variant_of_their_own(tmp_path):
    rows = [*NOISY, *STUCK]
    assert {variant["start"] for variant in variants(rows)} == {"warm", "cold"}
    assert {variant["start"] for variant in variants(STUCK)} == {"warm"}
    names = [table.name.removeprefix("dial-fcn-1000") for _, table in dial_tables(rows)]
    main = ["", "-wins", "-one-wins", "-two-wins", "-ratio", "-best-ratio", "-soup-ratio"]
    noise = ["-paired", "-resampled", "-resampled-ratio", "-sticky-distill", "-sticky-best", "-sticky-soup", "-along"]
    assert names == main + noise
    store = Store(tmp_path / "store")
    store.append(rows)
    written = {path.name for path in write_tables(store, tmp_path)}
    assert "dial-fcn-1000-sticky-soup-raw-both.md" in written
    broken = STUCK[0] | {"parameters": STUCK[0]["parameters"] | {"start": "hot"}}
    store.append([broken | {"trial": 9}])
    with pytest.raises(ValueError, match="a row that no run makes"):
        write_tables(store, tmp_path)


# Two data sets, two trials: the base has 0.70, the plain retrain gains 8 and 4 points.
KEPT = [
    row(dataset, strategy, setting, accuracy, churn, trial=trial, base_accuracy=0.7)
    for dataset, strategy, setting, accuracies, churn in (
        ("adult", "cold", "", (0.79, 0.77), 0.2),
        ("wilt", "cold", "", (0.74, 0.74), 0.1),
        ("adult", "within", "method=soup, max_churn=0.01", (0.72, 0.72), 0.01),
        ("wilt", "within", "method=soup, max_churn=0.01", (0.70, 0.72), 0.02),
        ("adult", "within", "method=sticky soup, max_churn=0.01", (0.74, 0.74), 0.01),
        ("wilt", "within", "method=sticky soup, max_churn=0.01", (0.72, 0.72), 0.01),
        ("pollen", "within", "method=soup, max_churn=0.01", (0.70, 0.72), 0.02),
    )
    for trial, accuracy in enumerate(accuracies)
]


def test_gains_under_budgets():
    names = {table.name: table for _, table in budget_tables(KEPT)}
    assert list(names) == ["budget-fcn-1000", "budget-fcn-1000-datasets"]
    found = {labels: [cell.value for cell in cells] for labels, cells in names["budget-fcn-1000"].rows}
    assert list(found) == [("1 %", "soup", "1"), ("1 %", "sticky soup", "2"), ("none", "cold", "1")]
    # Gains of 2 and 1 points; the second has an error of 1, half of which is left in the mean of two.
    assert found["1 %", "soup", "1"] == pytest.approx([1.5, 0.5, 100 * 1.5 / 6, 1.5, 50])
    assert found["1 %", "sticky soup", "2"] == pytest.approx([3, 0, 50, 1, 0])
    assert found["none", "cold", "1"][:4] == pytest.approx([6, 0.5, 100, 15])
    table = names["budget-fcn-1000-datasets"]
    assert table.columns == ("cold", "soup", "sticky soup")
    assert [[labels[1], *(round(cell.value) for cell in cells)] for labels, cells in table.rows] == [
        ["adult", 8, 2, 4],
        ["wilt", 4, 1, 2],
    ]
    assert not list(budget_tables([model for model in KEPT if model["strategy"] == "within"]))
    assert not list(budget_tables(ROWS))
    flat = [model | ({"accuracy": 0.7} if model["strategy"] == "cold" else {}) for model in KEPT]
    shares = [cells[2].value for _, cells in next(budget_tables(flat))[1].rows]
    assert all(map(math.isnan, shares))  # of no gain there is no share


def test_how_far_churn_is_from_proportion_along_the_dial():
    (raw,) = dial_variants(ROWS)
    table = proportion(NOISY, raw, "fcn-1000")
    assert table.columns == ("0", "0.5", "0.9", "deviation")
    assert [cell.value for cell in table.rows[0][1]] == pytest.approx([10, 5, 2, 0.1])
    assert not proportion(BANK, raw, "fcn-1000").rows  # nothing at 0 to be in proportion to


def test_the_dial_is_a_curve_beside_distillation():
    (raw,) = dial_variants(ROWS)
    points = along_the_dial(ROWS, raw, "fcn-1000")
    assert {p["dataset"] for p in points} == {"adult", "bank", "wilt"}
    soup = [(p["setting"], p["churn"]) for p in points if p["dataset"] == "adult" and p["series"] == "soup"]
    assert sorted(soup) == [(0.0, 5.0), (0.5, 3.0), (0.9, 1.0)]
    kinds = {p["series"] for p in points}
    assert kinds == {"soup", "cold start", "distill, warm start", "distill, cold start"}


def test_tables_figures_and_page_are_written(tmp_path):
    figures = pytest.importorskip("lowchurn.bench._figures")
    pytest.importorskip("vl_convert")
    names = [table.name for _, table in dial_tables(ROWS)]
    main = ("", "-wins", "-one-wins", "-ratio", "-best-ratio")
    noise = ("-paired", "-resampled", "-along")  # where distillation and a soup were run: not for fcn-10
    assert names == [f"dial-fcn-10{what}" for what in main] + [f"dial-fcn-1000{what}" for what in (*main, *noise)]
    store = Store(tmp_path / "store")
    store.append(ROWS)
    written = {path.name for path in write_tables(store, tmp_path)}
    assert "dial-fcn-1000-ratio-raw-both.md" in written
    page = write_report(store, tmp_path).read_text()
    assert "two-teachers soup" in page
    for name in ("dial-fcn-1000-raw-both", "dial-compared-fcn-1000-raw-both"):
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5000
    (raw,) = dial_variants(ROWS)
    assert figures.dial_figure(OTHERS[:2], raw) is None
    both = figures.dial_figure(ROWS, raw)
    assert {panel.title for panel in both.panels} >= {"adult, fcn-10", "adult, fcn-1000"}


def test_the_figure_sets_what_is_not_accurate_enough_apart(tmp_path):
    figures = pytest.importorskip("lowchurn.bench._figures")
    pytest.importorskip("vl_convert")
    scaled = [model | {"scale": True} for model in ADULT]
    rows = [*ADULT, *BANK, *scaled]
    kinds = dial_variants(rows)
    tables = [(kind, dial_table(rows, kind, "fcn-1000")) for kind in kinds]
    points = figures.compared_points(tables)
    soup = {(p["where"], p["dataset"]): p["churn"] for p in points if p["method"].startswith("soup")}
    expected = {("raw features", "adult"): 3, ("raw features", "bank"): 4, ("standardised features", "adult"): 3}
    assert soup == pytest.approx(expected)
    chart = figures.compared_figure(tables, "fcn-1000")
    shown = [mark for mark in chart.marks if mark.kind == "point"]
    (apart,) = (mark for mark in shown if mark.style == "hollow")
    assert apart.title == "bank, distillation (the paper): not accurate enough"
    assert apart.points[0][0] > max(mark.points[0][0] for mark in shown if mark is not apart)
    svg, png = tmp_path / "compared.svg", tmp_path / "compared.png"
    chart.save(svg)
    chart.save(png)
    assert "no setting is accurate enough" in svg.read_text()
    assert png.stat().st_size > 5000
    other = [(kind, dial_table(OTHERS[:1], kind, "fcn-1000")) for kind in kinds]
    assert figures.compared_figure(other, "fcn-1000") is None
