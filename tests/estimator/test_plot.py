"""The frontier's chart: what it draws, and the files it writes."""

import math
import shutil
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("jinja2")
pytest.importorskip("vl_convert")

from lowchurn import LowChurnClassifier
from lowchurn._charts import Chart, series_styles
from lowchurn._estimates import paired_difference
from lowchurn._html import environment
from lowchurn._tried import read_tried
from lowchurn.audit import audit
from lowchurn.estimator import Candidate, Frontier, Selection
from lowchurn.report import html_page
from lowchurn.strategies import Distill
from tests.report.test_frontier import SETTINGS, frontier, retrained

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def number(value):
    return math.nan if value is None else value


def candidates():
    """The report's synthetic frontier as the estimator keeps it."""
    rows = []
    for row in frontier():
        known = {k: tuple(map(number, v)) if isinstance(v, list) else number(v) for k, v in row.items()}
        parameters = dict(part.split("=") for part in known.pop("setting").split(", ") if part)
        on_dial = {"dial_parameter": "toward_base"} if "toward_base" in parameters else {}
        rows.append(Candidate(**known, parameters=parameters, **on_dial))
    return Frontier(rows)


def selection(name):
    return Selection({name: 1.0}, "", True, 0.3, 0.86, 0.03, 0.01, 3, {"choose": 1000})


def marks(chart, kind, style="", panel=0):
    """Marks of one kind in a panel (accuracy is the first one), and of one style where one is given."""
    return [mark for mark in chart.panels[panel].marks if mark.kind == kind and style in ("", mark.style)]


def test_dials_are_curves_with_bands_and_others_are_points():
    chart = candidates().plot(selection=selection("soup(members=8, toward_base=0.35)"), max_churn=0.035)
    assert chart.title == "Accuracy against churn"
    line, trained = marks(chart, "line")
    assert [mark.series for mark in (line, trained)] == ["soup", "distill"]
    assert trained.points == [(0.019, 0.846), (0.034, 0.851)]  # from the smaller lambda to the larger
    on_dial = [c for c in candidates() if c.strategy == "soup"][::-1]  # from the base to the new model
    assert line.points == [(c.churn, c.accuracy) for c in on_dial]
    band, _ = marks(chart, "band")
    assert len(band.points) == SETTINGS
    assert [len(marks(chart, "point", style)) for style in ("setting", "point", "hollow")] == [SETTINGS + 2, 2, 1]
    ring, below = [mark for mark in chart.marks if mark.chosen]
    assert ring.title == below.title
    assert ring.title.startswith("soup(members=8, toward_base=0.35): ")
    assert [mark.points for mark in marks(chart, "rule", "limit")] == [[(0.035,)]]
    assert [len(marks(chart, "cross", style)) for style in ("setting", "error")] == [SETTINGS + 2, 2]
    assert [entry.name for entry in chart.key] == [
        "plain retrain", "warm", "soup", "distill", "served", "base 84.00 %", "budget 3.5 %",
    ]  # fmt: skip


def test_whiskers_and_bands_are_the_paired_change_against_the_base():
    chart = candidates().plot()
    cold = marks(chart, "cross", "error")[0]
    change = paired_difference(0.05, 0.032, 2000)
    assert cold.points[0] == (0.082, 0.858)
    assert cold.points[2] == pytest.approx((0.84 + change.low, 0.84 + change.high))
    assert "paired" not in chart.notes[-1]
    assert "the change in accuracy against the base on the same rows" in chart.notes[-1]
    band = marks(chart, "band")[0]
    assert [high - low for _, low, high in band.points] == sorted(high - low for _, low, high in band.points)


def test_no_band_lies_beyond_an_accuracy_of_one():
    measured = {"accuracy": 0.99, "churn": 0.2, "fixed": 0.1, "broken": 0.0, "rows": 100}
    (setting,) = read_tried([{"strategy": "cold", **measured}]).points
    assert setting.change.high > 0.11  # the base is at 0.89
    assert setting.accuracy_ends == (pytest.approx(0.89 + setting.change.low), 1.0)


def test_what_is_unknown_is_not_drawn():
    some = Frontier(
        [
            Candidate("cold", accuracy=0.9, churn=0.05, accuracy_interval=(0.88, 0.92)),
            Candidate("warm", accuracy=0.9, churn=math.nan),
            Candidate("mixup", status="failed"),
        ]
    )
    chart = some.plot()
    (point,) = marks(chart, "point")
    assert point.series == "cold"
    (cross,) = marks(chart, "cross")  # neither the churn nor the change against the base has an interval
    assert cross.points == [(0.05, 0.9), (0.05, 0.05), (0.9, 0.9)]
    assert "has no interval here" in chart.notes[-1]


def test_the_chart_is_the_one_of_the_page():
    """One drawing for the page, the notebook and the files."""
    chart = candidates().plot(selection=selection("soup(members=8, toward_base=0.35)"), max_churn=0.035)
    rows = pd.DataFrame({"id": [1, 2], "prediction": ["a", "b"]})
    page = html_page(audit(rows, rows), frontier=retrained())
    assert [panel.title for panel in chart.panels] == ["Accuracy against churn", "Broken decisions against churn"]
    for panel in chart.panels:
        assert panel.__html__() in page
        assert panel.__html__() in chart.page()
    assert chart._repr_svg_() == chart._repr_html_() == chart.svg()


def test_colours_are_those_of_the_benchmark_where_it_has_them_and_distinct():
    from lowchurn.bench._figures import STYLES

    found = series_styles(["cold", "distill", "soup", "served-mixture", "base", "soup"])
    assert found["cold"] == STYLES["cold"]
    assert found["distill"] == STYLES["distill"]
    assert len({colour for colour, _ in found.values()}) == len(found) == 5
    assert len({shape for _, shape in STYLES.values()}) == len(STYLES)


@pytest.mark.parametrize("ending", [".svg", ".png", ".html"])
def test_files_are_whole_and_need_no_network(ending, tmp_path):
    candidates().plot(tmp_path / f"frontier{ending}", max_churn=0.02)
    data = (tmp_path / f"frontier{ending}").read_bytes()
    assert len(data) > 5000
    if ending == ".svg":
        assert b"accuracy" in data
        assert b"budget 2 %" in data
    if ending == ".html":
        assert b'src="http' not in data
        assert b"import(" not in data


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_page_of_the_chart_draws_itself_offline(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    candidates().plot(tmp_path / "frontier.html")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_context(offline=True, viewport={"width": 390, "height": 800}).new_page()
        problems = []
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.goto((tmp_path / "frontier.html").as_uri())
        assert view.locator("svg polyline").count() == 2 * 2
        assert view.locator(".over .setting").count() == 2 * (SETTINGS + 2)
        wide = view.evaluate("document.scrollingElement.scrollWidth")
        browser.close()
    assert problems == []
    assert wide <= 390


def test_a_real_model_without_a_dial_is_drawn(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(0, 0.7, 600) > 0.7).astype(int)
    base = LogisticRegression().fit(X[:100], y[:100])
    model = LowChurnClassifier(base=base, max_churn=0.05, strategies=Distill(lam=0.2), random_state=0)
    model.fit(X, y, new=np.arange(600) >= 100)
    chart = model.frontier_.plot(tmp_path / "frontier.svg", selection=model.selection_, max_churn=model.max_churn)
    assert marks(chart, "line") == []
    assert len(marks(chart, "point", "point")) == len(model.frontier_)
    assert [mark.title.partition(": ")[0] for mark in chart.panels[0].marks if mark.chosen] == list(
        model.selection_.served
    )


def test_soft_churn_is_shown_as_a_number():
    chart = candidates().plot(churn="soft", max_churn=0.02)
    assert chart.key[-1].name == "budget 0.02"
    assert chart.panels[0].across.name.startswith("soft churn")


def test_bad_requests_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Frontier.plot: there must be a candidate .* got 0 without. Fit with a base"):
        Frontier().plot()
    with pytest.raises(ValueError, match="got 1 without"):
        Frontier([Candidate("cold")]).plot()
    with pytest.raises(ValueError, match=r"path must end in .svg, .png, .html, got '.*frontier.pdf'"):
        candidates().plot(tmp_path / "frontier.pdf")
    with pytest.raises(ValueError, match="churn must be one of 'hard', 'soft'"):
        candidates().plot(churn="both")
    with pytest.raises(ValueError, match="max_churn must be in"):
        candidates().plot(max_churn=-0.1)
    with pytest.raises(ValueError, match="cannot write .*frontier.svg.*No such file or directory"):
        candidates().plot(tmp_path / "nowhere" / "frontier.svg")
    with pytest.raises(ValueError, match="a file must end in"):
        candidates().plot().save(tmp_path / "frontier.pdf")


def test_svg_needs_no_library_and_errors_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    environment.cache_clear()
    candidates().plot(tmp_path / "frontier.svg")
    for ending in (".png", ".html"):
        with pytest.raises(ImportError, match=r'pip install "lowchurn\[report\]"'):
            candidates().plot(tmp_path / f"frontier{ending}")
    assert [path.name for path in tmp_path.iterdir()] == ["frontier.svg"]


def test_a_file_is_written_whole_or_not_at_all(monkeypatch, tmp_path):
    (tmp_path / "frontier.png").write_bytes(b"old")
    monkeypatch.setattr(Chart, "svg", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        candidates().plot(tmp_path / "frontier.png")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
