"""Figures: what they show, and that they can be written."""

import pytest

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from lowchurn import _charts as charts
from lowchurn.bench import _figures as figures
from lowchurn.bench._paper import TABLES
from lowchurn.bench._tables import METHODS, averages, variants
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
    title = figures.cost_figure(parts["fcn-20-1000"], RAW).to_dict()["title"]
    assert title == "Cost of error and churn together; fcn-20, initial size 1000; raw-warm; 1 to 2 trials"
    assert "adult, fcn-20, 1000" in {p["where"] for p in figures.pareto_points(rows, RAW)}


def test_the_ablations_line_has_a_gap_where_nothing_is_accurate_enough():
    shares = ((0.0, 0.9), (0.5, 0.1), (1.0, 0.9))
    rows = [model("adult", "anchor-to-distill", f"lam=0.1, share={s}", accuracy, 0.1) for s, accuracy in shares]
    chart = figures.ablation_figure([*ADULT, *rows], RAW).to_dict()
    values = chart["data"]["values"] if "data" in chart else chart["layer"][0]["data"]["values"]
    assert [v["churn"] for v in values] == [pytest.approx(10), None, pytest.approx(10)]


def test_colours_are_distinct():
    assert len(set(figures.COLOURS.values())) == len(METHODS)


def test_every_figure_renders(tmp_path):
    rows = [*ROWS, model("adult", "anchor-to-distill", "lam=0.1, share=0.0", 0.9, 0.1)]
    charts = [
        figures.pareto_figure(rows, RAW),
        figures.cost_figure(rows, RAW),
        figures.paper_figure(rows, RAW, TABLES[0]),
        figures.ablation_figure(rows, RAW),
    ]
    for i, chart in enumerate(charts):
        svg, png = figures.save(chart, tmp_path / f"figure{i}")
        assert svg.read_text().startswith("<svg")
        assert png.read_bytes()[:4] == b"\x89PNG"
        assert png.stat().st_size > 5000
    assert figures.ablation_figure(ROWS, variants(ROWS)[0]) is None
    assert figures.paper_figure(ROWS, RAW, TABLES[1]) is None


def test_characters_that_xml_does_not_have_are_drawn_as_escapes():
    """The renderer aborts the process where it meets one."""
    alt = charts.altair()
    points = alt.Data(values=[{"name": "a\x1b[2J\ufffe caf\u00e9 \U0001f600", "x": 1}])
    chart = charts.styled(alt.Chart(points).mark_point().encode(x="x:Q", y="name:N"), "line\x00")
    assert b"a\\x1b[2J\\ufffe" in charts.rendered(chart, ".svg")
    assert charts.rendered(chart, ".png").startswith(b"\x89PNG")
