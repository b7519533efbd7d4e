"""The frontier on the page: what it reads, what it draws, and the slider in a real browser."""

import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import lowchurn
from lowchurn import LowChurnClassifier
from lowchurn._display import interval_text
from lowchurn._estimates import paired_difference
from lowchurn._json import plain
from lowchurn._tried import read_tried
from lowchurn.report import html_page, write_html
from lowchurn.report._frontier_file import read_frontier
from lowchurn.retrain import report_json
from lowchurn.strategies import Distill
from tests.report import sample
from tests.report.test_page import CONTRAST, EVIL, Balanced, browser, needs_chromium  # noqa: F401 - browser is a fixture

SETTINGS = 21
SERVED = 7  # on the dial, counted from the new model


def record(strategy, setting, accuracy, churn, broken, **more):
    half = 0.012
    return {
        "strategy": strategy,
        "setting": setting,
        "risk": 0.3,
        "accuracy": accuracy,
        "churn": churn,
        "broken": broken,
        "fixed": broken + accuracy - 0.84,
        "rows": 2000.0,
        "accuracy_interval": [accuracy - half, accuracy + half],
        "churn_interval": [max(churn - 0.15 * churn - 0.001, 0.0), churn + 0.2 * churn + 0.001],
        "status": "trained",
        "reason": "",
        "seconds": None,
        "dial": None,
    } | more


def on_the_dial(a):
    churn = 0.05 * (1 - a)
    accuracy = 0.84 + 0.022 * (1 - a) * (1 + 0.8 * a)
    return record("soup", f"members=8, toward_base={a:.2f}", accuracy, churn, 0.3 * churn, dial=a)


def frontier():
    """Cold, warm, two distilled ones, 21 settings of a dial, and two that gave nothing."""
    return [
        record("cold", "", 0.858, 0.082, 0.032),
        record("warm", "", 0.856, 0.061, 0.022),
        record("distill", "lam=0.5, start=warm", 0.851, 0.034, 0.011, fixed=None),
        record("distill", "lam=0.2, start=warm", 0.846, 0.019, 0.006),
        *(on_the_dial(k / (SETTINGS - 1)) for k in range(SETTINGS)),
        {"strategy": "mixup", "setting": "", "accuracy": None, "churn": math.nan, "broken": None, "dial": None,
         "accuracy_interval": [None, None], "status": "skipped", "reason": "no <soft> targets"},
    ]  # fmt: skip


def retrained():
    """As ``lowchurn retrain --report`` writes it."""
    served = f"soup(members=8, toward_base={SERVED / (SETTINGS - 1):.2f})"
    return {
        "parameters": {"max_churn": 0.035, "churn": "hard"},
        "selection": {"served": {served: 1.0}},
        "frontier": frontier(),
    }


@pytest.fixture(scope="module")
def audit():
    rows = pd.DataFrame({"id": range(400), "prediction": np.arange(400) % 2, "y": np.arange(400) % 2})
    return lowchurn.audit.audit(
        rows, rows.assign(prediction=(np.arange(400) % 19 == 0) ^ (rows.prediction > 0)), label="y"
    )


@pytest.fixture(scope="module")
def page(audit):
    return html_page(audit, frontier=retrained())


def table_rows(page):
    """The cells of the frontier's tables in the order of the settings, without markup."""
    part = page[page.index('id="frontier"') :].split("</section>")[0]
    rows = {int(at): row for at, row in re.findall(r'<tr data-row="(\d+)"[^>]*>(.*?)</tr>', part)}
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", rows[at]) for at in sorted(rows)]
    return [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in cells]


def test_the_dial_is_a_line_with_a_band_and_the_rest_are_points(page):
    line = re.search(r'<polyline points="([^"]+)" class="curve lc5"', page).group(1)
    across = [float(pair.split(",")[0]) for pair in line.split()]
    assert len(across) == SETTINGS
    assert across == sorted(across)  # from the base, with no churn, to the new model
    band = re.search(r'<polygon points="([^"]+)" class="band lc5"', page).group(1)
    assert len(band.split()) == 2 * SETTINGS
    assert page.count('data-dial="dial1"') == 2 * 2 * SETTINGS  # a dot and its whiskers, for accuracy and for broken
    assert page.count('data-dial="dial2"') == 2 * 2 * 2  # two settings of distillation are a curve as well
    assert page.count('class="error ') == 2 * 2
    assert page.count('class="limit"') == 2
    assert len(re.findall(r'class="setting[^"]* chosen"', page)) == 2


def test_the_slider_starts_at_what_is_served_and_is_hidden_without_a_script(page):
    slider = re.search(r"<input type=\"range\"[^>]*>", page).group(0)
    assert f'value="{SETTINGS - 1 - SERVED}"' in slider
    assert f'max="{SETTINGS - 1}"' in slider
    assert '<label for="dial1">' in page
    assert '<div class="dial" hidden>' in page
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.risky == []


def test_every_number_is_in_the_table_and_what_is_unknown_is_a_dash(page):
    rows = table_rows(page)
    assert len(rows) == len(frontier())
    change = interval_text(paired_difference(0.05, 0.032, 2000), signed=True)
    assert change.startswith("+1.80 points (+0.")
    assert rows[0] == ["cold plain retrain", "8.20 % (6.87 to 9.94)", "85.80 %", change, "3.20 %", "5.00 %", "over"]
    assert rows[2][2:6] == ["85.10 % (83.90 to 86.30)", "\u2013", "1.10 %", "\u2013"]
    assert rows[4 + SERVED][0] == "soup(toward_base=0.35) served"
    assert rows[4 + SERVED][-1] == "within"
    assert rows[-1] == ["mixup skipped: no &lt;soft&gt; targets", *["\u2013"] * 5, ""]
    assert "The same in all settings: distill: start=warm; soup: members=8." in re.sub(r"<[^>]+>", "", page)
    assert "nan" not in page[page.index('id="frontier"') :].split("</section>")[0].lower()


def band(page):
    """The lower and upper edge of the dial's band, from the base to the new model, in percent from the top."""
    found = re.search(r'<polygon points="([^"]+)" class="band lc5"', page).group(1)
    heights = [float(pair.split(",")[1]) for pair in found.split()]
    half = len(heights) // 2
    return heights[: half - 1 : -1], heights[:half]


def test_the_band_is_the_paired_change_against_the_base(audit, page):
    lower, upper = band(page)
    widths = np.subtract(lower, upper)
    assert widths[0] < 0.2 * widths[-1]  # no row differs at the base, so hardly anything is open there
    assert (np.diff(widths) > 0).all()
    # The scale of the axis follows from two points of the line; the ends of the band are then Tango's.
    line = [float(pair.split(",")[1]) for pair in re.search(r'points="([^"]+)" class="curve', page).group(1).split()]
    points = [on_the_dial(k / (SETTINGS - 1)) for k in reversed(range(SETTINGS))]
    scale = (points[-1]["accuracy"] - points[0]["accuracy"]) / (line[0] - line[-1])
    for at in (0, 7, SETTINGS - 1):
        change = paired_difference(points[at]["fixed"], points[at]["broken"], 2000)
        assert scale * (line[0] - upper[at]) == pytest.approx(change.high, abs=1e-4)
        assert scale * (line[0] - lower[at]) == pytest.approx(change.low, abs=1e-4)
    assert "the change in accuracy against the base on the same rows" in page


def test_without_the_rows_there_is_no_band(audit):
    shown = html_page(audit, frontier=[{k: v for k, v in p.items() if k != "rows"} for p in frontier()])
    assert 'class="band' not in shown
    assert 'class="curve' in shown
    assert "has no interval here" in shown
    assert table_rows(shown)[0][2] == "85.80 % (84.60 to 87.00)"


@pytest.mark.parametrize("rows", [0, 0.3, 1e300, math.inf, -4, None])
@pytest.mark.parametrize(("fixed", "broken"), [(0.0, 0.0), (1.5, 0.2), (-0.2, 1), (math.inf, 0.1), (1e-300, 0.5)])
def test_impossible_rows_and_shares_have_no_interval_and_no_traceback(audit, fixed, broken, rows):
    given = record("cold", "", 0.85, 0.05, broken, fixed=fixed, rows=rows)
    (point,) = read_tried([given]).points
    change = point.change
    assert not change.defined or change.low <= change.value <= change.high
    assert "cold" in html_page(audit, frontier=[given])


def test_positions_of_a_dial_are_folded_but_for_the_ends_every_tenth_and_what_is_served(audit):
    shown = html_page(audit, frontier=sample.retrained())
    section = shown[shown.index('id="frontier"') :].split("</section>")[0]
    seen, folded = (re.sub(r"<(?!/th)[^>]+>", "", part) for part in section.split("<details>"))
    positions = [float(a) for a in re.findall(r"toward_base=([\d.]+)\)(?: served)?</th>", seen)]
    assert positions == [0.0, 0.2, 0.4, sample.SERVED / 50, 0.6, 0.8, 1.0]
    assert len(re.findall(r"toward_base=[\d.]+\)</th>", folded)) == sample.POSITIONS - len(positions)
    assert "The other 44 positions of the curve" in folded
    few = html_page(audit, frontier=[on_the_dial(k / 10) for k in range(11)])
    assert "The other" not in few


@pytest.mark.parametrize(
    ("change", "start"),
    [
        (lambda given: given, SETTINGS - 1 - SERVED),
        (lambda given: given | {"selection": None}, 14),  # the most accurate within 3.5 %
        (lambda given: given["frontier"], SETTINGS - 1),  # nothing is known but the settings: the new model
        (lambda given: [p | {"chosen": p["dial"] == 1} for p in given["frontier"]], 0),
        (lambda given: given | {"parameters": {"max_churn": 0.02}, "selection": {}}, 8),
    ],
)
def test_where_the_slider_starts(audit, change, start):
    slider = re.search(r"<input type=\"range\"[^>]*>", html_page(audit, frontier=change(retrained()))).group(0)
    assert f' value="{start}"' in slider


def test_the_gates_limit_is_the_budget_where_the_settings_have_none(audit):
    drawn = html_page(audit, audit.gate(max_churn=0.02), frontier=frontier())
    assert "the budget of 2 %" in drawn
    assert "the budget of" not in html_page(audit, frontier=frontier())
    far = html_page(audit, audit.gate(max_churn=0.5), frontier=frontier())
    assert "budget 50 %" in far
    assert 'class="limit"' not in far  # it would press the settings into a corner


def test_soft_churn_is_no_share(audit):
    given = retrained()
    given["parameters"] = {"max_churn": None, "churn": "soft"}
    shown = html_page(audit, audit.gate(max_churn=0.02), frontier=given)
    assert "soft churn (mean divergence)" in shown
    assert "the budget of" not in shown  # the gate's limit is about decisions
    assert table_rows(shown)[0][1] == "0.082 (0.0687 to 0.0994)"


def test_several_dials_have_a_slider_each_and_share_the_base(audit):
    other = [on_the_dial(k / 4) | {"strategy": "interpolate"} for k in range(4)]
    base = on_the_dial(1.0) | {"strategy": "base", "setting": ""}
    shown = html_page(audit, frontier=[*frontier()[4:24], *other, base])
    assert [int(m) for m in re.findall(r'<input type="range"[^>]* max="(\d+)"', shown)] == [20, 4]
    assert "Along interpolate" in shown
    assert re.findall(r"<option[^>]*>(.*?)</option>", shown) == ["soup", "interpolate"]
    assert shown.count('data-rows="24 ') == 2


def test_parameters_as_data_and_settings_in_words_give_the_same_section(audit, page, tmp_path):
    """Files that were written before parameters were kept as data are still read."""
    given = retrained()
    for p in given["frontier"]:
        words = p.pop("setting")
        p["parameters"] = dict(part.split("=") for part in words.split(", ")) if words else {}
        p["dial_parameter"] = "toward_base" if p["strategy"] == "soup" else ""
    (tmp_path / "tried.json").write_text(json.dumps(plain(given)))
    for frontier in (given, read_frontier(str(tmp_path / "tried.json"))):
        shown = html_page(audit, frontier=frontier)
        sections = [text[text.index('id="frontier"') :].split("</section>")[0] for text in (page, shown)]
        assert sections[0] == sections[1]


def test_dials_are_told_apart_by_their_other_parameters():
    records = [
        record(
            "soup",
            "",
            0.85,
            0.04,
            0.01,
            dial=a,
            parameters={"members": m, "toward_base": a},
            dial_parameter="toward_base",
        )
        for m in (4, 8)
        for a in (0.0, 0.5, 1.0)
    ]
    tried = read_tried(records)
    assert tried.curves == [[2, 1, 0], [5, 4, 3]]
    assert [p.name for p in tried.points[:2]] == [
        "soup(members=4, toward_base=0.0)",
        "soup(members=4, toward_base=0.5)",
    ]


def test_text_in_a_frontier_stays_text(audit):
    evil = [p | {"strategy": EVIL, "setting": EVIL} for p in frontier()]
    parser = Balanced()
    parser.feed(html_page(audit, frontier=evil))
    assert parser.open == []
    assert parser.risky == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([{"accuracy": "high", "churn": 0.1}], "accuracy of the frontier must be a number or null, got 'high'"),
        ({"points": []}, "frontier without key 'frontier'"),
        ([{"accuracy": 0.9}], "frontier without column 'churn'"),
    ],
)
def test_what_is_no_frontier_is_refused(audit, given, words):
    with pytest.raises(ValueError, match=words):
        html_page(audit, frontier=given)


def test_a_real_model_without_a_dial_is_shown_as_points(audit):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(0, 0.7, 600) > 0.7).astype(int)
    base = LogisticRegression().fit(X[:100], y[:100])
    model = LowChurnClassifier(base=base, max_churn=0.05, strategies=Distill(lam=0.2), random_state=0)
    model.fit(X, y, new=np.arange(600) >= 100)
    pages = [
        html_page(audit, frontier=given)
        for given in (
            model,
            json.loads(report_json(model, {"data": "rows.csv", "base": "prod.skops", "model": "next.skops"})),
        )
    ]
    tried = read_tried(model)
    assert [p.name for p in tried.points if p.chosen] == list(model.selection_.served)
    assert tried.budget == 0.05
    assert tried.points[0].fixed.value == model.frontier_[0].fixed
    assert all(p.change.defined for p in tried.drawn)
    assert (tried.points[0].change.low, tried.points[0].change.high) == model.frontier_[0].accuracy_change_interval
    section = [shown[shown.index('id="frontier"') :].split("</section>")[0] for shown in pages]
    assert section[0] == section[1]
    assert 'type="range"' not in section[0]
    assert "<polyline" not in section[0]
    assert section[0].count('class="error ') == 2 * len(model.frontier_)
    assert html_page(audit, frontier=model.frontier_).count('class="error ') == 2 * len(model.frontier_)
    assert html_page(audit, frontier=model.frontier_.records()).count('class="error ') == 2 * len(model.frontier_)


@pytest.fixture(params=["light", "dark"])
def opened(request, browser, audit, tmp_path):  # noqa: F811
    path = tmp_path / "report.html"
    write_html(path, audit, frontier=retrained())
    view = browser.new_page(color_scheme=request.param)
    view.problems = []
    view.on("console", lambda message: view.problems.append(message.text))
    view.on("pageerror", lambda error: view.problems.append(str(error)))
    view.goto(path.as_uri())
    yield view
    assert view.problems == []
    view.close()


def spoken(view):
    """What the slider's live text says, without runs of spaces."""
    return " ".join(view.locator(".dial:not([hidden]) [aria-live]").inner_text().split())


def highlighted(view):
    """The marks that are highlighted on the figure, as places on it, and whether their rings are seen."""
    return view.eval_on_selector_all(
        "#frontier .over .setting.now",
        "marks => marks.map(m => [m.getBoundingClientRect().x, getComputedStyle(m).outlineStyle])",
    )


@needs_chromium
def test_the_slider_moves_by_keyboard(opened):
    slider = opened.locator("#dial1")
    assert slider.is_visible()
    assert "soup(toward_base=0.35)" in spoken(opened)
    assert "served" in spoken(opened)
    before, below = highlighted(opened)
    assert abs(below[0] - before[0]) > 0  # in both panels
    slider.focus()
    opened.keyboard.press("ArrowRight")
    said = spoken(opened)
    assert said.startswith("soup(toward_base=0.30) within the budget of 3.5 %")
    for figure in (
        "toward_base 0.30",
        "changed 3.50 % (2.88 to 4.30)",
        "accuracy 85.91 %",
        f"against the base {interval_text(paired_difference(0.029640, 0.0105, 2000), signed=True)}",
        "broken 1.05 %",
        "fixed 2.96 %",
    ):
        assert figure in said
    assert "served" not in said
    assert slider.get_attribute("aria-valuetext") == "soup(toward_base=0.30)"
    after, _ = highlighted(opened)
    assert after[0] > before[0]  # the point moves as the thumb does
    assert after[1] != "none"
    opened.keyboard.press("ArrowRight")
    assert "over the budget of 3.5 %" in spoken(opened)
    opened.keyboard.press("Home")
    assert "changed 0.00 % (0.00 to 0.10)" in spoken(opened)
    opened.keyboard.press("End")
    assert spoken(opened).startswith("soup(toward_base=0.00) over")


@needs_chromium
def test_the_slider_follows_its_value_and_agrees_with_the_table(opened):
    slider = opened.locator("#dial1")
    for k in range(SETTINGS):
        slider.fill(str(SETTINGS - 1 - k))
        row = opened.locator("#frontier tbody tr.now")
        assert row.count() == 1
        cells = [" ".join(text.split()) for text in row.locator("th, td").all_text_contents()]
        name = f"soup(toward_base={k / (SETTINGS - 1):.2f})"
        assert cells[0] == (f"{name} served" if k == SERVED else name)
        said = spoken(opened)
        assert cells[0] in said
        for word, cell in zip(("changed", "accuracy", "against the base", "broken", "fixed"), cells[1:6], strict=True):
            assert f"{word} {cell}" in said
        titles = opened.eval_on_selector_all("#frontier .over .setting.now", "found => found.map(t => t.title)")
        assert [title.partition(": ")[0] for title in titles] == 2 * [name.replace("(", "(members=8, ")]


@needs_chromium
def test_paper_shows_the_table_and_a_phone_shows_the_slider(opened):
    opened.emulate_media(media="print")
    assert not opened.locator("#dial1").is_visible()
    assert opened.locator("#frontier tbody tr", has_text="mixup").is_visible()
    frame = "document.querySelector('#frontier .scroll')"
    assert opened.evaluate(f"{frame}.clientHeight === {frame}.scrollHeight")  # nothing is cut off
    opened.emulate_media(media="screen")
    opened.set_viewport_size({"width": 390, "height": 800})
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
    for selector in ("#dial1", "#frontier svg", ".dial .cards"):
        box = opened.locator(selector).first.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert opened.locator("#dial1").bounding_box()["height"] >= 40


@needs_chromium
def test_the_slider_is_labelled_and_its_text_is_read_out_and_seen(opened):
    assert opened.get_by_label("Along soup: from the base to the new model").get_attribute("id") == "dial1"
    assert opened.locator(".dial:not([hidden]) [aria-live=polite]").get_attribute("role") == "status"
    assert opened.evaluate(CONTRAST) >= 4.5


@needs_chromium
def test_without_a_script_there_is_the_table(browser, audit, tmp_path):  # noqa: F811
    path = tmp_path / "report.html"
    write_html(path, audit, frontier=retrained())
    view = browser.new_page(java_script_enabled=False)
    view.goto(path.as_uri())
    assert not view.locator("#dial1").is_visible()
    assert view.locator(f'#frontier tr[data-row="{4 + SERVED}"]').is_visible()
    folded = view.locator('#frontier tr[data-row="6"]')
    assert not folded.is_visible()
    view.locator("#frontier summary").click()
    assert folded.is_visible()
    view.close()


# Sticky decisions beside the others


def test_there_is_a_curve_for_each_family_and_setting():
    tried = read_tried(sample.stuck())
    assert tried.curve_names == ["sticky, toward_base=0.0", "sticky, toward_base=0.4", "served-mix", "distill"]
    for curve in tried.curves:
        churn = [tried.points[i].churn.value for i in curve]
        assert churn == sorted(churn)  # from the base to the new model, whatever the order of the records
    assert [len(curve) for curve in tried.curves] == [sample.MARGINS, sample.MARGINS, 51, 3]


def test_curves_of_a_family_have_its_colour_and_are_told_apart_by_dashes(audit):
    shown = html_page(audit, frontier=sample.stuck())
    lines = re.findall(r'<polyline[^>]* class="(curve[^"]*)"', shown)
    assert lines[:4] == ["curve lc4", "curve dashed lc4", "curve lc6", "curve lc7"]
    assert lines[4:] == lines[:4]  # the same for broken decisions
    key = re.sub(r"<i[^>]*></i>", "", re.search(r'<ul class="key">(.*?)</ul>', shown).group(1))
    names = [re.sub(r"<[^>]+>", "", entry) for entry in re.findall(r"<li>(.*?)</li>", key)]
    assert names == ["plain retrain", *read_tried(sample.stuck()).curve_names, "served", "base 85.20 %", "budget 2 %"]


def test_few_margins_are_in_sight_and_the_rest_is_folded(audit):
    section = html_page(audit, frontier=sample.stuck()).split('id="frontier"')[1].split("</section>")[0]
    seen, folded = section.split("<details>")
    assert seen.count("<tr data-row") <= 1 + 3 * 4 + 3
    assert (seen + folded).count("<tr data-row") == len(sample.stuck()["frontier"])
    assert seen.count("<em>served</em>") == 1  # the served margin is in sight


def test_the_models_that_answer_and_the_paired_interval_come_from_the_record(audit):
    given = sample.record("sticky", "margin=0.2", 0.02, 0.008, dial=0.2, models=2)
    narrow = given | {"accuracy_change": 0.008, "accuracy_change_interval": [0.007, 0.009]}
    measured, recorded = read_tried([given, narrow]).points
    assert (recorded.change.low, recorded.change.high) == (0.007, 0.009)
    assert measured.change.high > 0.01  # of the rows, where the record has no interval
    row = table_rows(html_page(audit, frontier=[narrow]))[0]
    assert row[3] == "+0.80 points (+0.70 to +0.90)"
    assert row[6] == "2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"accuracy_change": -1.2}, r"accuracy_change must be in \[-1, 1\], got -1.2"),
        ({"accuracy_change_interval": [0.2, 0.1]}, "accuracy_change_interval must have its lower end first"),
        ({"accuracy_change_interval": [-3, 0.1]}, "accuracy_change_interval must be in"),
        ({"models": -1}, "models must be a finite number, not negative, got -1"),
        ({"models": 1.5}, "models"),
    ],
)
def test_impossible_changes_and_models_in_a_file_are_refused(tmp_path, change, words):
    (tmp_path / "tried.json").write_text(json.dumps([{"accuracy": 0.9, "churn": 0.1} | change]))
    with pytest.raises(ValueError, match=words):
        read_frontier(str(tmp_path / "tried.json"))


def test_a_real_sticky_model_is_drawn_from_its_report_as_from_itself(audit, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(900, 4))
    y = (X[:, 0] + X[:, 1] ** 2 + rng.normal(0, 0.7, 900) > 0.7).astype(int)
    base = LogisticRegression().fit(X[:100], y[:100])
    model = LowChurnClassifier(base=base, max_churn=0.05, strategies=["sticky", "distill"], random_state=0)
    model.fit(X[100:600], y[100:600], traffic=X[600:], held_out=np.arange(400, 500))
    (tmp_path / "report.json").write_text(report_json(model, {}))
    pages = [html_page(audit, frontier=given) for given in (model, read_frontier(str(tmp_path / "report.json")))]
    sections = [text[text.index('id="frontier"') :].split("</section>")[0] for text in pages]
    assert sections[0] == sections[1]
    assert "Churn was measured on 300 rows of traffic" in re.sub(r"<[^>]+>", "", sections[0])
    tried = read_tried(model)
    for point, row in zip(tried.points, model.frontier_, strict=True):
        assert point.models == row.models
        assert (point.change.low, point.change.high) == row.accuracy_change_interval


def test_without_labels_the_page_shows_churn_along_the_margin_and_gives_the_reason(audit):
    shown = html_page(audit, frontier=sample.stuck(labelled=False))
    section = shown[shown.index('id="frontier"') :].split("</section>")[0]
    words = re.sub(r"<[^>]+>", "", section)
    assert "Accuracy was not measured" in words
    assert "margin →" in words
    for missing in ("against the base", "broken", "undefined", "nan"):
        assert missing not in words.replace("broken decisions are not known", "")
    (line,) = re.findall(r'<polyline points="([^"]+)" class="curve', section)
    heights = [float(pair.split(",")[1]) for pair in line.split()]
    across = [float(pair.split(",")[0]) for pair in line.split()]
    assert across == sorted(across, reverse=True)  # from the base, at a margin of 1, to the new model
    assert heights == sorted(heights, reverse=True)  # to more churn
    assert 'type="range"' in section


@needs_chromium
def test_the_slider_moves_along_any_curve(browser, audit, tmp_path):  # noqa: F811
    path = tmp_path / "report.html"
    write_html(path, audit, frontier=sample.stuck())
    view = browser.new_page()
    view.goto(path.as_uri())
    assert view.locator(".dial:visible").count() == 1
    assert spoken(view).startswith("sticky(margin=")  # the curve of what is served
    assert "models served 2" in spoken(view)
    for k, name in enumerate(read_tried(sample.stuck()).curve_names, start=1):
        view.get_by_label("Curve", exact=True).select_option(name)
        assert view.locator(".dial:visible input").get_attribute("id") == f"dial{k}"
        view.locator(f"#dial{k}").focus()
        view.keyboard.press("End")
        assert view.locator("#frontier tbody tr.now").count() == 1
        assert len(highlighted(view)) == 2
        assert name.split(",")[0] in spoken(view)
        for word in ("changed", "accuracy", "against the base", "broken", "fixed", "models served"):
            assert word in spoken(view)
    view.close()


def test_a_limit_of_broken_decisions_is_a_line_of_its_figure(audit, tmp_path):
    given = sample.stuck()
    given["parameters"]["max_broken"] = 0.005
    (tmp_path / "report.json").write_text(json.dumps(given))
    shown = html_page(audit, frontier=read_frontier(str(tmp_path / "report.json")))
    figures = re.findall(r"<svg.*?</svg>", shown[shown.index('id="frontier"') :])
    assert [figure.count('class="limit"') for figure in figures[:2]] == [1, 2]
    assert "at most 0.5 % broken" in re.sub(r"<[^>]+>", "", shown)
    for row, point in zip(table_rows(shown), given["frontier"], strict=True):
        assert row[-1] == ("within" if point["churn"] <= 0.02 and point["broken"] <= 0.005 else "over")
    assert "the budget of 2 % and 0.5 % broken" in shown
    del given["parameters"]["max_churn"]
    alone = html_page(audit, frontier=given)
    assert "the budget of 0.5 % broken" in alone
    for row, point in zip(table_rows(alone), given["frontier"], strict=True):
        assert row[-1] == ("within" if point["broken"] <= 0.005 else "over")


def test_margins_of_groups_are_one_curve_and_its_positions_show_them(audit):
    points = []
    for k, margin in enumerate((0.0, 0.1, 0.4, 1.0)):
        found = {"members": 1, "margin": 0.0, "trust": 0.0, "margin[north]": margin, "margin[south]": margin / 2}
        given = {"parameters": found, "dial": margin, "dial_parameter": "margin", "models": 2}
        points.append(sample.record("sticky", "", 0.03 - 0.01 * k, 0.005 - 0.001 * k, **given))
    tried = read_tried(points)
    assert tried.curves == [[3, 2, 1, 0]]
    assert tried.curve_names == ["sticky"]
    shown = html_page(audit, frontier=points)
    positions = re.findall(r'data-position="([^"]*)"', shown)
    assert positions == ["0 / 0", "0.1 / 0.05", "0.4 / 0.2", "1 / 0.5"]
    assert "sticky(margin[north]=0.1, margin[south]=0.05)" in re.sub(r"<[^>]+>", "", shown)
