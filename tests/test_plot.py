"""The frontier's chart: what it draws, and the files it writes."""

import math
import shutil
import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

pytest.importorskip("altair")
pytest.importorskip("vl_convert")

from lowchurn import LowChurnClassifier
from lowchurn import _charts as charts
from lowchurn.estimator import Candidate, Frontier, Selection
from lowchurn.estimator._plot import colours, frontier_rows
from tests.report.test_frontier import SETTINGS, frontier

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def number(value):
    return math.nan if value is None else value


def candidates():
    """The report's synthetic frontier as the estimator keeps it."""
    return Frontier(
        Candidate(**{k: tuple(map(number, v)) if isinstance(v, list) else number(v) for k, v in row.items()})
        for row in frontier()
    )


def selection(name):
    return Selection({name: 1.0}, "", True, 0.3, 0.86, 0.03, 0.01, 3, {"choose": 1000})


def layers(chart, kind):
    """Layers of one kind of mark, with the rows that they draw."""
    spec = chart.to_dict()
    return [(layer, layer["data"]["values"]) for layer in spec["layer"] if layer["mark"]["type"] == kind]


def test_dials_are_curves_with_bands_and_others_are_points():
    chart = candidates().plot(selection=selection("soup(members=8, toward_base=0.35)"), max_churn=0.035)
    ((line, on_line),) = layers(chart, "line")
    assert [row["dial"] for row in on_line] == [k / (SETTINGS - 1) for k in range(SETTINGS)]
    assert line["encoding"]["order"]["field"] == "dial"
    ((_, band),) = layers(chart, "area")
    assert len(band) == SETTINGS
    dotted, single, ring = layers(chart, "point")
    assert [len(rows) for _, rows in (dotted, single, ring)] == [SETTINGS, 4, 1]
    assert ring[1][0]["name"] == "soup(members=8, toward_base=0.35)"
    budget, *whiskers = layers(chart, "rule")
    assert budget[1][0]["churn"] == 0.035
    assert [len(rows) for _, rows in whiskers] == [SETTINGS, 4, 4]


def test_what_is_unknown_is_not_drawn():
    some = Frontier(
        [
            Candidate("cold", "", accuracy=0.9, churn=0.05, accuracy_interval=(0.88, 0.92)),
            Candidate("warm", "", accuracy=0.9, churn=math.nan),
            Candidate("mixup", "", status="failed"),
        ]
    )
    (row,) = frontier_rows(some, {})
    assert row["fixed"] is None
    assert row["churn_low"] is None
    whiskers = layers(some.plot(), "rule")
    assert [len(rows) for _, rows in whiskers] == [1, 0]


def test_colours_are_those_of_the_benchmark_where_it_has_them_and_distinct():
    from lowchurn.bench._figures import COLOURS

    found = colours(["cold", "distill", "soup", "served-mixture", "base", "soup"])
    assert found["cold"] == COLOURS["cold"]
    assert found["distill"] == COLOURS["distill"]
    assert len(set(found.values())) == len(found) == 5


@pytest.mark.parametrize("ending", [".svg", ".png", ".html"])
def test_files_are_whole_and_need_no_network(ending, tmp_path):
    candidates().plot(tmp_path / f"frontier{ending}", max_churn=0.02)
    data = (tmp_path / f"frontier{ending}").read_bytes()
    assert len(data) > 5000
    if ending == ".svg":
        assert b"accuracy" in data
        assert b"budget 2%" in data
    if ending == ".html":
        assert b'src="http' not in data
        assert b"import(" not in data


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium")
def test_the_page_of_the_chart_draws_itself_offline(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api")
    candidates().plot(tmp_path / "frontier.html")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_context(offline=True).new_page()
        problems = []
        view.on("pageerror", lambda error: problems.append(str(error)))
        view.goto((tmp_path / "frontier.html").as_uri())
        view.wait_for_selector("#vis canvas, #vis svg")
        browser.close()
    assert problems == []


def test_a_real_model_without_a_dial_is_drawn(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(0, 0.7, 600) > 0.7).astype(int)
    base = LogisticRegression().fit(X[:100], y[:100])
    model = LowChurnClassifier(base=base, max_churn=0.05, random_state=0).fit(X, y, new=np.arange(600) >= 100)
    chart = model.frontier_.plot(tmp_path / "frontier.svg", selection=model.selection_, max_churn=model.max_churn)
    assert layers(chart, "line") == []
    points, ring = layers(chart, "point")
    assert len(points[1]) == len(model.frontier_)
    assert [row["name"] for row in ring[1]] == list(model.selection_.served)


def test_soft_churn_is_shown_as_a_number():
    chart = candidates().plot(churn="soft", max_churn=0.02)
    ((_, words),) = layers(chart, "text")
    assert words[0]["words"] == "budget 0.02"


def test_bad_requests_are_refused(tmp_path):
    with pytest.raises(ValueError, match="Frontier.plot: there must be a candidate .* got 0 without. Fit with a base"):
        Frontier().plot()
    with pytest.raises(ValueError, match="got 1 without"):
        Frontier([Candidate("cold", "")]).plot()
    with pytest.raises(ValueError, match=r"path must end in .svg, .png, .html, got '.*frontier.pdf'"):
        candidates().plot(tmp_path / "frontier.pdf")
    with pytest.raises(ValueError, match="churn must be one of 'hard', 'soft'"):
        candidates().plot(churn="both")
    with pytest.raises(ValueError, match="max_churn must be in"):
        candidates().plot(max_churn=-0.1)
    with pytest.raises(ValueError, match="cannot write .*frontier.svg.*No such file or directory"):
        candidates().plot(tmp_path / "nowhere" / "frontier.svg")
    with pytest.raises(ValueError, match="a file must end in"):
        charts.rendered(None, ".pdf")


def test_without_altair_the_error_names_the_cure(monkeypatch):
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(ImportError, match=r'pip install "lowchurn\[report\]"'):
        candidates().plot()
