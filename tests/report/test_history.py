"""The page of a history: whole, escaped, and laid out in Chromium at three widths, light and dark."""

import re

import numpy as np
import pandas as pd
import pytest

from lowchurn.audit import audit, history
from lowchurn.report import html_page, write_html
from tests.report.test_layout import assert_whole
from tests.report.test_page import EVIL, Balanced, browser, needs_chromium  # noqa: F401 - browser is a fixture

CLASSES = np.array(["approve", "refer to a person", "decline"])


def releases(count, rows=900, labelled=True, classes=CLASSES, seed=0):
    """Answers that change from release to release, most often those of a few restless rows; Italy gets worse."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    country = rng.choice(["Germany", "France", "Italy"], rows)
    answer = np.where(rng.random(rows) < 0.15, rng.integers(0, 3, rows), truth)
    restless = rng.random(rows) < 0.1
    for i in range(count):
        flips = rng.random(rows) < np.where(restless, 0.3, np.where(country == "Italy", 0.05, 0.005))
        answer = np.where(flips, rng.integers(0, 3, rows), answer)
        table = pd.DataFrame({"id": [f"2025-{k:07d}" for k in range(rows)], "prediction": classes[answer]})
        if i == 0:
            table = table.assign(country=country, **({"y": classes[truth]} if labelled else {}))
        yield table


@pytest.fixture(scope="module")
def histories():
    """A year of weeks; a few; two of them; no labels; nothing changed; names that are the worst for a layout."""
    same = [next(releases(1))] * 3
    long = ["credit-income-2025-06-14T09-30-00Z-release-candidate", "x" * 90, "Ünïcode/with/slashes?and=" + "q" * 90]
    worst = np.array(["x" * 200, "a-" * 40, "Ünïcode/with/slashes?and=" + "q" * 90])
    return {
        "year": history(list(releases(52)), label="y", by="country"),
        "few": history({f"v{i}": table for i, table in enumerate(releases(5))}, label="y", by="country"),
        "two": history(list(releases(2)), label="y"),
        "unlabelled": history(list(releases(4, labelled=False)), by="country", names=["v1", "v2", "v3", "v4"]),
        "same": history(same, label="y", by="country"),
        "worst": history(list(releases(3, classes=worst)), label="y", by="country", names=long),
    }


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["year", "few", "two", "unlabelled", "same", "worst"])
def test_nothing_is_cut_and_no_word_is_broken(browser, histories, tmp_path, name, scheme):  # noqa: F811
    write_html(tmp_path / f"{name}.html", histories[name])
    assert_whole(browser, tmp_path / f"{name}.html", scheme)


@needs_chromium
def test_the_rows_are_sorted_and_filtered(browser, histories, tmp_path):  # noqa: F811
    write_html(tmp_path / "page.html", histories["few"])
    view = browser.new_page()
    view.goto((tmp_path / "page.html").as_uri())
    rows = view.locator("#restless-table tbody tr")
    most = max(row.changes for row in histories["few"].restless)
    assert rows.first.locator("td").first.text_content() == str(most)
    view.locator("#restless-table button").nth(1).click()
    assert rows.first.locator("td").first.text_content() == "1"
    view.locator("input[type=search]").fill("refer Italy")
    shown = [row.text_content() for row in rows.all() if row.is_visible()]
    assert shown
    assert all("refer" in text and "Italy" in text for text in shown)
    view.close()


def sections(page):
    return re.findall(r'<section id="(\w+)"', page)


def test_what_is_missing_leaves_no_section(histories):
    everything = ["overview", "series", "triangles", "drift", "restless", "releases", "made"]
    assert sections(html_page(histories["few"])) == everything
    assert sections(html_page(histories["two"])) == [name for name in everything if name != "drift"]
    bare = html_page(histories["unlabelled"])
    assert "accuracy" not in re.sub(r"<[^>]+>", "", bare[bare.index('id="series"') :].split("</section>")[0])
    assert "There are no labels" in bare
    for found in histories.values():
        assert not re.search(r"<(section|table|tbody|ul|dl|figure|dd|h3)[^>]*></\1>", html_page(found))


def test_the_page_has_the_numbers_of_the_history(histories):
    found = histories["few"]
    page = re.sub(r"<[^>]+>", " ", html_page(found))
    for i, j in found.pairs:
        assert f"{100 * found.pairs[i, j].churn.value:.2f} %" in page
        assert f"{100 * found.pairs[i, j].broken.value:.2f} %" in page
    for release in found.releases:
        assert f"{100 * release.accuracy.value:.2f} %" in page


def test_names_from_data_are_escaped():
    classes = np.array([EVIL, "b", "c"])
    tables = [t.assign(country=EVIL) if "country" in t else t for t in releases(3, classes=classes)]
    page = html_page(history(tables, label="y", by="country", names=[EVIL, "\x00", '" onload="x']))
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    assert EVIL not in page
    assert parser.risky == []


def test_a_history_is_not_judged_on_its_page(histories):
    tables = list(releases(2))
    verdict = audit(*tables, label="y").gate(max_churn=0.5)
    with pytest.raises(ValueError, match="takes a title only"):
        html_page(histories["two"], verdict)
    assert "<title>Weekly</title>" in html_page(histories["two"], title="Weekly")
