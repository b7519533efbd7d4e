"""The evidence for the dial from rows made by hand, whose answers are known."""

import math

import pytest

from lowchurn.bench.dial import along_the_dial, dial_table, dial_tables, dial_variants, parameters, ratio_table
from lowchurn.bench.report import write_report, write_tables
from lowchurn.bench.store import Store
from lowchurn.bench.tables import win_counts
from tests.bench.test_tables import BASE


def row(dataset, strategy, setting, accuracy, churn, **more):
    start = parameters(setting).get("start", "warm")
    values = {"dataset": dataset, "strategy": strategy, "setting": setting, "accuracy": accuracy, "churn": churn}
    return BASE | values | {"start": start, "data": dataset} | more


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
    found = {labels[0]: (labels[1:], cells[0].value) for labels, cells in table.rows}
    counts, ratio = found["soup"]
    assert counts == ("2", "1", "1", "0", "0")  # compared, lower in, only this, only distillation, neither
    assert ratio == pytest.approx(math.sqrt(0.5 * 2.0))
    assert found["two-teachers"] == (("1", "0", "0", "1", "1"), pytest.approx(2.0))
    assert found["two-teachers soup"] == (("1", "1", "0", "0", "0"), pytest.approx(1 / 3))
    assert found["warm"][0] == ("0", "0", "1", "1", "0")
    assert math.isnan(found["warm"][1])
    assert found["focal"][0] == ("0", "1", "0", "0", "0")
    assert "1 comparisons with a churn of zero are left out of the mean." in table.notes


def test_the_dial_is_a_curve_beside_distillation():
    (raw,) = dial_variants(ROWS)
    points = along_the_dial(ROWS, raw, "fcn-1000")
    assert {p["dataset"] for p in points} == {"adult", "bank", "wilt"}
    soup = [(p["setting"], p["churn"]) for p in points if p["dataset"] == "adult" and p["series"] == "soup"]
    assert sorted(soup) == [(0.0, 5.0), (0.5, 3.0), (0.9, 1.0)]
    kinds = {p["series"] for p in points}
    assert kinds == {"soup", "cold start", "distill, warm start", "distill, cold start"}


def test_tables_figures_and_page_are_written(tmp_path):
    figures = pytest.importorskip("lowchurn.bench.figures")
    pytest.importorskip("vl_convert")
    names = [table.name for _, table in dial_tables(ROWS)]
    assert names == [f"dial-{network}{what}" for network in ("fcn-10", "fcn-1000") for what in ("", "-wins", "-ratio")]
    store = Store(tmp_path / "store")
    store.append(ROWS)
    written = {path.name for path in write_tables(store, tmp_path)}
    assert "dial-fcn-1000-ratio-raw-both.md" in written
    page = write_report(store, tmp_path).read_text()
    assert "two-teachers soup" in page
    assert (tmp_path / "figures" / "dial-fcn-1000-raw-both.png").stat().st_size > 5000
    (raw,) = dial_variants(ROWS)
    assert figures.dial_figure(OTHERS[:2], raw) is None
    both = figures.dial_figure(ROWS, raw).to_dict()
    assert {value["where"] for value in both["data"]["values"]} >= {"adult, fcn-10", "adult, fcn-1000"}
