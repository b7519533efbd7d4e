"""The page of an audit of numbers: whole, escaped, and laid out in Chromium at three widths, light and dark."""

import re

import numpy as np
import pandas as pd
import pytest

from lowchurn.audit import audit, compare
from lowchurn.report import html_page, write_html
from tests.audit.numbers import make_numbers
from tests.report.test_layout import assert_whole
from tests.report.test_page import EVIL, Balanced, browser, needs_chromium  # noqa: F401 - browser is a fixture


def worst():
    """Names that are the worst for a layout, and numbers of nine digits."""
    old, new = make_numbers(300)
    long = "Ünïcode/with/slashes?and=" + "q" * 90
    old = old.assign(country=old.country.map({"de": "x" * 200, "fr": "a-" * 40, "": long}))
    rename = {"yhat": "value" * 30}
    old, new = (
        t.assign(yhat=t.yhat * 12_345_678.9, **{"loss" * 20: t.yhat}).rename(columns=rename) for t in (old, new)
    )
    found = audit(old, new, value="value" * 30, loss="loss" * 20, by="country")
    return found, found.gate(max_moved=0.1, not_worse_than=1e-6, slices={"country": {"max_worse": 0.3}})


def graded():
    rng = np.random.default_rng(0)
    old = pd.DataFrame({"id": range(60), "score": rng.choice([0, 0.5, 1], 60), "task": ["sums", "summaries"] * 30})
    old["answer"] = "An answer that is long enough to be broken into some lines. " * 4
    return compare(old, old.assign(score=(old.score - 0.5 * (rng.random(60) < 0.2)).clip(0, 1)), tolerance=0.1)


@pytest.fixture(scope="module")
def audits():
    """Everything; no target; nothing moved; one row; a graded run; names that are the worst for a layout."""
    old, new = make_numbers(2000, targets=0.9)
    full = audit(old, new, value="yhat", target="y", tolerance=0.25, by=["country", "age"], features="customer")
    bare = audit(old.drop(columns="y"), new, value="yhat", tolerance=0.02, relative=True)
    same = audit(old, old.drop(columns="y"), value="yhat", target="y", by="country")
    one = audit(old.iloc[:1], new[new.id == old.id[0]], value="yhat", target="y")
    runs = graded()
    limits = {"max_moved": 0.3, "max_worse": 0.1, "not_worse_than": 0.02, "never_break": ["country=de"]}
    return {
        "full": (full, full.gate(limits | {"slices": {"country": {"not_worse_than": 0.1}}})),
        "bare": (bare, bare.gate(max_moved=0.2)),
        "same": (same, None),
        "one": (one, one.gate(not_worse_than=0.1)),
        "runs": (runs, runs.gate(not_worse_than=0.0)),
        "worst": worst(),
    }


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["full", "bare", "same", "one", "runs", "worst"])
def test_nothing_is_cut_and_no_word_is_broken(browser, audits, tmp_path, name, scheme):  # noqa: F811
    write_html(tmp_path / f"{name}.html", *audits[name])
    assert_whole(browser, tmp_path / f"{name}.html", scheme)


def section(page, name):
    return page[page.index(f'<section id="{name}"') :].split("</section>")[0]


def test_what_is_missing_leaves_no_section_and_no_empty_figure(audits):
    pages = {name: html_page(*found) for name, found in audits.items()}
    everything = ["verdict", "audited", "figures", "moves", "slices", "drivers", "flips", "made"]
    assert re.findall(r'<section id="(\w+)"', pages["full"]) == everything
    assert re.findall(r'<section id="(\w+)"', pages["bare"]) == [
        n for n in everything if n not in ("slices", "drivers")
    ]
    for page in pages.values():
        Balanced().feed(page)
        assert not re.search(r"<(section|table|tbody|ul|dl|figure|dd|h3)[^>]*></\1>", page)
        assert "decision" not in re.sub(r"<[^>]+>", "", section(page, "figures"))
        assert len(page.encode()) < 260_000
    assert "No number moved at all" in pages["same"]
    assert "identical to the base: the same numbers" in pages["same"]
    assert "How numbers moved" in pages["runs"]
    assert "Evaluation runs" in pages["runs"]


def test_the_page_has_the_numbers_of_the_audit(audits):
    found, verdict = audits["full"]
    page = html_page(found, verdict)
    for figure in (found.moved, found.worse, found.better):
        assert f"{100 * figure.value:.2f}" in section(page, "figures")
    moves = section(page, "moves")
    assert f"Histogram of {found.rows.paired:,} moves" in moves
    assert moves.count('class="limit"') == 3  # the tolerance on both sides, and where nothing moved
    assert moves.count('class="shade ') == np.count_nonzero(found.density.joint)
    rows = re.findall(r"<tr>(.*?)</tr>", section(page, "flips").split("<tbody>")[1])
    assert len(rows) == len(found.flips) == 300
    assert "The 300 biggest of" in section(page, "flips")
    kinds = [re.search(r'class="kind[^"]*">(\w+)', row)[1] for row in rows]
    assert kinds == [flip["kind"] for flip in found.flips]
    assert {edge for edge in np.round(found.histogram.edges, 9) if abs(edge) == 0.25} == {-0.25, 0.25}


def test_names_from_data_are_escaped():
    old, new = make_numbers(40)
    old["country"] = EVIL
    old, new = old.rename(columns={"yhat": EVIL}), new.rename(columns={"yhat": EVIL})
    found = audit(old, new, value=EVIL, gain=EVIL, by="country", old_name=EVIL)
    page = html_page(found, found.gate(not_worse_than=0.1), title=EVIL)
    assert "<img" not in page
    Balanced().feed(page)


def test_a_review_is_about_decisions(audits):
    with pytest.raises(ValueError, match="the page of numbers takes a verdict and a title"):
        html_page(audits["bare"][0], frontier=[{"churn": 0.1, "accuracy": 0.9}])
