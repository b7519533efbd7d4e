"""Figures: what they show, and that they can be written."""

import pytest

pytest.importorskip("vl_convert")

import math

from lowchurn._charts import Axis, Chart, Key, Mark, Panel
from lowchurn.bench import _figures as figures
from lowchurn.bench._paper import TABLES
from lowchurn.bench._tables import METHODS, ablation_table, averages, beside_the_paper, cold_accuracy_table, variants
from tests.bench.test_tables import ADULT, RAW, ROWS, model


def test_pareto_points_leave_beaten_settings_out():
    beaten = model("adult", "distill", "lam=0.9", 0.84, 0.5)
    points = figures.pareto_points([*ADULT, beaten], RAW)
    settings = {p["setting"] for p in points if p["method"] == "distill"}
    assert settings == {"lam=0.1, start=warm", "lam=0.5, start=warm"}


def test_cost_curves_take_the_cheapest_setting():
    points = [p for p in figures.cost_points(ADULT, RAW) if p["method"] == "distill"]
    assert points[0]["cost"] == pytest.approx(15)  # all weight on error: the most accurate setting
    assert points[-1]["cost"] == pytest.approx(1)  # all weight on churn: the one with the least


def test_each_network_and_size_has_a_figure_of_its_own():
    rows = [row | {"network": network} for row in ROWS for network in ("fcn-100", "fcn-20")]
    parts = figures.by_network(averages(rows))
    assert list(parts) == ["fcn-20-1000", "fcn-100-1000"]
    where = [p["where"] for p in figures.pareto_points(parts["fcn-20-1000"], RAW)]
    assert list(dict.fromkeys(where)) == ["adult", "bank"]
    title = figures.cost_figure(parts["fcn-20-1000"], RAW).title
    assert title == "Cost of error and churn together; fcn-20, initial size 1000; raw-warm; 1 to 2 trials"
    assert "adult, fcn-20" in {p["where"] for p in figures.pareto_points(rows, RAW)}  # the initial size is the same


def test_fronts_show_the_settings_behind_them_within_the_frame():
    behind = model("adult", "distill", "lam=0.7", 0.845, 0.15)
    outside = model("adult", "distill", "lam=0.9", 0.2, 0.9)
    chart = figures.pareto_figure([*ADULT, behind, outside], RAW)
    small = [mark.points[0] for mark in chart.marks if mark.style == "setting" and mark.series == "distill"]
    assert len(small) == 3  # those of the front lie under its marks
    assert (pytest.approx(15), pytest.approx(15.5)) in small
    (line,) = [mark for mark in chart.marks if mark.kind == "line"]
    assert [point[0] for point in line.points] == [pytest.approx(1), pytest.approx(6)]


def test_imdb_has_a_column_per_network_with_fronts_above_costs():
    networks = ("transformer-1", "transformer-2", "transformer-4", "transformer-16")
    rows = [row | {"dataset": "imdb", "network": network} for row in ADULT for network in networks]
    rows += [row | {"initial": 100} for row in rows]
    parts = figures.by_size(averages([*rows, *ADULT]), "imdb")
    assert list(parts) == ["imdb-100", "imdb-1000"]
    chart = figures.fronts_and_costs_figure(parts["imdb-1000"], RAW)
    shown = ["transformer-1", "transformer-4", "transformer-16"]  # those of the paper's figure
    assert [panel.title for panel in chart.panels] == shown * 2
    assert [panel.up.name for panel in chart.panels] == ["↑ error, %"] * 3 + ["↑ cost, %"] * 3
    assert chart.size.columns == 3
    assert "imdb, initial size 1000" in chart.title
    assert {key.name for key in chart.key} == {"cold", "anchor", "distill"}
    for panel in chart.panels[3:]:
        for name in ("cold", "anchor", "distill"):  # each method has its colour and its shape in every panel
            points = {(m.colour, m.shape) for m in panel.points if m.series == name}
            assert points == {figures.STYLES[name]}


def test_the_ablations_line_has_a_gap_where_nothing_is_accurate_enough():
    shares = ((0.0, 0.9), (0.5, 0.1), (1.0, 0.9))
    rows = [model("adult", "anchor-to-distill", f"lam=0.1, share={s}", accuracy, 0.1) for s, accuracy in shares]
    chart = figures.ablation_figure(ablation_table([*ADULT, *rows], RAW), RAW)
    (line,) = [mark for mark in chart.marks if mark.kind == "line"]
    assert [point[0] for point in line.points] == [0, 0.5, 1]
    assert [point[1] for point in line.points] == [
        pytest.approx(10),
        pytest.approx(math.nan, nan_ok=True),
        pytest.approx(10),
    ]
    assert len([mark for mark in chart.marks if mark.kind == "point"]) == 2


def test_a_line_is_drawn_in_parts_between_its_gaps():
    line = Mark("line", [(0, 1), (1, 2), (2, math.nan), (3, 1), (4, 2)], "curve")
    panel = Panel(Axis.around([0, 4]), Axis.around([1, 2]), [line])
    assert panel.__html__().count("<polyline") == 2


def test_colours_are_distinct():
    assert len({colour for colour, _ in figures.STYLES.values()}) == len(METHODS)


def test_every_figure_renders(tmp_path):
    rows = [*ROWS, model("adult", "anchor-to-distill", "lam=0.1, share=0.0", 0.9, 0.1)]
    beside = beside_the_paper(cold_accuracy_table(rows, RAW, TABLES[0]))
    made = [
        figures.pareto_figure(rows, RAW),
        figures.cost_figure(rows, RAW),
        figures.paper_figure(beside, RAW),
        figures.ablation_figure(ablation_table(rows, RAW), RAW),
    ]
    for i, chart in enumerate(made):
        svg, png = (tmp_path / f"figure{i}{ending}" for ending in (".svg", ".png"))
        chart.save(svg)
        chart.save(png)
        assert svg.read_text().startswith("<svg")
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert png.stat().st_size > 5000
    raw = variants(ROWS)[0]
    assert figures.ablation_figure(ablation_table(ROWS, raw), raw) is None
    assert figures.paper_figure(beside_the_paper(cold_accuracy_table(ROWS, RAW, TABLES[1])), RAW) is None


def test_characters_that_xml_does_not_have_are_drawn_as_a_replacement_mark():
    """The renderer aborts the process where it meets one."""
    odd = "a\x1b[2J\ufffe <caf\u00e9> \U0001f600"
    point = Mark("point", [(1, 1)], "point", title=odd)
    panel = Panel(Axis.around([1], odd), Axis(0, 2, [(1, odd)]), [point], odd, odd)
    chart = Chart("line\x00", [panel], [Key(odd)], [odd])
    shown = "a\ufffd[2J\ufffd &lt;caf\u00e9&gt; \U0001f600"
    assert chart.svg().count(shown) == 7
    assert odd not in chart.page()
    assert chart.png().startswith(b"\x89PNG")
